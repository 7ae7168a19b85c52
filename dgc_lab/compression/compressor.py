"""Compressor that turns the workers' gradients into one update and stores the schemes' state between steps.

A step flattens the gradients, starts the scheme on each worker of this process, lets `dgc_lab.compression.driver`
answer the schemes' questions, checks that everything is finite, and stores the new state.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from dgc_lab.common import check_instance, check_number
from dgc_lab.compression.checks import check_kinds, checked_names, checked_step, gradient_kinds
from dgc_lab.compression.config import Collectives, DGCConfig
from dgc_lab.compression.dgc_scheme import scheme_and_config
from dgc_lab.compression.driver import Wire, exchange, run_schemes
from dgc_lab.compression.gradients import check_numbers, flatten, local_gradients
from dgc_lab.compression.local_deltas import LocalDeltas
from dgc_lab.compression.parts import GradientVectors, Parts, row_mean, uncompressed_mean
from dgc_lab.compression.scheme import Scheme, StepContext
from dgc_lab.compression.updates import Outcome, Report, Update, rows_with_momentum, wait_for
from dgc_lab.compression.wrappers import momentum_step


class Compressor(tf.Module):
    """Compressor that turns the workers' gradients into one update, which all workers apply with plain SGD.

    Args:
        scheme: a `DGCConfig`, or a `Scheme` of `dgc_lab.compression`.
        variables: the trained variables (``tf.Variable``), for names, shapes and weight decay.
        communicator: the participants (`dgc_lab.distributed.communicators`).
        names: names of the variables, for messages; if None, the variables' own names.
        options: with a scheme, the config that sets clipping, weight decay, wire format and seed, and selects the
            tensors sent uncompressed.

    Attributes:
        states: the scheme's state for each worker in this process: a list of one nested structure of ``tf.Variable``
            for the flat vector, or of one for each compressed tensor if the scheme works per tensor.
        velocity: velocity of the uncompressed tensors, one flat ``tf.Variable``; None without momentum.
        step: int64 ``tf.Variable``, the number of updates so far.
        seed: int32 ``tf.Variable`` for random numbers; its initial value is the config's seed.
        bytes_sent: int64 ``tf.Variable`` (2,), bytes sent by allreduce and by allgather so far; ``num_sent``: float64
            (variables,), elements sent so far, counted as in `Report`; ``counted``: int64, number of updates that these
            two cover. The first two are means over the workers in this process. Loading a state does not change them.

    Raises:
        ValueError: options are given with a `DGCConfig`; the options' reduction is not "average"; communicator
            lacks the methods of `Collectives`; variables are not floating-point; their number differs from that of
            the names. At the first step: the scheme yields or returns something invalid.

    Example:
        >>> from dgc_lab.distributed import OneWorker
        >>> weight = tf.Variable([[1.0, 2.0]])
        >>> compressor = Compressor(DGCConfig(ratio=0.5, momentum=0.0, dense_below=0), [weight], OneWorker())
        >>> [update], report = compressor([[tf.constant([[0.25, -0.5]])]])
        >>> update.numpy().tolist(), compressor.residuals()[0].numpy().tolist()
        ([[0.0, -0.5]], [[0.25, 0.0]])
        >>> report.num_sent.numpy().tolist()
        [1.0]

    References:
        arXiv:1712.01887, Algorithm 1 and appendix B; `dgc_lab.compression.dgc_scheme` has them line by line.
    """

    def __init__(
        self,
        scheme: DGCConfig | Scheme,
        variables: Sequence,
        communicator: Collectives,
        names: Sequence[str] | None = None,
        options: DGCConfig | None = None,
    ):
        super().__init__(name="compressor")
        check_instance("communicator", communicator, Collectives)
        self.scheme, self.config = scheme_and_config(scheme, options)
        self.keeps_rows = isinstance(scheme, DGCConfig)
        self.communicator, self.trained = communicator, list(variables)
        self.names = checked_names(names, self.trained)
        self.wire = Wire(*(getattr(self.config, name) for name in Wire._fields))
        self.parts = Parts(self.trained, self.config, self.scheme.per_tensor)
        self.step = new_variable(tf.constant(0, tf.int64), "step")
        self.seed = new_variable(self.config.seed, "seed")
        self.bytes_sent = new_variable(tf.zeros([2], tf.int64), "bytes_sent")
        self.num_sent = new_variable(tf.zeros([len(self.trained)], tf.float64), "num_sent")
        self.counted = new_variable(tf.constant(0, tf.int64), "counted")
        first = self.parts.first_state(self.scheme.init)
        self.states = [tf.nest.map_structure(new_variable, first) for _ in range(communicator.local)]
        has_velocity = self.scheme.momentum and self.parts.uncompressed
        self.velocity = new_variable(self.parts.zeros(self.parts.uncompressed), "velocity") if has_velocity else None
        self.local = LocalDeltas(self.scheme, self.parts.shapes, communicator.local) if self.scheme.every > 1 else None
        separate = self.keeps_rows and self.config.has_local_velocity and communicator.size > 1
        self._with_local_velocity = self.parts.compressed if separate else []
        self._agreed = set()  # descriptions that all ranks have in common
        self._earlier_kinds = set()  # as in `check_kinds`

    @property
    def state(self) -> list[tf.Variable]:
        """All variables that a resumed run needs in addition to the weights."""
        shared = [self.velocity] if self.velocity is not None else []
        return [self.step, *tf.nest.flatten(self.states), *shared, *(self.local.variables if self.local else [])]

    def reset(self) -> None:
        """Return to the state before the first step."""
        for variable in self.state:
            variable.assign(tf.zeros_like(variable))
        self._earlier_kinds, first = set(), self.parts.first_state(self.scheme.init)
        for state in self.states:
            tf.nest.map_structure(lambda variable, value: variable.assign(value), state, first)

    def residuals(self, worker: int = 0) -> list:
        """Return a worker's DGC residual of each variable; None for variables without one, and with a `Scheme`."""
        found = self._state_vector(worker, int(bool(self.scheme.momentum))) if self.config.accumulate else {}
        return [found.get(i) for i in range(len(self.trained))]

    def velocities(self, worker: int = 0) -> list:
        """Return a worker's velocity of each variable; None for those without one, and those a `Scheme` compresses."""
        found = self._state_vector(worker, 0) if self.scheme.momentum else {}
        if self.velocity is not None:
            found |= self.parts.by_variable(self.velocity, self.parts.uncompressed)
        return [found.get(i) for i in range(len(self.trained))]

    def _state_vector(self, worker: int, place: int) -> dict:
        vectors = tf.nest.flatten(self.states[worker]) if self.keeps_rows else []  # other schemes have other states
        return self.parts.by_variable(vectors[place], self.parts.compressed) if vectors else {}

    def __call__(self, gradients, ratio=None, metadata=None):
        """Compress and exchange a step's gradients, and return the update for plain SGD.

        Args:
            gradients: for each worker in this process, one gradient per variable: a tensor, ``tf.IndexedSlices`` (with
                a `DGCConfig` exchanged row by row, duplicates merged) or None (on all workers).
            ratio: share to send, instead of the config's ratio and warm-up; number or scalar tensor, the same on all
                workers.
            metadata: for each worker in this process, a float32 vector that is sent to all workers with the gradients;
                all vectors have the same length.

        Returns:
            ``(updates, report)``: one update per variable (None where the gradient is None), to be multiplied by the
            learning rate and subtracted, and a `Report`.

        Raises:
            ValueError: there is not one list of gradients for each worker in this process, with one entry of the right
                shape for each variable; a gradient's kind differs between workers; all are None; or a compressed
                variable's changes between tensor and ``tf.IndexedSlices`` although each worker has its own velocity.
            RanksDisagree: at the first step, on all ranks, if they differ in config, variables, the order of these, or
                in which of them have gradients.
            tf.errors.InvalidArgumentError: a gradient of some worker holds NaN or infinity; on all workers, with the
                number of the worker and the name of the variable. No state has been changed.
        """
        return self._step(gradients, ratio, metadata, None)

    def train(self, gradients, learning_rate, ratio=None, metadata=None) -> Report:
        """Make one step of plain SGD: compress, exchange, and update the trained variables in place.

        Args, Raises: as `__call__`; learning_rate is a number or a scalar tensor.
        """
        return self._step(gradients, ratio, metadata, tf.cast(learning_rate, tf.float32))[1]

    @tf.autograph.experimental.do_not_convert  # nothing here needs AutoGraph, whose conversion takes seconds and warns
    def _step(self, gradients, ratio, metadata, learning_rate):
        workers, ratio, changes = self.prepared(gradients, metadata), self.ratio_of_step(ratio), []
        if self.local:
            move, wait = lambda moved: self.exchanged(moved, ratio, dense=True), lambda: self.waited(workers)
            outcome, changes = self.local.step(workers, self.step, learning_rate, move, wait)
            learning_rate *= self.scheme.outer_rate
        else:
            outcome = self.exchanged(workers, ratio)
        return self.commit(workers[0], outcome, learning_rate, changes)

    def prepared(self, gradients, metadata=None) -> list[GradientVectors]:
        """Return the gradients of each worker in this process, combined over the ranks of its host."""
        kinds = gradient_kinds(gradients, self.communicator.local, self.trained, self.names)
        metadata = metadata or [tf.zeros([0])] * len(gradients)
        variables = list(zip(self.names, [tuple(v.shape) for v in self.trained], kinds, strict=True))
        self.agree(f"{self.config}, {self.scheme}, variables {variables}")
        check_kinds(kinds, self._earlier_kinds, self.names)
        self._earlier_kinds |= {(i, kinds[i]) for i in self._with_local_velocity if kinds[i] != "none"}
        average, prepared = self.config.reduction == "average", []
        pooled = self.communicator.reduce_within_host(gradients, metadata, average)
        for worker, (own, numbers) in enumerate(zip(*pooled, strict=True)):
            if not self.keeps_rows:
                own = [g if g is None else tf.convert_to_tensor(g) for g in own]
            weights = self.local.weights(self.trained, worker) if self.local else self.trained
            found = local_gradients(own, weights, self.config, self.communicator.size)
            prepared.append(self.parts.vectors(*found, numbers))
        return prepared

    def agree(self, what: str) -> None:
        """Raise RanksDisagree unless ``what`` is the same on all ranks, which would otherwise wait for each other."""
        if what not in self._agreed or tf.executing_eagerly():  # an eager step may differ on one rank only
            self.communicator.assert_same_on_all_ranks(what)
            self._agreed.add(what)

    def started(self, worker: int, own: GradientVectors, ratio, uncompressed: bool = False) -> list:
        """Return a worker's started steps for the compressed tensors; ``uncompressed`` as in `StepContext`."""
        if not own.compressed:
            return []
        per_tensor, steps = self.scheme.per_tensor, []
        given = own.tensors if per_tensor else [flatten(own.tensors)]
        states = self.parts.pick_state(self.states[worker], own)
        for place, (gradient, state) in enumerate(zip(given, states, strict=True)):
            # Each tensor draws its own numbers.
            seed = tf.stack([self.seed, tf.cast(self.step, tf.int32) + 1000 * place])
            worker_seed = tf.random.experimental.stateless_fold_in(seed, self.communicator.first + worker)
            shared = (own.sizes, seed, worker_seed, self.communicator.size, ratio, self.wire.values)
            context = StepContext(*shared, own.tensors, gradient, self.communicator.first + worker, uncompressed)
            if per_tensor:
                context = context._replace(sizes=own.sizes[place : place + 1], parts=None)
            name = self.names[own.compressed[place]] if per_tensor else "the compressed tensors"
            steps.append(checked_step(self.scheme, gradient, state, context, name))
        return steps

    def exchanged(self, workers: list[GradientVectors], ratio, dense: bool = False) -> Outcome:
        """Run the scheme on all workers in this process; ``dense`` converts sparse updates to tensors."""
        if not self.scheme.dense_steps:
            return self._exchanged(workers, ratio, dense)
        ways = [lambda first=first: self._exchanged(workers, ratio, True, first) for first in (True, False)]
        return tf.cond(self.step < self.scheme.dense_steps, *ways)

    def _exchanged(self, workers: list[GradientVectors], ratio, dense: bool, uncompressed: bool = False) -> Outcome:
        steps = [self.started(worker, own, ratio, uncompressed) for worker, own in enumerate(workers)]
        partition, count, first_asked = workers[0], len(steps[0]), []
        vectors = [[uncompressed_mean(own.vector)] if own.uncompressed else [] for own in workers]
        slices = [[row_mean(rows, self.wire) for rows in own.slices] for own in workers]

        def watch(asked, description):
            self.agree(description)
            if first_asked:
                return []
            first_asked.extend([questions[i] for i in range(count)] for questions in asked)
            return self.metadata(workers, first_asked)

        started = [[*own, *vector, *rows] for own, vector, rows in zip(steps, vectors, slices, strict=True)]
        results, bytes_sent = run_schemes(started, self.communicator, self.wire, watch, self.scheme.label)
        *ended, table = results[0]
        compressed, rest = ended[:count], ended[count:]
        updates = [tf.convert_to_tensor(update) if dense else update for update, _, _ in compressed]
        mean, velocity = self.apply_momentum(rest.pop(0) if partition.uncompressed else partition.vector, partition)
        states = [[state for _, _, state in own[:count]] for own in results]
        sent = [self.parts.num_sent(own, asked) for own, asked in zip(workers, first_asked, strict=True)]
        return Outcome(updates, mean, velocity, rest, states, table, bytes_sent, tf.add_n(sent) / len(sent))

    def apply_momentum(self, mean: tf.Tensor, partition: GradientVectors) -> tuple[tf.Tensor, list]:
        """Return the uncompressed tensors' update, and a list of their new velocity; it is empty without momentum."""
        if velocity := self.parts.pick_velocity(self.velocity, partition):
            velocity[0], mean = momentum_step(velocity[0], mean, self.scheme.momentum, self.scheme.nesterov)
        return mean, velocity

    def waited(self, workers: list[GradientVectors]) -> Outcome:
        """Return the outcome of a step of local SGD without an exchange: only metadata are sent."""
        metadata = self.metadata(workers, [[] for _ in workers])
        _, table, bytes_sent = exchange([{} for _ in workers], metadata, self.communicator, self.wire, 0)
        updates = workers[0].tensors if self.scheme.per_tensor else [flatten(workers[0].tensors)]
        updates = [tf.zeros_like(update) for update in updates * bool(workers[0].compressed)]
        states = [self.parts.pick_state(state, own) for state, own in zip(self.states, workers, strict=True)]
        nothing = tf.zeros([len(self.trained)], tf.float64)
        mean, velocity = tf.zeros_like(workers[0].vector), self.parts.pick_velocity(self.velocity, workers[0])
        return Outcome(updates, mean, velocity, [], states, table, bytes_sent, nothing)

    def metadata(self, workers: list[GradientVectors], asked: list) -> list[tf.Tensor]:
        """Return each worker's metadata, preceded by the number of a variable with a non-finite gradient, or by -1."""
        shown = asked if self.scheme.selects_non_finite else [[] for _ in workers]
        bad = self.parts.non_finite(workers, shown)
        return [tf.concat([bad[i : i + 1], own.metadata], 0) for i, own in enumerate(workers)]

    def commit(self, partition: GradientVectors, outcome: Outcome, learning_rate, changes: list):
        """Check that all values are finite, store the new state, and apply or return ``(updates, report)``."""
        parts, momentum, nesterov = self.parts, self.scheme.momentum, self.scheme.nesterov
        for own, new in zip(self.states, outcome.states, strict=True):
            changes = changes + parts.put_state(own, new, partition)
        rows, among = [], (partition.uncompressed, parts.uncompressed)
        changes = changes + [(self.velocity, parts.put(self.velocity, new, *among)) for new in outcome.velocity]
        for i, (values, numbers) in zip(partition.rows, outcome.rows, strict=True):
            if momentum:
                own = [tf.nest.flatten(state)[0] for state in self.states if state]
                velocities = own if i in parts.compressed else [self.velocity]
                values, changes = rows_with_momentum(parts, i, values, numbers, velocities, changes, momentum, nesterov)
            rows.append((values, numbers))
        allreduced, allgathered = tf.unstack(outcome.bytes_sent // self.communicator.local)
        report = Report(allreduced, allgathered, outcome.num_sent, outcome.table[:, 1:])
        counts = {"step": 1, "bytes_sent": tf.stack(report[:2]), "num_sent": report.num_sent, "counted": 1}
        update = Update(parts, self.trained, partition, outcome.updates, outcome.mean, rows)
        checks = check_numbers(outcome.table[:, 0], self.names)
        with tf.control_dependencies(checks):
            done = [variable.assign(value) for variable, value in changes]
            done += [getattr(self, name).assign_add(more) for name, more in counts.items()]
            done += update.subtract(learning_rate) if learning_rate is not None else []
        updates = update.by_variable() if learning_rate is None else [None] * len(self.trained)
        return wait_for(updates, [] if tf.executing_eagerly() else [*checks, *done]), report

    def ratio_of_step(self, given=None):
        """Return the ratio of the next step, given or by the warm-up: a number or a float64 scalar tensor."""
        if given is None:
            return self.config.ratio_at(self.step)
        return tf.cast(given, tf.float64) if tf.is_tensor(given) else check_number("ratio", given, "in [0, 1]")


def new_variable(first, name: str = "state") -> tf.Variable:
    return tf.Variable(first, trainable=False, name=name)
