"""Lesson 2's modules, on eight logical devices.

Devices can only be created before TensorFlow starts, which may already have happened in this process. Tests marked
``on_replicas`` run in a shared separate process.
"""

import doctest
import functools
import importlib
import inspect
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

DEVICES = 8


def start():
    """Create the devices before TensorFlow starts in the new process."""
    from dgc_lab.replicas.mirrored_variable import start_devices

    start_devices(DEVICES)


@pytest.fixture(scope="module")
def elsewhere():
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=start) as pool:
        yield pool


def on_replicas(test):
    """Run a test in the process with eight devices; its exceptions propagate."""

    @functools.wraps(test)
    def there(elsewhere, **arguments):
        elsewhere.submit(run_by_name, test.__name__, arguments).result(timeout=300)

    # pytest reads the fixtures from the signature: the test's own arguments and the process.
    names = [*inspect.signature(test).parameters, "elsewhere"]
    there.__signature__ = inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])
    return there


def run_by_name(name, arguments):
    getattr(sys.modules[__name__], name).__wrapped__(**arguments)


@functools.cache
def strategy(replicas):
    from dgc_lab.replicas.mirrored_variable import mirrored

    return mirrored(replicas)


@pytest.mark.nightly_except("mirrored_variable", "training_loop")
@pytest.mark.parametrize("file", ["figures", "mirrored_variable", "training_loop", "widget"])
@on_replicas
def test_docstring_examples(file):
    """Includes the examples that need replicas and are skipped elsewhere."""
    for example in doctest.DocTestFinder().find(importlib.import_module(f"dgc_lab.replicas.{file}")):
        for line in example.examples:
            line.options.pop(doctest.SKIP, None)
        assert doctest.DocTestRunner().run(example).failed == 0, f"{example.name}: see the report above"


# Aggregation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 4, 8])
@on_replicas
def test_aggregations_match_closed_form(replicas):
    from dgc_lab.replicas.mirrored_variable import AGGREGATIONS, try_pair

    given = [3.0 * place + 1 for place in range(replicas)]
    expected = {
        "NONE": given,
        "SUM": [sum(given)] * replicas,
        "MEAN": [sum(given) / replicas] * replicas,
        "ONLY_FIRST_REPLICA": [given[0]] * replicas,
    }
    for aggregation in AGGREGATIONS:
        for how, sign, start_value in (("assign", 1, 0.0), ("assign_add", 1, 10.0), ("assign_sub", -1, 10.0)):
            for synchronization in ("AUTO", "ON_WRITE"):
                outcome = try_pair(strategy(replicas), given, aggregation, synchronization, how, 10.0)
                wanted = [start_value + sign * value for value in expected[aggregation]]
                assert outcome.error is None, (aggregation, how)
                assert outcome.before == (10.0,) * replicas
                assert outcome.after == tuple(wanted), (aggregation, synchronization, how)
                assert outcome.read == wanted[0]


@on_replicas
def test_on_read_variables_aggregate_only_when_read():
    from dgc_lab.replicas.mirrored_variable import try_pair

    reads = {"SUM": 10.0, "MEAN": 2.5, "ONLY_FIRST_REPLICA": 1.0}
    for aggregation, read in reads.items():
        outcome = try_pair(strategy(4), [1, 2, 3, 4], aggregation, "ON_READ")
        assert outcome.after == (1, 2, 3, 4)
        assert outcome.read == read
    outcome = try_pair(strategy(4), [1, 2, 3, 4], "NONE", "ON_READ")
    assert (outcome.after, outcome.read, outcome.stage) == ((1, 2, 3, 4), None, "read")
    assert "NONE" in outcome.error


@on_replicas
def test_only_unsupported_pairs_fail():
    from dgc_lab.replicas.mirrored_variable import ASSIGNMENTS, all_pairs

    for how in ASSIGNMENTS:
        rows = all_pairs(strategy(4), [1, 2, 3, 4], how)
        assert len(rows) == 16
        for row in rows:
            pair = row["synchronization"], row["aggregation"]
            stage = "create" if pair[0] == "NONE" else "read" if pair == ("ON_READ", "NONE") else ""
            assert row["fails"].partition(":")[0] == stage, row


