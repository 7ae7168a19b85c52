"""Real replicas: a variable with a copy on each of several devices, and the aggregation of its values. Lesson 2.

The replicas run in ``tf.distribute.MirroredStrategy``, on logical CPU devices, or on GPUs if there are enough. Logical
devices can be created only before TensorFlow starts, so call `start_devices` before you create any tensor.
"""

from __future__ import annotations

import itertools
import numbers
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import LabError, check_choice, check_list, check_whole
from dgc_lab.workloads.gpu import grow_gpu_memory

MAX_REPLICAS, MAX_FLOAT32 = 8, float(np.finfo(np.float32).max)
#: Names of the members of ``tf.VariableAggregation``: how the replicas' values are combined.
AGGREGATIONS = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")
#: Names of the members of ``tf.VariableSynchronization``: when copies are synchronized.
SYNCHRONIZATIONS = ("AUTO", "ON_WRITE", "ON_READ", "NONE")
#: Names of the methods with which a replica changes a variable.
ASSIGNMENTS = ("assign", "assign_add", "assign_sub")


class TooLate(LabError):
    """Error raised if TensorFlow has already started with too few devices; the message says to restart the kernel."""


@dataclass(frozen=True)
class AssignmentResult:
    """State of a variable after each replica assigned its own value.

    Attributes:
        before: values of the copies before the assignment, one per replica; empty if creating the variable failed.
        after: values of the copies after the assignment; empty if an earlier stage failed.
        read: value of a read outside the replicas; None after an error.
        stage: the stage that failed, ``"create"``, ``"assign"`` or ``"read"``; None if all succeeded.
        error: first line of TensorFlow's message; None if all stages succeeded.

    Example:
        >>> try_pair(mirrored(2), [1, 2], "MEAN")  # doctest: +SKIP
        AssignmentResult(before=(0.0, 0.0), after=(1.5, 1.5), read=1.5, stage=None, error=None)
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    read: float | None
    stage: str | None = None
    error: str | None = None


def start_devices(count: int = 4) -> list[str]:
    """Create 2 to 8 devices for replicas and return their names: GPUs if there are enough, otherwise CPU devices.

    Call it before any other use of TensorFlow. It changes nothing if there are enough devices. Raises `TooLate` if
    TensorFlow has already started with fewer devices, and ValueError if ``count`` is not from 2 to 8.

    Example:
        >>> start_devices(2)  # doctest: +SKIP
        ['CPU:0', 'CPU:1']
    """
    check_whole("count", count, 2, MAX_REPLICAS)
    grow_gpu_memory()
    if len(tf.config.get_visible_devices("GPU")) >= count:
        return [f"GPU:{index}" for index in range(count)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) < count:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        except RuntimeError:
            existing = len(tf.config.list_logical_devices("CPU"))
            raise TooLate(
                f"replicas: TensorFlow has started with {existing} CPU {'device' if existing == 1 else 'devices'}, but "
                f"{count} are needed. Restart the kernel (menu Kernel > Restart; Runtime > Restart session on "
                "Colab) and call start_devices before any other use of TensorFlow."
            ) from None
    return [f"CPU:{index}" for index in range(count)]


def mirrored(replicas: int = 4, cross_device_ops: tf.distribute.CrossDeviceOps | None = None):
    """Return a ``tf.distribute.MirroredStrategy`` with one device per replica; call `start_devices` if necessary.

    Args:
        replicas: number of replicas, from 1 to 8; other numbers raise ValueError.
        cross_device_ops: algorithm of the allreduce, such as ``tf.distribute.HierarchicalCopyAllReduce()``. By
            default NcclAllReduce on GPUs, ReductionToOneDevice on CPUs: collectives there fail for a second group size.

    Raises:
        TooLate: TensorFlow has started with fewer devices; it would place several replicas on one device.

    Example:
        >>> mirrored(4).num_replicas_in_sync  # doctest: +SKIP
        4
    """
    check_whole("replicas", replicas, 1, MAX_REPLICAS)
    devices = start_devices(replicas) if replicas > 1 else ["CPU:0"]
    if cross_device_ops is None:
        on_gpus = devices[0].startswith("GPU")
        cross_device_ops = tf.distribute.NcclAllReduce() if on_gpus else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=cross_device_ops)


def per_replica_variable(
    strategy: tf.distribute.Strategy, initial: float = 0.0, aggregation: str = "NONE", synchronization: str = "AUTO"
):
    """Create a float32 ``tf.Variable`` with a copy on each replica; raise ValueError if TensorFlow rejects the pair.

    Args:
        strategy: result of `mirrored`.
        initial: the initial value of every copy, a finite number.
        aggregation, synchronization: one of `AGGREGATIONS` and one of `SYNCHRONIZATIONS`.

    Example:
        >>> strategy = mirrored(2)  # doctest: +SKIP
        >>> copies(strategy, per_replica_variable(strategy, initial=3.0))  # doctest: +SKIP
        (3.0, 3.0)
    """
    check_choice("aggregation", aggregation, AGGREGATIONS)
    check_choice("synchronization", synchronization, SYNCHRONIZATIONS)
    check_float32("initial", initial)
    with strategy.scope():
        return tf.Variable(
            initial,
            dtype=tf.float32,
            aggregation=tf.VariableAggregation[aggregation],
            synchronization=tf.VariableSynchronization[synchronization],
        )


def copies(strategy: tf.distribute.Strategy, variable: tf.Variable) -> tuple[float, ...]:
    """Return each replica's copy of a scalar ``variable`` of the ``strategy``, without aggregation.

    Example:
        >>> strategy = mirrored(2)  # doctest: +SKIP
        >>> own = per_replica_variable(strategy, synchronization="ON_READ", aggregation="SUM")  # doctest: +SKIP
        >>> assign_on_replicas(strategy, own, [1, 2])  # doctest: +SKIP
        >>> copies(strategy, own), float(own.read_value())  # doctest: +SKIP
        ((1.0, 2.0), 3.0)
    """
    return tuple(float(copy.numpy()) for copy in strategy.experimental_local_results(variable))


def per_replica(strategy, values):
    """Distribute values as an argument of ``strategy.run``: the first to replica 0, the second to replica 1, ..."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
    )


