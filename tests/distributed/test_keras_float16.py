"""The policy mixed_float16: the loss is scaled, and all ranks skip an update if the gradient of one overflows.

The ranks import this file and run its functions.
"""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.cluster import RankFailed
from dgc_lab.compression import DGCConfig, powersgd, qsgd, signum
from dgc_lab.distributed import DistributedOptimizer

SGD, LossScale = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer
DGC = DGCConfig(ratio=0.25, momentum=0.9, clip_norm=1.0, rule="exact", dense_below=0)
CONFIGS = {"none": None, "dgc": DGC, "powersgd": powersgd(rank=1), "qsgd": qsgd(levels=4), "signum": signum()}
RATES = {"none": 0.1, "dgc": 0.1, "powersgd": 0.1, "qsgd": 0.05, "signum": 0.01}
X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = X[:, :2] - X[:, 2:4]


@contextlib.contextmanager
def policy(name="mixed_float16"):
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy("float32")


def compiled(optimizer, seed=0, **options):
    keras.utils.set_random_seed(seed)
    hidden = keras.layers.Dense(16, activation="relu", name="hidden")
    model = keras.Sequential([keras.Input((8,)), hidden, keras.layers.Dense(2, name="last")])
    model.compile(optimizer, keras.losses.MeanSquaredError(), **{"jit_compile": False, **options})
    return model


def distributed(name="dgc", **options):
    return DistributedOptimizer(SGD(RATES[name], **options), CONFIGS[name])


def fit(model, epochs=3, **options):
    options = {"batch_size": 16, "shuffle": False, "verbose": 0, **options}
    return model.fit(X, Y, epochs=epochs, **options).history["loss"]


def state(optimizer):
    """Return all values that a skipped update must not change."""
    scale = {id(variable) for variable in optimizer.loss_scale.values()}
    variables = [variable for variable in optimizer.variables if id(variable) not in scale]
    return [
        np.array(variable) for variable in (*variables, *optimizer._trainable_variables, *optimizer.compressor.state)
    ]


