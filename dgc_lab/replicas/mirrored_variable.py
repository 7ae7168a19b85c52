"""Real replicas: a variable with a copy on each of several devices, and how their values become one. Lesson 2.

``tf.distribute.MirroredStrategy`` on logical CPU devices, or on the GPUs where there are two or more. Logical devices
can be made only before TensorFlow starts, so call `start_devices` first, before any tensor.
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
from dgc_lab.workloads.batches import grow_gpu_memory

MOST_REPLICAS, LARGEST = 8, float(np.finfo(np.float32).max)  # of replicas; of float32
#: Names of the members of ``tf.VariableAggregation``: what becomes of the replicas' values.
AGGREGATIONS = ("NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA")
#: Names of the members of ``tf.VariableSynchronization``: when copies are brought together.
SYNCHRONIZATIONS = ("AUTO", "ON_WRITE", "ON_READ", "NONE")
#: Names of the methods with which a replica changes a variable.
ASSIGNMENTS = ("assign", "assign_add", "assign_sub")


class TooLate(LabError):
    """TensorFlow has started with fewer devices than are asked for; the message says to restart the kernel."""


@dataclass(frozen=True)
class AssignmentResult:
    """What became of a variable that each replica assigned its own value.

    Attributes:
        before: the copies' values before, one per replica; empty where it could not be made.
        after: the copies' values afterwards; empty where an error came first.
        read: what a read outside the replicas gives; None where that is an error.
        stage: where it failed: ``"create"``, ``"assign"`` or ``"read"``; None where all went well.
        error: TensorFlow's own words, first line; None where all went well.

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
    """Make 2 to 8 devices for replicas and give their names: GPUs where there are that many, else logical CPU devices.

    A second call that asks for no more than are there changes nothing. `TooLate` where TensorFlow has started already,
    with fewer devices; a ValueError for another count.

    Example, in a new kernel, before anything else that uses TensorFlow:
        >>> start_devices(2)  # doctest: +SKIP
        ['CPU:0', 'CPU:1']
    """
    check_whole("count", count, 2, MOST_REPLICAS)
    grow_gpu_memory()
    if len(tf.config.get_visible_devices("GPU")) >= count:
        return [f"GPU:{place}" for place in range(count)]
    cpu = tf.config.list_physical_devices("CPU")[0]
    if len(tf.config.get_logical_device_configuration(cpu) or [None]) < count:
        try:
            tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * count)
        except RuntimeError:
            there = len(tf.config.list_logical_devices("CPU"))
            raise TooLate(
                f"replicas: TensorFlow has started with {there} CPU {'device' if there == 1 else 'devices'}, and "
                f"{count} are asked for. Restart the kernel (menu Kernel > Restart; Runtime > Restart session on "
                "Colab) and call start_devices before anything else that uses TensorFlow."
            ) from None
    return [f"CPU:{place}" for place in range(count)]


def mirrored(replicas: int = 4, cross_device_ops: tf.distribute.CrossDeviceOps | None = None):
    """A ``tf.distribute.MirroredStrategy`` on that many devices, which `start_devices` makes where it still can.

    Args:
        replicas: 1 to 8, else a ValueError.
        cross_device_ops: how to add up the replicas' tensors, such as ``tf.distribute.HierarchicalCopyAllReduce()``.
            None is NcclAllReduce on GPUs, ReductionToOneDevice on CPUs: collectives fail for a second group size.

    Raises:
        TooLate: there are fewer devices, and TensorFlow has started; it would put several replicas on one device.

    Example:
        >>> mirrored(4).num_replicas_in_sync  # doctest: +SKIP
        4
    """
    check_whole("replicas", replicas, 1, MOST_REPLICAS)
    devices = start_devices(replicas) if replicas > 1 else ["CPU:0"]
    if cross_device_ops is None:
        on_gpus = devices[0].startswith("GPU")
        cross_device_ops = tf.distribute.NcclAllReduce() if on_gpus else tf.distribute.ReductionToOneDevice()
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=cross_device_ops)


def per_replica_variable(
    strategy: tf.distribute.Strategy, initial: float = 0.0, aggregation: str = "NONE", synchronization: str = "AUTO"
):
    """A float32 ``tf.Variable`` with a copy on each replica; a ValueError for a pair that TensorFlow refuses.

    Args:
        strategy: of `mirrored`.
        initial: the first value of every copy, a finite number.
        aggregation, synchronization: one of `AGGREGATIONS` and of `SYNCHRONIZATIONS`.

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
    """The value of each replica's own copy of a scalar ``variable`` of the ``strategy``, whatever its aggregation.

    Example:
        >>> strategy = mirrored(2)  # doctest: +SKIP
        >>> own = per_replica_variable(strategy, synchronization="ON_READ", aggregation="SUM")  # doctest: +SKIP
        >>> assign_on_replicas(strategy, own, [1, 2])  # doctest: +SKIP
        >>> copies(strategy, own), float(own.read_value())  # doctest: +SKIP
        ((1.0, 2.0), 3.0)
    """
    return tuple(float(copy.numpy()) for copy in strategy.experimental_local_results(variable))


def one_each(strategy, values):
    """The values as what ``strategy.run`` takes: the first for replica 0, the next for replica 1, and so on."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.convert_to_tensor(values[context.replica_id_in_sync_group])
    )


