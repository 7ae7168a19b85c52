"""Shared fixtures of the tests with Colab's pins, which `make test-colab` runs in a separate environment."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

from classic import classic, page, show  # noqa: F401, fixtures for the tests

from browser import screenshot_of_a_failure  # noqa: F401, a fixture for the tests
