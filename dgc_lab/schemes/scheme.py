"""What a compression scheme is, and the driver that runs schemes on all workers at once.

A scheme says what one worker does with the gradient of one tensor. Its ``step`` is a generator: where it needs the
other workers it yields a question, and goes on with the answer. So the same few lines run on one worker, on simulated
ones and on Horovod ranks, and the bytes of every scheme are counted in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.dgc.wire_format import Reader, as_bytes, nbytes


class Mean(NamedTuple):
    """Ask for the mean of a tensor over all workers: floating point, of one shape on all. An allreduce carries it.

    Example:
        >>> Mean(tf.constant([1.0])).tensor.shape
        TensorShape([1])
    """

    tensor: tf.Tensor


class All(NamedTuple):
    """Ask for the tensors of all workers: a list, by worker, of tuples like this one. An allgather carries them.

    A tensor's first dimension may differ from worker to worker.

    Example:
        >>> len(All((tf.constant([1]), tf.constant([0.5]))).tensors)
        2
    """

    tensors: tuple


class Turn(NamedTuple):
    """What a step knows beside gradient and state.

    Attributes:
        seed: int32 (2,), for random numbers that are the same on all workers; another one for each step and tensor
            (a tensor has that of the one before it 1000 steps later).
        own_seed: int32 (2,), for random numbers of this worker alone.
        workers: number of them.

    Example:
        >>> Turn(tf.constant([0, 1]), tf.constant([0, 2]), workers=4).workers
        4
    """

    seed: tf.Tensor
    own_seed: tf.Tensor
    workers: int


class Scheme(NamedTuple):
    """What a worker sends of a gradient, and the update that all make of what was sent.

    Attributes:
        step: generator function of (gradient, state, turn): a float32 tensor of the variable's shape, what the step
            before left, and a `Turn`. It yields `Mean` or `All`, once or more often, and returns ``(update, own,
            state)``: the update, of the gradient's shape and the same on all workers; what of this worker's gradient
            is in it; and what stays with this worker.
        init: function of a gradient of zeros to the first state: a tensor, or tensors in tuples and lists.
        name: what rows and legends call it.
        momentum: that ``step`` has in it already; what is sent whole gets the same after the exchange.
        every, since: steps from one exchange to the next, and how many steps there are one each before (`local`).

    Example:
        >>> def whole(gradient, state, turn):
        ...     mean = yield Mean(gradient)
        ...     return mean, gradient, state
        >>> from dgc_lab.distributed import SimulatedWorkers
        >>> steps = [[whole(tf.constant([gradient]), (), None)] for gradient in (1.0, 3.0)]
        >>> [[(update, _, _)], _], handed = run_together(steps, SimulatedWorkers(2))
        >>> float(update[0]), handed.numpy().tolist()
        (2.0, [8, 0])
    """

    step: Callable[..., Generator]
    init: Callable = lambda gradient: ()
    name: str = ""
    momentum: float = 0.0
    every: int = 1
    since: int = 0

    def __repr__(self):
        return f"Scheme {self.name}"  # the same on all ranks, which compare what they were given


@tf.autograph.experimental.do_not_convert
def run_together(workers, communicator, check: Callable = lambda asked: None):
    """Run the steps of every worker here side by side, with one collective for all that they ask at a time.

    ``workers`` has a list of started steps for each worker here. Returns ``(results, handed)``: what the steps
    returned, in such lists, and int64 (2,), the bytes that the workers here handed to allreduce and to allgather.
    ``check`` is given the questions, by worker and by number of the step, before they are asked.
    """
    answers, handed = dict.fromkeys(range(len(workers[0]))), tf.zeros([2], tf.int64)
    results, rounds = [[None] * len(steps) for steps in workers], 0
    while answers:
        asked = [{} for _ in workers]
        for steps, questions, ended in zip(workers, asked, results, strict=True):
            for i, answer in answers.items():
                try:
                    questions[i] = steps[i].send(answer)
                except StopIteration as end:
                    ended[i] = end.value
        check(asked)
        answers, more = ask(asked, communicator, rounds)
        handed, rounds = handed + more, rounds + 1
    return results, handed


def ask(asked, communicator, rounds: int):
    """The answers to what the workers here ask, by number of the step, and the bytes that were handed over."""
    first, answers, handed = asked[0], {}, [[], []]
    means = [i for i, question in first.items() if isinstance(question, Mean)]
    for dtype in dict.fromkeys(first[i].tensor.dtype for i in means):
        alike = [i for i in means if first[i].tensor.dtype == dtype]
        groups = [[questions[i].tensor for i in alike] for questions in asked]
        sums = communicator.allreduce(groups, f"dgc_lab.mean.{dtype.name}.{rounds}")
        answers |= {i: total / communicator.size for i, total in zip(alike, sums, strict=True)}
        handed[0] += [tensor for group in groups for tensor in group]
    if rest := [i for i in first if i not in answers]:
        handed[1] = [pack([questions[i].tensors for i in rest]) for questions in asked]
        reader = Reader(communicator.allgather(handed[1], f"dgc_lab.all.{rounds}"))
        every = [unpack(reader, [first[i].tensors for i in rest]) for _ in range(communicator.size)]
        answers |= dict(zip(rest, map(list, zip(*every, strict=True)), strict=True))
    return answers, tf.stack([nbytes(tensors) for tensors in handed])


def pack(questions):
    """One worker's message, uint8 (bytes,): how many elements each tensor has, and then the elements of all."""
    tensors = [tensor for question in questions for tensor in question]
    return tf.concat([as_bytes(tensor) for tensor in (tf.stack([tf.size(one) for one in tensors]), *tensors)], 0)


def unpack(reader: Reader, like) -> list:
    """The next worker's tensors, in tuples, with the types and inner shapes of the tensors in ``like``."""
    sizes = iter(tf.unstack(reader.take(tf.int32, sum(map(len, like)))))

    def shaped(one):
        return tf.reshape(reader.take(one.dtype, next(sizes)), [-1, *one.shape[1:]] if one.shape.rank else [])

    return [tuple(map(shaped, question)) for question in like]
