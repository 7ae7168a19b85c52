"""`dgc_lab.dgc.algorithm.local_step` in one pass over memory, by operations of our own in ``fused.cc``.

For float32 on a CPU; elsewhere, and without a compiler, the `Compressor` runs the algorithm as it is written there. The
elements that are sent and all bits are the same. A step writes the new state to spare variables, and only `Swapped`
makes it the state, after all workers have found their gradients finite.
"""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.dgc.algorithm import Selection, State
from dgc_lab.dgc.config import DGCConfig
from dgc_lab.dgc.fused_build import library
from dgc_lab.dgc.thresholding import thresholds


class Swapped:
    """A variable and its spare, which takes memory from the first step on."""

    def __init__(self, variable: tf.Variable):
        self.variable = variable
        self.spare = tf.Variable(tf.zeros([0]), shape=tf.TensorShape(None), trainable=False, name="spare")

    def assign(self, value):
        """Make what the spare holds the variable's value, once it is ``value``."""
        return library().dgc_keep(self.variable.handle, self.spare.handle, value)


class Weights:
    """Trained variables, in a step whose sparse tensors travel by allreduce or not, and at its learning rate."""

    def __init__(self, variables, by_allreduce, learning_rate):
        self.variables, self.by_allreduce, self.learning_rate = variables, by_allreduce, learning_rate

    def assign(self, received):
        """Take the means over the workers off the weights, where they lie; entries worker by worker."""

        def whole():
            for variable, mean in zip(self.variables, received.masked, strict=True):
                variable.assign_sub(tf.reshape(self.learning_rate * mean, variable.shape))

        def entries():
            indices = [indices for indices, _ in received.entries]
            values = [-self.learning_rate * values for _, values in received.entries]
            library().dgc_add_entries([variable.handle for variable in self.variables], indices, values)

        ways = whole, entries
        if tf.is_tensor(self.by_allreduce):
            tf.cond(self.by_allreduce, *ways)
        else:
            ways[0 if self.by_allreduce else 1]()


class FusedStep:
    """One worker's step; ``state`` are lists of variables, with None where the config needs none."""

    def __init__(self, state: State):
        self.holders = State(*([v if v is None else Swapped(v) for v in variables] for variables in state))

    def local_step(self, gradients, state: State, ratio, config: DGCConfig, seed, by_allreduce):
        """As `dgc_lab.dgc.algorithm.local_step`; ``state`` are those of ``self.holders`` that the gradients go to."""
        operations, made, maxima = library(), [], []
        for gradient, *own in zip(gradients, state.residual, state.velocity, strict=True):
            own = [part for part in own if part is not None]
            handles = [part.variable.handle for part in own], [part.spare.handle for part in own]
            new, largest = operations.dgc_accumulate(
                gradient, *handles, momentum=config.momentum, nesterov=config.nesterov
            )
            made.append(new)
            maxima.append(largest)
        found = thresholds([new[0] for new in made], ratio, config.rule, config.scope, config.sample, seed)
        # Not where everything is sent: that is momentum SGD.
        clears = tf.convert_to_tensor(ratio < 1) if config.clears_velocity else tf.constant(False)

        def take_entries():
            every = zip(made, maxima, found, strict=True)
            results = [operations.dgc_take(*own, clears, T=tf.as_dtype(config.values)) for own in every]
            taken, indices, values = map(list, zip(*results, strict=True))
            kept = tf.convert_to_tensor([tf.size(where, tf.int64) for where in indices], tf.int64)
            return Selection(indices, values, [tf.zeros([0])] * len(indices), kept), state_of(taken)

        def take_masked():
            results = [operations.dgc_take_masked(*own, clears) for own in zip(made, found, strict=True)]
            taken, masked, kept = map(list, zip(*results, strict=True))
            indices = [tf.zeros([0], tf.int32)] * len(masked)
            values = [tf.zeros([0], config.values)] * len(masked)
            return Selection(indices, values, masked, tf.stack(kept)), state_of(taken)

        forms = take_masked, take_entries
        taken = tf.cond(by_allreduce, *forms) if tf.is_tensor(by_allreduce) else forms[0 if by_allreduce else 1]()
        return *taken, maxima


def state_of(taken) -> State:
    """The new state, from what the operations give for each tensor: the residual and, if there is one, the velocity."""
    return State([own[1] if len(own) > 1 else None for own in taken], [own[0] for own in taken])


def suits(config: DGCConfig, variables) -> bool:
    """Whether this step can be fused: all in float32 on a CPU, with residuals, and the operations are here."""
    on_cpu = all(variable.dtype == tf.float32 and "CPU" in variable.device for variable in variables)
    return on_cpu and config.accumulate and library() is not None
