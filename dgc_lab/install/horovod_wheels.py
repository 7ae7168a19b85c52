"""Prebuilt wheels of Horovod, identified by their SHA-256, which save building it. Lesson 5.

``horovod_wheels.json`` lists them and the release that they are attached to; tools/build_wheels.py writes it. Without
internet access, set ``DGC_LAB_WHEELS`` to another location of the wheels: ``file:///srv/wheels``, or a server.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import sys
import sysconfig
import urllib.request
from pathlib import Path

TABLE = Path(__file__).with_name("horovod_wheels.json")
NO_ADDRESS = "YOUR_NAME/YOUR_COPY"  # placeholder, which tools/badges.py replaces with the address of a copy
TIMEOUT = 30  # seconds without receiving a byte


def environment(tensorflow: str) -> dict[str, str]:
    """Return the Python, TensorFlow and platform for which a usable wheel must have been built.

    Example:
        >>> environment("2.20.0")["tensorflow"]
        '2.20.0'
    """
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return {"python": python, "tensorflow": tensorflow, "platform": sysconfig.get_platform()}


def sha256_of(file: Path) -> str:
    """Return a file's SHA-256 as hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def fetch_wheel(tensorflow: str, folder: Path) -> tuple[Path | None, str]:
    """Download the wheel for this Python and the given TensorFlow to ``folder``, if the lab has one.

    Returns:
        The wheel's path and a sentence with its source. If the lab has no wheel, the download fails, or the SHA-256 is
        wrong, None and a sentence with the reason.
    """
    table, here = json.loads(TABLE.read_text(encoding="utf-8")), environment(tensorflow)
    known = next((wheel for wheel in table["wheels"] if here.items() <= wheel.items()), None)
    if known is None:
        return None, f"the lab has no wheel for {', '.join(here.values())}"
    address = os.environ.get("DGC_LAB_WHEELS") or table["address"]
    if NO_ADDRESS in address:
        return None, "this copy has no address yet from which to download the lab's wheel (run tools/badges.py)"
    source, target = f"{address.rstrip('/')}/{known['file']}", folder / known["file"]
    try:
        with urllib.request.urlopen(source, timeout=TIMEOUT) as answer:
            target.write_bytes(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        return None, f"{source} cannot be downloaded ({error})"
    if (found := sha256_of(target)) != known["sha256"]:
        target.unlink()
        return None, f"{source} has SHA-256 {found}, expected {known['sha256']}: it was not installed"
    return target, f"downloaded {source}, which has the expected SHA-256"
