"""Compression on two Horovod ranks: the exchange, the training loop, and both optimizers.

The ranks import this file and run its functions.
"""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.cluster import RankFailed
from dgc_lab.common import LabError
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import MASKING, DGCConfig
from dgc_lab.distributed.communicators import HorovodWorkers, SimulatedWorkers
from dgc_lab.training import RowEnded, RowFailed, sweep
from dgc_lab.training.distributed_trainer import (
    DistributedConfig,
    DistributedTrainer,
    TrainerOnRanks,
)
from dgc_lab.training.events import DistributedStep, Evaluation, TrainingDiverged
from dgc_lab.workloads import load

SHAPES = [(40, 50), (50,), (6, 3)]
CONFIGS = {
    "dgc": DGCConfig(ratio=0.01, rule="exact", dense_below=0),
    "nesterov": DGCConfig(ratio=0.01, nesterov=True, clip_norm=1.0, dense_below=0),
    "float16": DGCConfig(ratio=0.02, values="float16", dense_below=0),
    "warm-up": DGCConfig(ratio=0.01, warm_up=(1.0, 0.1), warm_up_steps=2, dense_below=0),
    "eq. 5": DGCConfig(ratio=0.01, momentum_correction=False, dense_below=0),
    "masking": DGCConfig(0.1, scope="first", **MASKING),
    "vectors": DGCConfig(ratio=0.02, dense_vectors=False, dense_below=0),
    "dense": DGCConfig(ratio=1.0, factor_masking=False),
    "run lengths": DGCConfig(ratio=0.01, indices="run_lengths", dense_below=0),
    "never dense": DGCConfig(
        ratio=0.01, warm_up=(1.0, 0.6), warm_up_steps=2, switch_to_dense=False, indices="run_lengths", dense_below=0
    ),
    "all in 16 bits": DGCConfig(ratio=0.01, indices="run_lengths", values="float16", dense_below=0),
}


def local_gradients(step, worker):
    drawn = [tf.random.stateless_normal(shape, tf.stack([step, 10 * worker + i])) for i, shape in enumerate(SHAPES)]
    rows = tf.stack([step % 6, worker % 6, worker % 6])  # one row occurs twice, and the workers share some rows
    return [*drawn[:2], tf.IndexedSlices(drawn[2][:3], rows, tf.constant(SHAPES[2]))]


def train(config, communicator, steps=8):
    """Run traced SGD steps on compressed updates; return the weights after every step."""
    weights = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    compressor = Compressor(config, weights, communicator)
    here = range(communicator.first, communicator.first + communicator.local)

    @tf.function
    def update(step):
        updates, _ = compressor([local_gradients(step, worker) for worker in here])
        for weight, change in zip(weights, updates, strict=True):
            weight.assign_sub(0.1 * tf.convert_to_tensor(change))

    history = []
    for step in range(steps):
        update(tf.constant(step))
        history.append([weight.numpy() for weight in weights])
    return history


def train_here(config):
    return train(config, HorovodWorkers())


