"""Time and memory of a computation, operation by operation. Lesson 1, section 4.

A `Trace` is read from the ``RunMetadata`` of a session run with ``FULL_TRACE``, or from ``tf.profiler`` around a
``tf.function``.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from dgc_lab.aggregation.addn_graph import aggregation_method, gradient_graph, recurrent_loss
from dgc_lab.common import LabError, check_flag, check_whole

v1 = tf.compat.v1


class TraceError(LabError):
    """Error raised if there is no trace to read; the message says what to do."""


@dataclass(frozen=True)
class Operation:
    """Operation that ran: its type, start and end, in seconds from the start of the first operation."""

    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Trace:
    """Operations and memory of one run of a graph."""

    operations: tuple[Operation, ...]  # in the order of their starts
    peak_bytes: int  # the most memory of the run's tensors at one time, without memory allocated before the run
    memory: tuple[tuple[float, int], ...]  # seconds and allocated bytes after every allocation and release

    @property
    def seconds(self) -> float:
        """Time from the start of the first operation to the end of the last one."""
        return max(operation.end for operation in self.operations)

    def count(self, kind: str) -> int:
        """Return the number of operations of one type."""
        return sum(operation.kind == kind for operation in self.operations)


def make_trace(operations, changes) -> Trace:
    """Make a `Trace` of ``(kind, start, end)`` in seconds and ``(seconds, bytes)`` allocated (+) or released (-)."""
    if not operations:
        raise TraceError("the trace has no operation: run it again, without another profiler at the same time")
    zero = min(start for _, start, _ in operations)
    operations = [Operation(kind, start - zero, end - zero) for kind, start, end in operations]
    held, memory = 0, [(0.0, 0)]
    for moment, change in sorted(changes, key=lambda one: one[0]):  # stable: equal times keep their order
        held += change
        memory.append((moment - zero, held))
    operations.sort(key=lambda operation: operation.start)
    return Trace(tuple(operations), max(held for _, held in memory), tuple(memory))


def session(graph, grappler: bool, one_at_a_time: bool = False):
    """Open a ``compat.v1`` session for a graph on the CPU, with or without Grappler, and initialize the variables.

    With ``one_at_a_time``, an operation starts only after the previous one has ended, so that all runs are alike.
    """
    config = v1.ConfigProto(
        device_count={"GPU": 0}, use_per_session_threads=one_at_a_time, inter_op_parallelism_threads=int(one_at_a_time)
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = not grappler
    opened = v1.Session(graph=graph, config=config)
    with graph.as_default():
        opened.run(v1.global_variables_initializer())
    return opened


def session_trace(uses: int, method: str, width: int = 256, grappler: bool = False) -> Trace:
    """Run the gradient of `gradient_graph` in a session with ``FULL_TRACE``, and read its ``RunMetadata``.

    One operation runs at a time. Otherwise the load of the machine would decide how early the additions of a chain run,
    and therefore how much memory it needs. For the same reason, the `Trace` is that of the fastest of five runs.

    Each of the ``uses`` contributions has width x width elements of 4 bytes. With ``grappler``, TensorFlow may rewrite
    the graph before it runs, as it does by default. Raises ValueError if `gradient_graph` does, for example for an
    unknown ``method``.

    Example:
        >>> session_trace(uses=4, method="EXPERIMENTAL_TREE", width=8).count("AddN")
        3
    """
    check_flag("grappler", grappler)
    graph, gradient = gradient_graph(uses, method, width, batch=32)
    options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
    runs = []
    with session(graph, grappler, one_at_a_time=True) as running:
        for _ in range(3):
            running.run(gradient.op)
        for _ in range(5):
            metadata = v1.RunMetadata()
            running.run(gradient.op, options=options, run_metadata=metadata)
            runs.append(read_metadata(metadata))
    return min(runs, key=lambda trace: trace.seconds)


def read_metadata(metadata) -> Trace:
    """Return the `Trace` in the ``RunMetadata`` of a run with ``FULL_TRACE``."""
    operations, changes = [], []
    for device in metadata.step_stats.dev_stats:
        for node in device.node_stats:
            start = node.all_start_nanos / 1e9
            # "NAME [mklcpu 0.4MB 0.4MB] NAME = AddN(...)"
            kind = node.timeline_label.rpartition(" = ")[2].partition("(")[0]
            operations.append((kind, start, start + node.all_end_rel_nanos / 1e9))
            for used in node.memory:
                changes += [(record.alloc_micros / 1e6, record.alloc_bytes) for record in used.allocation_records]
    return make_trace(operations, changes)


def profiler_trace(function: Callable, *arguments) -> Trace:
    """Call a ``tf.function`` under ``tf.profiler``, after one call that traces it, and read the profile.

    This works on the CPU only, because a profile records GPU operations elsewhere. The profiler sees only the
    memory of TensorFlow's pooling allocators. With oneDNN (the default on newer x86 processors, or with
    ``TF_ENABLE_ONEDNN_OPTS=1``), these hold tensors of 256 KiB or more; without it none, and ``peak_bytes`` is 0.
    `session_trace` counts all tensors.

    Raises:
        TraceError: TensorFlow sees a GPU, the profile cannot be read or has no operation, or a profiler already runs.

    Example:
        >>> addends = [tf.ones([4]) for _ in range(3)]
        >>> profiler_trace(tf.function(tf.add_n), addends).count("AddN")
        1
    """
    if tf.config.get_visible_devices("GPU"):
        raise TraceError(
            "profiles of GPU operations cannot be read: in a new kernel, before any other use of TensorFlow, call "
            'tf.config.set_visible_devices([], "GPU")'
        )
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError as error:
        raise TraceError(f"this TensorFlow ({tf.__version__}) has no reader for its profiles: {error}") from error
    wait_for(function(*arguments))
    with tempfile.TemporaryDirectory() as folder:
        try:
            with tf.profiler.experimental.Profile(folder):
                wait_for(function(*arguments))
        except tf.errors.AlreadyExistsError as error:
            raise TraceError(f"TensorFlow allows one profiler at a time; stop the other one: {error.message}") from None
        profile = xplane_pb2.XSpace()
        for file in Path(folder).rglob("*.xplane.pb"):
            profile.MergeFromString(file.read_bytes())
    operations, changes = [], []
    for plane in profile.planes:
        for line in plane.lines:
            for event in line.events:
                start = line.timestamp_ns / 1e9 + event.offset_ps / 1e12
                name = plane.event_metadata[event.metadata_id].name
                if name in ("MemoryAllocation", "MemoryDeallocation"):
                    stats = {plane.stat_metadata[stat.metadata_id].name: stat for stat in event.stats}
                    size = stats["requested_bytes"].int64_value
                    changes.append((start, size if name == "MemoryAllocation" else -size))
                elif line.name.startswith("tf_Compute") and ":" in name and "::" not in name:
                    operations.append((name.rpartition(":")[2], start, start + event.duration_ps / 1e12))
    return make_trace(operations, changes)


def wait_for(result) -> None:
    """Wait until a function's tensors are computed; on a GPU the call itself returns earlier."""
    for tensor in filter(tf.is_tensor, tf.nest.flatten(result)):
        tensor.numpy()


