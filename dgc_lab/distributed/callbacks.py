"""Callbacks for ``model.fit`` on several ranks (metrics, files, TensorBoard), and shards of the examples.

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
    """Callback that averages each epoch's losses and metrics over the ranks, for later callbacks and the history.

    Put it first in the list of callbacks. When training starts, rank 0 broadcasts the non-trainable weights (batch
    norm's moving statistics). Later they drift apart; `dgc_lab.distributed.AverageStatistics` averages them.

    Args:
        communicator: as in `dgc_lab.distributed.DistributedOptimizer`.

    Raises:
        RanksDisagree: when training starts, on all ranks, if they have different numbers of steps or epochs, or resume
            from different steps. With ``tf.data``, give each rank ``dataset.shard(hvd.size(), hvd.rank())`` and the
            same number of batches.
        ValueError: when training starts on several ranks, if the number of steps per epoch is unknown, as with a
            generator.

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
        numbers = f"steps per epoch {self.params.get('steps')}, epochs {self.params.get('epochs')}"
        numbers += f", step {int(self.model.optimizer.iterations)}"  # a rank with a restored state does not broadcast
        self.communicator.assert_same_on_all_ranks(numbers)
        if self.params.get("steps") is None and self.communicator.size > 1:
            reason = "if one rank runs out of batches first, the others wait for it forever"
            raise ValueError(f"steps_per_epoch must be passed to fit on several ranks, got None: {reason}")
        # Each rank keeps its own dropout seeds. A resumed run also keeps each rank's own moving statistics.
        if not int(self.model.optimizer.iterations):
            self.communicator.broadcast([variable.value for variable in self.model.non_trainable_weights])

    def on_epoch_end(self, epoch, logs=None):
        if logs:
            names = sorted(logs)
            own = tf.constant([float(logs[name]) for name in names])
            [total] = self.communicator.allreduce([[own]], "dgc_lab.metrics")
            logs.update(zip(names, (total / self.communicator.size).numpy().tolist(), strict=True))


class WriteCompression(keras.callbacks.Callback):
    """Callback that logs compression ratios for TensorBoard after every epoch, as means over all steps so far.

    The scalar ``compression/NAME`` is the share of a tensor's elements that was sent, ``compression/bytes`` the share
    of the bytes. On several ranks, use it on one: ``on_first_rank(WriteCompression("logs"))``. View the scalars with
    ``tensorboard --logdir logs``. Training itself does not need TensorBoard.

    Args:
        folder: directory for the event files.

    Raises:
        ValueError: `folder` is not a path. When training starts, also if the model's optimizer is not a
            `dgc_lab.distributed.DistributedOptimizer`.

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

    References:
        https://www.tensorflow.org/api_docs/python/tf/summary/write
    """

    def __init__(self, folder: str | os.PathLike):
        super().__init__()
        self.folder, self.writer = str(check_path("folder", folder)), None

    def on_train_begin(self, logs=None):
        if not hasattr(self.model.optimizer, "compressor"):
            kind = type(self.model.optimizer).__name__
            raise ValueError(f"the model's optimizer must be a dgc_lab.distributed.DistributedOptimizer, got {kind}")
        self.writer = tf.summary.create_file_writer(self.folder)

    def on_epoch_end(self, epoch, logs=None):
        # The metadata of tf.summary.scalar, which needs TensorBoard.
        scalar = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
        compressor = self.model.optimizer.compressor
        if not int(compressor.counted):
            return  # gradient accumulation: no exchange in this epoch yet
        with self.writer.as_default(step=epoch):
            for name, ratio in compression_ratios(compressor).items():
                tf.summary.write(f"compression/{name}", tf.constant(ratio, tf.float32), metadata=scalar)
        self.writer.flush()  # Keras does not call on_train_end if fit is interrupted

    def on_train_end(self, logs=None):
        self.writer.close()


def compression_ratios(compressor) -> dict[str, float]:
    """Return the share of each tensor's elements sent so far by name, and the share of all bytes as ``"bytes"``.

    The bytes include headers and are compared with float32.
    """
    sizes = [variable.shape.num_elements() for variable in compressor.trained]
    sent = [*compressor.num_sent.numpy(), compressor.bytes_sent.numpy().sum()]
    shares = np.array(sent) / int(compressor.counted) / [*sizes, DENSE_ELEMENT * sum(sizes)]
    return dict(zip([*compressor.names, "bytes"], shares.tolist(), strict=True))


def on_first_rank(*callbacks, communicator: Communicator | None = None) -> list:
    """Return the callbacks on rank 0 and an empty list elsewhere.

    Use it for work that only one rank should do, such as writing checkpoints. ``communicator`` determines the rank; if
    None, Horovod does.

    Example:
        >>> len(on_first_rank(keras.callbacks.CSVLogger("log.csv")))
        1
    """
    return list(callbacks) if communicator_here(communicator).each_rank.first == 0 else []


def shard(*arrays: Sequence, communicator: Communicator | None = None) -> tuple:
    """Return this rank's shard of the examples: every N-th of them on N ranks.

    All shards have the same size, so that no rank waits for another's last batch.

    Args:
        arrays: arrays or tensors of equal length. Examples that do not divide evenly among the ranks are dropped.
        communicator: the ranks; Horovod's, or one worker, if None.

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
        raise ValueError(f"arrays must have equal lengths of at least {ranks}, the number of ranks, got {lengths}")
    return tuple(array[communicator.first : lengths[0] // ranks * ranks : ranks] for array in arrays)