def assert_bits(one, other):
    for left, right in zip(one, other, strict=True):
        for a, b in zip(left, right, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.nightly_except("dgc", "warm-up", "run lengths")
@pytest.mark.parametrize("name", CONFIGS)
def test_two_ranks_match_each_other_and_simulated_workers(two_ranks, name):
    first, second = two_ranks.run(train_here, CONFIGS[name])
    assert_bits(first, second)
    simulated = train(CONFIGS[name], SimulatedWorkers(2))
    for found, expected in zip(first[-1], simulated[-1], strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
        assert np.any(found != 0)


@pytest.mark.nightly
def test_ranks_must_load_the_same_data_as_the_notebook(two_ranks, small_mnist, tmp_path, monkeypatch):
    """Ranks accept a folder or a path relative to home; data that differ from the notebook's are rejected."""
    settings = DistributedConfig(dataset="mnist", steps=2, batch=4, evaluations=1)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (tmp_path, "~/mnist.npz"):
        assert [e.step for e in TrainerOnRanks(settings, two_ranks, path=path).run(0.1)][-1] == 2
    with np.load(small_mnist[0]) as arrays:
        np.savez(tmp_path / "other.npz", **{**arrays, "x_test": 255 - arrays["x_test"]})
    here = TrainerOnRanks(settings, two_ranks, load("mnist", tmp_path / "other.npz"), small_mnist[0])
    with pytest.raises(LabError, match=r"data must be the data set that the ranks load from .*mnist.npz, got another"):
        list(here.run(0.1))
    here = TrainerOnRanks(DistributedConfig(steps=2), two_ranks, load("mnist", tmp_path / "other.npz"))
    with pytest.raises(LabError, match="data must be the data set that the ranks load, got another: pass path="):
        list(here.run(0.1))


def count_a_step(config):
    """Return the bytes and calls of the second step (the first also compares the ranks), and its report."""
    from dgc_lab.distributed.traffic import count_collective_bytes

    communicator = HorovodWorkers()
    weights = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    compressor = Compressor(config, weights, communicator)
    compressor([local_gradients(0, communicator.first)])
    with count_collective_bytes() as sent:
        _, report = tf.function(compressor)([local_gradients(tf.constant(1), communicator.first)])
    return dict(sent), sent.calls, (int(report.allreduce_bytes), int(report.allgather_bytes))


@pytest.mark.parametrize("name", ["dgc", "all in 16 bits"])
def test_a_step_is_one_collective_of_the_reported_size(two_ranks, name):
    for rank, (sent, calls, reported) in enumerate(two_ranks.run(count_a_step, CONFIGS[name])):
        assert calls == {"allreduce": 0, "allgather": 1, "reducescatter": 0}
        assert (sent["allreduce"], sent["allgather"]) == reported
        each = 4 if name == "all in 16 bits" else 8
        # Counts and metadata, vector, entries, and row values and indices: two rows on rank 0, one on rank 1.
        assert reported[1] == 12 + 4 * 50 + each * 20 + (4 * 3 + 4) * (2 - rank)


# Disagreement and NaN -----------------------------------------------------------------------------------------------


def differ(how):
    import horovod.tensorflow as hvd

    weights, config = [tf.Variable(tf.zeros([3, 4])), tf.Variable(tf.zeros([4]))], DGCConfig(dense_below=0)
    gradients, ratio = [tf.ones([3, 4]), tf.ones([4])], None
    if hvd.rank() == 1:
        if how == "ratio":
            config = dataclasses.replace(config, ratio=0.5)
        elif how == "order":
            weights, gradients = weights[::-1], gradients[::-1]
        elif how == "gradients":
            gradients[1] = None
        elif how == "ratio of the step":  # rank 1 would call allreduce, and rank 0 allgather
            ratio = 0.5
    Compressor(config, weights, HorovodWorkers())([gradients], ratio)


@pytest.mark.parametrize("how", ["ratio", "order", "gradients", "ratio of the step"])
def test_every_rank_reports_a_disagreement(two_ranks, how):
    with pytest.raises(RankFailed) as failure:
        two_ranks.run(differ, how)
    assert set(failure.value.problems) == {0, 1}
    for problem in failure.value.problems.values():
        assert problem.kind == "RanksDisagree"
        assert "rank 1 differs from rank 0" in problem.message
    assert two_ranks.ready, "no rank may hang"


def spoil_on_rank_1():
    import horovod.tensorflow as hvd

    weights = [tf.Variable(tf.zeros([3, 4])), tf.Variable(tf.zeros([4]))]
    compressor = Compressor(DGCConfig(dense_below=0), weights, HorovodWorkers(), ["kernel", "bias"])
    bad = tf.fill([3, 4], np.nan if hvd.rank() == 1 else 1.0)
    tf.function(compressor)([[bad, tf.ones([4])]])


def test_every_rank_reports_nan_on_one_rank(two_ranks):
    with pytest.raises(RankFailed) as failure:
        two_ranks.run(spoil_on_rank_1)
    for rank in (0, 1):
        assert "kernel" in failure.value.problems[rank].message
        assert "on worker 1 holds NaN or infinity" in failure.value.problems[rank].message
    assert two_ranks.ready


# The training loop --------------------------------------------------------------------------------------------------


def train_digits(settings, ratio, folder=None, interrupt=False):
    trainer = DistributedTrainer(settings, HorovodWorkers())
    if interrupt:
        for event in trainer.run(ratio, look_every=5):
            if isinstance(event, DistributedStep) and event.step == 5:
                break
        trainer.save(folder)
        trainer = DistributedTrainer(settings, HorovodWorkers())
        assert trainer.restore(folder, ratio)
    losses = [e.loss for e in trainer.run(ratio, resume=interrupt) if isinstance(e, DistributedStep)]
    return losses, [weight.numpy() for weight in trainer.weights]


@pytest.mark.nightly_except("0.02")
@pytest.mark.parametrize("ratio", [1.0, 0.02])
def test_two_ranks_train_like_two_simulated_workers(two_ranks, ratio):
    settings = DistributedConfig(steps=12, evaluations=1, clip_norm=2.0)
    (losses, first), (_, second) = two_ranks.run(train_digits, settings, ratio)
    assert_bits([first], [second])
    simulated = DistributedTrainer(settings, SimulatedWorkers(2))
    expected = [e.loss for e in simulated.run(ratio) if isinstance(e, DistributedStep)]
    # The order of addition in convolutions depends on the number of threads.
    np.testing.assert_allclose(losses, expected, rtol=2e-3)


def test_a_resumed_run_matches_an_uninterrupted_run(two_ranks, tmp_path):
    settings = DistributedConfig(steps=12, evaluations=1, warm_up="geometric", warm_up_steps=2)
    whole = two_ranks.run(train_digits, settings, 0.02)
    resumed = two_ranks.run(train_digits, settings, 0.02, str(tmp_path), interrupt=True)
    for (losses, weights), (last_losses, last_weights) in zip(whole, resumed, strict=True):
        assert losses[5:] == last_losses
        assert_bits([weights], [last_weights])


def test_a_stopped_sweep_on_ranks_keeps_finished_rows(two_ranks, digits, tmp_path):
    settings = DistributedConfig(steps=40, evaluations=2)
    trainer = TrainerOnRanks(settings, two_ranks, digits)
    out = tmp_path / "rows.jsonl"
    events = sweep(settings, [1, 0.01], out, trainer=trainer)
    rows = []
    for event in events:
        if isinstance(event, RowEnded):
            rows.append(event.row)
        elif rows and isinstance(event, DistributedStep) and event.step == 5:
            break
    events.close()
    assert [row["ratio"] for row in rows] == [1.0]
    assert rows[0]["bytes per step"] == 4 * 38282 + 4 * 3 * 2, "the gradient, and three numbers per rank"
    finished = [event.row for event in sweep(settings, [1, 0.01], out, trainer=trainer) if isinstance(event, RowEnded)]
    assert [row["ratio"] for row in finished] == [1.0, 0.01]
    assert finished[0] == rows[0], "rows finished before the stop are kept"
    assert finished[1]["bytes per step"] < rows[0]["bytes per step"] / 15
    assert finished[1]["workers"] == 2


def test_divergence_on_the_ranks_is_a_failed_row(two_ranks, digits):
    settings = DistributedConfig(steps=30, evaluations=1, learning_rate=1e30)
    trainer = TrainerOnRanks(settings, two_ranks, digits)
    failed = [event for event in sweep(settings, [1], trainer=trainer) if isinstance(event, RowFailed)]
    assert "holds NaN or infinity" in failed[0].reason
    with pytest.raises(TrainingDiverged):
        list(trainer.run(1.0))
    assert two_ranks.ready


def test_runs_on_ranks_yield_live_events(two_ranks, digits):
    settings = DistributedConfig(steps=10, evaluations=2, warm_up="dense", warm_up_steps=4)
    events = list(TrainerOnRanks(settings, two_ranks, digits).run(0.01))
    steps = [event for event in events if isinstance(event, DistributedStep)]
    assert [step.step for step in steps] == list(range(1, 11))
    assert [step.ratio for step in steps] == [1.0] * 4 + [0.01] * 6
    assert steps[0].bytes_sent >= steps[0].dense_bytes > 10 * steps[-1].bytes_sent
    assert [event.step for event in events if isinstance(event, Evaluation)] == [5, 10]


def test_workers_must_match_the_ranks(two_ranks, digits):
    with pytest.raises(ValueError, match="workers must be 2, the number of ranks, got 3"):
        TrainerOnRanks(DistributedConfig(workers=3), two_ranks, digits)


# Keras 3 ------------------------------------------------------------------------------------------------------------


class Counting(HorovodWorkers):
    """Counts executed collectives, including those in traced functions."""

    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0)

    def allreduce(self, groups, name=None):
        self.calls.assign_add(1)
        return super().allreduce(groups, name)

    def allgather(self, tensors, name=None):
        self.calls.assign_add(1)
        return super().allgather(tensors, name)


def make_model(seed):
    import keras

    keras.utils.set_random_seed(seed)
    layers = [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(32, activation="relu")]
    return keras.Sequential([*layers, keras.layers.BatchNormalization(), keras.layers.Dense(10)])


def fit(config, optimizer="sgd", epochs=2, horovods=False, folder=None):
    import horovod.tensorflow.keras as horovod_keras
    import keras

    from dgc_lab.distributed.callbacks import AverageMetrics, on_first_rank, shard
    from dgc_lab.distributed.keras_optimizer import DistributedOptimizer
    from dgc_lab.workloads.data import load

    communicator = Counting()
    model = make_model(seed=communicator.first)  # ranks start with different weights; rank 0's must win
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    inner = keras.optimizers.SGD(schedule) if optimizer == "sgd" else keras.optimizers.Adam(0.01)
    own = DistributedOptimizer(inner, config, communicator)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = horovod_keras.DistributedOptimizer(inner) if horovods else own
    model.compile(optimizer, loss, metrics=["accuracy"], jit_compile=False)
    digits = load("digits")
    x, y = shard(digits.x_train, digits.y_train)
    callbacks = [] if horovods else [AverageMetrics()]
    if folder:
        callbacks += on_first_rank(keras.callbacks.ModelCheckpoint(f"{folder}/by_{communicator.first}.keras"))
    history = model.fit(x, y, batch_size=64, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks)
    trained = [variable.numpy() for variable in model.trainable_variables]
    return trained, history.history, int(communicator.calls), 0 if horovods else own.bytes_sent


@pytest.mark.nightly_except("config1")
@pytest.mark.parametrize(
    "config", [None, DGCConfig(ratio=0.01), DGCConfig(ratio=0.01, values="float16", nesterov=True)]
)
def test_fit_exchanges_gradients_and_metrics(two_ranks, config, tmp_path):
    (first, history, calls, sent), (second, other, _, _) = two_ranks.run(fit, config, folder=str(tmp_path))
    assert_bits([first], [second])
    steps = 2 * int(np.ceil(1437 // 2 / 64))
    assert calls == steps, "each step is one collective for all variables"
    assert sent > 0
    assert history["loss"] == other["loss"], "metrics are averaged over the ranks"
    assert history["accuracy"] == other["accuracy"]
    assert history["loss"][-1] < history["loss"][0]
    assert [path.name for path in tmp_path.iterdir()] == ["by_0.keras"], "only rank 0 writes"


@pytest.mark.nightly
def test_compressed_fit_sends_fewer_bytes(two_ranks):
    dense, sparse = (two_ranks.run(fit, config, epochs=1)[0][3] for config in (None, DGCConfig(ratio=0.01)))
    assert sparse < dense / 5


def test_adam_works_without_compression(two_ranks):
    (first, _, _, _), (second, _, _, _) = two_ranks.run(fit, None, optimizer="adam", epochs=1)
    assert_bits([first], [second])


def accumulate_with_nan_on_one_rank():
    import keras

    from dgc_lab.distributed.keras_optimizer import DistributedOptimizer

    rank = HorovodWorkers().first
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    optimizer = DistributedOptimizer(keras.optimizers.Adam(rate, gradient_accumulation_steps=3))
    weight, failed = keras.Variable(np.full((20, 10), rank, np.float32)), []
    step = tf.function(lambda gradient: optimizer.apply([gradient], [weight]))
    for batch in range(12):
        gradient = tf.random.stateless_normal((20, 10), (batch, rank))
        try:
            step(gradient * (np.nan if (batch, rank) == (4, 1) else 1.0))
        except tf.errors.InvalidArgumentError:
            failed.append(batch)
    return weight.numpy(), failed


def test_accumulating_ranks_stay_in_step_after_nan(two_ranks):
    (first, failed), (second, other) = two_ranks.run(accumulate_with_nan_on_one_rank)
    np.testing.assert_array_equal(first, second)
    assert np.all(np.isfinite(first))
    assert failed == other == [5], "only the exchange after batch 5 fails, on both ranks"


def test_horovods_own_wrapper_does_not_communicate(two_ranks):
    """This is why our optimizer exists; if this test fails, Horovod supports Keras 3."""
    (first, _, calls, _), (second, _, _, _) = two_ranks.run(fit, None, horovods=True, epochs=1)
    assert calls == 0
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def fit_saved_and_loaded(folder):
    """Train four epochs, once without a break and once with saving and loading after two."""
    import keras

    from dgc_lab.distributed.callbacks import shard
    from dgc_lab.distributed.keras_optimizer import DistributedOptimizer
    from dgc_lab.workloads.data import load

    digits = load("digits")
    x, y = shard(digits.x_train, digits.y_train)
    fit_two = {"batch_size": 64, "epochs": 2, "shuffle": False, "verbose": 0}
    file = f"{folder}/rank_{HorovodWorkers().first}.keras"
    results = []
    for interrupted in (False, True):
        keras.utils.set_random_seed(0)
        model = make_model(seed=0)
        optimizer = DistributedOptimizer(keras.optimizers.SGD(0.05), DGCConfig(ratio=0.01, dense_below=100))
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
        model.fit(x, y, **fit_two)
        if interrupted:
            model.save(file)
            model = keras.saving.load_model(file)
        model.fit(x, y, **fit_two)
        results.append([variable.numpy() for variable in model.trainable_variables + model.optimizer.compressor.state])
    return results


def test_a_reloaded_keras_model_resumes_bit_for_bit(two_ranks, tmp_path):
    for whole, resumed in two_ranks.run(fit_saved_and_loaded, str(tmp_path)):
        assert_bits([whole], [resumed])


def save_lose_and_restore(folder, saves):
    from dgc_lab.distributed.rank_files import RankFiles

    communicator, variable = HorovodWorkers(), tf.Variable(1.0)
    files = RankFiles(f"{folder}/{communicator.first}", communicator, [variable], {})
    for step in range(1, saves + 1):
        files.save(step)
    if communicator.first == 1:
        for step in files.steps():
            files._file(step).unlink()
    return RankFiles(files.folder, communicator, [variable], {}).restore()


def test_losing_the_files_of_one_rank_raises(two_ranks, tmp_path):
    """A single checkpoint may precede those of the other ranks, so all ranks start over."""
    assert two_ranks.run(save_lose_and_restore, str(tmp_path / "once"), 1) == [0, 0]
    with pytest.raises(LabError, match="holds no checkpoint of rank 1, but some of other ranks"):
        two_ranks.run(save_lose_and_restore, str(tmp_path / "often"), 2)


def load_on_rank_0_only(folder):
    import keras

    from dgc_lab.distributed.keras_optimizer import DistributedOptimizer

    model = make_model(seed=0)
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.05), DGCConfig(ratio=0.01)), "mse", jit_compile=False)
    if HorovodWorkers().first == 0:
        model.optimizer.build(model.trainable_variables)
        model.optimizer.compressor.step.assign(7)
    model.fit(np.ones((8, 8, 8, 1)), np.ones((8, 10)), verbose=0)


