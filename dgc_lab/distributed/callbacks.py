"""What goes with the optimizer in ``model.fit`` on several ranks: metrics, files, TensorBoard, each rank's examples.

Lesson 7.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.framework.summary_pb2 import SummaryMetadata

from dgc_lab.common import check_path
from dgc_lab.compression.break_even import DENSE_ELEMENT
from dgc_lab.distributed.communicators import Communicator, communicator_here


class AverageMetrics(keras.callbacks.Callback):
    """Averages every epoch's losses and metrics over the ranks, for the callbacks after it and the history.

    Put it first in the list of callbacks. At the start it takes weights that are not trained (batch norm's moments)
    from rank 0; later they drift apart, which `dgc_lab.distributed.AverageStatistics` mends. ``communicator`` is as in
    `dgc_lab.distributed.DistributedOptimizer`.

    Raises:
        RanksDisagree: at the start, on all ranks: they have different numbers of steps or epochs, or not all go on
            from the same step. Of a ``tf.data`` pipeline, give each rank ``dataset.shard(hvd.size(), hvd.rank())``
            with as many batches as the others.
        ValueError: at the start: nobody can tell how many steps an epoch has, as with a generator.

    Example:
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile("sgd", "mse")
        >>> model.fit(tf.ones([8, 3]), tf.ones([8, 1]), verbose=0, callbacks=[AverageMetrics()]).history["loss"]
        [1.0]
    """

    def __init__(self, communicator: Communicator | None = None):
        super().__init__()
        self.communicator = communicator

    def on_train_begin(self, logs=None):
        self.communicator = communicator_here(self.communicator).each_rank
        # A rank with fewer batches would leave the others waiting in the last step.
        numbers = f"steps an epoch {self.params.get('steps')}, epochs {self.params.get('epochs')}"
        numbers += f", step {int(self.model.optimizer.iterations)}"  # one that had its state back would not broadcast
        self.communicator.assert_same_on_all_ranks(numbers)
        if self.params.get("steps") is None and self.communicator.size > 1:
            told = "a rank whose examples end first would leave the others waiting"
            raise ValueError(f"steps_per_epoch must be given to fit, got None: {told}")
        # Not the seeds of dropout: each rank draws its own. And not in a run that goes on from a rank's own moments.
        if not int(self.model.optimizer.iterations):
            self.communicator.broadcast([variable.value for variable in self.model.non_trainable_weights])

    def on_epoch_end(self, epoch, logs=None):
        if logs:
            names = sorted(logs)
            own = tf.constant([float(logs[name]) for name in names])
            [total] = self.communicator.allreduce([[own]], "dgc_lab.metrics")
            logs.update(zip(names, (total / self.communicator.size).numpy().tolist(), strict=True))


class WriteCompression(keras.callbacks.Callback):
    """Writes for TensorBoard into ``folder``, after every epoch, what share was sent: the mean of all steps so far.

    Scalars ``compression/NAME`` are of each tensor's elements, ``compression/bytes`` of the bytes. On several ranks,
    give it to one: ``on_first_rank(WriteCompression("logs"))``, and ``tensorboard --logdir logs`` shows them.
    TensorBoard need not be installed where the training runs.

    Raises:
        ValueError: at the start, the model's optimizer is not a `dgc_lab.distributed.DistributedOptimizer`.

    Example:
        >>> import pathlib, tempfile
        >>> from dgc_lab.compression import DGCConfig
        >>> from dgc_lab.distributed import DistributedOptimizer
        >>> model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, use_bias=False)], name="net")
        >>> model.compile(DistributedOptimizer(keras.optimizers.SGD(), DGCConfig(ratio=0.25, dense_below=0)), "mse")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     history = model.fit(tf.eye(8), tf.range(8.0), verbose=0, callbacks=[WriteCompression(folder)])
        ...     [file] = pathlib.Path(folder).iterdir()
        ...     written = [event.summary.value for event in tf.compat.v1.train.summary_iterator(str(file))]
        >>> [tf.make_ndarray(value.tensor).item() for values in written for value in values]  # of elements, of bytes
        [0.25, 0.75]

    Source: https://www.tensorflow.org/api_docs/python/tf/summary/write.
    """

    def __init__(self, folder: str | os.PathLike):
        super().__init__()
        self.folder, self.writer = str(check_path("folder", folder)), None

    def on_train_begin(self, logs=None):
        if not hasattr(self.model.optimizer, "compressor"):
            kind = type(self.model.optimizer).__name__
            raise ValueError(f"the model's optimizer must be dgc_lab's DistributedOptimizer, got {kind}")
        self.writer = tf.summary.create_file_writer(self.folder)

    def on_epoch_end(self, epoch, logs=None):
        # As tf.summary.scalar would, which asks for TensorBoard itself.
        scalar = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
        compressor = self.model.optimizer.compressor
        if not int(compressor.counted):
            return  # gradients of the whole epoch wait to be exchanged
        with self.writer.as_default(step=epoch):
            for name, ratio in compression_ratios(compressor).items():
                tf.summary.write(f"compression/{name}", tf.constant(ratio, tf.float32), metadata=scalar)
        self.writer.flush()  # where fit is interrupted, nobody calls on_train_end

    def on_train_end(self, logs=None):
        self.writer.close()


def compression_ratios(compressor) -> dict[str, float]:
    """Sent over all, in all steps so far: elements by name of the tensor; ``"bytes"`` with headers, against float32."""
    sizes = [variable.shape.num_elements() for variable in compressor.trained]
    sent = [*compressor.num_sent.numpy(), compressor.bytes_sent.numpy().sum()]
    shares = np.array(sent) / int(compressor.counted) / [*sizes, DENSE_ELEMENT * sum(sizes)]
    return dict(zip([*compressor.names, "bytes"], shares.tolist(), strict=True))


def on_first_rank(*callbacks, communicator: Communicator | None = None) -> list:
    """The callbacks on rank 0, none elsewhere: for what only one rank should do, such as writing checkpoints.

    Which rank this is comes from ``communicator``, or from Horovod if None.

    Example:
        >>> len(on_first_rank(keras.callbacks.CSVLogger("log.csv")))
        1
    """
    return list(callbacks) if communicator_here(communicator).each_rank.first == 0 else []


def shard(*arrays: Sequence, communicator: Communicator | None = None) -> tuple:
    """This rank's part of the examples: every N-th, as many for each rank, so that none waits for another's last batch.

    Args:
        arrays: arrays or tensors of one length; what does not divide among the ranks is left out.

    Raises:
        ValueError: the lengths differ, or there are fewer examples than ranks.

    Example:
        >>> from dgc_lab.distributed import OneWorker
        >>> shard([0, 1, 2], communicator=OneWorker())[0]
        [0, 1, 2]
    """
    communicator = communicator_here(communicator).each_rank
    ranks, lengths = communicator.size, [len(array) for array in arrays]
    if len(set(lengths)) != 1 or lengths[0] < ranks:
        raise ValueError(f"arrays must have one length of at least {ranks}, the number of ranks, got lengths {lengths}")
    return tuple(array[communicator.first : lengths[0] // ranks * ranks : ranks] for array in arrays)
