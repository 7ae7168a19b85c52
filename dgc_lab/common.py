"""What every room needs: the error that says what to do, checks of arguments, arrays in files, memory.

The standard library, and numpy where arrays are kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import io
import math
import numbers
import operator
import os
import re
import shutil
import struct
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import tensorflow as tf

Seed: TypeAlias = "tuple[int, int] | tf.Tensor"  # of a stateless random operation: two integers
SEAL, SEALED = b"\nsha256 ", 8 + 64  # what stands before the digest of a file, and the bytes of both
COMPILERS = ("g++", "c++", "clang++")  # of C++, in the order in which they are looked for
ZIP_END = struct.Struct("<4s4H2LH")  # the last 22 bytes of a zip; before its last number the list's size and place


class LabError(RuntimeError):
    """Something that the lab needs is not here; its message is meant to be read by the user as it is."""


def check_choice(argument: str, value, allowed):
    """The value, when it is one of those allowed; else a ValueError that names argument, value and choices."""
    if value not in list(allowed):  # a dict would not take what has no hash
        raise ValueError(f"{argument} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def check_flag(argument: str, value) -> bool:
    """Return the value if it is True or False; raise a ValueError otherwise."""
    if not isinstance(value, bool):
        raise ValueError(f"{argument} must be True or False, got {value!r}")
    return value


def check_text(argument: str, value) -> str:
    """Return the value if it is a string; raise a ValueError otherwise."""
    if not isinstance(value, str):
        raise ValueError(f"{argument} must be text, got {value!r}")
    return value


def check_instance(argument: str, value, kind: type):
    """Return the value if it is an instance of ``kind``; raise a ValueError otherwise."""
    if not isinstance(value, kind):
        raise ValueError(f"{argument} must be an instance of {kind.__name__}, got {value!r}")
    return value


def check_list(argument: str, value) -> list:
    """Return the members of a list, a tuple, an array or another iterable.

    Raises a ValueError if the value is not iterable, and for text and dictionaries: nobody means their members.
    """
    if not isinstance(value, str | bytes | Mapping):
        with contextlib.suppress(TypeError):
            return list(value)
    raise ValueError(f"{argument} must be a list, got {value!r}")


def scalar(value):
    """Return the number in a tensor or array of no dimension; any other value as it is."""
    return value.numpy() if getattr(value, "shape", None) == () and hasattr(value, "numpy") else value


def check_whole(argument: str, value, least: int, most: int | None = None) -> int:
    """The value as an int, when it is a whole number of at least ``least``, at most ``most``; else a ValueError."""
    value = scalar(value)
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < least or value >= 2**63 or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        allowed += " and below 2**63" if whole and value >= 2**63 and most is None else ""
        raise ValueError(f"{argument} must be a whole number {allowed}, got {value!r}")
    return int(value)


def cache_folder() -> Path:
    """Where what was built is kept: in ``DGC_LAB_CACHE``, else in ``~/.cache/dgc_lab``."""
    return named_or_at_home("DGC_LAB_CACHE", ".cache/dgc_lab")


def named_or_at_home(variable: str, place: str) -> Path:
    """The folder that an environment variable names, else a place in the home folder; a LabError without either."""
    try:
        return Path(os.environ.get(variable) or Path.home() / place)
    except RuntimeError:
        raise LabError(f"there is no home folder: set {variable} to a folder of yours") from None


def check_path(argument: str, given) -> Path:
    """Return the path if the value is text or a path; raise a ValueError otherwise."""
    if not isinstance(given, str | os.PathLike):
        raise ValueError(f"{argument} must be a path, got {given!r}")
    return Path(given)


def check_file(argument: str, file: str | os.PathLike) -> Path:
    """The path, when a file is there, or nothing yet; else a ValueError, as for a folder or a device."""
    return _check_path(argument, file, "a file", Path.is_file)


def check_folder(argument: str, folder: str | os.PathLike) -> Path:
    """The path, when a folder is there, or nothing yet; else a ValueError."""
    return _check_path(argument, folder, "a folder", Path.is_dir)


def _check_path(argument: str, given: str | os.PathLike, kind: str, is_kind) -> Path:
    path = check_path(argument, given)
    try:
        there = next(each for each in (path, *path.parents) if each.exists())
        right = is_kind(path) if there == path else there.is_dir()  # what is not there yet can be made in a folder only
    except (OSError, StopIteration):  # too long a name; a working folder that is gone
        right = False
    if not right or "\0" in str(given):
        raise ValueError(f"{argument} must be {kind}, or not be there yet, got {str(given)!r}: name another")
    return path


def check_some(argument: str, value):
    """The value, when it holds at least one thing; else a ValueError."""
    if not isinstance(value, Sized) or getattr(value, "ndim", 1) == 0 or len(value) == 0:
        raise ValueError(f"{argument} must hold at least one thing, got {value!r}")
    return value


BOUNDS = {"above": operator.gt, "at least": operator.ge, "below": operator.lt, "at most": operator.le}
INTERVALS = {"in [0, 1]": "at least 0 and at most 1", "in (0, 1]": "above 0 and at most 1"}


def check_number(argument: str, value, allowed: str, finite: bool = False):
    """The value, when it is a number within what ``allowed`` says; else a ValueError that says it.

    The words are the rule, so that the message cannot say another one: "above 0", "at least 0 and below 1", "at least 0
    and finite", "in [0, 1]". What else they say is for the reader: "above 0, or None for no clipping". Nothing allows
    NaN; ``finite`` refuses infinity without a word.

    Example:
        >>> check_number("momentum", 1.5, "at least 0 and below 1")
        Traceback (most recent call last):
        ValueError: momentum must be at least 0 and below 1, got 1.5
    """
    number = scalar(value)
    if not isinstance(number, numbers.Real) or isinstance(number, bool):
        raise ValueError(f"{argument} must be a number, got {value!r}")
    if not is_within(number, allowed) or (finite and math.isinf(number)):
        raise ValueError(f"{argument} must be {allowed}, got {value!r}")
    return value


def is_within(value, allowed: str) -> bool:
    """Whether a number is within what the words of `check_number` say."""
    try:
        value = float(value)
    except OverflowError:  # a whole number beyond all of them
        return False
    rule = INTERVALS.get(allowed, allowed)
    bounds = re.findall(rf"({'|'.join(BOUNDS)}) ([\d.]*\d)", rule)
    inside = not math.isnan(value) and all(BOUNDS[word](value, float(bound)) for word, bound in bounds)
    return inside and not (math.isinf(value) and "finite" in rule)


def read_text(file: str | os.PathLike) -> str:
    """A text file, in UTF-8 with or without a mark before it; a LabError where it is a folder or not UTF-8."""
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabError(f"{file} must be text in UTF-8, got {error.object[error.start : error.end]!r}") from None
    except IsADirectoryError:
        raise LabError(f"{file} must be a file, it is a folder") from None


@contextlib.contextmanager
def at_file(file: str | os.PathLike, done: str = "written"):
    """Make of the system's error at a file a LabError that names it and says what to do.

    >>> with at_file("/proc/rows.jsonl"):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    dgc_lab.common.LabError: /proc/rows.jsonl cannot be written (No space left on device). Fix that and run the...
    """
    try:
        yield
    except OSError as error:
        told = f"{file} cannot be {done} ({error.strerror or error})"
        raise LabError(f"{told}. Fix that and run the same call again: it goes on from what was kept") from error


def save_arrays(file: str | os.PathLike, *arrays, **named) -> None:
    """Write arrays as ``numpy.savez`` does, with the file's SHA-256 at its end: the whole file, or nothing.

    A LabError where it cannot be written.
    """
    import numpy as np

    unfinished = Path(f"{file}.unfinished")
    try:
        with at_file(file):
            unfinished.parent.mkdir(parents=True, exist_ok=True)
            with open(unfinished, "w+b") as out:
                np.savez(out, *arrays, **named)
                out.seek(0)
                digest = hashlib.file_digest(out, "sha256").hexdigest().encode()
                out.seek(0, os.SEEK_END)
                out.write(SEAL + digest)
                out.flush()
                os.fsync(out.fileno())
            os.replace(unfinished, file)
    except LabError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def load_arrays(file: str | os.PathLike) -> dict:
    """The arrays of `save_arrays` by name, in their order; a LabError where a single bit is not as it was written.

    A file without a SHA-256, as ``numpy.savez`` writes it, is read too, with what a zip itself notices.
    """
    import numpy as np

    with at_file(file, "read"):
        data = Path(file).read_bytes()
    content, seal, digest = data[:-SEALED], data[-SEALED : len(SEAL) - SEALED], data[len(SEAL) - SEALED :]
    sealed = seal == SEAL and hashlib.sha256(content).hexdigest().encode() == digest
    try:
        if not sealed and not data[-ZIP_END.size :].startswith(b"PK\5\6"):
            raise ValueError("its SHA-256 is another one")
        *_, size, start, _ = ZIP_END.unpack(data[-ZIP_END.size :])
        if not sealed and start < 2**32 - 1 and start + size != len(data) - ZIP_END.size:
            raise ValueError("its list of arrays is not whole")  # zipfile passes over what a shorter list leaves out
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # whatever the readers of zip files and of arrays came upon
        told = f"{file} cannot be read, it is damaged ({str(error) or type(error).__name__})"
        raise LabError(f"{told}. Remove it, and the same call goes on from what else is kept") from None


def results_file(name: str) -> Path:
    """A file in ``results/``: beside the package in a clone, inside it where it was installed from a wheel."""
    package = Path(__file__).resolve().parent
    return next(folder / name for folder in (package.parent / "results", package / "results") if folder.exists())


def cpp_compiler() -> str | None:
    """The path of the C++ compiler that is taken; None without one."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def free_memory() -> None:
    """Free what nobody can reach any more, and hand the freed pages to the system.

    A trainer and its traces are a cycle of tens to hundreds of megabytes. Python lets such cycles lie until it has made
    many more objects, and the C library keeps what they held for itself.

    Source: ``malloc_trim(3)``, which is glibc's; other C libraries keep their pages.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