@on_replicas
def test_checkpoints_store_one_value():
    from dgc_lab.replicas.mirrored_variable import assign_on_replicas, per_replica_variable, through_checkpoint

    expected = {
        ("NONE", "ON_WRITE"): (1.0, (1.0,) * 4),
        ("MEAN", "ON_WRITE"): (2.5, (2.5,) * 4),
        ("SUM", "ON_READ"): (10.0, (2.5,) * 4),  # a quarter of the sum each, which preserves the sum
        ("MEAN", "ON_READ"): (2.5, (2.5,) * 4),
        ("ONLY_FIRST_REPLICA", "ON_READ"): (1.0, (1.0,) * 4),
    }
    for (aggregation, synchronization), (saved, restored) in expected.items():
        variable = per_replica_variable(strategy(4), 0.0, aggregation, synchronization)
        assign_on_replicas(strategy(4), variable, [1, 2, 3, 4])
        result = through_checkpoint(strategy(4), variable)
        assert (result["saved"], result["restored"], result["elsewhere"]) == (saved, restored, saved)
    variable = per_replica_variable(strategy(4), 0.0, "NONE", "ON_READ")
    with pytest.raises(ValueError, match="NONE"):
        through_checkpoint(strategy(4), variable)


@on_replicas
def test_invalid_arguments_are_rejected():
    from dgc_lab.replicas.mirrored_variable import mirrored, per_replica_variable, start_devices, try_pair

    for replicas in (0, 9, 2.5, True):
        with pytest.raises(ValueError, match=r"replicas must be a whole number from 1 to 8, got"):
            mirrored(replicas)
    with pytest.raises(ValueError, match=r"count must be a whole number from 2 to 8, got 0"):
        start_devices(0)
    with pytest.raises(ValueError, match=r"aggregation must be one of NONE, .*, got 'AVERAGE'"):
        per_replica_variable(strategy(2), aggregation="AVERAGE")
    with pytest.raises(ValueError, match=r"synchronization must be one of AUTO, .*, got 'LATER'"):
        try_pair(strategy(2), [1, 2], "SUM", "LATER")
    with pytest.raises(ValueError, match=r"how must be one of assign, .*, got 'assign_mul'"):
        try_pair(strategy(2), [1, 2], "SUM", how="assign_mul")
    with pytest.raises(ValueError, match=r"one number per replica \(2\), got 3"):
        try_pair(strategy(2), [1, 2, 3], "SUM")
    for value in (float("nan"), 1e39, 10**400):
        with pytest.raises(ValueError, match=r"values must be finite numbers in float32, got .* for replica 1"):
            try_pair(strategy(2), [1, value], "SUM")
    for initial in (float("inf"), -1e39):
        with pytest.raises(ValueError, match=r"initial must be finite numbers in float32, got"):
            try_pair(strategy(2), [1, 2], "SUM", initial=initial)


@on_replicas
def test_values_and_indices_may_have_other_types():
    from dgc_lab.replicas.mirrored_variable import all_pairs, try_pair
    from dgc_lab.replicas.training_loop import dense_network, train

    assert try_pair(strategy(2), {"a": 1, "b": 2}.values(), "SUM").after == (3, 3)
    assert all_pairs(strategy(2), iter([1, 2])) == all_pairs(strategy(2), [1, 2])
    images, labels, order = np.zeros((4, 8, 8, 1), np.float32), np.zeros(4, np.int32), np.zeros((1, 2, 2), np.uint32)
    assert train(strategy(2), dense_network, images, labels, order).losses.shape == (1, 2)


@on_replicas
def test_mismatched_replica_arrays_are_rejected():
    from dgc_lab.replicas import all_reduce, combined_weights, dense_network, train

    one, two = np.ones(1), np.ones(2)
    for unlike in ([one, two], [one, one.astype(np.float32)]):
        with pytest.raises(ValueError, match="arrays must have the same shapes and dtypes on every replica"):
            all_reduce(strategy(2), unlike)
        with pytest.raises(ValueError, match="weights must have the same shapes and dtypes on every replica"):
            combined_weights(strategy(2), [[each] for each in unlike], "MEAN")
    with pytest.raises(ValueError, match="weights must have the same shapes"):
        combined_weights(strategy(2), [[one], [one, two]], "MEAN")
    assert combined_weights(strategy(2), [[one], [3 * one]], "MEAN")[0].tolist() == [2.0]
    images, labels = np.zeros((4, 8, 8, 1), np.float32), np.zeros(4, np.int32)
    for order, told in (
        (np.full((1, 2, 3), 4), "order must hold indices of the 4 images, got 4 to 4"),
        (np.full((1, 2, 3), -1), "order must hold indices of the 4 images, got -1"),
        (np.zeros((1, 2, 3)), "order must hold indices"),
        (np.zeros((1, 2, 0), int), "order must have shape"),
    ):
        with pytest.raises(ValueError, match=told):
            train(strategy(2), dense_network, images, labels, order)