def test_loading_state_on_only_one_rank_is_rejected(two_ranks, tmp_path):
    with pytest.raises(RankFailed, match="every rank must load its own state"):
        two_ranks.run(load_on_rank_0_only, str(tmp_path))
    assert two_ranks.ready


def fit_with_metrics_if_only_rank_0_resumes():
    import keras

    from dgc_lab.distributed import AverageMetrics, DistributedOptimizer

    model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(2)])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    if HorovodWorkers().first == 0:
        model.optimizer.inner_optimizer.iterations.assign(5)
    model.fit(np.ones((8, 4)), np.ones((8, 2)), verbose=0, callbacks=[AverageMetrics()])


def test_average_metrics_does_not_hang_if_one_rank_resumes_alone(two_ranks):
    """The other ranks would send it their moments, and it would not receive them."""
    with pytest.raises(RankFailed, match="all ranks must have the same"):
        two_ranks.run(fit_with_metrics_if_only_rank_0_resumes)
    assert two_ranks.ready


def fit_in_bfloat16():
    import keras

    from dgc_lab.distributed.keras_optimizer import DistributedOptimizer

    start = keras.initializers.RandomUniform(seed=HorovodWorkers().first)
    layer = keras.layers.Dense(2, dtype="bfloat16", kernel_initializer=start)
    model = keras.Sequential([keras.Input((4,)), layer])
    config = DGCConfig(ratio=0.5, dense_below=0)
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1), config), "mse", jit_compile=False)
    model.fit(np.ones((8, 4), np.float32), np.ones((8, 2), np.float32), verbose=0)
    return np.float32(layer.kernel.numpy())


