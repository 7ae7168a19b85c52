"""Setups that DistributedOptimizer rejects because they would train wrongly without an error."""

import keras
import numpy as np
import pytest

from dgc_lab.compression import DGCConfig
from dgc_lab.distributed import DistributedOptimizer, SimulatedWorkers
from dgc_lab.distributed.keras_refusals import held_optimizers
from dgc_lab.training import ModelTrainer

SGD, LossScale = keras.optimizers.SGD, keras.optimizers.LossScaleOptimizer


class Lookahead(keras.optimizers.Optimizer):
    """A user's wrapper, which passes gradients on."""

    def __init__(self, fast):
        super().__init__(learning_rate=0.1)
        self.parts = {"fast": [fast]}

    def build(self, variables):
        self.parts["fast"][0].build(variables)
        super().build(variables)

    def apply(self, grads, trainable_variables=None):
        self.parts["fast"][0].apply(grads, trainable_variables)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            lambda: DistributedOptimizer(SGD(0.1)),
            "must not be a DistributedOptimizer: .* exchanged twice. Pass the optimizer inside it",
        ),
        (
            lambda: DistributedOptimizer(SGD(0.1), DGCConfig()),
            "must not be a DistributedOptimizer: .* and its config as config",
        ),
        (lambda: LossScale(SGD(0.1)), "must not be a LossScaleOptimizer: .* Pass the optimizer inside it"),
        (
            lambda: LossScale(keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(SGD(0.1)))),
            "must not be a LossScaleOptimizer",
        ),
        (lambda: Lookahead(LossScale(SGD(0.1))), "must not be a Lookahead around a LossScaleOptimizer"),
        (lambda: Lookahead(Lookahead(DistributedOptimizer(SGD(0.1)))), "Lookahead around a DistributedOptimizer"),
    ],
)
def test_wrappers_as_inner_optimizers_are_rejected(optimizer, message):
    for config in (None, DGCConfig()):
        with pytest.raises(ValueError, match=f"optimizer {message}" if "must" in message else message):
            DistributedOptimizer(optimizer(), config)


def test_multi_optimizer_around_distributed_optimizer_fails():
    with pytest.raises(ValueError, match="MultiOptimizer must not wrap it either: pass it to DistributedOptimizer"):
        keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(DistributedOptimizer(SGD(0.1))))


def test_optimizers_that_hold_ordinary_ones_are_accepted():
    adam, sgd = keras.optimizers.Adam(0.1), SGD(0.1)
    multi = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(adam, {".*bias": sgd}))
    assert {id(one) for one in held_optimizers(multi)} == {id(multi), id(adam), id(sgd)}
    for inner in (multi, Lookahead(SGD(0.1))):
        weight = keras.Variable([1.0, 2.0])
        DistributedOptimizer(inner).apply([np.ones(2, np.float32)], [weight])
        np.testing.assert_allclose(weight, [0.9, 1.9], rtol=1e-5)


def trainer(model, communicator=None):
    loss = keras.losses.MeanSquaredError()
    return ModelTrainer(model, loss, lambda turn: (np.ones((4, 16)), np.ones((4, 16))), DGCConfig(), 0.1, communicator)


def test_the_trainer_rejects_float8_and_float16():
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, name="layer")])
    model.quantize("float8")
    with pytest.raises(ValueError, match=r"must not be quantized to float8, got .*layer/inputs_scale"):
        trainer(model)
    half = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, dtype="mixed_float16")])
    with pytest.raises(ValueError, match=r"model must not compute in float16, .* Use mixed_bfloat16"):
        trainer(half)


def test_the_trainer_rejects_synchronized_moments_of_workers():
    """One worker has all moments, so nothing is wrong there."""
    norm = keras.layers.BatchNormalization(synchronized=True, name="shared")
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16), norm])
    with pytest.raises(ValueError, match=r"synchronized must be False .* got True in \['shared'\]"):
        trainer(model, SimulatedWorkers(2))
    assert len(list(trainer(model).run(steps=1))) == 1


def default_workers():
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])
    optimizer = DistributedOptimizer(SGD(0.1))
    optimizer.build(model.trainable_variables)
    return trainer(model).communicator.size, optimizer.communicator.size


def test_the_trainer_takes_the_same_ranks_as_the_optimizer(two_ranks):
    assert default_workers() == (1, 1)
    assert two_ranks.run(default_workers) == [(2, 2)] * 2


@pytest.mark.parametrize("config", [None, DGCConfig()])
def test_float8_is_rejected(config):
    """Its scales are assigned, not added; momentum, clipping and the mean over batches would spoil them."""
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16, name="layer")])
    model.quantize("float8")
    model.compile(DistributedOptimizer(SGD(0.1), config), "mse", jit_compile=False)
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"must not be quantized to float8, got .*layer/inputs_scale.* Use mixed_bfl"):
        model.fit(np.ones((16, 16)), np.ones((16, 16)), verbose=0)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": "dgc"}, "config must be a DGCConfig, a Scheme or None, got 'dgc'"),
        ({"communicator": 5}, "communicator must be an instance of Collectives, got 5"),
    ],
)
def test_config_and_communicator_are_checked_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        DistributedOptimizer(SGD(0.1), **arguments)
