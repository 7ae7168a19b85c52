"""What compression has saved: elements of each tensor and bytes of all, before and after; a table, and TensorBoard.

The figures are those that a `dgc_lab.dgc.compressor.Compressor` has counted while it trained.
"""

from __future__ import annotations

import keras
import pandas as pd
import tensorflow as tf
from tensorflow.core.framework.summary_pb2 import SummaryMetadata

FLOAT32_BYTES = 4
OVERALL = "all: bytes"


def compression_table(compressor) -> pd.DataFrame:
    """Before and after of all steps so far, a step and worker: elements of each tensor, and bytes of all together.

    Args:
        compressor: a `dgc_lab.dgc.compressor.Compressor` that has made at least one step.

    Returns:
        A row a tensor (``before``: elements that it has, ``after``: elements that were sent of it) and, last, a row
        with the bytes of all: ``before``, all elements in float32; ``after``, what was handed to the collectives,
        with headers and indices. ``ratio`` is after / before.

    Raises:
        ValueError: the compressor has made no step yet.

    Example:
        >>> from dgc_lab.dgc.compressor import Compressor
        >>> from dgc_lab.dgc.algorithm import DGCConfig
        >>> from dgc_lab.distributed.communicators import OneWorker
        >>> weight = tf.Variable(tf.zeros([10, 10]), name="weight")
        >>> compressor = Compressor(DGCConfig(ratio=0.1, rule="exact", dense_below=0), [weight], OneWorker())
        >>> _ = compressor([[tf.random.stateless_normal([10, 10], (0, 0))]])
        >>> compression_table(compressor)["after"].tolist()  # 8 bytes an element, and a header of 8
        [10.0, 88.0]
    """
    steps = int(compressor.counted)
    if steps < 1:
        raise ValueError("compressor must have made at least one step, got one that has made none")
    sizes = [variable.shape.num_elements() for variable in compressor.trained]
    before = [*sizes, FLOAT32_BYTES * sum(sizes)]
    sent = [*compressor.kept.numpy(), compressor.bytes_sent.numpy().sum()]
    after = [float(total) / steps for total in sent]
    table = pd.DataFrame({"before": before, "after": after}, index=[*compressor.names, OVERALL])
    return table.assign(ratio=table["after"] / table["before"])


class WriteCompression(keras.callbacks.Callback):
    """Writes `compression_table` for TensorBoard after every epoch: the mean of all steps so far.

    Scalars ``compression/NAME``, the share of the elements that was sent of each tensor, and ``compression/bytes``, the
    share of the bytes. On several ranks, give it to one: ``on_first_rank(WriteCompression("logs"))``.

    Args:
        folder: where TensorBoard is told to look: ``tensorboard --logdir FOLDER``. TensorBoard need not be installed
            where the training runs.

    Raises:
        ValueError: at the start, the model's optimizer is not a `dgc_lab.distributed.keras_optimizer.DistributedOptimizer`.

    Source: https://www.tensorflow.org/api_docs/python/tf/summary/write.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder, self.writer = str(folder), None

    def on_train_begin(self, logs=None):
        if not hasattr(self.model.optimizer, "compressor"):
            kind = type(self.model.optimizer).__name__
            raise ValueError(f"the model's optimizer must be dgc_lab's DistributedOptimizer, got {kind}")
        self.writer = tf.summary.create_file_writer(self.folder)

    def on_epoch_end(self, epoch, logs=None):
        # As tf.summary.scalar would, which asks for TensorBoard itself.
        scalar = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="scalars"))
        with self.writer.as_default(step=epoch):
            for name, ratio in compression_table(self.model.optimizer.compressor)["ratio"].items():
                tag = "bytes" if name == OVERALL else name
                tf.summary.write(f"compression/{tag}", tf.constant(ratio, tf.float32), metadata=scalar)
        self.writer.flush()  # where fit is interrupted, nobody calls on_train_end

    def on_train_end(self, logs=None):
        self.writer.close()
