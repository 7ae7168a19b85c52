"""Local SGD: workers train independently and exchange weight changes every few steps."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.compression import DGCConfig, dense, diloco, local_sgd, sparseloco, top_k, with_momentum
from dgc_lab.distributed import DistributedOptimizer, SimulatedWorkers
from dgc_lab.training import DistributedConfig, DistributedTrainer, ModelTrainer
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


def test_uncompressed_weights_move_only_at_exchanges():
    """Their momentum belongs to the exchange, as that of compressed tensors does."""
    trainer = trainer_of(local_sgd(with_momentum(dense()), every=4), options=DGCConfig())
    assert trainer.sent_uncompressed == trainer.names
    seen = []
    for _ in trainer.run(8, look_every=1):
        seen.append(np.concatenate([weight.numpy().ravel() for weight in trainer.weights]))
    moved = [bool(np.any(one != other)) for one, other in itertools.pairwise(seen)]
    assert moved == [False, False, True, False, False, False, True]


def test_diloco_is_nesterov_on_the_mean_weight_change():
    rounds, every, momentum, outer_rate = 3, 4, 0.8, 0.6
    trainer = trainer_of(diloco(every, momentum, outer_rate), options=DGCConfig())  # all tensors are uncompressed
    list(trainer.run(rounds * every))
    compressed = trainer_of(diloco(every, momentum, outer_rate))
    list(compressed.run(rounds * every))
    by_hand = trainer_of(dense())
    common = [np.array(value) for value in by_hand.first_values]
    velocity = [np.zeros_like(value) for value in common]
    for turn in range(rounds):
        changes = []
        for worker in range(2):
            own = [value.copy() for value in common]
            for step in range(turn * every, (turn + 1) * every):
                by_hand.model.set_weights(own)
                x, y = by_hand.batches(tf.constant(step * 2 + worker))
                with tf.GradientTape() as tape:
                    loss = tf.reduce_mean((by_hand.model(x) - y) ** 2)
                gradients = tape.gradient(loss, [weight.value for weight in by_hand.model.trainable_weights])
                own = [value - RATE * each.numpy() for value, each in zip(own, gradients, strict=True)]
            changes.append([value - old for value, old in zip(own, common, strict=True)])
        mean = [np.mean(values, 0) for values in zip(*changes, strict=True)]
        velocity = [momentum * u + d for u, d in zip(velocity, mean, strict=True)]
        common = [w + outer_rate * (d + momentum * u) for w, d, u in zip(common, mean, velocity, strict=True)]
    for one, other, expected in zip(trainer.weights, compressed.weights, common, strict=True):
        np.testing.assert_allclose(one, expected, atol=1e-5)
        np.testing.assert_allclose(other, expected, atol=1e-5)


def test_sparseloco_trains():
    _, events = trained(sparseloco(k=2, every=4), steps=80)
    assert events[-1].loss < 0.2 * events[0].loss


@pytest.mark.parametrize("scheme", ["sparseloco:every=4", "diloco:every=4"])
def test_a_run_resumes_between_two_exchanges_bit_for_bit(scheme, digits, tmp_path):
    settings = DistributedConfig(scheme=scheme, steps=12, evaluations=2)
    whole = DistributedTrainer(settings, SimulatedWorkers(2), digits)
    list(whole.run(1.0))
    first = DistributedTrainer(settings, SimulatedWorkers(2), digits)
    for event in first.run(1.0, look_every=1):
        if getattr(event, "step", 0) == 6:  # two steps after an exchange
            first.save(tmp_path)
            break
    second = DistributedTrainer(settings, SimulatedWorkers(2), digits)
    assert second.restore(tmp_path, 1.0)
    assert any(np.any(delta) for delta in second.compressor.local.variables)
    list(second.run(1.0, resume=True))
    for one, other in zip(whole.weights, second.weights, strict=True):
        np.testing.assert_array_equal(one, other)


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
    with pytest.raises(ValueError, match=r"config must exchange in every step, got the scheme dense, every 8 steps"):
        DistributedOptimizer(keras.optimizers.SGD(0.1), local_sgd(dense()))
