"""Gradients and steps that are rejected, because they would be misread or leave ranks waiting."""

import re

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.compression import AllReduceMean, Compressor, DGCConfig, SparseMean, run_schemes
from dgc_lab.compression.checks import described
from dgc_lab.distributed import SimulatedWorkers

CONFIG = DGCConfig(ratio=0.0, dense_below=0)
FIRST, SECOND = tf.ones([2, 3]), tf.ones([2, 2])


def rows(shape):
    return tf.IndexedSlices(tf.zeros([1, shape[1]]), tf.constant([0]), tf.constant(shape))


def compressor_of(config=CONFIG, **shapes):
    weights = [tf.Variable(tf.zeros(shape)) for shape in shapes.values()]
    return Compressor(config, weights, SimulatedWorkers(2), list(shapes))


@pytest.mark.parametrize(
    ("gradients", "message"),
    [
        ([[SECOND, FIRST]] * 2, "gradient of first must have the variable's shape (2, 3), got (2, 2)"),
        ([[FIRST, SECOND], [tf.ones([3, 2]), SECOND]], "first must have the variable's shape (2, 3), got (3, 2)"),
        ([[FIRST, rows([3, 2])]] * 2, "gradient of second must have the variable's shape (2, 2), got (3, 2)"),
        ([[FIRST, None], [None, SECOND]], "gradient of first must be of one kind on all workers, got ['tensor', 'none"),
        ([[FIRST, SECOND], [FIRST, rows([2, 2])]], "second must be of one kind on all workers, got ['tensor', 'rows']"),
        ([[None, None]] * 2, "gradients must hold at least one tensor, got None for all variables, ['first',"),
        ([[FIRST, SECOND]], "gradients must be 2 lists of 2, one for each worker, got lists of [2]"),
    ],
)
def test_gradients_that_do_not_fit_are_rejected(gradients, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        compressor_of(first=[2, 3], second=[2, 2])(gradients)


def test_a_gradient_with_local_velocity_stays_a_tensor():
    """Otherwise each worker would apply the velocity of its own rows, and their weights would diverge."""
    dense, sparse = [[tf.ones([4, 2])], [tf.zeros([4, 2])]], [[rows([4, 2])]] * 2
    compressor = compressor_of(table=[4, 2])
    compressor(dense)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"gradient of table must be of the same kind .* tensor, got rows"):
            compressor(sparse)
    compressor(dense)
    compressor.reset()
    compressor(sparse)
    with pytest.raises(ValueError, match="of the same kind in all steps, rows, got tensor"):
        compressor(dense)


def test_gradients_with_a_common_velocity_may_become_rows():
    for options in ({"momentum": 0.0}, {"momentum_correction": False}, {"dense_below": 9}):
        compressor = compressor_of(DGCConfig(**{"dense_below": 0, **options}), table=[4, 2])
        compressor([[tf.ones([4, 2])], [tf.zeros([4, 2])]])
        [update], _ = compressor([[rows([4, 2])]] * 2)
        assert isinstance(update, tf.IndexedSlices)


def ask(question):
    return (yield question)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([[2]], "workers must be 2 lists of equally many started steps, got lists of [1]"),
        ([[2], [2, 2]], "workers must be 2 lists of equally many started steps, got lists of [1, 2]"),
        ([[2], [3]], "the steps must ask the same of all workers, got [{0: 'AllReduceMean of float32 (2,)'}, {0: '"),
    ],
)
def test_workers_that_do_not_match_are_rejected(sizes, message):
    steps = [[ask(AllReduceMean(tf.zeros([size]))) for size in own] for own in sizes]
    with pytest.raises(ValueError, match=re.escape(message)):
        run_schemes(steps, SimulatedWorkers(2))


def test_descriptions_include_the_ratio():
    """It decides between allreduce and allgather."""
    question = SparseMean(tf.constant([0]), tf.constant([1.0]), 2)
    for ratio, text in ((None, "None"), (0.5, "0.5"), (np.float64(0.5), "0.5"), (tf.constant(0.5), "a tensor")):
        assert described(question._replace(ratio=ratio)) == f"SparseMean of size 2, ratio {text}"
