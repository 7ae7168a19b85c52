"""Driver that runs the steps of all workers in parallel and answers their questions, with one exchange per round.

It chooses the collective of a `SparseMean`, and adds short dense tensors and metadata to a message that is sent anyway.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from dgc_lab.compression.break_even import break_even_ratio, one_message_is_shorter
from dgc_lab.compression.checks import check_workers, described_alike
from dgc_lab.compression.config import Collectives
from dgc_lab.compression.scheme import AllGather, AllReduceMean, SparseMean, SparseVector
from dgc_lab.compression.wire_format import Layout, Message, add_in_order, nbytes, pack, unpack


class Wire(NamedTuple):
    """Encoding of sparse entries; fields as in `dgc_lab.compression.DGCConfig`."""

    values: str = "float32"
    indices: str = "int32"
    switch_to_dense: bool = True
    reduction: str = "average"

    def mean(self, total: tf.Tensor, workers: int) -> tf.Tensor:
        """Return the mean, given the sum over all workers; nothing else divides by their number."""
        return total if workers == 1 or self.reduction == "sum" else total / workers


@tf.autograph.experimental.do_not_convert
def run_schemes(
    workers: list[list],
    communicator: Collectives,
    wire: Wire = Wire(),  # noqa: B008, a tuple
    watch: Callable = lambda questions, description: [],
    who: str = "the steps",
):
    """Run the started steps of all workers in this process in parallel, with one exchange for all questions of a round.

    Args:
        workers: for each worker here, a list of started steps (generators).
        communicator: the participants (`dgc_lab.distributed.communicators`).
        wire: encoding of sparse entries.
        watch: function of the questions of a round, a dict by step for each worker here, and of their description,
            which must be the same on all ranks. It is called before the exchange and returns each worker's metadata for
            all others in this round, flat float32; or nothing.
        who: name of the steps in messages.

    Returns:
        ``(results, bytes_sent)``: for each worker here, the list of its steps' return values, followed by a table of
        all workers' metadata, float32 (workers, numbers), for each round with metadata; and int64 (2,), the bytes that
        the workers in this process sent by allreduce and by allgather.

    Raises:
        ValueError: communicator is not one; workers are not equally long lists, one for each worker in this process; or
            their steps ask different questions.

    Example:
        >>> from dgc_lab.compression import AllReduceMean
        >>> from dgc_lab.distributed import SimulatedWorkers
        >>> def step(number):
        ...     return (yield AllReduceMean(tf.constant(number)))
        >>> results, _ = run_schemes([[step(1.0)], [step(2.0)]], SimulatedWorkers(2))  # as Horovod's ranks would
        >>> [float(mean) for [mean] in results]
        [1.5, 1.5]
    """
    check_workers(workers, communicator, who)
    answers, bytes_sent = dict.fromkeys(range(len(workers[0]))), tf.zeros([2], tf.int64)
    results, tables, rounds = [[None] * len(steps) for steps in workers], [], 0
    while answers:
        asked = [{} for _ in workers]
        for steps, questions, ended in zip(workers, asked, results, strict=True):
            for i, answer in answers.items():
                try:
                    questions[i] = steps[i].send(answer)
                except StopIteration as end:
                    ended[i] = end.value
        metadata = watch(asked, described_alike(asked, who))
        answers = {}
        if asked[0] or metadata:
            answers, table, more = exchange(asked, metadata, communicator, wire, rounds)
            bytes_sent, rounds = bytes_sent + more, rounds + 1
            tables += [table] if metadata else []
    return [[*own, *tables] for own in results], bytes_sent


def exchange(asked: list[dict], metadata: list, communicator, wire: Wire, number: int):
    """Answer one round of questions: ``(answers by step, table of metadata, bytes sent)``."""
    sparse = {i: question for i, question in asked[0].items() if isinstance(question, SparseMean)}
    by_allreduce = prefers_allreduce(sparse.values(), communicator.size, wire)

    def answer(by_allreduce):
        return _exchange(asked, metadata, communicator, wire, number, by_allreduce)

    # tf.cond returns only tensors, so _exchange returns the parts of a SparseVector.
    if tf.is_tensor(by_allreduce):
        answers, table, sent = tf.cond(by_allreduce, lambda: answer(True), lambda: answer(False))
    else:
        answers, table, sent = answer(by_allreduce)
    for i, question in sparse.items():
        entries, dense = answers[i]
        answers[i] = SparseVector(entries, question.size, dense)
    return answers, table, sent


def prefers_allreduce(questions, workers: int, wire: Wire):
    """Return whether an allreduce of vectors with zeros is cheaper than an allgather of entries; a bool or a tensor."""
    ratios = [question.ratio for question in questions]
    if not wire.switch_to_dense or not ratios or any(ratio is None for ratio in ratios):
        return False
    return ratios[0] >= wire_break_even(wire, workers)


@functools.cache
def wire_break_even(wire: Wire, workers: int) -> float:
    """Return the lowest ratio at which an allreduce is cheaper than entries in this encoding."""
    return break_even_ratio(workers, Layout(wire.values, wire.indices).entry_bytes)


def _exchange(asked, metadata, communicator, wire, number, by_allreduce: bool):
    """Exchange one group of tensors by allreduce, and one message by allgather if anything must be gathered."""
    first, workers = asked[0], communicator.size
    means = [i for i, question in first.items() if isinstance(question, AllReduceMean)]
    sparse = [i for i, question in first.items() if isinstance(question, SparseMean)]
    others = [i for i, question in first.items() if isinstance(question, AllGather)]
    gathers = bool(others) or (bool(sparse) and not by_allreduce)
    joined = short_means(first, means, workers) if gathers else []
    reduced = [i for i in means if i not in joined]

    groups = []
    for worker, questions in enumerate(asked):
        tensors = [questions[i].tensor for i in reduced]
        if by_allreduce:
            tensors += [with_zeros(questions[i]) for i in sparse]
        if metadata and not gathers:
            tensors.append(row_in_table(metadata[worker], communicator.first + worker, workers))
        groups.append(tensors)
    sums, reduced_bytes = reduce_by_dtype(groups, communicator, number)
    answers = {i: wire.mean(sums.pop(0), workers) for i in reduced}
    if by_allreduce:
        nothing = [(tf.zeros([0], tf.int32), tf.zeros([0]))] * workers
        answers |= {i: (nothing, wire.mean(sums.pop(0), workers)) for i in sparse}
    if not gathers:
        return answers, sums.pop() if metadata else None, tf.stack([reduced_bytes, tf.constant(0, tf.int64)])

    sent = [] if by_allreduce else sparse
    layout = Layout(wire.values, wire.indices, *message_layout(first, metadata, joined, sent, others))
    messages = []
    for worker, questions in enumerate(asked):
        fixed = [tf.reshape(questions[i].tensor, [-1]) for i in joined]
        message = Message(
            tf.concat([*([metadata[worker]] if metadata else []), *fixed, tf.zeros([0])], 0),
            [(questions[i].indices, questions[i].values) for i in sent],
            [tensor for i in others for tensor in questions[i].tensors],
        )
        messages.append(pack(message, layout))
    every = unpack(communicator.allgather(messages, f"dgc_lab.gather.{number}"), layout, workers)
    table = tf.stack([message.fixed[: metadata[0].shape[0]] for message in every]) if metadata else None
    if joined:
        total = wire.mean(add_in_order([message.fixed for message in every]), workers)
        parts = tf.split(
            total, [metadata[0].shape[0] if metadata else 0, *(first[i].tensor.shape.num_elements() for i in joined)]
        )
        answers |= {i: tf.reshape(part, first[i].tensor.shape) for i, part in zip(joined, parts[1:], strict=True)}
    for place, i in enumerate(sent):
        # Take the mean of the entries before zeros are inserted between them: far fewer divisions.
        entries = [message.entries[place] for message in every]
        answers[i] = [(indices, wire.mean(values, workers)) for indices, values in entries], tf.zeros([0])
    for i in others:
        count = len(first[i].tensors)
        answers[i] = [tuple(message.tensors[:count]) for message in every]
        every = [message._replace(tensors=message.tensors[count:]) for message in every]
    return answers, table, tf.stack([reduced_bytes, tf.add_n([tf.size(one, tf.int64) for one in messages])])


def short_means(questions: dict, means: list, workers: int) -> list:
    """Return the steps whose dense tensors join the message that is sent anyway, which saves the allreduce."""
    tensors = [questions[i].tensor for i in means]
    if not means or any(one.dtype != tf.float32 or not one.shape.is_fully_defined() for one in tensors):
        return []
    return means if one_message_is_shorter(4 * sum(one.shape.num_elements() for one in tensors), workers) else []


def message_layout(questions: dict, metadata: list, joined: list, sparse: list, others: list):
    """Return the last three fields of a `Layout`."""
    fixed = sum(questions[i].tensor.shape.num_elements() for i in joined) + (metadata[0].shape[0] if metadata else 0)
    tensors = [tensor for i in others for tensor in questions[i].tensors]
    return fixed, len(sparse), tuple((one.dtype, tuple(one.shape[1:]) if one.shape.rank else None) for one in tensors)


def with_zeros(question: SparseMean) -> tf.Tensor:
    """Return a worker's entries as a dense vector."""

    def scattered():
        # Indices are distinct, so nothing is summed; on a CPU this is much faster than tf.scatter_nd.
        return tf.math.unsorted_segment_sum(question.values, question.indices, question.size)

    every = tf.equal(tf.size(question.values), question.size)  # as at ratio 1, where scattering takes longest
    return tf.ensure_shape(tf.cond(every, lambda: question.values, scattered), [question.size])


def row_in_table(metadata, worker: int, workers: int):
    """Return a table with a worker's metadata in its row and zeros elsewhere; the workers' tables are summed."""
    return tf.pad(metadata[None], [[worker, workers - worker - 1], [0, 0]])


def reduce_by_dtype(groups: list[list], communicator, number: int):
    """Return the sums of the workers' tensors, in their order, and the bytes that the workers in this process sent.

    Horovod adds tensors of one dtype in one exchange.
    """
    dtypes = [tensor.dtype for tensor in groups[0]]
    sums = [None] * len(dtypes)
    for dtype in dict.fromkeys(dtypes):
        places = [place for place, other in enumerate(dtypes) if other == dtype]
        alike = [[tensors[place] for place in places] for tensors in groups]
        for place, total in zip(
            places, communicator.allreduce(alike, f"dgc_lab.mean.{dtype.name}.{number}"), strict=True
        ):
            sums[place] = total
    return sums, nbytes([tensor for tensors in groups for tensor in tensors])
