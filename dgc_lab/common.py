"""Helpers for all subpackages: the base class of errors, checks of arguments, files of arrays, memory.

Uses only the standard library, and numpy to save and load arrays.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import io
import json
import math
import numbers
import operator
import os
import re
import shutil
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import tensorflow as tf

Seed: TypeAlias = "tuple[int, int] | tf.Tensor"  # of stateless random operations: two integers
DIGEST_PREFIX, TRAILER_SIZE = b"\nsha256 ", 8 + 64  # prefix of a file's digest, and bytes of prefix and digest
COMPILERS = ("g++", "c++", "clang++")  # C++ compilers, in the order of the search
# Keras's settings in which the lab's models are defined
KERAS = {"backend": "tensorflow", "floatx": "float32", "image_data_format": "channels_last"}


class LabError(RuntimeError):
    """Error with a message written for users, for example because a requirement is missing."""


def check_choice(argument: str, value, allowed):
    """Return the value if it is among the allowed ones; raise a ValueError otherwise."""
    if value not in list(allowed):  # a list, because a dict rejects unhashable values
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

    Raises a ValueError if the value is not iterable, or is text or a dictionary, which are never meant as lists.
    """
    if not isinstance(value, str | bytes | Mapping):
        with contextlib.suppress(TypeError):
            return list(value)
    raise ValueError(f"{argument} must be a list, got {value!r}")


def scalar(value):
    """Return the number in a tensor without dimensions; return any other value unchanged."""
    return value.numpy() if getattr(value, "shape", None) == () and hasattr(value, "numpy") else value


def check_whole(argument: str, value, least: int, most: int | None = None) -> int:
    """Return the value as an int if it is a whole number from ``least`` to ``most``; raise a ValueError otherwise."""
    value = scalar(value)
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < least or value >= 2**63 or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        allowed += " and below 2**63" if whole and value >= 2**63 and most is None else ""
        raise ValueError(f"{argument} must be a whole number {allowed}, got {value!r}")
    return int(value)


def cache_folder() -> Path:
    """Return the folder for build results: ``DGC_LAB_CACHE``, or ``~/.cache/dgc_lab`` by default."""
    return folder_from_env("DGC_LAB_CACHE", ".cache/dgc_lab")


def folder_from_env(variable: str, default: str) -> Path:
    """Return the folder in an environment variable, or ``default`` in the home folder.

    Raises a LabError if the variable is not set and there is no home folder.
    """
    try:
        return Path(os.environ.get(variable) or Path.home() / default)
    except RuntimeError:
        raise LabError(f"there is no home folder: set {variable} to the path of a folder") from None


def check_path(argument: str, given) -> Path:
    """Return the path if the value is text or a path; raise a ValueError otherwise."""
    if not isinstance(given, str | os.PathLike):
        raise ValueError(f"{argument} must be a path, got {given!r}")
    return Path(given)


def check_file(argument: str, file: str | os.PathLike) -> Path:
    """Return the path of a file that exists or can be created; raise a ValueError for others, such as devices."""
    return _check_path(argument, file, "a file", Path.is_file)


def check_folder(argument: str, folder: str | os.PathLike) -> Path:
    """Return the path of a folder that exists or can be created; raise a ValueError otherwise."""
    return _check_path(argument, folder, "a folder", Path.is_dir)


def _check_path(argument: str, given: str | os.PathLike, kind: str, is_kind) -> Path:
    path = check_path(argument, given)
    try:
        existing = next(each for each in (path, *path.parents) if each.exists())
        valid = is_kind(path) if existing == path else existing.is_dir()  # only folders can contain new files
    except (OSError, StopIteration):  # the name is too long; the working folder was removed
        valid = False
    if not valid or "\0" in str(given):
        raise ValueError(f"{argument} must be {kind}, or not exist yet, got {str(given)!r}: choose another")
    return path


def check_some(argument: str, value):
    """Return the value if it has at least one element; raise a ValueError otherwise."""
    if not isinstance(value, Sized) or getattr(value, "ndim", 1) == 0 or len(value) == 0:
        raise ValueError(f"{argument} must have at least one element, got {value!r}")
    return value


BOUNDS = {"above": operator.gt, "at least": operator.ge, "below": operator.lt, "at most": operator.le}
INTERVALS = {"in [0, 1]": "at least 0 and at most 1", "in (0, 1]": "above 0 and at most 1"}


