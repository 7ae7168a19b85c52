"""Unpack what strangers have packed: nothing gets out of its folder, and sizes are limited while they are read."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
import zipfile
import zlib
from pathlib import Path, PurePosixPath

try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it: zipfile says so of such a zip, by this error
    LZMAError = RuntimeError

MOST_BYTES = 20 * 2**20  # of one file
MOST_FILES = 10_000
MOST_OF_ONE, MOST_IN_ALL = 5 * MOST_BYTES, 2 * 2**30  # of a student's zip and of a class's, unpacked
LEAVE_OUT = re.compile(r"(^|/)(__MACOSX|\.|Thumbs\.db|desktop\.ini|index\.html$)")
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    LZMAError,
    OSError,
    RuntimeError,
    NotImplementedError,
    EOFError,
    ValueError,
    IndexError,
)


def unpack(archive: Path, target: Path, most: int = MOST_IN_ALL) -> tuple[list[str], dict[Path, str]]:
    """Unpack a zip below ``target``; what is wrong with all of it, and with each file that is not there for it.

    Both in words, the files by where they would be. A full disk is no zip's fault, and is the system's OSError.
    """
    remarks, lost, spent = [], {}, 0
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = [entry for entry in opened.infolist() if not entry.is_dir()]
            if len(entries) > MOST_FILES:
                return [f"{archive.name} holds more than {MOST_FILES:,} files"], {}
            for entry in entries:
                name = PurePosixPath(entry.filename.replace("\\", "/"))
                is_link = (entry.external_attr >> 16) & 0o170000 == 0o120000
                if not name.parts or name.is_absolute() or ".." in name.parts or ":" in name.parts[0] or is_link:
                    remarks.append(f"{archive.name} holds a path that leads out of it; left out: {str(name)[:80]}")
                elif LEAVE_OUT.search(str(name)):
                    continue
                elif spent >= most:
                    lost[target / name] = f"{archive.name} is too large when unpacked; the rest was left out"
                else:
                    size, words = _unpack_one(opened, entry, target / name, most - spent)
                    spent += size
                    lost |= {target / name: f"{archive.name}: {name.name[:80]} {words}"} if words else {}
    except UNREADABLE as error:
        if is_full(error):
            raise
        remarks.append(f"{archive.name} cannot be unpacked: {error}")
    return remarks, lost


def is_full(error: Exception) -> bool:
    """Whether an error says that a disk, or somebody's share of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _unpack_one(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, left: int) -> tuple[int, str]:
    """Write one file of a zip, with its time; the bytes that it took, and what is wrong with it, one of them empty."""
    limit, limited = min(MOST_OF_ONE if path.suffix.lower() == ".zip" else MOST_BYTES, left), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with opened.open(entry) as source, path.open("wb") as copy:
            limited = _Limited(source, limit + 1)
            shutil.copyfileobj(limited, copy)
        with contextlib.suppress(ValueError, OverflowError):  # whoever of two files is the newer is asked later
            written = time.mktime((*entry.date_time, 0, 0, -1))
            os.utime(path, (written, written))
    except UNREADABLE as error:
        with contextlib.suppress(OSError):  # its name can be what is wrong
            path.unlink()
        if is_full(error):
            raise
        taken = limit + 1 - limited.left if limited else 0  # it may have been long until then
        return taken, f"cannot be unpacked: {error}"
    size = path.stat().st_size
    if size <= limit:
        return size, ""
    path.unlink()
    return size, f"is too large when unpacked, more than {limit / 2**20:.0f} MB"


class _Limited:
    """A stream that ends after so many bytes."""

    def __init__(self, stream, left: int):
        self.stream, self.left = stream, left

    def read(self, size: int = 65_536) -> bytes:
        """As a file's."""
        found = self.stream.read(min(size, self.left))
        self.left -= len(found)
        return found
