"""Every scheme on two real ranks: same bits on both, same results as simulated workers, no deadlocks.

The ranks import this file and run its functions.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.cluster import RankFailed
from dgc_lab.compression import SCHEMES, AllGather, AllReduceMean, Compressor, DGCConfig, Scheme, parse_scheme, powersgd
from dgc_lab.distributed import DistributedOptimizer, HorovodWorkers, SaveRanks, SimulatedWorkers
from dgc_lab.training import ModelTrainer
from dgc_lab.workloads import batches_of

SHAPES = [(40, 50), (50,), (6, 3)]
NAMES = (*SCHEMES, "int8:block=256", "powersgd:after=3", "leader_k:after=3")
IN_SIX_STEPS = {"one_bit_adam": "warm_up=3", "diloco": "every=3", "sparseloco": "every=3"}  # both phases of each


def train(name, communicator, steps=6):
    """Return the weights after some steps, and the bytes per step."""
    weights = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    scheme = parse_scheme(name if ":" in name else f"{name}:{IN_SIX_STEPS.get(name, '')}")
    compressor = Compressor(scheme, weights, communicator)

    @tf.function(autograph=False)
    def step(number):
        workers = range(communicator.first, communicator.first + communicator.local)
        gradients = [
            [tf.random.stateless_normal(s, tf.stack([number, 9 * w + i])) for i, s in enumerate(SHAPES)]
            for w in workers
        ]
        return compressor.train(gradients, 0.1)

    for number in range(steps):
        report = step(tf.constant(number))
    return [weight.numpy() for weight in weights], [int(report.allreduce_bytes), int(report.allgather_bytes)]


def train_on_rank(names):
    return {name: train(name, HorovodWorkers()) for name in names}


def test_schemes_agree_across_ranks_and_with_simulated_workers(two_ranks):
    first, second = two_ranks.run(train_on_rank, list(NAMES))
    for name in NAMES:
        simulated, sent = train(name, SimulatedWorkers(2))
        for one, other, expected in zip(first[name][0], second[name][0], simulated, strict=True):
            np.testing.assert_array_equal(one, other, name)
            close = {"powersgd": 3e-3, "float16": 1e-3}.get(name.partition(":")[0], 1e-5)
            np.testing.assert_allclose(one, expected, atol=close, err_msg=name)
        bytes_reported = np.mean([first[name][1], second[name][1]], 0)
        np.testing.assert_allclose(bytes_reported, sent, atol=1, err_msg=name)


def train_local(schemes, communicator):
    """Return losses and weights of a model after 40 steps of `ModelTrainer` with each scheme."""
    x = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    results = {}
    for text in schemes:
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(1)])
        batches, loss = batches_of(x, x.sum(1, keepdims=True), 8), keras.losses.MeanSquaredError()
        options = DGCConfig(dense_below=100)
        trainer = ModelTrainer(model, loss, batches, parse_scheme(text), 0.02, communicator, options=options)
        losses = [event.loss for event in trainer.run(40)]
        results[text] = losses, [weight.numpy() for weight in trainer.weights]
    return results


def train_local_on_rank(schemes):
    return train_local(schemes, HorovodWorkers())


def test_ranks_train_alone_between_exchanges(two_ranks):
    schemes = ["diloco:every=3", "sparseloco:every=3,k=32", "dense:every=3,outer_rate=0.5"]
    first, second = two_ranks.run(train_local_on_rank, schemes)
    simulated = train_local(schemes, SimulatedWorkers(2))
    for text in schemes:
        losses, expected = simulated[text]
        assert losses[-1] < 0.5 * losses[0], text
        for one, other, weight in zip(first[text][1], second[text][1], expected, strict=True):
            np.testing.assert_array_equal(one, other, text)
            np.testing.assert_allclose(one, weight, atol=1e-3, err_msg=text)


def fit_on_rank():
    import horovod.tensorflow as hvd

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.02), powersgd(rank=2), options=DGCConfig(dense_below=0))
    model.compile(optimizer, "mse", jit_compile=False)
    x = np.random.default_rng(hvd.rank()).normal(size=(64, 8)).astype(np.float32)
    history = model.fit(x, x.sum(1), batch_size=8, epochs=4, verbose=0)
    return model.get_weights(), history.history["loss"], optimizer.bytes_sent


def test_fit_trains_with_a_scheme(two_ranks):
    (first, losses, sent), (second, _, _) = two_ranks.run(fit_on_rank)
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)
    assert losses[-1] < 0.5 * losses[0]
    whole = 4 * 32 * sum(weight.size for weight in first)
    assert 0 < sent < whole


def fit_in_parts(folder, name, parts):
    """Fit a new model up to each of these epochs; return the final weights and compressor state."""
    import horovod.tensorflow as hvd

    x = np.random.default_rng(hvd.rank()).normal(size=(16, 8)).astype(np.float32)
    for epochs in parts:
        keras.utils.set_random_seed(hvd.rank())
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
        options = DGCConfig(dense_below=0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(0.02), parse_scheme(name), options=options)
        model.compile(optimizer, "mse", jit_compile=False)
        saves = SaveRanks(folder)
        done = saves.restore(model)
        model.fit(
            x, x.sum(1), batch_size=8, shuffle=False, epochs=epochs, initial_epoch=done, verbose=0, callbacks=[saves]
        )
    return [*model.get_weights(), *(part.numpy() for part in optimizer.compressor.state)], done


@pytest.mark.nightly_except("powersgd")
@pytest.mark.parametrize("name", ["top_k", "powersgd", "dgc", "threshold_reuse", "leader_k", "powersgd:after=5"])
def test_resumed_fit_restores_scheme_state_bit_for_bit(two_ranks, tmp_path, name):
    whole = two_ranks.run(fit_in_parts, str(tmp_path / "whole"), name, [4])
    again = two_ranks.run(fit_in_parts, str(tmp_path / "parts"), name, [2, 4])
    for (expected, _), (found, done) in zip(whole, again, strict=True):
        assert done == 2
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)


def different_on_each(gradient, state, context):
    import horovod.tensorflow as hvd

    yield AllReduceMean(gradient) if hvd.rank() else AllGather((gradient,))
    return gradient, gradient, state


def nonsense_on_one(gradient, state, context):
    import horovod.tensorflow as hvd

    yield AllReduceMean(gradient) if hvd.rank() else "nonsense"
    return gradient, gradient, state


def one_step(step):
    compressor = Compressor(Scheme(step, name="mine"), [tf.Variable(tf.zeros([64, 64]))], HorovodWorkers())
    compressor([[tf.ones([64, 64])]])


@pytest.mark.nightly_except("different_on_each-rank 1 differs from rank 0")
@pytest.mark.parametrize(
    ("step", "message"),
    [(different_on_each, "rank 1 differs from rank 0"), (nonsense_on_one, "must yield AllReduceMean.*got 'nonsense'")],
)
def test_ranks_that_yield_different_requests_fail_at_once(two_ranks, step, message):
    with pytest.raises(RankFailed, match=message):
        two_ranks.run(one_step, step)
