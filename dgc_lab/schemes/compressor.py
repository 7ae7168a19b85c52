"""A scheme (lesson 8) in the place of Deep Gradient Compression: the calls of `dgc_lab.dgc.compressor.Compressor`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from dgc_lab.common import check_choice
from dgc_lab.dgc.compressor import Compressor
from dgc_lab.dgc.config import Collectives, DGCConfig
from dgc_lab.dgc.exchange import Report, fail_if_bad, first_non_finite
from dgc_lab.schemes.checks import described, watched
from dgc_lab.schemes.memory import with_momentum
from dgc_lab.schemes.quantised import dense
from dgc_lab.schemes.scheme import All, Scheme, Turn, run_together

# What of a config is the schemes' business, or is not for them.
NOT_OURS = {
    "ratio": 1.0,
    "warm_up": (),
    "momentum": 0.0,
    "nesterov": False,
    "accumulate": False,
}


class SchemeCompressor(Compressor):
    """Turns each worker's gradients into the update that all workers apply, by a `Scheme`.

    Args:
        scheme: what is done with the gradient of each variable that is compressed.
        variables, communicator, names: as in `Compressor`.
        config: of its switches clipping, weight decay, what is sent whole and seed.

    Attributes:
        schemes: that of each variable; what is sent whole has `dense`, with the scheme's momentum.
        states: for each worker in this process and each variable, its scheme's state, each a ``tf.Variable``.
        drifts: with `local`, for each worker here how far it has moved alone from the weights, a ``tf.Variable`` for
            each variable; else none.
        For the others see `Compressor`. ``kept`` counts all elements: what a scheme spares are bytes.

    Gradients of rows (embeddings) are made whole tensors first.

    Raises:
        ValueError: the config's reduction is not "average". At the first step: the scheme asks or returns what it must
            not; the message says what it was.
        RanksDisagree: at the first step, on all ranks: their schemes ask different things.

    Example:
        >>> from dgc_lab.schemes import top_k
        >>> from dgc_lab.distributed import OneWorker
        >>> weight = tf.Variable([[1.0, 2.0]])
        >>> compressor = SchemeCompressor(top_k(0.5), [weight], OneWorker(), config=DGCConfig(dense_below=0))
        >>> [update], report = compressor([[tf.constant([[0.25, -0.5]])]])
        >>> update.numpy().tolist(), int(report.allgather_bytes)
        ([[0.0, -0.5]], 24)
    """

    def __init__(
        self,
        scheme: Scheme,
        variables: list[tf.Variable],
        communicator: Collectives,
        names: list[str] | None = None,
        config: DGCConfig | None = None,
    ):
        config = config or DGCConfig()
        check_choice("reduction", config.reduction, ("average",))  # what a scheme returns is a mean
        super().__init__(dataclasses.replace(config, **NOT_OURS), variables, communicator, names)
        self.scheme = scheme
        whole = with_momentum(dense(), scheme.momentum) if scheme.momentum else dense()
        in_part = [not sent and v.shape.num_elements() for sent, v in zip(self.dense, self.trained, strict=True)]
        self.schemes = [scheme if compressed else whole for compressed in in_part]
        self.states = [
            [tf.nest.map_structure(variable_of, first) for first in self._first_states()]
            for _ in range(communicator.local)
        ]

        moving = range(communicator.local if scheme.every > 1 else 0)
        self.drifts = [[variable_of(tf.zeros(variable.shape)) for variable in self.trained] for _ in moving]

    def _first_states(self):
        return [own.init(tf.zeros(variable.shape)) for own, variable in zip(self.schemes, self.trained, strict=True)]

    @property
    def state(self):
        return [self.step, *tf.nest.flatten([self.states, self.drifts])]

    def reset(self):
        super().reset()
        for states in self.states:
            tf.nest.map_structure(lambda kept, first: kept.assign(first), states, self._first_states())

    @tf.autograph.experimental.do_not_convert  # as the compressor's own
    def _step(self, gradients, ratio, metadata, learning_rate=None):
        gradients, clipped, metadata = self.prepared(gradients, metadata)
        there = [i for i, gradient in enumerate(gradients[0]) if gradient is not None]
        clipped = [[g if g is None else tf.convert_to_tensor(g) for g in own] for own in clipped]
        told = []
        for own, after, numbers in zip(gradients, clipped, metadata, strict=True):
            bad = first_non_finite(own, after, {i: tf.norm(after[i]) for i in there})  # schemes take norms
            told.append(tf.concat([bad[None], numbers], 0))
        if self.scheme.every == 1:
            updates, kept, table, handed = self._exchanged(clipped, there, told)
        else:
            updates, kept, table, handed = self._exchanged_if_due(clipped, there, told, learning_rate)
        places = dict(zip(there, updates, strict=True))
        updates = [tf.cast(places[i], v.dtype) if i in places else None for i, v in enumerate(self.trained)]
        whole = tf.constant([v.shape.num_elements() * (i in there) for i, v in enumerate(self.trained)], tf.float64)
        report = Report(*tf.unstack(handed // self.communicator.local), whole, table[:, 1:])
        changes = list(zip(self._kept(there), kept, strict=True))
        return self.commit(updates, changes, report, fail_if_bad(table[:, 0], self.names)), report

    def weights_of(self, worker):
        if not self.drifts:
            return self.trained
        return [tf.cast(v, tf.float32) + way for v, way in zip(self.trained, self.drifts[worker], strict=True)]

    def _kept(self, there) -> list:
        """What a step changes beside the weights: states, and where workers move alone, how far."""
        return tf.nest.flatten([[own[i] for i in there] for own in (*self.states, *self.drifts)])

    def _exchanged(self, gradients, there, told):
        """An exchange: updates, what `_kept` becomes, the table of what all told, and bytes handed over."""
        started = [[self._watched(w, i, own[i]) for i in there] for w, own in enumerate(gradients)]
        started = [[*steps, tell(numbers)] for steps, numbers in zip(started, told, strict=True)]
        results, handed = run_together(started, self.communicator, self._agree)
        *ended, table = results[0]
        kept = [state for own in results for _, _, state in own[:-1]]
        kept += [[tf.zeros(self.trained[i].shape) for i in there] for _ in self.drifts]
        return [update for update, _, _ in ended], tf.nest.flatten(kept), table, handed

    def _exchanged_if_due(self, gradients, there, told, learning_rate):
        """The same where workers move alone between two exchanges; what they then exchange is how far they came."""
        if learning_rate is None:
            raise ValueError(
                f"{self.scheme.name} needs train(): between two exchanges workers move by its learning rate"
            )
        rate = tf.cast(learning_rate, tf.float32)
        gone = [[drift[i] - rate * own[i] for i in there] for drift, own in zip(self.drifts, gradients, strict=True)]

        def exchange():
            ways = [dict(zip(there, [-way / rate for way in own], strict=True)) for own in gone]
            return self._exchanged(ways, there, told)

        def wait():
            [[table], *_], handed = run_together([[tell(numbers)] for numbers in told], self.communicator)
            states = [tf.convert_to_tensor(v) for own in self.states for v in tf.nest.flatten([own[i] for i in there])]
            return [tf.zeros_like(gradients[0][i]) for i in there], [*states, *tf.nest.flatten(gone)], table, handed

        due = (self.step < self.scheme.since) | ((self.step + 1) % self.scheme.every == 0)
        return tf.cond(due & (rate > 0), exchange, wait)  # at a rate of 0 no exchange could move anything

    def _watched(self, worker, i, gradient):
        """The started step of a worker here for one variable."""
        place = i - sum(self.dense[:i])  # Deep Gradient Compression draws from the same numbers (`thresholds`)
        seed = tf.stack([self.seed, tf.cast(self.step, tf.int32) + 1000 * place])
        own = tf.random.experimental.stateless_fold_in(seed, self.communicator.first + worker)
        turn = Turn(seed, own, self.communicator.size)
        state = tf.nest.map_structure(tf.convert_to_tensor, self.states[worker][i])
        return watched(self.schemes[i], gradient, state, turn, self.names[i])

    def _agree(self, asked):
        """All workers must ask the same: ranks that differ would wait for each other for ever."""
        told = [{i: described(question) for i, question in questions.items()} for questions in asked]
        if any(one != told[0] for one in told):
            raise ValueError(f"{self.scheme.name} must ask the same of all workers, got {told}")
        self.agree(f"{self.scheme.name} asks {told[0]}")


def compressor_of(
    how: DGCConfig | Scheme,
    variables: Sequence,
    communicator: Collectives,
    names: list[str] | None = None,
    switches: DGCConfig | None = None,
) -> Compressor:
    """The compressor for a config of Deep Gradient Compression, or for another scheme with the config ``switches``.

    Args:
        how: a `DGCConfig`, or a `Scheme`.
        variables, communicator, names: as in `Compressor`.
        switches: as ``config`` in `SchemeCompressor`.

    Raises:
        ValueError: there are switches beside a config.

    Source: arXiv:1712.01887 for the one, `dgc_lab.schemes` for the others.

    Example:
        >>> from dgc_lab.distributed import OneWorker
        >>> from dgc_lab.schemes import dense
        >>> type(compressor_of(dense(), [tf.Variable([1.0])], OneWorker())).__name__
        'SchemeCompressor'
    """
    if isinstance(how, Scheme):
        return SchemeCompressor(how, variables, communicator, names, switches)
    if switches is not None:
        raise ValueError(f"switches must be None: they go with a scheme, and {how} has its own")
    return Compressor(how, variables, communicator, names)


def variable_of(first):
    """What keeps a part of a scheme's state."""
    return tf.Variable(first, trainable=False, name="scheme")


def tell(metadata):
    """What a worker tells all others, as one more step beside the schemes'; a table with a row for each."""
    everyone = yield All((metadata,))
    return tf.stack([tf.reshape(own, metadata.shape) for (own,) in everyone])  # as many numbers from each
