"""Two ranks notice in `model.fit` that they differ, and pool their metrics.

The ranks import this file and run its functions.
"""

import numpy as np
import pytest

from dgc_lab.cluster import RankFailed
from dgc_lab.distributed.callbacks import relative_difference


def fit(how=None, epochs=3):
    """Train two steps per epoch, with one difference between the ranks."""
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    from dgc_lab.distributed import AverageMetrics, AverageStatistics, DistributedOptimizer, on_first_rank

    def stop(*_):
        model.stop_training = True

    def scale_kernel(epoch, logs):
        kernel = model.get_layer("hidden").kernel
        kernel.assign(kernel * (1 + 1e-6 if how == "rounding" else 2.0))

    rank, options = hvd.rank(), {}
    keras.utils.set_random_seed(0)
    norm = {"name": "shared", "synchronized": (how or "").startswith("synchronized")}
    norm |= {"scale": False, "center": False} if how == "synchronized, no weights" else {}
    layers = [keras.layers.Dense(3, name="hidden"), keras.layers.BatchNormalization(**norm), keras.layers.Dense(1)]
    callbacks = [AverageMetrics()]
    if how in ("validation", "statistics"):
        options = {} if rank else {"validation_data": (np.ones((4, 4)), np.ones((4, 1)))}
        callbacks += [AverageStatistics()] if how == "statistics" else []
    elif how == "schedule":
        callbacks += on_first_rank(keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch < 1 else 0.01))
    elif how == "plateau":  # only rank 0's loss stops improving
        plateau = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=0 if rank else 1e9)
        callbacks.insert(0, plateau)
    elif how in ("weights", "rounding"):
        callbacks += on_first_rank(keras.callbacks.LambdaCallback(on_epoch_begin=scale_kernel))
    elif how == "stop":
        callbacks += on_first_rank(keras.callbacks.LambdaCallback(on_epoch_end=stop))
    if (how, rank) == ("layers", 1):
        layers.insert(0, keras.layers.BatchNormalization())
    model = keras.Sequential([keras.Input((4,)), *layers])
    falls = (how, rank) == ("schedules", 1)  # then the optimizer has no variable for its rate
    inner = keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.9) if falls else 0.1)
    optimizer = inner if how == "no exchange" else DistributedOptimizer(inner)
    metrics = ["mse" if (how, rank) == ("names", 1) else "mae"]
    model.compile(optimizer, "mse", metrics=metrics, jit_compile=False)
    x = tf.random.stateless_normal((8, 4), (3, rank))
    y = tf.reduce_sum(x, 1)
    return model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks, **options).history


DIFFERENCES = {
    "names": r"metrics and losses must be the same .* \['loss', 'mae'\] on rank 0 and \['loss', 'mse'\] on rank 1",
    "validation": "got validation of epoch 1 begins on rank 0 and epoch 1 ends on rank 1: pass validation_data",
    "statistics": "got validation of epoch 1 begins on rank 0 and epoch 1 ends on rank 1",
    "schedule": r"learning rates must be the same on all ranks, got \[0.01\] on rank 0 and \[0.1\] on rank 1: use",
    "plateau": r"learning rates must be the same on all ranks, got \[0.01\] on rank 0 and \[0.1\] on rank 1",
    "weights": r"trained weights must be the same on all ranks, got .*hidden/kernel on rank 1 that differs",
    "layers": r"all ranks must have the same settings .*\(\(4,\), 'float32'\)",
    "schedules": r"all ranks must have the same settings .*\(\(\), 'float32'\)",
    "stop": "got training ends on rank 0 and epoch 2 begins on rank 1: .* must follow AverageMetrics",
    "synchronized": r"synchronized must be False .* got True in \['shared'\].*Use .*AverageStatistics",
    "synchronized, no weights": r"synchronized must be False .* got True in \['shared'\]",
}