def check_values(strategy, values) -> None:
    """A ValueError unless there is one finite number per replica."""
    replicas = strategy.num_replicas_in_sync
    if len(check_list("values", values)) != replicas:
        raise ValueError(f"values must hold one number per replica ({replicas}), got {len(values)}")
    for place, value in enumerate(values):
        check_float32("values", value, f" for replica {place}")


def check_float32(argument: str, value, place: str = "") -> None:
    """Raise a ValueError unless the value is a finite number in float32."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not abs(value) <= LARGEST:
        raise ValueError(f"{argument} must be finite numbers in float32, got {value!r}{place}")


def check_alike(argument: str, arrays) -> None:
    """A ValueError unless all arrays, or lists of them, have the same shapes and dtypes."""
    kinds = [[(np.shape(array), np.asarray(array).dtype) for array in tf.nest.flatten(each)] for each in arrays]
    if any(kind != kinds[0] for kind in kinds):
        raise ValueError(f"{argument} must have the same shapes and dtypes on every replica, got {kinds}")


def assign_on_replicas(
    strategy: tf.distribute.Strategy, variable: tf.Variable, values: Sequence[float], how: str = "assign"
) -> None:
    """Let replica i assign ``values[i]`` to the variable; TensorFlow aggregates as the variable says.

    The variable is of `per_replica_variable`, made under the same strategy; values are one number per replica. A
    ValueError for a ``how`` that is none of `ASSIGNMENTS`, a wrong number of values, and what TensorFlow refuses.

    Example:
        >>> strategy = mirrored(2)  # doctest: +SKIP
        >>> total = per_replica_variable(strategy, initial=10.0, aggregation="SUM")  # doctest: +SKIP
        >>> assign_on_replicas(strategy, total, [1, 2], how="assign_add")  # doctest: +SKIP
        >>> copies(strategy, total)  # doctest: +SKIP
        (13.0, 13.0)
    """
    check_choice("how", how, ASSIGNMENTS)
    check_values(strategy, values)
    mine = one_each(strategy, np.asarray(values, np.float32))
    strategy.run(lambda value: getattr(variable, how)(value), args=(mine,))


def try_pair(
    strategy: tf.distribute.Strategy,
    values: Sequence[float],
    aggregation: str,
    synchronization: str = "AUTO",
    how: str = "assign",
    initial: float = 0.0,
) -> AssignmentResult:
    """Make a variable that is ``initial`` everywhere, let replica i assign ``values[i]``, read: what happened.

    The strategy is of `mirrored`; aggregation, synchronization and how are names from `AGGREGATIONS`,
    `SYNCHRONIZATIONS` and `ASSIGNMENTS`. An unknown name, a wrong number of values or one that is not finite is a
    ValueError; what TensorFlow refuses is in the `AssignmentResult`.

    Example:
        >>> try_pair(mirrored(4), [1, 2, 3, 4], "MEAN").after  # doctest: +SKIP
        (2.5, 2.5, 2.5, 2.5)
    """
    check_choice("aggregation", aggregation, AGGREGATIONS)
    check_choice("synchronization", synchronization, SYNCHRONIZATIONS)
    check_choice("how", how, ASSIGNMENTS)
    check_values(strategy, values)
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
    """`try_pair` for every synchronization with every aggregation: a dict for each pair.

    It has ``synchronization``, ``aggregation``, ``copies``, ``read`` and ``fails``: the stage at which it failed and
    why, or an empty string. ``strategy``, ``values``, ``how`` and a ValueError are as `try_pair` has them.

    Example:
        >>> pairs = all_pairs(mirrored(2), [1, 2])  # doctest: +SKIP
        >>> len(pairs), sum(bool(pair["fails"]) for pair in pairs)  # doctest: +SKIP
        (16, 5)
    """
    rows = []
    for synchronization, aggregation in itertools.product(SYNCHRONIZATIONS, AGGREGATIONS):
        result = try_pair(strategy, values, aggregation, synchronization, how)
        row = {"synchronization": synchronization, "aggregation": aggregation, "copies": list(result.after)}
        fails = f"{result.stage}: {result.error}" if result.error else ""
        rows.append(row | {"read": result.read, "fails": fails})
    return rows


def all_reduce(strategy: tf.distribute.Strategy, arrays: list[ArrayLike]) -> list:
    """Add up one array per replica, by the strategy's ``cross_device_ops``: numpy arrays that the replicas then hold.

    A ValueError where the arrays or tensors are not one per replica, or not of one shape and dtype.

    Example:
        >>> all_reduce(mirrored(2), [np.array([1.0, 2.0]), np.array([10.0, 20.0])])  # doctest: +SKIP
        [array([11., 22.]), array([11., 22.])]
    """
    replicas = strategy.num_replicas_in_sync
    if len(arrays) != replicas:
        raise ValueError(f"arrays must be one per replica ({replicas}), got {len(arrays)}")
    check_alike("arrays", arrays)

    def on_replica(array):
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, array)

    reduced = strategy.run(on_replica, args=(one_each(strategy, arrays),))
    return [array.numpy() for array in strategy.experimental_local_results(reduced)]


def through_checkpoint(strategy: tf.distribute.Strategy, variable: tf.Variable) -> dict:
    """Save a ``variable``, overwrite every copy with -1, restore: what of it a checkpoint holds.

    It is of `per_replica_variable`, made under the same ``strategy``.
    Gives the copies ``before``, the number ``saved`` in the file, the copies ``restored``, and an ordinary variable
    restored from the same file, ``elsewhere``. A ValueError where TensorFlow cannot save it (ON_READ with NONE).

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
