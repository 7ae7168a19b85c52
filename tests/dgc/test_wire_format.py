"""The wire format: run lengths and messages come back as they went, and are as long as they say."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from dgc_lab.dgc.wire_format import LONGEST_RUN, Content, Layout, add_in_order, pack, places, run_lengths, unpack

BLOCK = LONGEST_RUN + 1
DTYPES = {"float32": np.uint32, "float16": np.uint16}
HALVES = np.arange(2**16, dtype=np.uint16).view(np.float16)  # all there are; 0.0 first
floats = st.sampled_from([float(x) for x in HALVES if x == 0 or np.finfo(np.float16).tiny <= abs(x) < np.inf])


def bits(values):
    """The values as integers: -0.0 is not 0.0 here."""
    values = np.asarray(values)
    return values.view(DTYPES[values.dtype.name])


@st.composite
def entries(draw, dtype=None):
    """Ascending indices with distances on both sides of what 16 bits hold, and values of a type."""
    edges = [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1]
    steps = draw(st.lists(st.one_of(st.integers(1, 50), st.sampled_from(edges), st.integers(1, 10**7)), max_size=12))
    values = draw(st.lists(floats, min_size=len(steps), max_size=len(steps)))
    dtype = dtype or draw(st.sampled_from(sorted(DTYPES)))
    return tf.constant(np.cumsum(steps, dtype=np.int64) - 1, tf.int32), tf.constant(values, dtype, [len(steps)])


@given(entries())
def test_run_lengths_come_back_exactly(sent):
    indices, values = sent
    runs, filled = run_lengths(indices, values)
    back = places(runs).numpy()
    expected = {int(i): bit for i, bit in zip(indices, bits(values), strict=True)}
    found = dict(zip(back.tolist(), bits(filled), strict=True))
    assert {i: found[i] for i in expected} == expected
    put_in = sorted(set(found) - set(expected))
    assert all(found[i] == 0 for i in put_in)
    assert np.all(np.diff(back) > 0)
    distances = np.diff(indices.numpy(), prepend=-1) - 1
    assert len(back) == len(expected) + len(put_in) == len(distances) + (distances // BLOCK).sum()
    assert runs.dtype == tf.uint16
    assert filled.dtype == values.dtype


def test_the_farthest_element_that_an_int32_can_number():
    runs, values = run_lengths(tf.constant([2**31 - 2]), tf.constant([-0.0]))
    assert int(places(runs)[-1]) == 2**31 - 2
    assert len(runs) == 2**31 // BLOCK
    assert np.signbit(values[-1].numpy())


LAYOUTS = [
    Layout(),
    Layout("float16", "run_lengths"),
    Layout("float32", "run_lengths", metadata=3, dense=5),
    Layout("float16", "int32", metadata=1, rows=(4,)),
    Layout("float16", "run_lengths", metadata=2, dense=3, rows=(1, 2)),
]


@st.composite
def contents(draw, layout):
    """What one worker could send in this layout: the lengths are drawn one by one, most numbers from a seed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def numbers(*shape):
        return tf.constant(rng.choice([0.0, -0.0, np.inf, 1e-8, 3.5, -7.25], shape), tf.float32, shape)

    sizes = [(draw(st.integers(0, 3)), width) for width in layout.rows]
    rows = [(numbers(*size), tf.constant(rng.integers(0, 99, size[0]), tf.int32)) for size in sizes]
    return Content(numbers(layout.metadata), numbers(layout.dense), rows, *draw(entries(layout.values)))


