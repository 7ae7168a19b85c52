"""Values pass the channel unchanged, and invalid messages raise an error without any other effect."""

import json
import socket
import struct
import threading
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dgc_lab_grading.marking import channel

KINDS = st.sampled_from([np.bool_, np.int64, np.uint8, np.float16, np.float32, np.float64, np.complex64])
ARRAYS = KINDS.flatmap(lambda kind: arrays.arrays(kind, arrays.array_shapes(min_dims=0, min_side=0)))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(...) | ARRAYS
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)


def passed_on(send):
    """Return the value that arrives when a function sends one."""
    here, there = socket.socketpair()
    with here, there:
        thread = threading.Thread(target=lambda: (send(here), here.shutdown(socket.SHUT_WR)))
        thread.start()
        try:
            return channel.receive(there)
        finally:
            there.close()
            thread.join()


def same(one, other):
    if isinstance(one, np.ndarray):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, list | tuple):
        assert (type(one), len(one)) == (type(other), len(other))
        for pair in zip(one, other, strict=True):
            same(*pair)
    elif isinstance(one, dict):
        same(list(one.items()), list(other.items()))
    else:
        assert type(one) is type(other)
        assert one == other or (one != one and other != other)


@given(VALUES)
def test_values_arrive_unchanged(value):
    same(value, passed_on(lambda connection: channel.send(connection, value)))


def test_special_types_are_converted_or_named():
    frame = pytest.importorskip("pandas").DataFrame({"a": [1], "b": ["x"]})
    read_only = np.ones(2)
    read_only.flags.writeable = False
    sent = [np.float16(0.1), range(3), {1, 2}, frame, np.array(["a", 1], object), map, (x for x in "ab"), read_only]
    sent += [[Fraction(1, 4), Fraction(8, 2), Decimal("0.5"), Decimal(3), Decimal("inf")]]
    half, row, both, table, mixed, function, generator, fixed, exact = passed_on(lambda c: channel.send(c, sent))
    assert (type(half), half) == (np.float16, np.float16(0.1))
    assert (row, both, table, mixed) == ([0, 1, 2], {1, 2}, [{"a": 1, "b": "x"}], ["a", 1])
    assert [type(each).__name__ for each in (function, generator)] == ["type", "generator"]
    assert not fixed.flags.writeable
    assert [(type(each), each) for each in exact] == [(float, 0.25), (int, 4), (float, 0.5), (int, 3), (float, np.inf)]


class Liar:
    """Claims to be a number, equal to everything, and to have a length."""

    __array_priority__ = 1e9

    def __eq__(self, other):
        return True

    __hash__ = None

    def __float__(self):
        return 1.0

    def __len__(self):
        return 3


def test_objects_with_own_behaviour_do_not_arrive():
    class Array(np.ndarray):
        def __eq__(self, other):
            return True

        __hash__ = None

    class Number(float):
        def __eq__(self, other):
            return True

        __hash__ = None

    itself = []
    itself.append(itself)
    sent = [Liar(), np.ones(2).view(Array), Number(3), lambda: 1, itself]
    liar, array, number, function, deep = passed_on(lambda c: channel.send(c, sent))
    assert liar != 1
    assert not {"__float__", "__len__", "__call__"} & set(dir(liar))
    assert (type(array), type(number), number == 4, callable(function)) == (np.ndarray, float, False, False)
    assert isinstance(deep, list)


def message(value, sizes=(), blobs=b""):
    text = json.dumps({"value": value, "sizes": list(sizes)}).encode()
    return struct.pack(">I", len(text)) + text + blobs


def array(dtype="<f8", shape=(1,), blob=0, **more):
    return {"kind": "array", "dtype": dtype, "shape": list(shape), "blob": blob, **more}


NO_MESSAGES = {
    "an endless head": struct.pack(">I", 2**32 - 1) + b"{" * 100,
    "half a head": struct.pack(">I", 100) + b"{",
    "no JSON": struct.pack(">I", 3) + b"abc",
    "no head": struct.pack(">I", 2) + b"[]",
    "brackets without end": struct.pack(">I", 200_000) + b"[" * 200_000,
    "more bytes than are allowed": message(1, [2**40]),
    "fewer bytes than none": message(1, [-8], bytes(8)),
    "a size that is none": message(1, ["8"], bytes(8)),
    "an array of objects": message(array("|O8"), [8], bytes(8)),
    "an array of what is no kind": message(array("evil"), [8], bytes(8)),
    "an array of what Python cannot read": message(array(","), [8], bytes(8)),
    "a shape of other bytes": message(array(shape=(9,)), [8], bytes(8)),
    "a shape without an end": message(array(shape=(2**70, 0)), [0]),
    "a shape that is none": message(array(shape=("1",)), [8], bytes(8)),
    "bytes that are not there": message(array(blob=7), [8], bytes(8)),
    "bytes before the first": message(array(blob=-1), [8], bytes(8)),
    "another kind": message({"kind": "code", "of": []}),
    "no kind": message({"of": []}),
    "a set of lists": message({"kind": "set", "of": [[1]]}),
    "a dict of ones": message({"kind": "dict", "of": [1]}),
    "more things than are allowed": message([0] * 300_000),
    "a number of too many digits": struct.pack(">I", 5100) + b'{"value":' + b"9" * 5079 + b',"sizes":[]}',
}


@pytest.mark.parametrize(("name", "data"), NO_MESSAGES.items(), ids=NO_MESSAGES)
def test_invalid_messages_are_refused(name, data):
    def send(connection):
        try:
            connection.sendall(data)
        except OSError:  # the receiver has closed the connection
            return

    words = (
        "has ended" if name == "half a head" else "header of 4,294" if name == "an endless head" else "invalid message"
    )
    with pytest.raises(channel.ChannelError, match=words):
        passed_on(send)


def test_the_sender_refuses_answers_that_are_too_large():
    for value in (np.broadcast_to(np.float64(0), 10**12), [0] * 10**6, ["x" * 10**6] * 5):
        with pytest.raises(channel.ChannelError, match="more than 64 MB"):
            channel.send(None, value)
    with pytest.raises(channel.ChannelError, match="an integer with too many digits"):
        channel.send(None, {"answer": 10**5000})


def test_sets_of_sets_arrive():
    value = {frozenset({1, 2}), frozenset()}
    assert passed_on(lambda connection: channel.send(connection, value)) == value