def check_values(strategy, values) -> list:
    """Return the values as a list; raise ValueError unless there is one finite number per replica."""
    replicas, values = strategy.num_replicas_in_sync, check_list("values", values)
    if len(values) != replicas:
        raise ValueError(f"values must hold one number per replica ({replicas}), got {len(values)}")
    for replica, value in enumerate(values):
        check_float32("values", value, f" for replica {replica}")
    return values


def check_float32(argument: str, value, where: str = "") -> None:
    """Raise ValueError unless the value is a finite number in float32."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not abs(value) <= MAX_FLOAT32:
        raise ValueError(f"{argument} must be finite numbers in float32, got {value!r}{where}")


def check_same_shapes(argument: str, arrays) -> None:
    """Raise ValueError unless all arrays, or lists of arrays, have the same shapes and dtypes."""
    kinds = [[(np.shape(array), np.asarray(array).dtype) for array in tf.nest.flatten(each)] for each in arrays]
    if any(kind != kinds[0] for kind in kinds):
        raise ValueError(f"{argument} must have the same shapes and dtypes on every replica, got {kinds}")


def assign_on_replicas(
    strategy: tf.distribute.Strategy, variable: tf.Variable, values: Sequence[float], how: str = "assign"
) -> None:
    """Let replica i assign ``values[i]`` to the variable; TensorFlow combines them with the variable's aggregation.

    ``variable`` is a result of `per_replica_variable` with the same ``strategy``. Raises ValueError if ``how`` is not
    one of `ASSIGNMENTS`, ``values`` is not one number per replica, or TensorFlow rejects the assignment.

    Example:
        >>> strategy = mirrored(2)  # doctest: +SKIP
        >>> total = per_replica_variable(strategy, initial=10.0, aggregation="SUM")  # doctest: +SKIP
        >>> assign_on_replicas(strategy, total, [1, 2], how="assign_add")  # doctest: +SKIP
        >>> copies(strategy, total)  # doctest: +SKIP
        (13.0, 13.0)
    """
    check_choice("how", how, ASSIGNMENTS)
    distributed = per_replica(strategy, np.asarray(check_values(strategy, values), np.float32))
    strategy.run(lambda value: getattr(variable, how)(value), args=(distributed,))


def try_pair(
    strategy: tf.distribute.Strategy,
    values: Sequence[float],
    aggregation: str,
    synchronization: str = "AUTO",
    how: str = "assign",
    initial: float = 0.0,
) -> AssignmentResult:
    """Create a variable with value ``initial``, let replica i assign ``values[i]``, read it, and return the result.

    ``strategy``, ``aggregation``, ``synchronization`` and ``initial`` are as in `per_replica_variable`, ``how`` is one
    of `ASSIGNMENTS`. Raises ValueError if a name is unknown, or ``values`` is not one finite number per replica.
    Errors that TensorFlow raises are recorded in the `AssignmentResult`.

    Example:
        >>> try_pair(mirrored(4), [1, 2, 3, 4], "MEAN").after  # doctest: +SKIP
        (2.5, 2.5, 2.5, 2.5)
    """
    check_choice("aggregation", aggregation, AGGREGATIONS)
    check_choice("synchronization", synchronization, SYNCHRONIZATIONS)
    check_choice("how", how, ASSIGNMENTS)
    values = check_values(strategy, values)
    check_float32("initial", initial)
    before, after, stage = (), (), "create"
    try:
        variable = per_replica_variable(strategy, initial, aggregation, synchronization)
        before, stage = copies(strategy, variable), "assign"
        assign_on_replicas(strategy, variable, values, how)
        after, stage = copies(strategy, variable), "read"
        return AssignmentResult(before, after, float(variable.read_value().numpy()))
    except (ValueError, NotImplementedError, tf.errors.OpError) as error:
        return AssignmentResult(before, after, None, stage, str(error).splitlines()[0])


def all_pairs(strategy: tf.distribute.Strategy, values: Sequence[float], how: str = "assign") -> list[dict]:
    """Call `try_pair` for every synchronization with every aggregation, and return a dict for each pair.

    The fields are ``synchronization``, ``aggregation``, ``copies``, ``read`` and ``fails``: the stage that failed and
    the reason, or an empty string. ``strategy``, ``values``, ``how`` and ValueError are those of `try_pair`.

    Example:
        >>> pairs = all_pairs(mirrored(2), [1, 2])  # doctest: +SKIP
        >>> len(pairs), sum(bool(pair["fails"]) for pair in pairs)  # doctest: +SKIP
        (16, 5)
    """
    rows, values = [], check_values(strategy, values)
    for synchronization, aggregation in itertools.product(SYNCHRONIZATIONS, AGGREGATIONS):
        result = try_pair(strategy, values, aggregation, synchronization, how)
        row = {"synchronization": synchronization, "aggregation": aggregation, "copies": list(result.after)}
        fails = f"{result.stage}: {result.error}" if result.error else ""
        rows.append(row | {"read": result.read, "fails": fails})
    return rows


def all_reduce(strategy: tf.distribute.Strategy, arrays: list[ArrayLike]) -> list:
    """Sum one array per replica with the strategy's ``cross_device_ops``; return each replica's sum as a numpy array.

    Raises ValueError if ``arrays`` is not one array or tensor per replica, all of the same shape and dtype.

    Example:
        >>> all_reduce(mirrored(2), [np.array([1.0, 2.0]), np.array([10.0, 20.0])])  # doctest: +SKIP
        [array([11., 22.]), array([11., 22.])]
    """
    replicas = strategy.num_replicas_in_sync
    if len(arrays) != replicas:
        raise ValueError(f"arrays must be one per replica ({replicas}), got {len(arrays)}")
    check_same_shapes("arrays", arrays)

    def on_replica(array):
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, array)

    reduced = strategy.run(on_replica, args=(per_replica(strategy, arrays),))
    return [array.numpy() for array in strategy.experimental_local_results(reduced)]


def through_checkpoint(strategy: tf.distribute.Strategy, variable: tf.Variable) -> dict:
    """Save a ``variable``, overwrite every copy with -1, and restore it, to show which values a checkpoint contains.

    ``variable`` is a result of `per_replica_variable` with the same ``strategy``. Returns the copies ``before``, the
    number ``saved`` in the file, the copies ``restored``, and the value ``elsewhere`` of an ordinary variable restored
    from the same file. Raises ValueError if TensorFlow cannot save the variable (ON_READ with NONE).

    Example:
        >>> strategy = mirrored(2)  # doctest: +SKIP
        >>> own = per_replica_variable(strategy, synchronization="ON_READ", aggregation="SUM")  # doctest: +SKIP
        >>> assign_on_replicas(strategy, own, [1, 2])  # doctest: +SKIP
        >>> through_checkpoint(strategy, own)  # doctest: +SKIP
        {'before': (1.0, 2.0), 'saved': 3.0, 'restored': (1.5, 1.5), 'elsewhere': 3.0}
    """
    before = copies(strategy, variable)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = tf.train.Checkpoint(variable=variable)
        path = checkpoint.save(Path(folder) / "checkpoint")
        saved = float(tf.train.load_variable(path, "variable/.ATTRIBUTES/VARIABLE_VALUE"))
        for copy in strategy.experimental_local_results(variable):
            copy.assign(-1.0)
        checkpoint.restore(path).assert_consumed()
        ordinary = tf.Variable(0.0)
        tf.train.Checkpoint(variable=ordinary).restore(path).expect_partial()
        elsewhere = float(ordinary.numpy())
    return {"before": before, "saved": saved, "restored": copies(strategy, variable), "elsewhere": elsewhere}