def there_and_back(layout, traced):
    """`pack` of two workers' contents and `unpack`, eagerly or traced once for all lengths."""

    def call(*sent):
        return unpack(tf.concat([pack(content, layout) for content in sent], 0), layout, len(sent))

    if not traced:
        return call
    any_length = Content(
        tf.TensorSpec([layout.metadata]),
        tf.TensorSpec([layout.dense]),
        [(tf.TensorSpec([None, width]), tf.TensorSpec([None], tf.int32)) for width in layout.rows],
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None], layout.values),
    )
    return tf.function(call, input_signature=[any_length] * 2)


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_messages_of_several_workers_come_back_exactly(layout, traced):
    call = there_and_back(layout, traced)

    @given(contents(layout), contents(layout))
    def check(first, second):
        for content, back in zip((first, second), call(first, second), strict=True):
            np.testing.assert_array_equal(bits(back.metadata), bits(content.metadata))
            np.testing.assert_array_equal(bits(back.dense), bits(content.dense))
            for (values, numbers), (values_back, numbers_back) in zip(content.rows, back.rows, strict=True):
                np.testing.assert_array_equal(bits(values_back), bits(values))
                np.testing.assert_array_equal(numbers_back, numbers)
            found = dict(zip(back.indices.numpy().tolist(), bits(back.values), strict=True))
            expected = dict(zip(content.indices.numpy().tolist(), bits(content.values), strict=True))
            assert {i: found[i] for i in expected} == expected
            assert all(found[i] == 0 for i in found if i not in expected)
            assert layout.indices == "run_lengths" or found.keys() == expected.keys()

    check()


@pytest.mark.parametrize(("values", "indices", "each"), [("float32", "run_lengths", 6), ("float16", "run_lengths", 4)])
def test_an_entry_takes_as_many_bytes_as_the_layout_says(values, indices, each):
    layout = Layout(values, indices, metadata=2)
    nothing = tf.zeros([0])
    for size in (0, 1, 700):
        positions = tf.range(0, 1000 * size, 1000)
        content = Content(tf.zeros([2]), nothing, [], positions, tf.ones([size], values))
        assert len(pack(content, layout)) == 12 + each * size == layout.header_bytes + layout.entry_bytes * size


def test_bytes_are_in_the_order_that_the_table_says():
    layout = Layout("float16", "run_lengths", 1, 1, (2,))
    rows = [(tf.constant([[3.0, 4.0]]), tf.constant([9]))]
    content = Content(
        tf.constant([1.0]), tf.constant([2.0]), rows, tf.constant([0, 7]), tf.constant([5, 6], tf.float16)
    )
    parts = [np.array([2, 1], "<i4"), np.array([1, 2, 3, 4], "<f4"), np.array([9], "<i4")]
    parts += [np.array([5, 6], "<f2"), np.array([0, 6], "<u2")]
    assert pack(content, layout).numpy().tobytes() == b"".join(part.tobytes() for part in parts)


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"values": "int8"}, r"values must be one of float32, float16, got 'int8'"),
        ({"indices": "gaps"}, r"indices must be one of int32, run_lengths, got 'gaps'"),
    ],
)
def test_bad_layouts_are_named(switches, message):
    with pytest.raises(ValueError, match=message):
        Layout(**switches)


@pytest.mark.parametrize("needed", [(), (0,), (0, 1), (1, 2)])
def test_a_sum_has_one_order_whichever_tensors_are_needed_elsewhere(needed):
    """AddN begins with the first one whose memory is free."""

    @tf.function(autograph=False)
    def total(*numbers):
        tensors = [2 * number for number in numbers]
        return add_in_order(tensors), [tensors[place] for place in needed]

    numbers = [tf.constant([number]) for number in (1e8, -1e8, 1.0, 1.0)]
    assert total(*numbers[:3])[0].numpy().tolist() == [2.0]
    assert total(*numbers)[0].numpy().tolist() == [4.0]


def test_bytes_that_are_too_many_are_told_in_a_session_too():
    nothing, layout = tf.zeros([0]), Layout(metadata=1)
    message = pack(Content(tf.constant([7.0]), nothing, [], tf.constant([5, 9]), tf.constant([0.5, 2.0])), layout)
    longer = np.concatenate([message.numpy(), np.zeros(4, np.uint8)])
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for given, right in ((message.numpy(), True), (longer, False)):
            [content] = unpack(tf.constant(given), layout, 1)
            with contextlib.nullcontext() if right else pytest.raises(tf.errors.InvalidArgumentError, match="must end"):
                assert session.run(content.indices).tolist() == [5, 9]
