"""State carried between steps: its dtype, its momentum, and the elements that are dropped."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.compression.scheme import SparseVector, StepContext
from dgc_lab.compression.selection import Rule, accumulate_and_select
from dgc_lab.distributed.communicators import OneWorker, SimulatedWorkers

WHOLE = DGCConfig(ratio=0.01, rule="exact", dense_below=0, dense_vectors=False, warm_up=(1.0,), warm_up_steps=20)


def random_gradient(step, worker=0, dtype=tf.float32):
    return tf.cast(tf.random.stateless_normal([300], (step, worker)), dtype)


@pytest.mark.parametrize("by_call", [False, True], ids=["train", "call"])
@pytest.mark.parametrize("switch_to_dense", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_a_dense_warm_up_is_momentum_sgd_bit_for_bit(nesterov, switch_to_dense, by_call):
    config = dataclasses.replace(WHOLE, nesterov=nesterov, switch_to_dense=switch_to_dense)
    weight, velocity = tf.Variable(tf.zeros([300])), np.zeros(300, np.float32)
    compressor, expected = Compressor(config, [weight], OneWorker()), np.zeros(300, np.float32)
    rate, momentum = np.float32(0.1), np.float32(0.9)
    for step in range(20):
        gradient = random_gradient(step)
        if by_call:
            weight.assign_sub(0.1 * compressor([[gradient]])[0][0])
        else:
            compressor.train([[gradient]], 0.1)
        g = gradient.numpy()
        velocity = momentum * (velocity + g) if nesterov else momentum * velocity + g
        expected = expected - rate * (velocity + g if nesterov else velocity)
    np.testing.assert_array_equal(weight, expected)
    np.testing.assert_array_equal(compressor.velocities(0)[0], velocity)
    assert not np.any(compressor.residuals(0)[0])


def test_sent_elements_have_no_velocity_after_warm_up():
    weight = tf.Variable(tf.zeros([300]))
    compressor = Compressor(dataclasses.replace(WHOLE, warm_up_steps=1), [weight], OneWorker())
    compressor.train([[random_gradient(0)]], 0.1)
    assert np.all(compressor.velocities(0)[0].numpy() != 0)
    compressor.train([[random_gradient(1)]], 0.1)
    assert np.count_nonzero(compressor.velocities(0)[0]) == 297


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_residual_is_float32_for_every_weight_dtype(dtype):
    """A thousand steps of 0.001 add up to 1.0; a bfloat16 sum would stall at 0.5."""
    config = DGCConfig(ratio=0.001, momentum=0.0, rule="exact", dense_below=0, dense_vectors=False)
    weight = tf.Variable(tf.zeros([2000], dtype))
    compressor = Compressor(config, [weight], OneWorker())
    small = tf.fill([2000], tf.constant(0.001, dtype))
    large = tf.tensor_scatter_nd_update(small, [[0], [1]], tf.constant([9.0, 9.0], dtype))
    step = tf.function(lambda: compressor([[large]])[0][0])
    for _ in range(1000):
        assert step().dtype == dtype
    [residual] = compressor.residuals()
    assert residual.dtype == tf.float32
    np.testing.assert_allclose(residual[2:], 1000 * float(small[2]), rtol=1e-3)


def test_without_accumulation_unsent_elements_are_dropped():
    config = DGCConfig(ratio=0.5, momentum=0.9, accumulate=False, rule="exact", dense_below=0, dense_vectors=False)
    compressor = Compressor(config, [tf.Variable(tf.zeros([2]))], OneWorker())
    [first], _ = compressor([[tf.constant([1.0, 0.6])]])
    assert first.numpy().tolist() == [1.0, 0.0]
    [second], _ = compressor([[tf.constant([0.0, 0.6])]])
    np.testing.assert_allclose(second, [0.9, 0.6], rtol=1e-6)  # the second element has only this step's gradient


def test_values_that_float16_rounds_to_zero_stay_in_residual():
    residual = tf.constant([1.0, 1e-9, -3e-8, 1e-7])
    context = StepContext((4,), tf.constant([0, 0]), tf.constant([0, 0]), 1, value_type="float16")
    indices, sent, [left] = accumulate_and_select(tf.zeros([4]), (residual,), Rule(1.0), context)
    assert indices.numpy().tolist() == [0, 3]
    np.testing.assert_array_equal(sent + tf.gather(left, indices), [1.0, np.float32(1e-7)])
    np.testing.assert_array_equal(left[1:3], residual[1:3])


def test_sparse_entries_are_added_in_worker_order():
    """In float32, 1e8 + 1 - 1e8 is 0, but 1e8 - 1e8 + 1 is 1."""
    entries = [(tf.constant([1]), tf.constant([value])) for value in (1e8, 1.0, -1e8)]
    add = lambda entries: tf.convert_to_tensor(SparseVector(entries, 3))  # noqa: E731
    tensor = tf.function(lambda: add(entries))()
    assert tensor.numpy().tolist() == [0.0, 0.0, 0.0]
    tensor = tf.function(lambda: add([entries[0], entries[2], entries[1]]))()
    assert tensor.numpy().tolist() == [0.0, 1.0, 0.0]
    graph = tf.function(lambda: add(entries)).get_concrete_function().graph
    scatters = [op for op in graph.get_operations() if op.type.startswith("ScatterNd")]
    assert len(scatters) == 3, "one scatter per worker: within a scatter, a GPU adds in any order"


def test_rows_are_added_in_worker_order():
    def rows(value):
        return tf.IndexedSlices(tf.constant([[value]]), tf.constant([1]), tf.constant([3, 1]))

    variable = tf.Variable(tf.zeros([3, 1]))
    compressor = Compressor(DGCConfig(momentum=0.0, reduction="sum"), [variable], SimulatedWorkers(3))
    [update], _ = compressor([[rows(1e8)], [rows(1.0)], [rows(-1e8)]])
    assert (update.indices.numpy().tolist(), update.values.numpy().tolist()) == ([1], [[0.0]])
