"""The wire format: run lengths and messages round-trip exactly, with the documented sizes."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from dgc_lab.compression.wire_format import (
    LONGEST_RUN,
    Layout,
    Message,
    add_in_order,
    pack,
    positions,
    run_lengths,
    unpack,
)

BLOCK = LONGEST_RUN + 1
DTYPES = {"float32": np.uint32, "float16": np.uint16}
HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)  # all float16 values; 0.0 first
floats = st.sampled_from([float(x) for x in HALVES if x == 0 or np.finfo(np.float16).tiny <= abs(x) < np.inf])


def bits(values):
    """Return floating-point values as integers: -0.0 and 0.0 differ."""
    values = np.asarray(values)
    return values.view(DTYPES[values.dtype.name])


@st.composite
def entries(draw, dtype="float32"):
    """Draw ascending indices with gaps around the 16-bit limit, and values that fit in float16."""
    edges = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1]
    steps = draw(st.lists(st.one_of(st.integers(1, 50), st.sampled_from(edges), st.integers(1, 10**7)), max_size=12))
    values = draw(st.lists(floats, min_size=len(steps), max_size=len(steps)))
    return tf.constant(np.cumsum(steps, dtype=np.int64) - 1, tf.int32), tf.constant(values, dtype, [len(steps)])


@given(st.sampled_from(sorted(DTYPES)).flatmap(entries))
def test_run_lengths_are_decoded_exactly(sent):
    indices, values = sent
    runs, filled = run_lengths(indices, values)
    back = positions(runs).numpy()
    expected = {int(i): bit for i, bit in zip(indices, bits(values), strict=True)}
    found = dict(zip(back.tolist(), bits(filled), strict=True))
    assert {i: found[i] for i in expected} == expected
    inserted = sorted(set(found) - set(expected))
    assert all(found[i] == 0 for i in inserted)
    assert np.all(np.diff(back) > 0)
    distances = np.diff(indices.numpy(), prepend=-1) - 1
    assert len(back) == len(expected) + len(inserted) == len(distances) + (distances // BLOCK).sum()
    assert runs.dtype == tf.uint16
    assert filled.dtype == values.dtype


def test_run_lengths_reach_the_last_index_of_int32():
    runs, values = run_lengths(tf.constant([2**31 - 2]), tf.constant([-0.0]))
    assert int(positions(runs)[-1]) == 2**31 - 2
    assert len(runs) == 2**31 // BLOCK
    assert np.signbit(values[-1].numpy())


ROWS = ((tf.float32, (4,)), (tf.int32, ()))
LAYOUTS = [
    Layout(sparse=1),
    Layout("float16", "run_lengths", sparse=1),
    Layout("float32", "run_lengths", fixed=8, sparse=1),
    Layout("float16", "int32", fixed=1, sparse=1, tensors=ROWS),
    Layout("float16", "run_lengths", fixed=5, sparse=2, tensors=(*ROWS, (tf.float32, (2,)), (tf.int32, ()))),
    Layout("float32", "int32", fixed=1, sparse=2),
    Layout(tensors=((tf.float32, None), (tf.uint8, ()), (tf.int8, (3, 2)), (tf.bfloat16, ()), (tf.float16, (1,)))),
]


@st.composite
def messages(draw, layout):
    """Draw a message in this layout; lengths are drawn, most values come from a seed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def numbers(dtype, *shape):
        chosen = rng.choice([0.0, -0.0, np.inf, 1e-8, 3.5, -7.25] if dtype.is_floating else [0, 1, 99, 127], shape)
        return tf.constant(chosen, dtype, shape)

    tensors = [
        numbers(dtype) if inner is None else numbers(dtype, draw(st.integers(0, 3)), *inner)
        for dtype, inner in layout.tensors
    ]
    return Message(numbers(tf.float32, layout.fixed), [draw(entries()) for _ in range(layout.sparse)], tensors)


def round_trip(layout, traced):
    """Return a function that packs two workers' messages and unpacks them, eagerly or traced once for all lengths."""

    def call(*sent):
        return unpack(tf.concat([pack(message, layout) for message in sent], 0), layout, len(sent))

    if not traced:
        return call
    any_length = Message(
        tf.TensorSpec([layout.fixed]),
        [(tf.TensorSpec([None], tf.int32), tf.TensorSpec([None])) for _ in range(layout.sparse)],
        [tf.TensorSpec([] if inner is None else [None, *inner], dtype) for dtype, inner in layout.tensors],
    )
    return tf.function(call, input_signature=[any_length] * 2)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_of_several_workers_are_decoded_exactly(layout, traced):
    call = round_trip(layout, traced)

    @given(messages(layout), messages(layout))
    def check(first, second):
        for message, back in zip((first, second), call(first, second), strict=True):
            np.testing.assert_array_equal(bits(back.fixed), bits(message.fixed))
            for tensor, tensor_back in zip(message.tensors, back.tensors, strict=True):
                assert (tensor_back.dtype, tensor_back.shape) == (tensor.dtype, tensor.shape)
                assert tensor_back.numpy().tobytes() == tensor.numpy().tobytes()
            for (indices, values), (indices_back, values_back) in zip(message.entries, back.entries, strict=True):
                assert (indices_back.dtype, values_back.dtype) == (tf.int32, tf.float32)
                found = dict(zip(indices_back.numpy().tolist(), bits(values_back), strict=True))
                expected = dict(zip(indices.numpy().tolist(), bits(values), strict=True))
                assert {i: found[i] for i in expected} == expected
                assert all(found[i] == 0 for i in found if i not in expected)
                assert layout.indices == "run_lengths" or found.keys() == expected.keys()

    check()


