"""Extract untrusted zips: nothing leaves the target folder, and sizes are limited while reading."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

try:
    from lzma import LZMAError
except ImportError:  # Python was built without lzma; zipfile then raises this error
    LZMAError = RuntimeError

MOST_BYTES = 50 * 2**20  # of a file; stored outputs can be large
MOST_FILES, MOST_FILES_OF_ONE = 200_000, 5_000  # of a class's zip, and of one student
MOST_IN_ALL, MOST_OF_ONE = 10 * 2**30, 2 * MOST_BYTES  # unpacked, of a class's zip and of one student
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


def unpack(
    archive: Path, target: Path, class_folder: Callable[[list[PurePosixPath]], PurePosixPath] | None = None
) -> tuple[list[str], dict[Path, str]]:
    """Extract a zip below ``target``; return remarks on the zip, and the reason for each missing file.

    Missing files are given by their paths in ``target``; if there are too many, only the first one left out is listed.
    A full disk is not the zip's fault, and raises an OSError.

    ``class_folder`` finds the folder that holds the students' files and folders in the zip of a class. Each student may
    fill a small part of the space. Without it, all files are one student's.
    """
    remarks, lost, spent, counts = [], {}, Counter(), Counter()
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = {}
            for entry in opened.infolist():
                name = PurePosixPath(entry.filename.replace("\\", "/"))
                is_link = (entry.external_attr >> 16) & 0o170000 == 0o120000
                if entry.is_dir():
                    continue
                if not name.parts or name.is_absolute() or ".." in name.parts or ":" in name.parts[0] or is_link:
                    remarks.append(f"{archive.name} contains a path outside its folder; left out: {str(name)[:80]}")
                elif not LEAVE_OUT.search(str(name)):
                    entries[name] = entry
            if len(entries) > MOST_FILES:
                return [f"{archive.name} contains more than {MOST_FILES:,} files"], {}
            depth = len(class_folder(list(entries)).parts) if class_folder and entries else None
            for name, entry in entries.items():
                owner = () if depth is None else name.parts[depth : depth + 1]
                counts[owner] += 1
                left = min(MOST_IN_ALL - spent.total(), MOST_OF_ONE - spent[owner])
                if counts[owner] > MOST_FILES_OF_ONE + 1:
                    continue
                if counts[owner] > MOST_FILES_OF_ONE:
                    lost[target / name] = (
                        f"{archive.name}: more than {MOST_FILES_OF_ONE:,} files; the rest was left out"
                    )
                elif left <= 0:
                    lost[target / name] = f"{archive.name} is too large when unpacked; the rest was left out"
                else:
                    size, words = _unpack_one(opened, entry, target / name, left)
                    spent[owner] += size
                    lost |= {target / name: f"{archive.name}: {name.name[:80]} {words}"} if words else {}
    except UNREADABLE as error:
        if is_full(error):
            raise
        remarks.append(f"{archive.name} cannot be unpacked: {error}")
    return remarks, lost


def is_full(error: Exception) -> bool:
    """Return whether an error means that a disk or a quota is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _unpack_one(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, left: int) -> tuple[int, str]:
    """Extract one file with its modification time; return its size in bytes, and an error or an empty string."""
    limit, stream = min(MOST_OF_ONE if path.suffix.lower() == ".zip" else MOST_BYTES, left), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with opened.open(entry) as source, path.open("wb") as copy:
            stream = _TruncatedStream(source, limit + 1)
            shutil.copyfileobj(stream, copy)
        with contextlib.suppress(ValueError, OverflowError):  # used later to choose the newer of two files
            written = time.mktime((*entry.date_time, 0, 0, -1))
            os.utime(path, (written, written))
    except UNREADABLE as error:
        with contextlib.suppress(OSError):  # its name may be the error
            path.unlink()
        if is_full(error):
            raise
        taken = limit + 1 - stream.left if stream else 0  # bytes read before the error
        return taken, f"cannot be unpacked: {error}"
    size = path.stat().st_size
    if size <= limit:
        return size, ""
    path.unlink()
    return size, f"is too large when unpacked, more than {limit / 2**20:.0f} MB"


class _TruncatedStream:
    """Stream that ends after a number of bytes."""

    def __init__(self, stream, left: int):
        self.stream, self.left = stream, left

    def read(self, size: int = 65_536) -> bytes:
        """Read like a file."""
        found = self.stream.read(min(size, self.left))
        self.left -= len(found)
        return found
