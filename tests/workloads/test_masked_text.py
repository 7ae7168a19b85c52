"""A text with masked words trains like the other data sets."""

import numpy as np
import tensorflow as tf

from dgc_lab.distributed import SimulatedWorkers
from dgc_lab.training import DistributedConfig, DistributedStep, DistributedTrainer
from dgc_lab.workloads import load


def test_python_reference_trains_with_any_seed():
    data = load("python_reference")
    settings = DistributedConfig(dataset="python_reference", steps=3, batch=4, evaluations=1)
    trainer = DistributedTrainer(settings, SimulatedWorkers(2), data)
    losses = {}
    for seed in (0, 1, 0):
        events = list(trainer.with_seed(seed).run(0.01))
        losses.setdefault(seed, []).append([e.loss for e in events if isinstance(e, DistributedStep)])
        assert 0 <= events[-1].accuracy <= 1
    assert losses[0][0] == losses[0][1] != losses[1][0]
    assert trainer.traces == 1
    assert settings.model == "reference_bert"


def test_each_test_sequence_has_several_masks():
    data = load("python_reference")
    (words, places), targets = data.test_examples()
    assert words.shape[0] == places.shape[0] == targets.shape[0] == 6 * len(data.x_test)
    hidden = tf.gather(np.tile(data.x_test, (6, 1)), places, batch_dims=1)
    assert np.array_equal(hidden, targets)


def test_batches_depend_on_number_and_seed():
    batches = load("python_reference").batches(4, seed=0)
    (first, _), _ = batches(tf.constant(0))
    (again, _), _ = batches(tf.constant(0))
    (other, _), _ = batches(tf.constant(1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    batches.seed.assign(1)
    (reseeded, _), _ = batches(tf.constant(0))
    assert not np.array_equal(first, reseeded)