@pytest.mark.parametrize("how", DIFFERENCES)
def test_every_rank_reports_that_ranks_differ(two_ranks, how):
    with pytest.raises(RankFailed, match=DIFFERENCES[how]) as failure:
        two_ranks.run(fit, how)
    assert set(failure.value.problems) == {0, 1}
    assert two_ranks.ready, "no rank may hang"


def test_equal_ranks_and_rounding_errors_are_accepted(two_ranks):
    """Without DistributedOptimizer, ranks may differ on purpose."""
    for how in (None, "rounding", "no exchange"):
        first, second = two_ranks.run(fit, how)
        assert first == second
        assert len(first["loss"]) == 3


def pool(order):
    """Return the history of a model that only passes its input on; ranks have shards of different sizes."""
    import horovod.tensorflow as hvd
    import keras

    from dgc_lab.distributed import AverageMetrics, DistributedOptimizer

    rank = hvd.rank()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.0)), "mae", metrics=["mse"], jit_compile=False)
    train, held_out = np.full([8 - 2 * rank, 1], 1.0 + rank), np.full([10 if rank else 100, 1], 10.0 if rank else 1.0)
    options = {"validation_data": (held_out, 0 * held_out), "validation_freq": 2} if order == "both" else {}
    fit = {"batch_size": 4, "epochs": 2, "verbose": 0, "callbacks": [AverageMetrics()]}
    history = model.fit(train, 0 * train, **fit, **options).history
    again = model.evaluate(held_out, 0 * held_out, verbose=0, callbacks=[AverageMetrics()], return_dict=True)
    return history, again["loss"]


@pytest.mark.parametrize("order", ["training only", "both"])
def test_metrics_are_weighted_by_examples(two_ranks, order):
    (first, own), (second, other) = two_ranks.run(pool, order)
    assert first == second
    assert first["loss"] == pytest.approx([(8 * 1 + 6 * 2) / 14] * 2)
    assert first["mse"] == pytest.approx([(8 * 1 + 6 * 4) / 14] * 2)
    if order == "both":
        assert first["val_loss"] == pytest.approx([(100 * 1 + 10 * 10) / 110])
        assert first["val_mse"] == pytest.approx([(100 * 1 + 10 * 100) / 110])
    assert (own, other) == (1.0, 10.0), "evaluate alone does not exchange"


def custom_step():
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    from dgc_lab.distributed import AverageMetrics

    class Custom(keras.Model):
        def train_step(self, data):
            return {"mine": tf.constant(1.0 + hvd.rank())}

    x = keras.Input((1,))
    model = Custom(x, keras.layers.Dense(1, kernel_initializer="ones")(x))
    model.compile("sgd", "mse", jit_compile=False)
    data = np.ones((8 - 2 * hvd.rank(), 1))
    return model.fit(data, data, batch_size=4, verbose=0, callbacks=[AverageMetrics()]).history


def test_ranks_count_equally_if_a_custom_step_counts_no_examples(two_ranks):
    assert two_ranks.run(custom_step) == [{"mine": [1.5]}] * 2


def wrap_horovods():
    import horovod.tensorflow.keras as horovod_keras
    import keras

    from dgc_lab.distributed import DistributedOptimizer

    DistributedOptimizer(horovod_keras.DistributedOptimizer(keras.optimizers.Adam(0.1)))


def test_horovods_wrapper_as_inner_optimizer_is_rejected(two_ranks):
    with pytest.raises(
        RankFailed, match=r"must not be a hvd.DistributedOptimizer: .* Pass the optimizer that it wraps"
    ):
        two_ranks.run(wrap_horovods)


def test_differences_of_weights_are_relative_to_the_largest():
    ones = np.ones(3, np.float32)
    assert relative_difference(ones, ones) == 0
    assert relative_difference(2 * ones, 0 * ones) == np.inf
    assert relative_difference(np.nan * ones, ones) == np.inf
    assert relative_difference(np.nan * ones, np.nan * ones) == 0
    assert relative_difference(ones[:0], ones[:0]) == 0