def check_number(argument: str, value, allowed: str, finite: bool = False):
    """Return the value if it is a number in the range ``allowed``; raise a ValueError otherwise.

    The range is parsed from the text of the message, so the two always agree: "above 0", "at least 0 and below 1", "at
    least 0 and finite", "in [0, 1]". Other words only inform the reader: "above 0, or None for no clipping". NaN is
    never allowed. ``finite`` rejects infinity without mentioning it in the message.

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
    """Return whether a number is in a range of `check_number`."""
    try:
        value = float(value)
    except OverflowError:  # a whole number beyond the range of floats
        return False
    rule = INTERVALS.get(allowed, allowed)
    bounds = re.findall(rf"({'|'.join(BOUNDS)}) ([\d.]*\d)", rule)
    inside = not math.isnan(value) and all(BOUNDS[word](value, float(bound)) for word, bound in bounds)
    return inside and not (math.isinf(value) and "finite" in rule)


def read_text(file: str | os.PathLike) -> str:
    """Return the text of a UTF-8 file without its byte order mark; raise a LabError for a folder or other encodings."""
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise LabError(f"{file} must be text in UTF-8, got {error.object[error.start : error.end]!r}") from None
    except IsADirectoryError:
        raise LabError(f"{file} must be a file, got a folder") from None


@contextlib.contextmanager
def at_file(file: str | os.PathLike, done: str = "written"):
    """Convert an OSError in the block to a LabError that names the file and says what to do.

    Example:
        >>> with at_file("/proc/rows.jsonl"):
        ...     raise OSError(28, "No space left on device")
        Traceback (most recent call last):
        dgc_lab.common.LabError: /proc/rows.jsonl cannot be written (No space left on device). Fix that and run the...
    """
    try:
        yield
    except OSError as error:
        problem = f"{file} cannot be {done} ({error.strerror or error})"
        raise LabError(f"{problem}. Fix that and run the same call again: it resumes from the saved state") from error


def save_arrays(file: str | os.PathLike, *arrays, **named) -> None:
    """Write arrays like ``numpy.savez``, but atomically, and append the file's SHA-256.

    Raises a LabError if the file cannot be written.
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
                out.write(DIGEST_PREFIX + digest)
                out.flush()
                os.fsync(out.fileno())
            os.replace(unfinished, file)
    except LabError:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


def load_arrays(file: str | os.PathLike) -> dict:
    """Return the arrays that `save_arrays` saved, by name, in their order.

    Raises a LabError if the file cannot be read, or if a single bit has changed.
    """
    import numpy as np

    with at_file(file, "read"):
        data = Path(file).read_bytes()
    content, trailer = data[:-TRAILER_SIZE], data[-TRAILER_SIZE:]
    try:
        if trailer != DIGEST_PREFIX + hashlib.sha256(content).hexdigest().encode():
            raise ValueError("its SHA-256 does not match")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # any error of the readers of zip files and arrays
        problem = f"{file} cannot be read, it is damaged ({str(error) or type(error).__name__})"
        raise LabError(f"{problem}. Remove it, and run the same call again") from None


def results_file(name: str) -> Path:
    """Return a file in ``results/``, which is next to the package in a clone, and inside it in an installed wheel."""
    package = Path(__file__).resolve().parent
    return next(folder / name for folder in (package.parent / "results", package / "results") if folder.exists())


def rows_of_results(name: str) -> list[dict]:
    """Return the rows of a file in ``results/`` with a JSON object in each line."""
    return [json.loads(line) for line in results_file(name).read_text(encoding="utf-8").splitlines()]


def check_keras(*names: str) -> None:
    """Raise a LabError unless Keras's settings of these names, by default all, are those of `KERAS`."""
    try:
        from keras import config
    except (ImportError, ValueError) as error:  # ValueError: there is no such backend
        raise LabError(f"Keras cannot be imported ({error}). Set KERAS_BACKEND=tensorflow and start again") from None
    for name in names or KERAS:
        if (found := getattr(config, name)()) != KERAS[name]:
            place = "KERAS_BACKEND or keras.json" if name == "backend" else "keras.json"
            raise LabError(f"Keras's {name} must be {KERAS[name]!r}, got {found!r}: change {place} and start again")


def cpp_compiler() -> str | None:
    """Return the path of the C++ compiler to use, or None."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def free_memory() -> None:
    """Free unreachable objects and return the freed pages to the system.

    A trainer and its traces form a reference cycle of tens to hundreds of megabytes. Python collects such cycles only
    after creating many more objects, and the C library does not release the freed memory.

    References:
        ``malloc_trim(3)``, which only glibc has; other C libraries keep the pages.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
