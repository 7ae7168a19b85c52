"""Local SGD: workers train independently and exchange weight changes every few steps."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.compression import DGCConfig, dense, local_sgd, top_k
from dgc_lab.distributed import DistributedOptimizer, SimulatedWorkers
from dgc_lab.training import ModelTrainer
from dgc_lab.workloads import batches_of

EVERY = DGCConfig(dense_below=0, dense_vectors=False)
X = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)
RATE = 0.05


def trainer_of(scheme, workers=2, rate=RATE, options=EVERY):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    loss, batches = keras.losses.MeanSquaredError(), batches_of(X, X.sum(1, keepdims=True), 8)
    return ModelTrainer(model, loss, batches, scheme, rate, SimulatedWorkers(workers), options=options)


def trained(scheme, steps, workers=2):
    trainer = trainer_of(scheme, workers)
    events = list(trainer.run(steps))
    return [weight.numpy() for weight in trainer.weights], events


def by_hand(steps, every, workers=2):
    """Train each worker separately; return the weights after periodic averaging."""
    trainer = trainer_of(dense())
    model, start = trainer.model, trainer.first_values
    own = [[np.array(value) for value in start] for _ in range(workers)]
    for step in range(steps):
        for worker in range(workers):
            model.set_weights(own[worker])
            x, y = trainer.batches(tf.constant(step * workers + worker))
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x) - y) ** 2)
            gradients = tape.gradient(loss, [weight.value for weight in model.trainable_weights])
            own[worker] = [value - RATE * g.numpy() for value, g in zip(own[worker], gradients, strict=True)]
        if (step + 1) % every == 0:
            own = [[np.mean(values, 0) for values in zip(*own, strict=True)]] * workers
    return own[0]


def test_local_sgd_averages_weights_periodically():
    weights, _ = trained(local_sgd(dense(), every=4), steps=12)
    for ours, theirs in zip(weights, by_hand(12, every=4), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_local_sgd_moves_weights_only_at_exchanges():
    trainer = trainer_of(local_sgd(dense(), every=4))
    sent, moved, before = [], [], [weight.numpy() for weight in trainer.weights]
    for event in trainer.run(8):
        sent.append(event.bytes_sent)
        moved.append(any(np.any(weight.numpy() != old) for weight, old in zip(trainer.weights, before, strict=True)))
        before = [weight.numpy() for weight in trainer.weights]
    assert moved == [False, False, False, True] * 2
    assert sent[3] > sent[0] == sent[1] == sent[2] > 0, "every step sends the stop flag and the loss"


def test_post_local_sgd_starts_as_synchronous_sgd():
    post, _ = trained(local_sgd(dense(), every=4, since=8), steps=8)
    together, _ = trained(dense(), steps=8)
    for one, other in zip(post, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_learning_rate_of_zero_changes_nothing():
    """As in warm-up or after decay; pending changes are applied once the rate is positive again."""
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([0, 5, 12], [0.0, RATE, 0.0, RATE])
    trainer, after = trainer_of(local_sgd(dense(), every=4, since=2), rate=rates), {}
    for steps in (4, 8, 15, 16):
        list(trainer.run(steps))
        after[steps] = np.concatenate([weight.numpy().ravel() for weight in trainer.weights])
    assert np.all(np.isfinite(after[16]))
    np.testing.assert_array_equal(after[4], after[8])
    np.testing.assert_array_equal(after[4], after[15])
    assert np.any(after[16] != after[15])


def test_weight_decay_uses_the_local_weights():
    decaying = dataclasses.replace(EVERY, weight_decay=0.5)
    results = []
    # With one worker, local SGD equals SGD; the third run has no weight decay.
    for scheme, config in ((local_sgd(dense(), every=8), decaying), (dense(), decaying), (dense(), EVERY)):
        trainer = trainer_of(scheme, workers=1, options=config)
        list(trainer.run(8))
        results.append([weight.numpy() for weight in trainer.weights])
    for one, other in zip(*results[:2], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert any(np.abs(one - other).max() > 1e-3 for one, other in zip(*results[1:], strict=True))


def test_local_sgd_works_with_a_compression_scheme():
    _, events = trained(local_sgd(top_k(0.5), every=4), steps=80)
    assert events[-1].loss < 0.2 * events[0].loss


def test_local_sgd_rejects_bad_values_and_keras_optimizers():
    with pytest.raises(ValueError, match="every must be a whole number of at least 2, got 1"):
        local_sgd(dense(), every=1)
    with pytest.raises(ValueError, match=r"config must exchange in every step, got Scheme dense, every 8 steps"):
        DistributedOptimizer(keras.optimizers.SGD(0.1), local_sgd(dense()))
