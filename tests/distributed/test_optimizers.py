"""The Keras and the compat.v1 optimizer on one worker: validation, training, saving and loading."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from test_tensorboard import read

from dgc_lab.common import LabError
from dgc_lab.compression import AllReduceMean, Scheme, demo, qsgd, signum, with_error_feedback
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.distributed.batch_norm import average_statistics
from dgc_lab.distributed.callbacks import AverageMetrics, WriteCompression, on_first_rank, shard
from dgc_lab.distributed.communicators import OneWorker, SimulatedWorkers
from dgc_lab.distributed.compat_v1_optimizer import GradientCompressionOptimizer
from dgc_lab.distributed.keras_optimizer import DistributedOptimizer

v1 = tf.compat.v1.train
SMALL = DGCConfig(ratio=0.25, momentum=0.0, rule="exact", dense_below=0)


def compiled(optimizer, **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile(optimizer, "mse", **{"jit_compile": False, **options})
    return model


def fit(model, **options):
    return model.fit(np.ones((8, 4)), np.ones((8, 3)), verbose=0, **options)


# Keras 3 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "config", "message"),
    [
        (
            keras.optimizers.Adam(),
            DGCConfig(),
            r"must be keras.optimizers.SGD, got Adam: a DGCConfig, .* is defined for SGD only",
        ),
        (
            keras.optimizers.Adam(),
            signum(),
            r"got Adam: .* or a scheme with momentum, .* Without such a config, any optimizer works",
        ),
        (keras.optimizers.SGD(0.1, momentum=0.9), DGCConfig(), r"momentum must be 0 in the inner SGD, got 0.9"),
        (keras.optimizers.SGD(0.1, momentum=0.9), demo(), r"momentum must be 0 in the inner SGD, got 0.9"),
        (
            keras.optimizers.SGD(0.1, weight_decay=0.1),
            DGCConfig(),
            r"must be None .*, got 0.1: .* Use the config's weight_decay",
        ),
        (
            keras.optimizers.SGD(0.1, global_clipnorm=1.0),
            DGCConfig(),
            r"global_clipnorm must be None .*, got 1.0: .* Use the config's clip_norm",
        ),
        (
            keras.optimizers.SGD(0.1, clipvalue=1.0),
            DGCConfig(),
            r"clip_norm, which clips the norm of all gradients together",
        ),
        ("sgd", None, r"optimizer must be a Keras 3 optimizer, got 'sgd'"),
    ],
)
def test_unsupported_keras_optimizers_are_rejected(inner, config, message):
    with pytest.raises(ValueError, match=message):
        DistributedOptimizer(inner, config)


def test_options_without_a_scheme_are_rejected():
    for config in (None, DGCConfig()):
        with pytest.raises(ValueError, match=r"options must be None unless config is a scheme, got DGCConfig"):
            DistributedOptimizer(keras.optimizers.SGD(), config, options=DGCConfig())


def test_without_compression_it_matches_the_inner_optimizer():
    keras.utils.set_random_seed(0)
    alone = compiled(keras.optimizers.Adam(0.1))
    wrapped = compiled(DistributedOptimizer(keras.optimizers.Adam(0.1)))
    wrapped.set_weights(alone.get_weights())
    fit(alone, epochs=4, shuffle=False)
    fit(wrapped, epochs=4, shuffle=False)
    for one, other in zip(alone.get_weights(), wrapped.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_the_error_for_xla_says_how_to_disable_it():
    with pytest.raises(
        ValueError, match=r"jit_compile must be False, got True: .* model.compile\(..., jit_compile=False"
    ):
        fit(compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL), jit_compile=True))


def test_xla_is_rejected_in_custom_loops_and_after_training():
    weight = keras.Variable([1.0, 2.0])
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL)

    def apply():
        optimizer.apply([tf.ones([2])], [weight])

    tf.function(apply)()
    trained, inside = weight.numpy(), tf.function(apply)
    for step in (tf.function(apply, jit_compile=True), tf.function(lambda: inside(), jit_compile=True)):
        with pytest.raises(ValueError, match="jit_compile must be False, got True"):
            step()
    np.testing.assert_array_equal(weight, trained)
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL))
    fit(model)
    model.compile(model.optimizer, "mse", jit_compile=True, steps_per_execution=2)
    with pytest.raises(ValueError, match="jit_compile must be False, got True"):
        fit(model)


def test_learning_rate_changes_reach_the_inner_optimizer():
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL))
    callback = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (epoch + 1))
    history = fit(model, epochs=3, callbacks=[AverageMetrics(), callback])
    assert history.history["learning_rate"] == pytest.approx([0.1, 0.05, 0.1 / 3])
    assert float(model.optimizer.inner_optimizer.learning_rate) == pytest.approx(0.1 / 3)
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.0])
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(schedule), SMALL))
    fit(model, epochs=3)
    before = model.get_weights()
    fit(model, epochs=2)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("config", [None, DGCConfig(ratio=0.01, warm_up=(0.5, 0.1), clip_norm=1.0)])
def test_the_optimizer_round_trips_through_its_config(config):
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.3), config, name="mine")
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert isinstance(restored, DistributedOptimizer)
    assert restored.config == config
    assert restored.name == "mine"
    assert float(restored.learning_rate) == pytest.approx(0.3)


def test_saved_models_include_residuals(tmp_path):
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), DGCConfig(ratio=0.25, dense_below=0)))
    fit(model, epochs=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert np.any(loaded.optimizer.compressor.residuals()[0])
    for one, other in zip(model.optimizer.compressor.state, loaded.optimizer.compressor.state, strict=True):
        np.testing.assert_array_equal(one, other)
    fit(model, shuffle=False)
    fit(loaded, shuffle=False)
    for one, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_saved_before_training_can_be_loaded(tmp_path):
    compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL)).save(tmp_path / "model.keras")
    fit(keras.saving.load_model(tmp_path / "model.keras"))


def test_loading_the_file_of_another_rank_is_rejected(tmp_path):
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL))
    fit(model)
    model.save_weights(tmp_path / "model.weights.h5")
    model.optimizer.communicator.first = 1
    with pytest.raises(ValueError, match="the file holds residuals of rank 0 of 1, and this is rank 1 of 1"):
        model.optimizer.load_own_variables({"rank": np.array(0), "workers": np.array(1)})


def test_an_outer_loss_scale_optimizer_is_rejected():
    with pytest.raises(ValueError, match="LossScaleOptimizer must not wrap DistributedOptimizer"):
        fit(compiled(keras.optimizers.LossScaleOptimizer(DistributedOptimizer(keras.optimizers.SGD(0.1)))))


def test_a_fixed_loss_scale_does_not_change_training():
    keras.utils.set_random_seed(0)
    models = [
        compiled(DistributedOptimizer(keras.optimizers.SGD(0.1, loss_scale_factor=s), SMALL)) for s in (None, 64.0)
    ]
    models[1].set_weights(models[0].get_weights())
    for model in models:
        fit(model, epochs=3, shuffle=False)
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_layers_unfrozen_after_building_are_rejected():
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL))
    fit(model)
    late = keras.Variable([1.0], name="late")
    with pytest.raises(ValueError, match=r"got also .*late.*compile the model with a new optimizer"):
        model.optimizer.apply([tf.constant([1.0])], [late])


def test_launched_ranks_must_initialize_horovod(monkeypatch):
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    with pytest.raises(LabError, match=r"one of 2 ranks, but Horovod is not initialized: call .*init\(\) first"):
        fit(compiled(DistributedOptimizer(keras.optimizers.SGD(0.1))))


def test_the_optimizer_trains_in_a_custom_loop():
    weight = keras.Variable([[1.0, 2.0]])
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), DGCConfig(ratio=0.5, momentum=0.0, dense_below=0))
    optimizer.apply_gradients([(tf.constant([[0.25, -0.5]]), weight)])
    assert np.array(weight).tolist() == [[1.0, 2.5]]
    assert optimizer.bytes_sent == 8 + 8, "one element and the message header"


def test_autograph_does_not_convert_the_optimizer():
    """AutoGraph would take seconds in every process, and warn about code that it cannot convert."""
    in_loop, in_library, now = [], [], tf.__internal__.autograph.control_status_ctx

    class Watched(OneWorker):
        def assert_same_on_all_ranks(self, what):
            in_library.append(now().status.name)

    weight = keras.Variable([[1.0, 2.0]])
    optimizer = DistributedOptimizer(keras.optimizers.SGD(1.0), DGCConfig(momentum=0.0), Watched())
    compressor = Compressor(DGCConfig(), [tf.Variable(tf.zeros([3]))], Watched())

    @tf.function
    def step():
        in_loop.append(now().status.name)
        optimizer.apply([tf.ones([1, 2])], [weight])
        compressor([[tf.ones([3])]])

    step()
    assert set(in_loop) == {"ENABLED"}
    assert len(in_library) >= 2
    assert "ENABLED" not in in_library


def one_of_two(rank):
    """Return a communicator that only knows its rank, of two."""
    communicator = SimulatedWorkers(2)
    communicator.first, communicator.local = rank, 1
    return communicator


def test_shards_are_equal_and_disjoint():
    first, second = one_of_two(0), one_of_two(1)
    first_part, second_part = (shard(np.arange(7), communicator=one)[0] for one in (first, second))
    assert [first_part.tolist(), second_part.tolist()] == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(ValueError, match=r"arrays must have equal lengths of at least 2.* got \[3, 4\]"):
        shard(np.arange(3), np.arange(4), communicator=second)
    with pytest.raises(ValueError, match="at least 2, the number of ranks"):
        shard(np.arange(1), communicator=second)
    assert on_first_rank("callback", communicator=second) == []
    assert on_first_rank("callback", communicator=OneWorker()) == ["callback"]


# compat.v1 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inner", "config", "message"),
    [
        (v1.AdamOptimizer(), None, r"must be a tf.compat.v1.train.GradientDescentOptimizer .* got AdamOptimizer"),
        (v1.MomentumOptimizer(0.1, 0.9), None, r"momentum must be 0 in the config .* applied twice"),
        (keras.optimizers.SGD(), None, "got SGD"),
    ],
)
def test_unsupported_v1_optimizers_are_rejected(inner, config, message):
    with pytest.raises(ValueError, match=message):
        GradientCompressionOptimizer(inner, config)


def test_slots_and_variables_exist_after_the_first_step():
    weight = tf.Variable(tf.random.stateless_normal([4, 5], (0, 0)))
    optimizer = GradientCompressionOptimizer(v1.GradientDescentOptimizer(0.1), DGCConfig(ratio=0.1, dense_below=0))
    assert optimizer.get_slot_names() == []
    assert optimizer.get_slot(weight, "residual") is None
    assert optimizer.variables() == []
    optimizer.minimize(lambda: tf.reduce_sum(weight**2), var_list=[weight])
    assert optimizer.get_slot_names() == ["residual", "velocity"]
    assert optimizer.get_slot(weight, "residual").shape == weight.shape
    assert np.any(optimizer.get_slot(weight, "velocity"))
    assert optimizer.get_slot(tf.Variable(1.0), "velocity") is None
    assert len(optimizer.variables()) == 3


def test_changing_the_variables_is_rejected():
    weights = [tf.Variable(tf.ones([2, 2])) for _ in range(2)]
    optimizer = GradientCompressionOptimizer(v1.GradientDescentOptimizer(0.1), SMALL)
    optimizer.minimize(lambda: tf.reduce_sum(weights[0]), var_list=weights[:1])
    with pytest.raises(ValueError, match="var_list must hold the variables of the first call"):
        optimizer.minimize(lambda: tf.reduce_sum(weights[1]), var_list=weights[1:])


def test_inner_momentum_is_allowed_if_the_config_has_none():
    weight = tf.Variable(tf.ones([2, 2]))
    optimizer = GradientCompressionOptimizer(v1.MomentumOptimizer(0.1, 0.5), SMALL)
    for _ in range(2):
        optimizer.minimize(lambda: tf.reduce_sum(weight), var_list=[weight])
    assert "momentum" in optimizer.get_slot_names()
    assert optimizer.get_slot(weight, "momentum").shape == (2, 2)


def test_embedding_gradients_stay_rows():
    table, unused = tf.Variable(tf.zeros([6, 4])), tf.Variable(1.0)
    optimizer = GradientCompressionOptimizer(v1.GradientDescentOptimizer(1.0), SMALL)
    pairs = optimizer.compute_gradients(lambda: tf.reduce_sum(tf.gather(table, [2, 2])), var_list=[table, unused])
    assert pairs[1][0] is None
    gradient = pairs[0][0]
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient.values.shape == [1, 4], "one merged row"
    optimizer.apply_gradients(pairs)
    expected = np.zeros((6, 4))
    expected[2] = -2
    np.testing.assert_array_equal(table, expected)


def test_training_in_a_session_counts_global_steps():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        weight = tf.Variable(tf.ones([10, 10]))
        step = tf.compat.v1.train.get_or_create_global_step()
        optimizer = GradientCompressionOptimizer(v1.GradientDescentOptimizer(0.1), DGCConfig(ratio=0.1, dense_below=0))
        train = optimizer.minimize(tf.reduce_sum(weight**2), global_step=step, var_list=[weight])
        session.run(tf.compat.v1.global_variables_initializer())
        for _ in range(5):
            session.run(train)
        assert session.run(step) == 5
        assert session.run(optimizer.compressor.step) == 5
        assert session.run(tf.reduce_sum(weight**2)) < 100


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("options", [{}, {"ratio": 1.0}, {"momentum_correction": False}], ids=str)
def test_v1_optimizer_trains_variables_of_other_dtypes(dtype, options):
    """Covers dense, sparse and row updates; TensorFlow aborts if an update has the wrong dtype."""
    config = DGCConfig(**{"ratio": 0.5, "dense_below": 0, "momentum": 0.0, **options})
    shapes = ((10, 10), (5,), (6, 4))
    weights = [tf.Variable(tf.ones(shape, dtype)) for shape in shapes]
    optimizer = GradientCompressionOptimizer(v1.GradientDescentOptimizer(0.5), config)

    def loss():
        parts = [*weights[:2], tf.gather(weights[2], [2, 2])]
        return tf.add_n([tf.reduce_sum(tf.cast(part, tf.float32)) for part in parts])

    optimizer.minimize(loss, var_list=weights)
    assert [weight.dtype for weight in weights] == [dtype] * 3
    moved = [1 - np.asarray(weight, np.float32) for weight in weights]
    assert set(moved[0].ravel()) <= {0, 0.5}
    assert set(moved[1]) == {0.5}, "vectors are sent uncompressed"
    assert set(moved[2].ravel()) <= {0, 1.0}
    assert all(part.any() for part in moved)


def test_an_epoch_without_an_exchange_writes_no_ratios(tmp_path):
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4), SMALL)
    fit(compiled(optimizer), batch_size=4, epochs=3, callbacks=[WriteCompression(tmp_path)])
    assert set(read(tmp_path)["compression/bytes"]) == {1, 2}, "no exchange happens in the first epoch"


def test_rows_that_horovod_densified_keep_their_momentum():
    """`hvd.DistributedOptimizer(..., sparse_as_dense=True)` returns such gradients."""
    for whole in (False, True):
        table = tf.Variable(tf.zeros([600, 2]))
        optimizer = GradientCompressionOptimizer(v1.GradientDescentOptimizer(1.0), DGCConfig(momentum=0.5))
        for _ in range(3):
            [(rows, _)] = optimizer.compute_gradients(lambda: tf.reduce_sum(tf.gather(table, [1])), [table])  # noqa: B023
            optimizer.apply_gradients([(tf.convert_to_tensor(rows) if whole else rows, table)])
        np.testing.assert_array_equal(table[1], [-4.25, -4.25])


def test_the_error_for_nan_names_the_variable():
    weight = tf.Variable(tf.ones([4, 5]), name="kernel")
    optimizer = GradientCompressionOptimizer(v1.GradientDescentOptimizer(0.1), SMALL)
    with pytest.raises(tf.errors.InvalidArgumentError, match="gradient of kernel"):
        optimizer.minimize(lambda: tf.reduce_sum(weight * np.nan), var_list=[weight])
    np.testing.assert_array_equal(weight, np.ones((4, 5)))


# Keras edge cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nesterov": True}, "nesterov must be False in the inner SGD, got True: set nesterov in the config"),
        ({"use_ema": True, "gradient_accumulation_steps": 2}, "use_ema must be False with gradient_accumulation_steps"),
    ],
)
def test_options_that_would_differ_from_keras_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.0, **options), SMALL)


def test_ema_with_accumulation_is_rejected_without_compression():
    with pytest.raises(ValueError, match="use_ema must be False with gradient_accumulation_steps, got True"):
        DistributedOptimizer(keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2))


def test_mirrored_strategy_is_rejected():
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL))
        with pytest.raises(ValueError, match=r"must not run under tf.distribute's MirroredStrategy"):
            fit(model)


def test_accumulated_gradients_are_sent_once_per_update():
    whole = DGCConfig(ratio=1.0, momentum=0.9, dense_below=0, dense_vectors=False)
    keras.utils.set_random_seed(0)
    start = compiled("sgd").get_weights()
    models = [
        compiled(keras.optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=4)),
        compiled(DistributedOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4), whole)),
        compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), whole)),
    ]
    for model in models:
        model.set_weights(start)
        fit(model, epochs=4, batch_size=2, shuffle=False)  # four batches per epoch
    for one, other in zip(models[0].get_weights(), models[1].get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert 4 * models[1].optimizer.bytes_sent == models[2].optimizer.bytes_sent > 0
    assert int(models[1].optimizer.iterations) == 4


def test_gradients_in_some_accumulated_batches_only_are_rejected():
    """Their sum would not be exchanged if the last batch has none."""
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
    weights = [keras.Variable([1.0, 2.0], name=name) for name in ("always", "sometimes")]
    both, one = [tf.ones([2]), tf.ones([2])], [tf.ones([2]), None]
    # The second update trains other variables, as after freezing a layer.
    for gradients in (both, both, one, one, both):
        optimizer.apply(gradients, weights)
    with pytest.raises(ValueError, match=r"in all batches of an update, but \['sometimes'\] have them only in some"):
        optimizer.apply(one, weights)


@pytest.mark.nightly_except("Adam", "SGD")
@pytest.mark.parametrize("name", ["Adadelta", "Adafactor", "Adam", "AdamW", "Adamax", "Lamb", "Nadam", "SGD"])
def test_accumulation_matches_keras_with_every_optimizer(name):
    """As in Keras, optimizers count updates, and schedules count batches."""
    models = []
    for around in (lambda inner: inner, DistributedOptimizer):
        rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.9)
        inner = getattr(keras.optimizers, name)(rate, gradient_accumulation_steps=4)
        keras.utils.set_random_seed(0)
        models.append(compiled(around(inner)))
        x = np.random.default_rng(0).normal(size=(24, 4))
        models[-1].fit(x, x[:, :3], batch_size=2, shuffle=False, verbose=0)
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert int(models[0].optimizer.iterations) == int(models[1].optimizer.iterations) == 3


def test_schedules_work_with_accumulation_after_reloading():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([4, 8], [0.5, 0.25, 0.125])
    inner = keras.optimizers.SGD(schedule, gradient_accumulation_steps=3)
    optimizer = DistributedOptimizer(inner, SMALL)
    restored = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    later = DistributedOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), SMALL)
    later.learning_rate = schedule
    saved = keras.optimizers.serialize(restored)  # earlier versions saved the schedule as it was given
    saved["config"]["optimizer"]["config"]["learning_rate"] = keras.optimizers.schedules.serialize(schedule)
    for one in (optimizer, restored, later, keras.optimizers.deserialize(saved)):
        assert keras.optimizers.serialize(one)["config"]["gradient_accumulation_steps"] == 3
        rates, weight = [], keras.Variable([[1.0, 2.0]])
        for _ in range(12):
            rates.append(float(one.learning_rate))
            one.apply([tf.ones([1, 2])], [weight])
        assert rates[2::3] == [0.5, 0.25, 0.25, 0.125], "updates follow batches 2, 5, 8 and 11"


def test_partial_accumulation_survives_saving_and_loading(tmp_path):
    def model():
        keras.utils.set_random_seed(0)
        return compiled(DistributedOptimizer(keras.optimizers.SGD(0.1, gradient_accumulation_steps=3), SMALL))

    whole, first = model(), model()
    fit(whole, epochs=6, batch_size=8)
    fit(first, epochs=4, batch_size=8)
    first.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    assert restored.optimizer.gradient_accumulation_steps == 3
    fit(restored, epochs=2, batch_size=8)
    for one, other in zip(whole.get_weights(), restored.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_clipping_and_weight_decay_ignore_the_loss_scale():
    config = DGCConfig(ratio=0.5, clip_norm=0.1, weight_decay=0.1, dense_below=0, dense_vectors=False)
    keras.utils.set_random_seed(0)
    models = [
        compiled(DistributedOptimizer(keras.optimizers.SGD(0.1, loss_scale_factor=scale), config))
        for scale in (None, 64.0)
    ]
    models[1].set_weights(models[0].get_weights())
    for model in models:
        fit(model, epochs=5)
    for one, other in zip(models[0].get_weights(), models[1].get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_loading_weights_before_the_first_step_warns(tmp_path):
    trained, fresh = (compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL)) for _ in range(2))
    fit(trained)
    trained.save_weights(tmp_path / "model.weights.h5")
    with pytest.warns(UserWarning, match="residuals and velocities were not loaded"):
        fresh.load_weights(tmp_path / "model.weights.h5")
    for one, other in zip(trained.get_weights(), fresh.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    fit(fresh)


@pytest.mark.parametrize("graph", [False, True])
def test_nan_in_an_accumulated_batch_fails_one_exchange_only(graph):
    weight = keras.Variable(np.zeros((4, 4), np.float32))
    inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    optimizer = DistributedOptimizer(inner, DGCConfig(ratio=0.5, momentum=0.0, dense_below=0))
    step = (tf.function if graph else lambda one: one)(lambda gradient: optimizer.apply([gradient], [weight]))
    step(tf.fill([4, 4], np.nan))
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN or infinity"):
        step(tf.ones([4, 4]))
    assert not np.any(weight)
    step(tf.ones([4, 4]))
    assert not np.any(weight), "every rank starts a new sum after the failed exchange"
    for _ in range(4):
        step(tf.ones([4, 4]))
    assert np.all(np.isfinite(weight))
    assert np.all(np.array(weight) < 0)


def test_the_error_for_custom_schemes_suggests_compile_false(tmp_path):
    def mine(gradient, state, context):
        mean = yield AllReduceMean(gradient)
        return mean, gradient, state

    for scheme in (Scheme(mine, name="sign"), with_error_feedback(qsgd())):  # "sign" is also a published name
        model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), scheme))
        fit(model)
        model.save(tmp_path / "model.keras")
        with pytest.raises(ValueError, match=rf"saved with the scheme 'custom scheme {scheme.name}', .*compile=False"):
            keras.saving.load_model(tmp_path / "model.keras")
        loaded = keras.saving.load_model(tmp_path / "model.keras", compile=False)
        np.testing.assert_array_equal(loaded(np.ones((1, 4))), model(np.ones((1, 4))))


def test_uncompressed_state_loads_with_any_number_of_ranks():
    model = compiled(DistributedOptimizer(keras.optimizers.Adam(0.1)))
    fit(model)
    model.optimizer.load_own_variables({"rank": np.array(1), "workers": np.array(2), "0": np.array(7)})
    assert int(model.optimizer.compressor.step) == 7


def test_state_of_another_number_of_ranks_is_rejected():
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL))
    fit(model)
    with pytest.raises(ValueError, match="residuals of rank 0 of 2, and this is rank 0 of 1"):
        model.optimizer.load_own_variables({"rank": np.array(0), "workers": np.array(2)})


def test_generators_need_steps_per_epoch_on_several_ranks():
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL))
    metrics = AverageMetrics(one_of_two(0))
    batches = ((np.ones((4, 4)), np.ones((4, 3))) for _ in range(3))
    with pytest.raises(ValueError, match="steps_per_epoch must be passed to fit on several ranks, got None"):
        model.fit(batches, verbose=0, callbacks=[metrics])


def test_averaging_statistics_does_not_change_frozen_weights():
    model = keras.Sequential([keras.Input((50,)), keras.layers.Dense(50), keras.layers.BatchNormalization()])
    model.layers[0].trainable = False
    before = model.get_weights()
    average_statistics(model, SimulatedWorkers(3))
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_simulated_workers_are_rejected_as_ranks():
    """Each process has a single gradient, which cannot serve two workers."""
    pair, message = SimulatedWorkers(2), "communicator must have one worker in this process, got 2 simulated workers"
    with pytest.raises(ValueError, match=message):
        fit(compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), communicator=pair)))
    with pytest.raises(ValueError, match=message):
        fit(compiled(keras.optimizers.SGD(0.1)), callbacks=[AverageMetrics(pair)])
    with pytest.raises(ValueError, match=message):
        shard([0, 1, 2, 3], communicator=pair)
    weight = tf.Variable([[1.0, 2.0]])
    optimizer = GradientCompressionOptimizer(v1.GradientDescentOptimizer(0.1), SMALL, communicator=pair)
    with pytest.raises(ValueError, match=message):
        optimizer.minimize(lambda: tf.reduce_sum(weight), var_list=[weight])


@pytest.mark.parametrize("ratio", [0.5, 1.0])
@pytest.mark.parametrize("session", [False, True])
def test_nan_in_the_v1_optimizer_fails_one_step_only(ratio, session):
    """The optimizer state must not stay NaN, which would spoil every later step."""
    config = DGCConfig(ratio=ratio, momentum=0.5, dense_below=0)
    with tf.Graph().as_default() if session else contextlib.nullcontext():
        weight, factor = tf.Variable(tf.ones([4, 5])), tf.Variable(1.0)
        optimizer = GradientCompressionOptimizer(v1.GradientDescentOptimizer(0.1), config)

        def minimize():
            return optimizer.minimize(lambda: tf.reduce_sum(weight * factor), var_list=[weight])

        if session:
            running, once = (
                tf.compat.v1.Session(),
                optimizer.minimize(tf.reduce_sum(weight * factor), var_list=[weight]),
            )
            value = tf.compat.v1.placeholder(tf.float32)
            assigned = factor.assign(value)
            running.run(tf.compat.v1.global_variables_initializer())
            assign, step = lambda number: running.run(assigned, {value: number}), lambda: running.run(once)
        else:
            assign, step = factor.assign, minimize
        step()
        assign(np.nan)
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
            step()
        assign(1.0)
        step()
        kept = [optimizer.get_slot(weight, name) for name in ("residual", "velocity")]
        found = running.run([weight, *kept]) if session else [weight.numpy(), *(part.numpy() for part in kept)]
    assert all(np.all(np.isfinite(part)) for part in found)
    assert np.all(found[0] <= 1)
    assert np.any(found[0] < 1)
