"""The narrow channel between a student's process and the tests: numbers, strings, arrays and containers, as data.

A message is the length of its header (4 bytes), the header as JSON, and the bytes of its arrays. Nothing in it is
executed or names a type to construct: an array gives its dtype and shape, and an object of any other type arrives as an
`Other`. Sizes are limited while a message is read, whatever its header says.
"""

from __future__ import annotations

import json
import math
import re
import socket
import struct
from decimal import Decimal
from fractions import Fraction

import numpy as np

MOST_HEAD, MOST_BYTES = 2**22, 2**26  # bytes of a message's header, and of its arrays together
MOST_THINGS, MOST_DEPTH = 200_000, 40  # objects in a value, and levels of nesting
NUMBERS = "biufc"  # numpy's kinds that may be sent
DTYPE = rf"[<>|][{NUMBERS}]\d{{1,2}}"  # numpy accepts more, and evaluates part of it as Python
TOO_LARGE = f"an answer has more than {MOST_BYTES // 2**20} MB or {MOST_THINGS:,} objects"


SIZED = (dict, list, range, type({}.keys()), type({}.values()), tuple, set, frozenset)


class ChannelError(Exception):
    """A message is invalid, or the other process has ended; the text says which."""


class Other:
    """Stand-in for an object that cannot be sent: not a number, string, array, list, tuple, set or dict.

    It arrives as an empty object of a class with the original type's name, so that a check can name the type.
    """


def send(connection: socket.socket, message) -> None:
    """Send a value; ChannelError if it is too large or the other process has ended."""
    blobs: list[bytes] = []
    head = {"value": _plain(message, blobs), "sizes": [len(blob) for blob in blobs]}
    try:
        text = json.dumps(head, separators=(",", ":")).encode()
    except ValueError:
        raise ChannelError("an answer has an integer with too many digits") from None
    if len(text) > MOST_HEAD or sum(head["sizes"]) > MOST_BYTES:
        raise ChannelError(TOO_LARGE)
    try:
        connection.sendall(b"".join([struct.pack(">I", len(text)), text, *blobs]))
    except OSError as error:
        raise ChannelError(f"the other process has ended: {error}") from None


def receive(connection: socket.socket):
    """Return the next value; ChannelError if it is invalid or the other process has ended."""
    size = struct.unpack(">I", _bytes(connection, 4))[0]
    if size > MOST_HEAD:
        raise ChannelError(f"a message has a header of {size:,} bytes")
    try:
        head = json.loads(_bytes(connection, size))
        sizes = head["sizes"]
        valid = len(sizes) <= MOST_THINGS and all(type(each) is int and each >= 0 for each in sizes)
        if not valid or sum(sizes) > MOST_BYTES:
            raise ValueError("invalid sizes")
        return _Reader([_bytes(connection, each) for each in sizes]).value(head["value"])
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise ChannelError(f"invalid message: {type(error).__name__}: {str(error)[:100]}") from None


def _bytes(connection, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = connection.recv(min(size, 2**20))
        except OSError as error:
            raise ChannelError(f"the other process has ended: {error}") from None
        if not part:
            raise ChannelError("the other process has ended")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _plain(value, blobs: list[bytes], depth: int = 0):
    """Convert a value to JSON types; append the bytes of its arrays to the blobs."""
    if depth > MOST_DEPTH:
        return {"kind": "other", "name": "deep"}
    if max(len(blobs), len(value) if isinstance(value, SIZED) else 0) > MOST_THINGS:
        raise ChannelError(TOO_LARGE)
    if value is None or isinstance(value, bool | str):
        return value if value is None or isinstance(value, bool) else str(value)
    if value is ...:
        return {"kind": "ellipsis"}
    if isinstance(value, int | float) and not isinstance(value, np.generic):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, dict):
        pairs = [[_plain(k, blobs, depth + 1), _plain(v, blobs, depth + 1)] for k, v in value.items()]
        return {"kind": "dict", "of": pairs}
    if isinstance(value, list | range | type({}.keys()) | type({}.values())):
        return [_plain(each, blobs, depth + 1) for each in value]
    for kind, types in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, types):
            return {"kind": kind, "of": [_plain(each, blobs, depth + 1) for each in value]}
    if hasattr(value, "to_dict") and getattr(value, "ndim", 0) == 2:  # a pandas DataFrame
        return _plain(value.to_dict("records"), blobs, depth + 1)
    if isinstance(value, Fraction | Decimal):
        return int(value) if math.isfinite(value) and value == int(value) else float(value)
    if isinstance(value, complex) or hasattr(value, "__array__"):  # numpy arrays and tensors
        return _array(value, blobs, depth)
    return {"kind": "other", "name": type(value).__name__[:40]}


def _array(value, blobs, depth):
    array = np.asarray(value)
    if array.nbytes > MOST_BYTES:
        raise ChannelError(TOO_LARGE)
    if array.dtype.kind == "V":  # bfloat16
        array = array.astype(np.float32)
    if array.dtype.kind not in NUMBERS:
        listed = array.tolist()
        return _plain(listed, blobs, depth + 1) if type(listed) in (list, str) else {"kind": "other", "name": "array"}
    blobs.append(np.ascontiguousarray(array).tobytes())
    found = {"kind": "array", "dtype": array.dtype.str, "shape": list(array.shape), "blob": len(blobs) - 1}
    read_only = isinstance(value, np.ndarray) and not value.flags.writeable
    return found | {"scalar": not isinstance(value, np.ndarray) and array.ndim == 0, "read_only": read_only}


def identifier(text) -> str:
    """Return at most 40 letters, digits and underscores of a text, as a valid name.

    Example:
        >>> identifier("<b>Net 2"), identifier("7")
        ('bNet2', 'thing')
    """
    name = "".join(re.findall(r"[A-Za-z0-9_]+", str(text)[:40]))
    return name if name.isidentifier() else "thing"


class _Reader:
    """Builder of values from a message's JSON; raises ValueError or similar if it is invalid."""

    def __init__(self, blobs: list[bytes]):
        self.blobs, self.things = blobs, 0

    def value(self, plain, depth: int = 0):
        """Return a value."""
        self.things += 1
        if self.things > MOST_THINGS or depth > MOST_DEPTH + 2:
            raise ValueError("too many objects or levels")
        if isinstance(plain, list):
            return [self.value(each, depth + 1) for each in plain]
        if not isinstance(plain, dict):
            return plain
        kind = plain["kind"]
        if kind == "array":
            return self.array(plain)
        if kind == "ellipsis":
            return ...
        if kind == "other":
            return type(identifier(plain["name"]), (Other,), {})()
        inner = [self.value(each, depth + 1) for each in plain["of"]]
        return {"tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict}[kind](inner)

    def array(self, plain) -> np.ndarray:
        """Return an array of numbers, or a number with its dtype."""
        name, shape = str(plain["dtype"]), plain["shape"]
        if not re.fullmatch(DTYPE, name) or not isinstance(shape, list) or len(shape) > 32:
            raise ValueError("an array with an invalid dtype or shape")
        dtype = np.dtype(name)
        if not all(type(each) is int and each >= 0 for each in shape):
            raise ValueError("an array with an invalid shape")
        if plain["blob"] < 0 or math.prod(shape) * dtype.itemsize != len(self.blobs[plain["blob"]]):
            raise ValueError("an array whose size does not match its shape")
        array = np.frombuffer(self.blobs[plain["blob"]], dtype).reshape(shape)
        if plain.get("scalar"):
            return array[()]
        array = array.copy()
        array.flags.writeable = not plain.get("read_only")
        return array