def recurrent_gradient(uses: int, method: str):
    """Return a ``tf.function`` of (weight, start) for the gradient of `recurrent_loss`, summed by ``tf.gradients``.

    Args:
        uses: number of uses of the weight, from 1 to 4 096; each is one contribution to its gradient.
        method: one of `AGGREGATION_METHODS`.

    Returns:
        Function of float32 tensors (width, width) and (batch, width); its result has the first one's shape and dtype.

    Raises:
        ValueError: ``uses`` is not in its range, or ``method`` is unknown.

    Example:
        >>> gradient = recurrent_gradient(uses=1, method="ADD_N")
        >>> gradient(tf.zeros([1, 1]), tf.constant([[3.0]])).numpy().tolist()
        [[3.0]]
    """
    chosen = aggregation_method(method)
    check_whole("uses", uses, 1, 4096)

    @tf.function
    def gradient(weight, start):
        return tf.gradients(recurrent_loss(weight, start, uses), weight, aggregation_method=chosen)[0]

    return gradient


@contextlib.contextmanager
def without_grappler():
    """Disable Grappler within a ``with`` block, so that TensorFlow runs newly traced graphs as they are written.

    Functions that ran before the block keep their optimized graphs.

    Example:
        >>> with without_grappler():
        ...     trace = profiler_trace(recurrent_gradient(4, "EXPERIMENTAL_TREE"), tf.ones([8, 8]), tf.ones([2, 8]))
        >>> trace.count("AddN")
        3
    """
    before = tf.config.optimizer.get_experimental_options()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})
