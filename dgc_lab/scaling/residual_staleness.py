"""Residual staleness: how many steps an element has waited in its residual when it is sent. Lesson 6.

An element's age is the number of earlier steps whose gradients its residual still holds: 0 when it is sent in the very
step in which its oldest gradient was computed. `WatchedCompressor` takes it from what a step does to the residuals.

Sources: arXiv:1712.01887, section 3.3 (staleness of the residual; momentum factor masking is against it).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dgc_lab.common import check_list, check_text, check_whole
from dgc_lab.dgc.compressor import Compressor
from dgc_lab.dgc.config import Collectives, DGCConfig


def was_sent(before, after, gradient, velocity=None):
    """Which elements of a residual were sent in a step.

    Sending leaves zero behind, and zeros are never sent. So an element was sent where something was in it before the
    step or came to it, from gradient or velocity, and nothing is left after it. (What comes could cancel to the last
    bit what was there; that would be taken for sent.)
    """
    held = (before != 0) | (gradient != 0)
    if velocity is not None:
        held |= velocity != 0
    return held & (after == 0)


class WatchedCompressor(Compressor):
    """A `dgc_lab.dgc.compressor.Compressor` that keeps each element's age beside its residual.

    ``config``, ``variables``, ``communicator`` and ``names`` are those of `Compressor`.

    For each worker in this process ``ages`` has an int32 ``tf.Variable`` per residual, None where there is none;
    ``sent_ages``, int64 (longest + 1,), is how many elements were sent at each age so far. Older ones than ``longest``
    count as that old. A ValueError where the config keeps no residuals, or leaves rounding errors in them.

    Example:
        >>> from dgc_lab.dgc.algorithm import DGCConfig
        >>> from dgc_lab.distributed.communicators import OneWorker
        >>> config = DGCConfig(ratio=0.5, momentum=0.0, dense_below=0)
        >>> worker = WatchedCompressor(config, [tf.Variable([[0.0, 0.0]])], OneWorker(), longest=3)
        >>> for gradient in ([1.0, 3.0], [1.0, 1.0], [1.0, 2.5]):
        ...     _ = worker([[tf.constant([gradient])]])
        >>> worker.sent_ages.numpy().tolist(), worker.waiting_ages().tolist()
        ([1, 2, 0, 0], [0, 1, 0, 0])
    """

    def __init__(
        self,
        config: DGCConfig,
        variables: list[tf.Variable],
        communicator: Collectives,
        names: list[str] | None = None,
        longest: int = 1000,
    ):
        if not config.accumulate:
            raise ValueError("config must accumulate: what is dropped has no age")
        if config.values != "float32":
            raise ValueError(f"config must send float32 values, which leave nothing behind, got {config.values!r}")
        if config.weight_decay:
            raise ValueError(f"config must have weight_decay 0: it is in no gradient, got {config.weight_decay}")
        check_whole("longest", longest, 0, 10**6)
        if names is not None:
            for name in check_list("names", names):
                check_text("names", name)
        super().__init__(config, variables, communicator, names)
        self.ages = [
            [None if r is None else tf.Variable(tf.zeros(r.shape, tf.int32), trainable=False) for r in residuals]
            for residuals in self.residuals
        ]
        self.sent_ages = tf.Variable(tf.zeros([longest + 1], tf.int64), trainable=False, name="sent_ages")

    @property
    def state(self):
        """As the compressor's, with the ages and what was counted."""
        return [*super().state, *(age for age in tf.nest.flatten(self.ages) if age is not None), self.sent_ages]

    @tf.autograph.experimental.do_not_convert  # nothing here needs it, and converting takes long and warns
    def _step(self, gradients, ratio, metadata, learning_rate=None):
        """One step, as the compressor's."""
        corrects, watched = self.config.corrects_momentum, []
        for worker, own in enumerate(gradients):
            for i, gradient in enumerate(own):
                if self.ages[worker][i] is not None and isinstance(gradient, tf.Tensor):
                    before = tf.identity(self.residuals[worker][i])
                    velocity = tf.identity(self.velocities[worker][i]) if corrects else None
                    watched.append((self.ages[worker][i], self.residuals[worker][i], before, gradient, velocity))
        result = super()._step(gradients, ratio, metadata, learning_rate)
        classes, counts = self.sent_ages.shape[0], []
        for age, residual, before, gradient, velocity in watched:
            after = tf.convert_to_tensor(residual)
            sent = tf.minimum(tf.boolean_mask(age, was_sent(before, after, gradient, velocity)), classes - 1)
            counts.append(tf.math.bincount(sent, minlength=classes, maxlength=classes, dtype=tf.int64))
            age.assign(tf.where(after == 0, 0, age + 1))
        self.sent_ages.assign_add(tf.add_n([tf.zeros_like(self.sent_ages), *counts]))
        return result

    def waiting_ages(self) -> np.ndarray:
        """How many elements wait in this process's residuals that would be sent at age 0, 1, ... in the next step.

        An int64 array (longest + 1,).
        """
        every = [age.numpy().ravel() for age in tf.nest.flatten(self.ages) if age is not None]
        every = np.concatenate([np.zeros(0, np.int32), *every])
        classes = self.sent_ages.shape[0]
        return np.bincount(np.minimum(every[every > 0], classes - 1), minlength=classes)


def by_doubling(counts) -> list[tuple[int, int, int]]:
    """Counts of age 0, 1, ... in classes that double, 0, 1, 2 to 3, 4 to 7: (first age, last age, number) of each.

    Example:
        >>> by_doubling([5, 4, 3, 2, 1])
        [(0, 0, 5), (1, 1, 4), (2, 3, 5), (4, 7, 1)]
    """
    counts, classes, first, last = np.asarray(counts), [], 0, 0
    while first < len(counts):
        classes.append((first, last, int(counts[first : last + 1].sum())))
        first, last = last + 1, 2 * last + 1
    return classes


def median_age(counts) -> int:
    """The smallest age that at least half of the elements do not exceed."""
    total = np.cumsum(counts)
    if not len(total) or not total[-1]:
        raise ValueError("counts must hold at least one element, got none")
    return int(np.searchsorted(total, total[-1] / 2))


def mean_age(counts) -> float:
    """Mean of the ages that were counted; NaN where nothing was.

    Example:
        >>> mean_age([2, 1, 1])
        0.75
    """
    counts = np.asarray(counts)
    return float((counts @ np.arange(len(counts))) / counts.sum()) if counts.sum() else float("nan")