def test_bfloat16_weights_stay_equal_on_all_ranks(two_ranks):
    one, other = two_ranks.run(fit_in_bfloat16)
    np.testing.assert_array_equal(one, other)


def damage_an_older_save_and_restore(folder):
    import horovod.tensorflow as hvd

    from dgc_lab.distributed.rank_files import RankFiles

    communicator, variable = HorovodWorkers(), tf.Variable(0.0)
    files = RankFiles(folder, communicator, [variable], {})
    for step in (4, 5) if communicator.first == 0 else (3, 4):
        files.save(step)
    if communicator.first == 0:
        whole = files._file(4).read_bytes()
        files._file(4).write_bytes(whole[: len(whole) // 2])
    hvd.allreduce(tf.constant(1.0), name="all_have_saved")
    return RankFiles(folder, communicator, [variable], {}).restore()


def test_every_rank_reports_a_damaged_common_checkpoint(two_ranks, tmp_path):
    with pytest.raises(RankFailed, match=r"rank_0_step_4\.npz cannot be read") as failure:
        two_ranks.run(damage_an_older_save_and_restore, str(tmp_path))
    assert set(failure.value.problems) == {0, 1}


# compat.v1 ----------------------------------------------------------------------------------------------------------


def train_v1(order, config, mode, embedding=False):
    """Train with the compat.v1 optimizer inside or around Horovod's; return weights and bytes sent."""
    import horovod.tensorflow as hvd

    from dgc_lab.distributed.compat_v1_optimizer import GradientCompressionOptimizer

    inner = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    if order == "inside":
        own = GradientCompressionOptimizer(inner, config)
        optimizer = hvd.DistributedOptimizer(own)
    else:
        own = optimizer = GradientCompressionOptimizer(hvd.DistributedOptimizer(inner), config)
    data = [np.random.default_rng((step, hvd.rank())).normal(size=(16, 40)).astype(np.float32) for step in range(6)]

    def loss_of(weights, x):
        hidden = tf.tanh(x @ weights[0] + weights[1])
        if embedding:
            hidden += tf.gather(weights[2], [3, 3, hvd.rank()] + [1] * 13)
        return tf.reduce_mean(tf.square(hidden - 0.5))

    def make_weights():
        start = np.random.default_rng(0).normal(size=(40, 50)).astype(np.float32)
        values = [start, np.zeros(50, np.float32)] + [np.zeros((6, 50), np.float32)] * embedding
        return [tf.Variable(value) for value in values]

    if mode == "session":
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            weights, x = make_weights(), tf.compat.v1.placeholder(tf.float32, [None, 40])
            step = optimizer.minimize(loss_of(weights, x), var_list=weights)
            session.run(tf.compat.v1.global_variables_initializer())
            for batch in data:
                session.run(step, {x: batch})
            return session.run(weights), session.run(own.compressor.bytes_sent).sum()
    weights = make_weights()

    def step(x):
        optimizer.minimize(lambda: loss_of(weights, x), var_list=weights)

    step = tf.function(step) if mode == "function" else step
    for batch in data:
        step(tf.constant(batch))
    return [weight.numpy() for weight in weights], own.compressor.bytes_sent.numpy().sum()


@pytest.mark.nightly_except("dgc-eager", "float16-session", "warm-up-function")
@pytest.mark.parametrize("mode", ["eager", "function", "session"])
@pytest.mark.parametrize("name", ["dgc", "eq. 5", "nesterov", "float16", "warm-up", "masking", "vectors"])
def test_both_wrapping_orders_train_alike_and_save_bytes(two_ranks, name, mode):
    results = {}
    for order in ("inside", "around"):
        (first, sent), (second, _) = two_ranks.run(train_v1, order, CONFIGS[name], mode)
        assert_bits([first], [second])
        results[order] = first, sent
    for one, other in zip(results["inside"][0], results["around"][0], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    if name != "warm-up":  # its first steps are dense
        assert all(sent < 6 * 4 * 2050 / 3 for _, sent in results.values())


@pytest.mark.parametrize("mode", ["function", "session"])
@pytest.mark.parametrize("order", ["inside", "around"])
def test_embeddings_stay_rows_in_both_wrapping_orders(two_ranks, order, mode):
    (first, _), (second, _) = two_ranks.run(train_v1, order, CONFIGS["dgc"], mode, embedding=True)
    assert_bits([first], [second])
    assert np.any(first[2][[0, 1, 3]] != 0, axis=1).all()
    assert not np.any(first[2][[2, 4, 5]])


def fit_unequal_shards():
    import keras

    from dgc_lab.distributed.callbacks import AverageMetrics
    from dgc_lab.distributed.keras_optimizer import DistributedOptimizer

    model = make_model(seed=0)
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse", jit_compile=False)
    examples = 64 + 64 * HorovodWorkers().first
    model.fit(np.ones((examples, 8, 8, 1)), np.ones((examples, 10)), verbose=0, callbacks=[AverageMetrics()])


def test_different_numbers_of_steps_are_rejected(two_ranks):
    with pytest.raises(RankFailed, match="steps per epoch"):
        two_ranks.run(fit_unequal_shards)
    assert two_ranks.ready


def count_twice():
    import horovod.tensorflow as hvd

    from dgc_lab.distributed.traffic import count_collective_bytes

    found, weight = [], tf.Variable(tf.ones([30, 40]))
    for _ in range(2):
        optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1))
        with count_collective_bytes() as sent:
            optimizer.minimize(lambda: tf.reduce_sum(weight**2), var_list=[weight])
        found.append((dict(sent), sent.calls))
    return found


def test_bytes_of_horovods_own_optimizer_are_counted(two_ranks):
    for found in two_ranks.run(count_twice):
        others = {"allgather": 0, "reducescatter": 0}
        assert found == [({"allreduce": 4800, **others}, {"allreduce": 1, **others})] * 2


def train_without_exchange():
    from dgc_lab.distributed.compat_v1_optimizer import GradientCompressionOptimizer

    weight = tf.Variable(tf.zeros([3, 4]))
    optimizer = GradientCompressionOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), DGCConfig(dense_below=0))
    optimizer.minimize(lambda: tf.reduce_sum(weight), var_list=[weight])


