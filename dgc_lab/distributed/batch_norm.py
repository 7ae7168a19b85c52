"""Batch normalization on several workers: average the moving means and variances.

These statistics have no gradient. They drift apart, so each worker would save a different model. All workers have seen
equally many batches, so the average is what one worker would have after all batches, except for the variance between
the batches' means. (Keras can share the statistics in every step, ``synchronized=True``, only under ``tf.distribute``;
`dgc_lab.distributed.DistributedOptimizer` rejects it on several ranks.)
"""

from __future__ import annotations

import keras
import tensorflow as tf

from dgc_lab.compression.gradients import flatten, unflatten
from dgc_lab.compression.wire_format import add_in_order
from dgc_lab.distributed.communicators import Communicator, check_communicator, default_communicator


def statistics_of(model: keras.Model) -> list[tf.Variable]:
    """Return the model's non-trainable floating-point variables: moving statistics, but not dropout seeds.

    Example:
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.BatchNormalization()])
        >>> [tuple(variable.shape) for variable in statistics_of(model)]
        [(2,), (2,)]
    """
    return [weight.value for weight in model.non_trainable_weights if tf.as_dtype(weight.dtype).is_floating]


def mean(values):
    """Return the mean of tensors, computed in float64: the mean of equal frozen weights must have the same bits.

    Example:
        >>> float(mean([tf.constant(0.1)] * 3)) == float(tf.constant(0.1))
        True
    """
    return tf.cast(add_in_order([tf.cast(value, tf.float64) for value in values]) / len(values), values[0].dtype)


def average_statistics(model: keras.Model, communicator: Communicator | None = None) -> None:
    """Replace the moving statistics of the workers' models, if any, by their mean. Every worker must call it.

    Args:
        model: this worker's Keras model.
        communicator: as in `dgc_lab.distributed.DistributedOptimizer`.

    Raises:
        ValueError: `communicator` is not one.

    Example:
        On each of two ranks:

        >>> layer = model.get_layer("batch_normalization")  # doctest: +SKIP
        >>> layer.moving_mean.assign([hvd.rank()])  # doctest: +SKIP
        >>> average_statistics(model)  # doctest: +SKIP
        >>> layer.moving_mean.numpy().tolist()  # doctest: +SKIP
        [0.5]
    """
    communicator = (check_communicator(communicator) or default_communicator()).each_rank
    variables = statistics_of(model)
    if not variables or communicator.size == 1:
        return
    # In one message, because a ResNet has dozens of short statistics. In float64, as in `mean`.
    own = flatten([tf.cast(variable, tf.float64) for variable in variables])
    average = communicator.allreduce([[own]] * communicator.local, "dgc_lab.statistics")[0] / communicator.size
    parts = unflatten(average, [variable.shape for variable in variables])
    for variable, part in zip(variables, parts, strict=True):
        variable.assign(tf.cast(part, variable.dtype))


class AverageStatistics(keras.callbacks.Callback):
    """Callback that averages batch normalization's moving statistics over the ranks.

    It averages them before every validation and after every epoch. Put it before callbacks that save the model, and
    after `dgc_lab.distributed.AverageMetrics`, which checks that all ranks validate. Every rank needs it.

    Args:
        communicator: the ranks; those of `default_communicator` if None.

    Raises:
        ValueError: `communicator` is not one.

    Example:
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization()])
        >>> model.compile("sgd", "mse")
        >>> history = model.fit(tf.ones([8, 3]), tf.ones([8, 3]), verbose=0, callbacks=[AverageStatistics()])
    """

    def __init__(self, communicator: Communicator | None = None):
        super().__init__()
        self.communicator = check_communicator(communicator)

    def on_test_begin(self, logs=None):
        average_statistics(self.model, self.communicator)

    def on_epoch_end(self, epoch, logs=None):
        average_statistics(self.model, self.communicator)
