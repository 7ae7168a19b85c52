"""The narrow channel between a student's process and the tests: numbers, strings, arrays and what holds them, as data.

A message is the length of its head (4 bytes), the head as JSON, and the bytes of its arrays. Nothing in it is run or
names a type to be made: an array says its kind of number and its shape, and whatever is none of the above arrives as an
`Other`. Sizes are bounded while a message is read, whatever it says of itself.
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

MOST_HEAD, MOST_BYTES = 2**22, 2**26  # of a message's head, and of its arrays together
MOST_THINGS, MOST_DEPTH = 200_000, 40  # in a value
NUMBERS = "biufc"  # numpy's kinds that may cross
DTYPE = rf"[<>|][{NUMBERS}]\d{{1,2}}"  # numpy reads more than that, part of it as Python
TOO_LARGE = f"more than {MOST_BYTES // 2**20} MB, or {MOST_THINGS:,} things, in one answer"


SIZED = (dict, list, range, type({}.keys()), type({}.values()), tuple, set, frozenset)


class ChannelError(Exception):
    """A message is no message, or the other side is gone; the text says which."""


class Other:
    """What could not cross: a thing of a type that is no number, string, array, list, tuple, set or dict.

    It arrives as an empty thing of a class with that type's name, so that a check can say what it was.
    """


def send(connection: socket.socket, message) -> None:
    """Send a value; a ChannelError where it is too large or nobody is there."""
    blobs: list[bytes] = []
    head = {"value": _plain(message, blobs), "sizes": [len(blob) for blob in blobs]}
    try:
        text = json.dumps(head, separators=(",", ":")).encode()
    except ValueError:
        raise ChannelError("a whole number of more digits than Python writes, in an answer") from None
    if len(text) > MOST_HEAD or sum(head["sizes"]) > MOST_BYTES:
        raise ChannelError(TOO_LARGE)
    try:
        connection.sendall(b"".join([struct.pack(">I", len(text)), text, *blobs]))
    except OSError as error:
        raise ChannelError(f"the other side is gone: {error}") from None


def receive(connection: socket.socket):
    """The next value; a ChannelError where it is none, or nobody is there."""
    size = struct.unpack(">I", _bytes(connection, 4))[0]
    if size > MOST_HEAD:
        raise ChannelError(f"a message whose head has {size:,} bytes")
    try:
        head = json.loads(_bytes(connection, size))
        sizes = head["sizes"]
        fair = len(sizes) <= MOST_THINGS and all(type(each) is int and each >= 0 for each in sizes)
        if not fair or sum(sizes) > MOST_BYTES:
            raise ValueError("of another size than is allowed")
        return _Reader([_bytes(connection, each) for each in sizes]).value(head["value"])
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise ChannelError(f"no message: {type(error).__name__}: {str(error)[:100]}") from None


def _bytes(connection, size: int) -> bytes:
    parts = []
    while size:
        try:
            part = connection.recv(min(size, 2**20))
        except OSError as error:
            raise ChannelError(f"the other side is gone: {error}") from None
        if not part:
            raise ChannelError("the other side is gone")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _plain(value, blobs: list[bytes], depth: int = 0):
    """A value as JSON can hold it; the bytes of its arrays are added to the blobs."""
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
    if hasattr(value, "to_dict") and getattr(value, "ndim", 0) == 2:  # a table of pandas
        return _plain(value.to_dict("records"), blobs, depth + 1)
    if isinstance(value, Fraction | Decimal):
        return int(value) if math.isfinite(value) and value == int(value) else float(value)
    if isinstance(value, complex) or hasattr(value, "__array__"):  # numpy's, and tensors
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
    """At most 40 letters and digits of a text, as a name can have them.

    Example:
        >>> identifier("<b>Net 2"), identifier("7")
        ('bNet2', 'thing')
    """
    kept = "".join(re.findall(r"[A-Za-z0-9_]+", str(text)[:40]))
    return kept if kept.isidentifier() else "thing"


class _Reader:
    """Makes values of a message's JSON; a ValueError or its like where it is none."""

    def __init__(self, blobs: list[bytes]):
        self.blobs, self.things = blobs, 0

    def value(self, plain, depth: int = 0):
        """The value."""
        self.things += 1
        if self.things > MOST_THINGS or depth > MOST_DEPTH + 2:
            raise ValueError("holds too much")
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
        """An array of numbers; or a number with its dtype."""
        told, shape = str(plain["dtype"]), plain["shape"]
        if not re.fullmatch(DTYPE, told) or not isinstance(shape, list) or len(shape) > 32:
            raise ValueError("an array of no numbers")
        dtype = np.dtype(told)
        if not all(type(each) is int and each >= 0 for each in shape):
            raise ValueError("an array without a shape")
        if plain["blob"] < 0 or math.prod(shape) * dtype.itemsize != len(self.blobs[plain["blob"]]):
            raise ValueError("an array whose bytes are not of its shape")
        array = np.frombuffer(self.blobs[plain["blob"]], dtype).reshape(shape)
        if plain.get("scalar"):
            return array[()]
        array = array.copy()
        array.flags.writeable = not plain.get("read_only")
        return array