def test_values_are_rounded_to_the_dtype_of_the_layout():
    layout = Layout("float16", sparse=1)
    message = Message(tf.zeros([0]), [(tf.constant([3]), tf.constant([0.1]))], [])
    [back] = unpack(pack(message, layout), layout, 1)
    [[_, values]] = back.entries
    assert values.numpy().tolist() == [np.float16(0.1)]


@pytest.mark.parametrize(
    ("values", "indices", "each"),
    [
        ("float32", "int32", 8),
        ("float32", "run_lengths", 6),
        ("float16", "int32", 6),
        ("float16", "run_lengths", 4),
    ],
)
def test_entry_size_matches_the_layout(values, indices, each):
    layout = Layout(values, indices, fixed=2, sparse=1)
    for size in (0, 1, 700):
        message = Message(tf.zeros([2]), [(tf.range(0, 1000 * size, 1000), tf.ones([size]))], [])
        assert len(pack(message, layout)) == 12 + each * size == layout.header_bytes + layout.entry_bytes * size


def test_bytes_follow_the_documented_order():
    layout = Layout("float16", "run_lengths", 2, 2, ((tf.float32, (2,)), (tf.int32, ())))
    sparse = [(tf.constant([0, 7]), tf.constant([5.0, 6.0])), (tf.constant([3]), tf.constant([8.0]))]
    message = Message(tf.constant([1.0, 2.0]), sparse, [tf.constant([[3.0, 4.0]]), tf.constant([9])])
    parts = [np.array([2, 1, 2, 1], "<i4"), np.array([1, 2], "<f4")]
    parts += [np.array([5, 6], "<f2"), np.array([0, 6], "<u2"), np.array([8], "<f2"), np.array([3], "<u2")]
    parts += [np.array([3, 4], "<f4"), np.array([9], "<i4")]
    assert pack(message, layout).numpy().tobytes() == b"".join(part.tobytes() for part in parts)
    assert layout.header_bytes == 24


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"values": "int8"}, r"values must be one of float32, float16, got 'int8'"),
        ({"indices": "gaps"}, r"indices must be one of int32, run_lengths, got 'gaps'"),
    ],
)
def test_layouts_with_unknown_types_are_rejected(types, message):
    with pytest.raises(ValueError, match=message):
        Layout(**types)


@pytest.mark.parametrize("needed", [(), (0,), (0, 1), (1, 2)])
def test_order_of_addition_ignores_other_uses_of_tensors(needed):
    """AddN would start with the first tensor whose memory it may reuse."""

    @tf.function(autograph=False)
    def total(*numbers):
        tensors = [2 * number for number in numbers]
        return add_in_order(tensors), [tensors[i] for i in needed]

    numbers = [tf.constant([number]) for number in (1e8, -1e8, 1.0, 1.0)]
    assert total(*numbers[:3])[0].numpy().tolist() == [2.0]
    assert total(*numbers)[0].numpy().tolist() == [4.0]


def example_message():
    layout = Layout(fixed=1, sparse=1)
    return layout, Message(tf.constant([7.0]), [(tf.constant([5, 9]), tf.constant([0.5, 2.0]))], [])


def test_surplus_bytes_are_rejected_in_a_session():
    layout, message = example_message()
    packed = pack(message, layout).numpy()
    longer = np.concatenate([packed, np.zeros(4, np.uint8)])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        given = tf.compat.v1.placeholder(tf.uint8, [None])
        [back] = unpack(given, layout, 1)
        assert session.run(back.entries[0][0], {given: packed}).tolist() == [5, 9]
        with pytest.raises(tf.errors.InvalidArgumentError, match="must end"):
            session.run(back.entries[0][0], {given: longer})


def test_truncated_messages_are_rejected():
    layout, message = example_message()
    packed = pack(message, layout)
    for size in range(len(packed)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            unpack(packed[:size], layout, 1)


@pytest.mark.parametrize("traced", [False, True])
def test_negative_counts_are_rejected(traced):
    """The counts -1 and 4 sum to the length of this message."""
    message = tf.bitcast(tf.constant([-1, 4] + [0] * 6), tf.uint8)
    read = tf.function(unpack) if traced else unpack
    with pytest.raises(tf.errors.InvalidArgumentError, match="negative"):
        read(tf.reshape(message, [-1]), Layout(sparse=2), 1)
