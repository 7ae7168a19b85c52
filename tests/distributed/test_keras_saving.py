"""Models with a DistributedOptimizer are saved and loaded, whatever the inner optimizer; files and `set_weights`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.compression import DGCConfig
from dgc_lab.distributed import DistributedOptimizer

SMALL = DGCConfig(ratio=0.25, momentum=0.9, rule="exact", dense_below=0)
SCHEDULE = keras.optimizers.schedules.PiecewiseConstantDecay([4], [0.1, 0.05])


@keras.saving.register_keras_serializable(package="test_keras_saving")
class SignDescent(keras.optimizers.Optimizer):
    """A user's optimizer: its config holds its own arguments only."""

    def __init__(self, rate):
        super().__init__(learning_rate=rate)

    def update_step(self, gradient, variable, learning_rate):
        variable.assign_sub(tf.sign(gradient) * tf.cast(learning_rate, gradient.dtype))

    def get_config(self):
        return {"rate": super().get_config()["learning_rate"]}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        if isinstance(config["rate"], dict):
            config = {**config, "rate": keras.optimizers.schedules.deserialize(config["rate"])}
        return cls(**config)


def sign_descent(**options):
    """Return a SignDescent with options that its constructor does not take."""
    optimizer = SignDescent(SCHEDULE)
    for name, value in options.items():
        setattr(optimizer, name, value)
    return optimizer


def two_optimizers(**options):
    by_name = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.05), {".*kernel": keras.optimizers.SGD(0.1)})
    return keras.optimizers.MultiOptimizer(by_name, **options)


INNER = {
    "MultiOptimizer": two_optimizers,
    "MultiOptimizer, scaled": lambda: two_optimizers(loss_scale_factor=4.0),
    "own class": sign_descent,
    "own class, accumulating": lambda: sign_descent(gradient_accumulation_steps=2, loss_scale_factor=4.0),
    "Adam": lambda: keras.optimizers.Adam(SCHEDULE, gradient_accumulation_steps=2, loss_scale_factor=4.0),
}


def compiled(optimizer):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, name="layer")])
    model.compile(optimizer, keras.losses.MeanSquaredError(), jit_compile=False)  # Keras cannot load "mse" from .h5
    return model


def fit(model, epochs=3):
    x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
    model.fit(x, x[:, :3], epochs=epochs, batch_size=4, shuffle=False, verbose=0)


def assert_equal(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.nightly_except("MultiOptimizer", "own class, accumulating")
@pytest.mark.parametrize("name", INNER)
def test_a_saved_model_resumes_with_any_inner_optimizer(name, tmp_path):
    whole, first = (compiled(DistributedOptimizer(INNER[name]())) for _ in range(2))
    fit(whole)
    fit(whole)
    fit(first)
    first.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for option in ("gradient_accumulation_steps", "loss_scale_factor"):
        assert getattr(loaded.optimizer, option) == getattr(whole.optimizer, option)
    fit(loaded)
    assert_equal(whole.get_weights(), loaded.get_weights())


# Weights of the optimizer --------------------------------------------------------------------------------------------


def state(model):
    return [variable.numpy() for variable in model.optimizer.variables]


def test_set_weights_sets_the_inner_optimizer_too():
    for inner in (keras.optimizers.Adam(0.1), keras.optimizers.SGD(0.1, momentum=0.9), two_optimizers()):
        trained, fresh = compiled(DistributedOptimizer(inner)), compiled(DistributedOptimizer(copy_of(inner)))
        fit(trained)
        with pytest.raises(ValueError, match="optimizer must be built before set_weights"):
            fresh.optimizer.set_weights(state(trained))
        fresh.optimizer.build(fresh.trainable_variables)
        fresh.optimizer.set_weights(state(trained))
        assert int(fresh.optimizer.iterations) == 12
        assert_equal(state(trained), state(fresh))
        right = state(trained)
        for wrong in (right[:-1], [*right, np.zeros(3)]):
            message = f"weights must hold {len(right)} arrays, .* got {len(wrong)}"
            with pytest.raises(ValueError, match=message):
                fresh.optimizer.set_weights(wrong)
        assert_equal(state(trained), state(fresh))


def copy_of(optimizer):
    return keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))


def test_wrong_shapes_leave_the_optimizer_unchanged():
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)))
    fit(model)
    before, wrong = state(model), [np.zeros_like(value) for value in state(model)]
    wrong[-1] = np.zeros(7)
    with pytest.raises(ValueError, match=r"shape \(3,\), got \(7,\)"):
        model.optimizer.set_weights(wrong)
    assert_equal(before, state(model))


def test_set_weights_warns_that_residuals_are_not_set(recwarn):
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL))
    fit(model)
    with pytest.warns(UserWarning, match=r"velocities and residuals are not among .*\.keras"):
        model.optimizer.set_weights(state(model))
    plain = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1)))
    fit(plain)
    plain.optimizer.set_weights(state(plain))
    assert not [warning for warning in recwarn if "residuals" in str(warning.message)]


def test_training_after_loading_an_h5_file_is_rejected(tmp_path):
    """Keras builds the optimizer without variables, and its own optimizers fail in the first step, too."""
    model = compiled(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL))
    fit(model)
    model.save(tmp_path / "model.h5")
    loaded = keras.saving.load_model(tmp_path / "model.h5")
    assert_equal(model.get_weights(), loaded.get_weights())
    with pytest.raises(
        ValueError, match=r"must be built with the model's variables, got none, .*\.h5.* in a \.keras file"
    ):
        fit(loaded)
    loaded.compile(DistributedOptimizer(keras.optimizers.SGD(0.1), SMALL), "mse", jit_compile=False)
    fit(loaded)


@pytest.mark.nightly_except("config1")
@pytest.mark.parametrize("config", [None, SMALL])
def test_weights_files_resume_a_built_optimizer(config, tmp_path):
    whole, first, second = (compiled(DistributedOptimizer(keras.optimizers.SGD(SCHEDULE), config)) for _ in range(3))
    fit(whole)
    fit(whole)
    fit(first)
    first.save_weights(tmp_path / "model.weights.h5")
    second.optimizer.build(second.trainable_variables)
    second.load_weights(tmp_path / "model.weights.h5")
    fit(second)
    assert_equal(whole.get_weights(), second.get_weights())