@on_replicas
def test_start_devices_accepts_fewer_than_existing():
    import tensorflow as tf

    from dgc_lab.replicas.mirrored_variable import start_devices

    assert start_devices(3) == ["CPU:0", "CPU:1", "CPU:2"]
    assert len(tf.config.list_logical_devices("CPU")) == DEVICES


@pytest.mark.nightly
def test_too_late_error_suggests_a_restart():
    code = """
import tensorflow as tf
tf.zeros([1])
from dgc_lab.replicas.mirrored_variable import TooLate, mirrored
try:
    mirrored(4)
except TooLate as error:
    print(error)
print(mirrored(1).num_replicas_in_sync)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "TensorFlow has started with 1 CPU device, but 4 are needed. Restart the kernel" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "1", "one replica needs no extra devices"


@pytest.mark.parametrize("name", ["ReductionToOneDevice", "HierarchicalCopyAllReduce"])
@on_replicas
def test_cross_device_operations_agree(name):
    import tensorflow as tf

    from dgc_lab.replicas.mirrored_variable import all_reduce, mirrored

    arrays = [np.full(100, 2.0**place, np.float32) for place in range(4)]
    reduced = all_reduce(mirrored(4, getattr(tf.distribute, name)()), arrays)
    assert len(reduced) == 4
    for array in reduced:
        assert np.array_equal(array, np.full(100, 15.0))
    with pytest.raises(ValueError, match=r"one per replica \(4\), got 2"):
        all_reduce(strategy(4), arrays[:2])


# Training ----------------------------------------------------------------------------------------------------------


def trained(replicas, steps=30, batch=64, normalization=None, own_slices=False, **options):
    from dgc_lab.replicas.training_loop import batch_order, dense_network, train
    from dgc_lab.workloads.data import load

    data = load("digits")
    order = batch_order(len(data.y_train), steps, batch, replicas, own_slices)
    build = functools.partial(dense_network, normalization)
    return train(strategy(replicas), build, data.x_train, data.y_train, order, **options)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("replicas", [2, 4, 8])
@on_replicas
def test_mean_over_replicas_equals_one_device(replicas, momentum):
    from dgc_lab.replicas.training_loop import largest_difference

    one, several = trained(1, momentum=momentum), trained(replicas, momentum=momentum)
    assert several.spread() == 0
    assert largest_difference(one.weights[0], several.weights[0]) < 1e-5
    np.testing.assert_allclose(several.losses.mean(axis=1), one.losses[:, 0], rtol=1e-4)
    assert one.losses[-1] < one.losses[0]


def test_nan_weights_give_nan_differences():
    from dgc_lab.replicas.training_loop import Trained, largest_difference

    weights = [np.zeros(1), np.ones(1)]
    broken = [np.zeros(1), np.full(1, np.nan)]
    assert np.isnan(largest_difference(weights, broken))
    assert np.isnan(Trained(None, [weights, broken], None).spread())


@on_replicas
def test_sum_must_be_divided_by_the_global_batch():
    from dgc_lab.replicas.training_loop import dense_network, largest_difference

    one = trained(1, steps=1)
    right = trained(4, steps=1, exchange="SUM", divide_by="global batch")
    wrong = trained(4, steps=1, exchange="SUM")
    assert largest_difference(one.weights[0], right.weights[0]) < 1e-6
    first = dense_network().get_weights()
    for start_value, single, fourfold in zip(first, one.weights[0], wrong.weights[0], strict=True):
        np.testing.assert_allclose(fourfold - start_value, 4 * (single - start_value), atol=2e-6)


@on_replicas
def test_batch_normalization_needs_synchronization():
    from dgc_lab.replicas.training_loop import largest_difference

    one = trained(1, normalization="local")
    local, synchronized = trained(4, normalization="local"), trained(4, normalization="synchronized")
    assert largest_difference(one.weights[0], synchronized.weights[0]) < 1e-5
    assert largest_difference(one.weights[0], local.weights[0]) > 1e-3
    assert synchronized.spread() < 1e-6
    assert local.spread() > 1e-4, "each replica keeps its own statistics"


@on_replicas
def test_replicas_diverge_without_an_exchange():
    from dgc_lab.replicas.training_loop import combined_weights

    alone = trained(4, exchange="NONE", own_slices=True)
    assert alone.spread() > 0.01
    mean = combined_weights(strategy(4), alone.weights, "MEAN")
    total = combined_weights(strategy(4), alone.weights, "SUM")
    first = combined_weights(strategy(4), alone.weights, "ONLY_FIRST_REPLICA")
    for place in range(len(mean)):
        arrays = [weights[place] for weights in alone.weights]
        np.testing.assert_allclose(mean[place], np.mean(arrays, axis=0), atol=1e-6)
        np.testing.assert_allclose(total[place], np.sum(arrays, axis=0), atol=1e-5)
        assert np.array_equal(first[place], arrays[0])
    with pytest.raises(ValueError, match="weights must be of 2 replicas, got 4"):
        combined_weights(strategy(2), alone.weights, "MEAN")


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@on_replicas
def test_averaging_weights_every_step_equals_synchronous(momentum):
    from dgc_lab.replicas.training_loop import largest_difference

    options = {"own_slices": True, "momentum": momentum}
    together = trained(4, **options)
    averaged = trained(4, exchange="NONE", average_after=range(1, 31), **options)
    assert averaged.spread() == 0
    assert largest_difference(together.weights[0], averaged.weights[0]) < 1e-5


@on_replicas
def test_averaging_after_local_training():
    """Replicas are identical after the last averaging, and differ before it."""
    from dgc_lab.replicas.training_loop import combined_weights, largest_difference

    options = {"steps": 10, "exchange": "NONE", "own_slices": True}
    alone, local = trained(4, **options), trained(4, average_after=(10,), **options)
    assert alone.spread() > 0.01
    assert local.spread() == 0
    mean = combined_weights(strategy(4), alone.weights, "MEAN")
    assert largest_difference(mean, local.weights[0]) < 1e-6
    assert trained(4, average_after=(5,), **options).spread() > 0.001, "replicas diverge again after averaging"


@on_replicas
def test_scores_include_the_bytes_of_every_allreduce():
    from dgc_lab.replicas.training_loop import score_runs
    from dgc_lab.workloads.data import load

    model_bytes = 4 * 4810
    synchronous, alone = trained(4, steps=10), trained(4, steps=10, exchange="NONE")
    local = trained(4, steps=10, exchange="NONE", average_after=(5, 10, 15))
    assert [run.reduced_bytes for run in (synchronous, alone, local)] == [10 * model_bytes, 0, 2 * model_bytes]
    assert synchronous.bytes_sent() == 15 * model_bytes, "a ring sends 2 (k - 1) / k times the bytes"
    assert trained(1, steps=10).bytes_sent() == 0
    data = load("digits")
    table = score_runs({"MEAN": [synchronous, synchronous], "local": [local]}, data.x_test, data.y_test)
    assert table.index.tolist() == [("MEAN", 0), ("MEAN", 1), ("local", 0)]
    assert table.loc[("local", 0)].tolist() == [*local.score(data.x_test, data.y_test), 3 * model_bytes / 1e6]


@on_replicas
def test_training_rejects_invalid_arguments():
    from dgc_lab.replicas.training_loop import dense_network, train

    images, labels, order = np.zeros((4, 8, 8, 1), np.float32), np.zeros(4, np.int32), np.zeros((1, 2, 2), np.int32)
    for wrong, message in (
        ({"exchange": "AVERAGE"}, r"exchange must be one of MEAN, SUM, NONE, got 'AVERAGE'"),
        ({"divide_by": "batch"}, r"divide_by must be one of replica batch, global batch, got 'batch'"),
        ({"learning_rate": 0}, r"learning_rate must be above 0, got 0"),
        ({"momentum": 1}, r"momentum must be at least 0 and below 1, got 1"),
        ({"order": np.zeros((1, 3, 2))}, r"order must have shape \(steps, 2, examples\), got \(1, 3, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            train(strategy(2), dense_network, images, labels, **{"order": order, **wrong})
    with pytest.raises(ValueError, match=r"normalization must be one of .*, got 'group'"):
        dense_network(normalization="group")
    with pytest.raises(ValueError, match=r"seed must be a whole number from 0 to .*, got -1"):
        dense_network(seed=-1)


@on_replicas
def test_seed_determines_the_initial_weights():
    from dgc_lab.replicas.training_loop import dense_network, largest_difference

    first, again, other = (dense_network(seed=seed).get_weights() for seed in (3, 3, 4))
    assert largest_difference(first, again) == 0
    assert largest_difference(first, other) > 0.1


def test_batch_order_is_reproducible_and_split_correctly():
    from dgc_lab.replicas.training_loop import batch_order

    one, four = batch_order(100, 5, 8, 1), batch_order(100, 5, 8, 4)
    assert np.array_equal(one.ravel(), four.ravel()), "a step's examples must not depend on the number of replicas"
    assert np.array_equal(one, batch_order(100, 5, 8, 1, seed=0))
    assert not np.array_equal(one, batch_order(100, 5, 8, 1, seed=1))
    own = batch_order(100, 50, 8, 4, own_slices=True, seed=2)
    for replica in range(4):
        assert set(np.unique(own[:, replica] % 4)) == {replica}
    assert own.max() < 100
    for wrong, message in (
        ({"batch": 7}, "batch must be a multiple of the 4 replicas, got 7"),
        ({"batch": 0}, "batch must be a whole number"),
        ({"examples": 3}, "examples must be a whole number from 4"),
        ({"steps": 0}, "steps must be"),
        ({"replicas": 0}, "replicas must be"),
        ({"seed": -1}, "seed must be"),
    ):
        with pytest.raises(ValueError, match=message):
            batch_order(**{"examples": 100, "steps": 5, "batch": 8, "replicas": 4, **wrong})


def test_alt_texts_describe_the_figures():
    from dgc_lab.replicas import figures as replica_pictures
    from dgc_lab.replicas.mirrored_variable import AssignmentResult
    from dgc_lab.ui import charts

    fine = AssignmentResult((0.0, 0.0), (1.5, 1.5), 1.5)
    alt = replica_pictures.copies_before_and_after(fine, [1, 2], "assign, MEAN").alt
    assert alt == (
        "assign, MEAN. The replicas assigned 1, 2. Copies before: 0, 0. Copies after: 1.5, 1.5. "
        "A read outside the replicas gives 1.5."
    )
    assert replica_pictures.copies_before_and_after(fine, iter([1, 2]), "assign, MEAN").alt == alt
    refused = AssignmentResult((), (), None, "create", "not supported")
    assert "TensorFlow refused to create the variable: not supported" in replica_pictures.in_words(refused, [1, 2])
    loops = replica_pictures.losses_over_reference({"SUM": [[2, 4], [1, 1]], "MEAN": [3, 2]}, [3, 2], "one device")
    assert loops.alt == (
        "Training loss by step. one device: from 3.000 to 2.000; SUM: from 3.000 to 1.000, at most 1.000 from one "
        "device; MEAN: from 3.000 to 2.000, at most 0.000 from one device."
    )
    for axes in loops.figure.axes:
        wide, thin = axes.lines
        assert wide.get_linewidth() > 3 * thin.get_linewidth(), "both lines must be visible where they coincide"
    with pytest.raises(ValueError, match=r"runs\['SUM'\] must have 2 steps like one device, got 1"):
        replica_pictures.losses_over_reference({"SUM": [1.0]}, [3, 2], "one device")
    assert "a: 0.5; b: 0.25" in charts.bars({"a": 0.5, "b": 0.25}, "accuracy").alt
    assert "a: from 2.000 to 1.000" in charts.losses({"a": [[1, 3], [0, 2]]}).alt


@pytest.mark.parametrize("other", [[], [[1.0], [2.0]], [[1.0, 2.0]]])
def test_largest_difference_rejects_mismatched_shapes(other):
    from dgc_lab.replicas.training_loop import largest_difference

    with pytest.raises(ValueError, match=r"one and other must hold arrays of the same shapes, got \[\(1,\)\] and"):
        largest_difference([[1.0]], other)


def test_difference_of_unsigned_bytes_does_not_wrap():
    from dgc_lab.replicas.training_loop import largest_difference

    assert largest_difference([np.uint8([0])], [np.uint8([1])]) == 1.0


@on_replicas
def test_integer_variables_cannot_have_a_mean():
    """Lesson 2 says so: students try an integer step counter first."""
    import tensorflow as tf

    with strategy(4).scope(), pytest.raises(ValueError, match="MEAN and a non-floating dtype is not supported"):
        tf.Variable(0, aggregation=tf.VariableAggregation.MEAN)