def test_training_without_an_exchange_between_ranks_is_rejected(two_ranks):
    with pytest.raises(RankFailed, match="gradients must be exchanged between the 2 ranks"):
        two_ranks.run(train_without_exchange)


def spoil_inside():
    import horovod.tensorflow as hvd

    from dgc_lab.distributed.compat_v1_optimizer import GradientCompressionOptimizer

    weight = tf.Variable(tf.ones([30, 40]), name="kernel")
    inner = GradientCompressionOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.1), DGCConfig(dense_below=0))
    factor = tf.constant(np.nan if hvd.rank() == 1 else 1.0)
    hvd.DistributedOptimizer(inner).minimize(lambda: tf.reduce_sum(weight * factor), var_list=[weight])


def test_every_rank_reports_nan_inside_horovods_optimizer(two_ranks):
    with pytest.raises(RankFailed) as failure:
        two_ranks.run(spoil_inside)
    assert set(failure.value.problems) == {0, 1}
    assert all("gradient of kernel" in problem.message for problem in failure.value.problems.values())


@pytest.mark.nightly
def test_every_combination_of_options_trains():
    switches = ("accumulate", "momentum_correction", "factor_masking", "nesterov", "dense_vectors")
    for choice in itertools.product([False, True], repeat=len(switches)):
        config = DGCConfig(ratio=0.05, dense_below=0, rule="exact", **dict(zip(switches, choice, strict=True)))
        weights = train(config, SimulatedWorkers(2), steps=2)[-1]
        assert all(np.isfinite(weight).all() and weight.any() for weight in weights)