def assert_equal(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


# One worker ---------------------------------------------------------------------------------------------------------


@pytest.mark.nightly_except("none", "dgc")
@pytest.mark.parametrize("name", CONFIGS)
def test_fit_trains_in_mixed_float16(name):
    with policy():
        optimizer = distributed(name)
        model = compiled(optimizer)
        losses = fit(model, epochs=60)
    assert model.optimizer is optimizer, "Keras must not wrap it"
    assert losses[-1] < 0.1 * losses[0]
    assert int(optimizer.iterations) == 4 * 60 - int(optimizer.skipped_updates)


@pytest.mark.nightly_except("graph")
@pytest.mark.parametrize("how", ["eager", "graph", "several steps"])
def test_one_worker_scales_like_keras(how):
    """The first updates overflow, and the scale grows later; use Adam, which has state of its own."""
    options = {"run_eagerly": how == "eager", "steps_per_execution": 4 if how == "several steps" else 1}
    models = []
    with policy():
        for around in (lambda inner: inner, DistributedOptimizer):
            model = compiled(around(keras.optimizers.Adam(0.01)), loss_weights=[64.0], **options)
            model.optimizer.dynamic_growth_steps = 3
            fit(model, epochs=8)
            models.append(model)
    kerass, ours = (model.optimizer for model in models)
    assert isinstance(kerass, LossScale)
    assert 1 < int(ours.skipped_updates) < 32
    assert int(ours.iterations) == int(kerass.iterations) == 32 - int(ours.skipped_updates)
    assert float(ours.dynamic_scale) == float(kerass.dynamic_scale)
    assert int(ours.step_counter) == int(kerass.step_counter)
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.nightly_except("none-True", "dgc-True", "dgc-False")
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_skipped_update_changes_only_the_scale(name, graph):
    weights = [keras.Variable(np.ones((4, 6), np.float32)), keras.Variable(np.ones(6, np.float32))]
    with policy():
        optimizer = distributed(name)
    optimizer.scale_loss(1.0)
    step = (tf.function if graph else lambda one: one)(lambda *gradients: optimizer.apply(list(gradients), weights))
    drawn = [tf.random.stateless_normal(weight.shape, (0, 1)) for weight in weights]
    step(*drawn)
    before = state(optimizer)
    for skipped, bad in enumerate((np.inf, np.nan), 1):
        step(tf.tensor_scatter_nd_update(drawn[0], [[1, 2]], [bad]), drawn[1])
        assert_equal(before, state(optimizer))
        assert int(optimizer.skipped_updates) == skipped
        assert float(optimizer.dynamic_scale) == 2.0**15 / 2**skipped
    step(*drawn)
    assert any(np.any(one != other) for one, other in zip(before, state(optimizer), strict=True))
    assert int(optimizer.skipped_updates) == 2


@pytest.mark.parametrize("steps", [None, 2])
def test_gradients_are_unscaled_before_they_are_clipped(steps):
    config = DGCConfig(ratio=0.5, clip_norm=0.1, weight_decay=0.1, rule="exact", dense_below=0)
    results = []
    for name in ("float32", "mixed_float16"):
        weights = [keras.Variable(np.ones((4, 6), np.float32)), keras.Variable(np.ones(6, np.float32))]
        with policy(name):
            optimizer = DistributedOptimizer(SGD(0.1, gradient_accumulation_steps=steps), config)
        for step in range(6):
            drawn = [tf.random.stateless_normal(weight.shape, (0, step)) for weight in weights]
            optimizer.apply([optimizer.scale_loss(gradient) for gradient in drawn], weights)
        results.append([np.array(value) for value in (*weights, *optimizer.compressor.state)])
    assert_equal(*results)


def test_sparse_gradients_are_scaled_and_checked():
    weight = keras.Variable(np.ones((9, 2), np.float32))
    with policy():
        optimizer = DistributedOptimizer(SGD(1.0), DGCConfig(momentum=0.0))
    rows = lambda value: tf.IndexedSlices(tf.fill([2, 2], value), tf.constant([1, 1]), tf.constant([9, 2]))  # noqa: E731
    optimizer.scale_loss(1.0)
    optimizer.apply([rows(np.inf)], [weight])
    assert np.all(np.array(weight) == 1)
    optimizer.apply([rows(2.0**14 / 4)], [weight])
    assert np.array(weight)[:, 0].tolist() == [1.0, 0.5, *[1.0] * 7]


def test_accumulation_skips_the_mean_of_all_batches():
    weight = keras.Variable(np.ones((4, 4), np.float32))
    with policy():
        optimizer = DistributedOptimizer(SGD(0.1, gradient_accumulation_steps=3), DGC)
    optimizer.scale_loss(1.0)
    for batch in range(6):
        optimizer.apply([tf.fill([4, 4], np.inf if batch == 1 else 1.0)], [weight])
        assert np.all(np.array(weight) == 1) == (batch < 5)
    assert int(optimizer.skipped_updates) == int(optimizer.iterations) == 1
    assert float(optimizer.dynamic_scale) == 2.0**14
    assert np.all(np.isfinite(weight))


def test_gradients_that_stay_nan_raise_an_error():
    weight = keras.Variable(np.ones((4, 4), np.float32), name="kernel")
    with policy():
        optimizer = DistributedOptimizer(SGD(0.1), DGC)
    optimizer.scale_loss(1.0)
    for _ in range(30):
        optimizer.apply([tf.fill([4, 4], np.nan)], [weight])
    assert float(optimizer.dynamic_scale) == 2.0**-15
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of .*kernel.* on worker 0 holds NaN"):
        optimizer.apply([tf.fill([4, 4], np.nan)], [weight])


def test_the_scale_does_not_overflow():
    weight = keras.Variable([1.0])
    with policy():
        optimizer = DistributedOptimizer(SGD(0.1))
    optimizer.dynamic_growth_steps = 1
    optimizer.dynamic_scale.assign(2.0**126)
    for _ in range(3):
        optimizer.apply([optimizer.scale_loss(tf.constant([0.0]))], [weight])
    assert float(optimizer.dynamic_scale) == 2.0**127


# Saving -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "dgc"])
def test_a_saved_model_resumes_with_its_scale(name, tmp_path):
    def overflowing():
        model = compiled(distributed(name, gradient_accumulation_steps=2), loss_weights=[64.0])
        model.optimizer.dynamic_growth_steps = 3
        fit(model)
        return model

    with policy():
        whole, first, second = overflowing(), overflowing(), compiled(distributed(name, gradient_accumulation_steps=2))
        second.optimizer.build(second.trainable_variables)
    first.save(tmp_path / "model.keras")
    first.save_weights(tmp_path / "model.weights.h5")
    second.compile(second.optimizer, keras.losses.MeanSquaredError(), loss_weights=[64.0], jit_compile=False)
    second.load_weights(tmp_path / "model.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "model.keras")  # under the policy float32
    assert float(whole.optimizer.dynamic_scale) < 2.0**15
    fit(whole)
    for model in (loaded, second):
        values = [np.array(value) for value in first.optimizer.loss_scale.values()]
        assert_equal(values, [np.array(value) for value in model.optimizer.loss_scale.values()])
        model.optimizer.dynamic_growth_steps = 3
        fit(model)
        assert_equal(whole.get_weights(), model.get_weights())
        assert_equal(state(whole.optimizer), state(model.optimizer))


def test_set_weights_sets_the_scale():
    with policy():
        first, second = (compiled(distributed("none")) for _ in range(2))
        fit(first)
        first.optimizer.dynamic_scale.assign(8.0)
        second.optimizer.build(second.trainable_variables)
        second.optimizer.set_weights([np.array(variable) for variable in first.optimizer.variables])
    assert float(second.optimizer.dynamic_scale) == 8.0


def test_models_saved_in_float32_load_under_mixed_float16(tmp_path):
    model = compiled(distributed())
    fit(model)
    model.save(tmp_path / "model.keras")
    with policy():
        loaded = keras.saving.load_model(tmp_path / "model.keras")
        assert float(loaded.optimizer.dynamic_scale) == 2.0**15
        fit(model)
        fit(loaded)
    for one, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


# Rejected setups ----------------------------------------------------------------------------------------------------


def test_an_optimizer_created_under_another_policy_is_rejected():
    optimizer = DistributedOptimizer(SGD(0.1))
    with policy(), pytest.raises(ValueError, match=r"Create DistributedOptimizer after keras.config.set_dtype_policy"):
        compiled(optimizer)


def test_a_constant_scale_needs_auto_scale_loss_false():
    with policy():
        with pytest.raises(ValueError, match=r"to keep a constant loss_scale_factor, pass auto_scale_loss=False"):
            compiled(DistributedOptimizer(SGD(0.1, loss_scale_factor=8.0)))
        model = compiled(DistributedOptimizer(SGD(0.1, loss_scale_factor=8.0)), auto_scale_loss=False)
        losses = fit(model, epochs=30)
    assert losses[-1] < 0.5 * losses[0]


def test_loss_scale_optimizers_around_or_inside_are_rejected():
    with policy():
        for config in (None, DGC):
            with pytest.raises(ValueError, match=r"must not be a LossScaleOptimizer: .* Pass the optimizer inside it"):
                DistributedOptimizer(LossScale(SGD(0.1)), config)
        with pytest.raises(ValueError, match=r"must not be a DistributedOptimizer: .* exchanged twice"):
            DistributedOptimizer(distributed())
        with pytest.raises(ValueError, match="LossScaleOptimizer must not wrap DistributedOptimizer"):
            LossScale(distributed())


def test_a_custom_loop_must_scale_the_loss():
    weight = keras.Variable([1.0])
    with policy():
        optimizer = DistributedOptimizer(SGD(0.1))
    with pytest.raises(ValueError, match=r"the loss must be scaled .* gradients of optimizer.scale_loss\(loss\)"):
        optimizer.apply([tf.constant([1.0])], [weight])

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(weight.value[0] ** 2)
        optimizer.apply(tape.gradient(loss, [weight.value]), [weight])

    step()
    assert float(weight[0]) == pytest.approx(0.8)


# Two ranks ----------------------------------------------------------------------------------------------------------


def train_on_ranks(name, steps, file=None):
    """Train; the gradient of rank 1 overflows in one batch. Return what happened after each batch, and the losses."""
    import horovod.tensorflow as hvd

    rank, history, losses = hvd.rank(), [], []
    x, y = X[rank::2], Y[rank::2]
    with policy():
        model = compiled(distributed(name, gradient_accumulation_steps=steps), seed=rank)
        for batch in range(160):
            overflow = (batch, rank) == (7, 1)
            losses.append(float(model.train_on_batch(x * 1e4 if overflow else x, y)))
            optimizer = model.optimizer
            scale = {key: float(value) for key, value in optimizer.loss_scale.items()}
            history.append([[np.array(weight) for weight in model.trainable_variables], scale, state(optimizer)])
            if file and batch == 79:
                model.save(f"{file}_{rank}.keras")
                model = keras.saving.load_model(f"{file}_{rank}.keras")
    return history, losses


@pytest.mark.nightly_except("None-dgc", "2-none")
@pytest.mark.parametrize("name", ["none", "dgc", "powersgd"])
@pytest.mark.parametrize("steps", [None, 2])
def test_all_ranks_skip_if_one_overflows(two_ranks, name, steps):
    (first, losses), (second, others) = two_ranks.run(train_on_ranks, name, steps)
    for (weights, scale, _), (other_weights, other_scale, _) in zip(first, second, strict=True):
        assert_equal(weights, other_weights)
        assert scale == other_scale
    before, after = (5 if steps else 6), 7
    for history in (first, second):
        assert history[after][1]["skipped_updates"] == history[before][1]["skipped_updates"] + 1
        assert history[after][1]["dynamic_scale"] == history[before][1]["dynamic_scale"] / 2
        assert_equal(history[before][0], history[after][0])
        if not steps:
            assert_equal(history[before][2], history[after][2])
        assert history[-1][1]["skipped_updates"] < 8, "training goes on"
    assert np.mean(losses[-4:] + others[-4:]) < 0.1 * (losses[0] + others[0]) / 2


@pytest.mark.nightly_except("dgc")
@pytest.mark.parametrize("name", ["none", "dgc"])
def test_ranks_resume_with_their_scale(two_ranks, name, tmp_path):
    whole = two_ranks.run(train_on_ranks, name, None)
    resumed = two_ranks.run(train_on_ranks, name, None, str(tmp_path / "rank"))
    for (one, _), (other, _) in zip(whole, resumed, strict=True):
        assert one[-1][1] == other[-1][1]
        assert one[-1][1]["dynamic_scale"] < 2.0**15
        assert_equal(one[-1][0], other[-1][0])


def count_calls(name):
    """Return the collectives of one step in the given policy, after the first step, which also compares the ranks."""
    from dgc_lab.distributed.traffic import count_collective_bytes

    with policy(name):
        optimizer = DistributedOptimizer(SGD(0.1), DGC)
    weight = keras.Variable(np.ones((4, 6), np.float32))
    optimizer.scale_loss(1.0)
    optimizer.apply([tf.ones([4, 6])], [weight])
    with count_collective_bytes() as sent:
        tf.function(lambda: optimizer.apply([tf.ones([4, 6])], [weight]))()
    return sent.calls, dict(sent)


def test_loss_scaling_needs_no_collective_of_its_own(two_ranks):
    assert two_ranks.run(count_calls, "mixed_float16") == two_ranks.run(count_calls, "float32")


def apply_nan_on_rank_1():
    import horovod.tensorflow as hvd

    weight = keras.Variable(np.ones((4, 4), np.float32), name="kernel")
    with policy():
        optimizer = DistributedOptimizer(SGD(0.1), DGC)
    optimizer.scale_loss(1.0)
    step = tf.function(lambda gradient: optimizer.apply([gradient], [weight]))
    for _ in range(31):
        step(tf.fill([4, 4], np.nan if hvd.rank() == 1 else 1.0))


def test_every_rank_reports_gradients_that_stay_nan(two_ranks):
    with pytest.raises(RankFailed, match=r"gradient of .*kernel.* on worker 1 holds NaN") as failure:
        two_ranks.run(apply_nan_on_rank_1)
    assert set(failure.value.problems) == {0, 1}
