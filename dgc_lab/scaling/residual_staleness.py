"""Residual staleness: how many steps an element has waited in its residual when it is sent.

An element's age is the number of earlier steps whose gradients its residual still holds: 0 when it is sent in the very
step in which its oldest gradient was computed. It is taken from outside, by what a step does to the residuals
(`WatchedCompressor`), so that the compressor knows nothing of it.

Sources: arXiv:1712.01887, section 3.2 (staleness of the residual; momentum factor masking is against it).
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from dgc_lab.dgc.compressor import Compressor


def was_sent(before, after, gradient, velocity=None):
    """Which elements of a residual were sent in a step.

    Sending leaves zero behind, and zeros are never sent. So an element was sent where something was in it or came to
    it, and nothing is left. (What comes could cancel to the last bit what was there; that would be taken for sent.)

    ``before`` and ``after`` are a worker's residual around the step, ``gradient`` what the step computed for it, and
    ``velocity`` that before the step, where momentum goes into the residual; tensors of one shape, as the answer is.
    """
    held = (before != 0) | (gradient != 0)
    if velocity is not None:
        held |= velocity != 0
    return held & (after == 0)


def grown(ages, after):
    """Ages after a step: one more where something waits in the residual ``after`` it, 0 where nothing does."""
    return tf.where(after == 0, 0, ages + 1)


def counted(ages, mask, longest: int):
    """How many elements under a mask have age 0, 1, ...: int64 (longest + 1,); older ones count as ``longest``."""
    chosen = tf.minimum(tf.boolean_mask(ages, mask), longest)
    return tf.math.bincount(chosen, minlength=longest + 1, maxlength=longest + 1, dtype=tf.int64)


class WatchedCompressor(Compressor):
    """A `dgc_lab.dgc.compressor.Compressor` that keeps each element's age beside its residual.

    Args:
        config, variables, exchange, names: as its own; the config accumulates and sends float32 values.
        longest: age that older ones count as, too; the number of steps, for example.

    Attributes:
        ages: for each worker in this process, an int32 ``tf.Variable`` per residual, None where there is none.
        sent_ages: int64 ``tf.Variable`` (longest + 1,), how many elements were sent at each age so far.

    Raises:
        ValueError: the config keeps no residuals, or leaves rounding errors in them.

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

    def __init__(self, config, variables, communicator, names=None, longest=1000):
        if not config.accumulate:
            raise ValueError("config must accumulate: what is dropped has no age")
        if config.values != "float32":
            raise ValueError(f"config must send float32 values, which leave nothing behind, got {config.values!r}")
        if config.weight_decay:
            raise ValueError(f"config must have weight_decay 0: it is in no gradient, got {config.weight_decay}")
        super().__init__(config, variables, communicator, names)
        self.longest = longest
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
        watched = [
            (worker, i)
            for worker, own in enumerate(gradients)
            for i, gradient in enumerate(own)
            if self.ages[worker][i] is not None and tf.is_tensor(gradient)
        ]
        residuals = {place: tf.identity(self.residuals[place[0]][place[1]]) for place in watched}
        velocities = dict.fromkeys(watched)
        if self.config.momentum_correction and self.config.momentum:
            velocities = {place: tf.identity(self.velocities[place[0]][place[1]]) for place in watched}
        result = super()._step(gradients, ratio, metadata, learning_rate)
        counts = []
        for worker, i in watched:
            age, after = self.ages[worker][i], tf.convert_to_tensor(self.residuals[worker][i])
            before, velocity = residuals[worker, i], velocities[worker, i]
            counts.append(counted(age, was_sent(before, after, gradients[worker][i], velocity), self.longest))
            age.assign(grown(age, after))
        self.sent_ages.assign_add(tf.add_n(counts))
        return result

    def waiting_ages(self) -> np.ndarray:
        """How many elements that wait in this process's residuals have the age 0, 1, ...; int64 array (longest + 1,).

        It is the age that they would be sent at in the next step.
        """
        every = np.concatenate([age.numpy().ravel() for age in tf.nest.flatten(self.ages) if age is not None])
        return np.bincount(np.minimum(every[every > 0], self.longest), minlength=self.longest + 1)


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


def quantile(counts, share: float) -> int:
    """The smallest age that at least this share, in (0, 1], of the elements do not exceed.

    Example:
        >>> quantile([2, 1, 1], 0.5), quantile([2, 1, 1], 0.75)
        (0, 1)
    """
    total = np.cumsum(counts)
    if not len(total) or not total[-1]:
        raise ValueError("counts must hold at least one element, got none")
    return int(np.searchsorted(total, share * total[-1] * (1 - 1e-12)))


def mean_age(counts) -> float:
    """Mean of the ages that were counted; NaN where nothing was.

    Example:
        >>> mean_age([2, 1, 1])
        0.75
    """
    counts = np.asarray(counts)
    return float((counts @ np.arange(len(counts))) / counts.sum()) if counts.sum() else float("nan")
