"""Wheels of Horovod that were built for this lab and are known by their SHA-256. They spare the build. Lesson 5.

``horovod_wheels.json`` lists them and the release that they are attached to; tools/build_wheels.py writes it. Where a
room has no internet, ``DGC_LAB_WHEELS`` names another place that has them: ``file:///srv/wheels``, or a server.
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
NO_ADDRESS = "YOUR_NAME/YOUR_COPY"  # until tools/badges.py has put a copy's address there
TIMEOUT = 30  # seconds without a byte


def environment(tensorflow: str) -> dict[str, str]:
    """What a wheel must have been built for, to be of use here.

    Example:
        >>> environment("2.20.0")["tensorflow"]
        '2.20.0'
    """
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return {"python": python, "tensorflow": tensorflow, "platform": sysconfig.get_platform()}


def sha256_of(file: Path) -> str:
    """A file's SHA-256, as hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def fetch_wheel(tensorflow: str, folder: Path) -> tuple[Path | None, str]:
    """Bring the wheel for this Python and that TensorFlow into ``folder``, when the lab knows one.

    Returns:
        Its path, or None where there is none, it cannot be had, or it is not the one that the lab knows; and a sentence
        that says which.
    """
    table, here = json.loads(TABLE.read_text(encoding="utf-8")), environment(tensorflow)
    known = next((wheel for wheel in table["wheels"] if here.items() <= wheel.items()), None)
    if known is None:
        return None, f"the lab has no wheel for {', '.join(here.values())}"
    address = os.environ.get("DGC_LAB_WHEELS", table["address"])
    if NO_ADDRESS in address:
        return None, "this copy has no address of its own yet (tools/badges.py), from which to take the lab's wheel"
    source, target = f"{address.rstrip('/')}/{known['file']}", folder / known["file"]
    try:
        with urllib.request.urlopen(source, timeout=TIMEOUT) as answer:
            target.write_bytes(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        return None, f"{source} cannot be had ({error})"
    if (found := sha256_of(target)) != known["sha256"]:
        target.unlink()
        return None, f"{source} has SHA-256 {found}, not the {known['sha256']} that the lab knows: it is not installed"
    return target, f"took {source}, whose SHA-256 the lab knows"
