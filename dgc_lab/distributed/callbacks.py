"""Callbacks for ``model.fit`` on several ranks (metrics, files, TensorBoard), and shards of the examples.

Lesson 7.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from tensorflow.core.framework.summary_pb2 import SummaryMetadata

from dgc_lab.common import check_path
from dgc_lab.compression.break_even import DENSE_ELEMENT
from dgc_lab.distributed.communicators import (
    Communicator,
    RanksDisagree,
    check_communicator,
    check_equal,
    communicator_here,
    describe_variables,
    gather_messages,
)
from dgc_lab.distributed.keras_refusals import check_synchronized, learning_rates


class AverageMetrics(keras.callbacks.Callback):
    """Callback that averages each epoch's losses and metrics over the ranks, for later callbacks and the history.

    Put it first in the list of callbacks, on every rank. Ranks are weighted by their numbers of examples, so shards of
    100 and 10 give the mean over all 110. After each epoch, it also checks that all ranks have the same learning rate
    and, with `dgc_lab.distributed.DistributedOptimizer`, the same trained weights.

    Ranks agree only between epochs and before validation. A rank that stops inside an epoch leaves the others waiting.

    When training starts, rank 0 broadcasts the non-trainable weights (batch norm's moving statistics). Later they drift
    apart; `dgc_lab.distributed.AverageStatistics` averages them.

    Args:
        communicator: as in `dgc_lab.distributed.DistributedOptimizer`.

    Raises:
        RanksDisagree: on all ranks, if they differ. When training starts: in the number of steps or epochs, in the
            step from which they resume, or in the shapes or dtypes of non-trainable weights. With ``tf.data``, give
            each rank ``dataset.shard(hvd.size(), hvd.rank())`` and the same number of batches. Later: in when they
            validate or stop, in their metrics' names, learning rates or trained weights (by more than rounding).
        ValueError: when training starts on several ranks, if the number of steps per epoch is unknown, as with a
            generator, or if batch normalization has ``synchronized=True``.

    Example:
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="zeros")])
        >>> model.compile("sgd", "mse")
        >>> model.fit(tf.ones([8, 3]), tf.ones([8, 1]), verbose=0, callbacks=[AverageMetrics()]).history["loss"]
        [1.0]
    """

    def __init__(self, communicator: Communicator | None = None):
        super().__init__()
        self.communicator = check_communicator(communicator)
        self._epoch, self._examples = None, {}  # epoch in progress, counted from 1; its examples by kind

    def on_train_begin(self, logs=None):
        self.communicator = communicator_here(self.communicator).each_rank
        # A rank with fewer batches would leave the others waiting in the last step.
        numbers = f"steps per epoch {self.params.get('steps')}, epochs {self.params.get('epochs')}"
        numbers += f", step {int(self.model.optimizer.iterations)}"  # a rank with a restored state does not broadcast
        shared = self.model.non_trainable_weights
        self.communicator.assert_same_on_all_ranks(f"{numbers}, {describe_variables(shared)}")
        if self.communicator.size > 1:
            if self.params.get("steps") is None:
                reason = "if one rank runs out of batches first, the others wait for it forever"
                raise ValueError(f"steps_per_epoch must be passed to fit on several ranks, got None: {reason}")
            check_synchronized(self.model._flatten_layers())
        # Each rank keeps its own dropout seeds. A resumed run also keeps each rank's own moving statistics.
        if not int(self.model.optimizer.iterations):
            self.communicator.broadcast([variable.value for variable in shared])

    def on_epoch_begin(self, epoch, logs=None):
        self._epoch, self._examples = epoch + 1, {}
        self._agree(f"epoch {self._epoch} begins")

    def on_test_begin(self, logs=None):
        if self._epoch is not None:  # None in model.evaluate
            self._examples["train"] = examples_seen(self.model)  # Keras resets its metrics next
            self._agree(f"validation of epoch {self._epoch} begins")

    def on_test_end(self, logs=None):
        self._examples["val"] = examples_seen(self.model)

    def on_epoch_end(self, epoch, logs=None):
        logs, model, self._epoch = {} if logs is None else logs, self.model, None
        self._examples.setdefault("train", examples_seen(model))
        weights = hashlib.sha256()
        # Other optimizers may let ranks differ on purpose, as local SGD does.
        for variable in model.trainable_variables if hasattr(model.optimizer, "compressor") else ():
            weights.update(variable.numpy().tobytes())
        ranks = self._agree(
            f"epoch {epoch + 1} ends",
            logs={name: float(logs[name]) for name in sorted(logs)},
            rates=learning_rates(model.optimizer),
            weights=weights.hexdigest(),
            examples=self._examples,
        )
        check_equal("metrics and losses", [list(rank["logs"]) for rank in ranks], "compile and validate alike")
        # The last digits may differ between processors.
        rates = [[float(f"{rate:.5g}") for rate in rank["rates"]] for rank in ranks]
        check_equal("learning rates", rates, "use callbacks that set it on every rank, after AverageMetrics")
        if any(rank["weights"] != ranks[0]["weights"] for rank in ranks):
            self._check_weights()
        logs.update({name: weighted_mean(name, ranks) for name in ranks[0]["logs"]})

    def on_train_end(self, logs=None):
        self._epoch = None
        self._agree("training ends")

    def _check_weights(self):
        """Raise RanksDisagree on all ranks if trained weights differ by more than the rounding errors of a GPU."""
        trained = self.model.trainable_variables
        first = [tf.Variable(variable.value) for variable in trained]
        self.communicator.broadcast(first)
        pairs = zip(trained, first, strict=True)
        own = json.dumps([relative_difference(variable.numpy(), other.numpy()) for variable, other in pairs])
        ranks = [json.loads(each) for each in gather_messages(self.communicator, own, "dgc_lab.weights")]
        for number, variable in enumerate(trained):
            # Sums on a GPU have no fixed order. Rounding to 16 bits changes the last of eight to eleven bits.
            tolerance = 1e-3 if tf.as_dtype(variable.dtype).size > 2 else 0.05
            differences = [rank[number] for rank in ranks]
            rank = int(np.argmax(differences))
            if differences[rank] > tolerance:
                raise RanksDisagree(
                    f"trained weights must be the same on all ranks, got {variable.path} on rank {rank} that differs "
                    f"from rank 0's by {differences[rank]:.2g} of its largest value: change weights and the "
                    "optimizer on every rank or on none"
                )

    def _agree(self, stage: str, **message) -> list[dict]:
        """Return the messages of all ranks; raise RanksDisagree on all of them unless all are at the same stage."""
        message = json.dumps({"stage": stage, **message})
        ranks = [json.loads(each) for each in gather_messages(self.communicator, message, "dgc_lab.metrics")]
        advice = (
            "pass validation_data and validation_freq alike; callbacks that stop training must follow AverageMetrics"
        )
        check_equal("stages of training", [rank["stage"] for rank in ranks], advice)
        return ranks


def examples_seen(model: keras.Model) -> float:
    """Return how many examples the model's loss has covered since its last reset; 0 if a custom step counts none.

    Example:
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> loss = model.evaluate(tf.ones([8, 3]), tf.ones([8, 1]), verbose=0)
        >>> examples_seen(model)
        8.0
    """
    losses = [metric for metric in model.metrics if metric.name == "loss" and hasattr(metric, "count")]
    return float(losses[0].count) if losses else 0.0


def weighted_mean(name: str, ranks: list[dict]) -> float:
    """Return the mean of a metric over the ranks, weighted by examples, or equally if their number is unknown.

    Example:
        >>> first = {"logs": {"loss": 1.0}, "examples": {"train": 30}}
        >>> second = {"logs": {"loss": 2.0}, "examples": {"train": 10}}
        >>> weighted_mean("loss", [first, second])
        1.25
    """
    kind = "val" if name.startswith("val_") else "train"
    values, examples = (
        [rank[part].get(key, 0) for rank in ranks] for part, key in (("logs", name), ("examples", kind))
    )
    if not all(examples) or len(set(examples)) == 1:
        return sum(values) / len(values)  # the same bits as on one rank
    return sum(count * value for count, value in zip(examples, values, strict=True)) / sum(examples)


def relative_difference(own: np.ndarray, first: np.ndarray) -> float:
    """Return the largest difference between two arrays, relative to the largest absolute value in the second.

    Example:
        >>> relative_difference(np.array([1.0, 2.5]), np.array([1.0, 2.0]))
        0.25
    """
    own, first = own.astype(np.float64), first.astype(np.float64)
    if np.array_equal(own, first, equal_nan=True):
        return 0.0
    largest = np.max(np.abs(first))
    return float(np.nan_to_num(np.max(np.abs(own - first)) / largest, nan=np.inf)) if largest else np.inf


class WriteCompression(keras.callbacks.Callback):
    """Callback that logs compression ratios for TensorBoard after every epoch, as means over all steps so far.

    The scalar ``compression/NAME`` is the share of a tensor's elements that was sent, ``compression/bytes`` the share
    of the bytes. On several ranks, use it on one: ``on_first_rank(WriteCompression("logs"))``. View the scalars with
    ``tensorboard --logdir logs``. Training itself does not need TensorBoard.

    Args:
        folder: directory for the event files.

    Raises:
        ValueError: `folder` is not a path; or, when training starts, the model's optimizer is not a
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
