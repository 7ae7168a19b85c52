"""Lesson 1's modules: sums, rounding errors, gradient graphs, timings, allreduce topologies, tied training."""

import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Text

from dgc_lab.aggregation import addn_graph as gradient_graph
from dgc_lab.aggregation import addn_timing as sum_speed
from dgc_lab.aggregation import allreduce_topologies as links
from dgc_lab.aggregation import figures as aggregation_pictures
from dgc_lab.aggregation import profiling as traces
from dgc_lab.aggregation import rounding_error as rounding
from dgc_lab.aggregation import summation as aggregation
from dgc_lab.aggregation import tied_rnn as tied_training

UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}


# Sums --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", aggregation.METHODS)
@pytest.mark.parametrize("dtype", aggregation.DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 64])
def test_sums_of_ones_are_exact(method, dtype, count):
    """Sums of up to 64 ones fit in the 8 significant bits of bfloat16, so every method must be exact."""
    addends = [tf.ones([2, 3], dtype)] * count
    total = aggregation.METHODS[method](addends)
    assert total.dtype == dtype
    assert np.array_equal(np.asarray(total, np.float64), np.full((2, 3), count))


@given(
    method=st.sampled_from(["sequential", "pairwise", "add_n", "kahan"]),
    dtype=st.sampled_from(["float16", "bfloat16", "float32"]),
    count=st.integers(1, 200),
    spread=st.floats(0, 8),
    signs=st.sampled_from(aggregation.SIGNS),
    order=st.sampled_from(aggregation.ORDERS),
    seed=st.integers(0, 1000),
)
def test_errors_stay_within_their_bounds(method, dtype, count, spread, signs, order, seed):
    addends = aggregation.make_addends(count, 8, dtype, spread, signs, order, seed)
    total = np.asarray(aggregation.METHODS[method](addends), np.float64)
    sizes = np.sum([np.abs(np.asarray(addend, np.float64)) for addend in addends], axis=0)
    underflow = count * 2.0**-24  # Higham's model ignores float16 subnormals; Kahan corrections can be such
    distance = np.abs(total - rounding.exact_sum(addends))
    assert np.all(distance <= rounding.error_bound(method, count, dtype) * sizes * (1 + 1e-9) + underflow)


def test_error_bounds_match_closed_form():
    for dtype, unit in UNITS.items():
        assert rounding.error_bound("sequential", 2, dtype) == pytest.approx(unit / (1 - unit))
        assert rounding.error_bound("pairwise", 9, dtype) == pytest.approx(4 * unit / (1 - 4 * unit))
        assert rounding.error_bound("add_n", 1, dtype) == 0
    assert rounding.error_bound("sequential", 257, "bfloat16") == math.inf


def test_sequential_float16_sum_stalls_at_2048():
    """From 2,048 on, float16 cannot represent n + 1; pairwise and Kahan sums avoid the stall."""
    ones = [tf.ones([], tf.float16)] * 4096
    assert float(aggregation.sequential_sum(ones)) == 2048
    assert float(aggregation.pairwise_sum(ones)) == 4096
    assert float(aggregation.kahan_sum(ones)) == 4096


def test_sequential_sum_depends_on_order():
    small = [tf.constant(2.0**-25)] * 64
    big = [tf.constant(1.0)]
    assert float(aggregation.sequential_sum(big + small)) == 1
    assert float(aggregation.sequential_sum(small + big)) == 1 + 2.0**-19
    assert float(aggregation.kahan_sum(big + small)) == 1 + 2.0**-19


def test_accumulate_n_equals_add_n():
    addends = aggregation.make_addends(100)
    assert np.array_equal(aggregation.accumulate_n_sum(addends), aggregation.add_n_sum(addends))


@pytest.mark.parametrize("method", aggregation.METHODS)
def test_invalid_addends_are_rejected(method):
    function = aggregation.METHODS[method]
    with pytest.raises(ValueError, match="at least one tensor, got none"):
        function([])
    with pytest.raises(ValueError, match="one dtype, got float32 first and float16 at index 1"):
        function([tf.ones([2]), tf.ones([2], tf.float16)])
    with pytest.raises(ValueError, match=r"one shape, got \(2,\) first and \(3,\) at index 1"):
        function([tf.ones([2]), tf.ones([3])])
    with pytest.raises(ValueError, match="floating point, got int32"):
        function([tf.constant([1])])


def test_invalid_arguments_are_rejected():
    with pytest.raises(ValueError, match=r"method must be one of sequential, .*, got 'tree'"):
        rounding.error_bound("tree", 2, "float32")
    for wrong in (
        {"count": 0},
        {"count": 2.5},
        {"count": True},
        {"count": 2, "dtype": "int8"},
        {"count": 2, "spread": -1},
        {"count": 2, "spread": math.nan},
        {"count": 2, "signs": "negative"},
        {"count": 2, "order": "sorted"},
        {"count": 2, "seed": -1},
        {"count": 2, "seed": 2**63},
    ):
        name = list(wrong)[-1]
        with pytest.raises(ValueError, match=f"{name} must be .*, got"):
            aggregation.make_addends(**wrong)


def test_addends_too_large_for_memory_are_rejected():
    with pytest.raises(
        ValueError, match=r"must fit in memory, got 1000000 addends of 1000000000 elements: they need 3.2e\+07 GB"
    ):
        aggregation.make_addends(1_000_000, size=10**9)


@pytest.mark.parametrize("order", aggregation.ORDERS)
def test_make_addends_follows_its_arguments(order):
    addends = np.stack(aggregation.make_addends(200, 50, spread=4, signs="positive", order=order))
    assert addends.shape == (200, 50)
    assert 0.5e-4 <= addends.min() < 3e-4
    assert 0.7 < addends.max() <= 1
    steps = np.diff(addends, axis=0)
    assert {"drawn": (steps.min() < 0 < steps.max()), "ascending": steps.min() >= 0, "descending": steps.max() <= 0}[
        order
    ]
    mixed = np.stack(aggregation.make_addends(200, 50, spread=4, signs="mixed", order=order))
    assert np.array_equal(np.abs(mixed), addends), "signs must not change the magnitudes"
    assert 0.45 < np.mean(mixed > 0) < 0.55
    again = np.stack(aggregation.make_addends(200, 50, spread=4, signs="mixed", order=order))
    assert np.array_equal(mixed, again)


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1.0, 1e200, 1e308])
def test_relative_error_handles_extreme_magnitudes(size):
    exact = np.array([size, 0.0])
    found = rounding.relative_error(exact + exact / 8, exact)
    assert found == pytest.approx(1 / 8, rel=1e-3)


@pytest.mark.parametrize("exact", [math.inf, math.nan])
def test_nonfinite_exact_sums_are_rejected(exact):
    with pytest.raises(ValueError, match="exact must contain only finite numbers"):
        rounding.relative_error([1.0], [exact])


def test_relative_error_matches_closed_form():
    assert rounding.relative_error(tf.constant([3.0, 4.0]), [3, 4]) == 0
    assert rounding.relative_error(tf.constant([3.0, 9.0]), [3, 4]) == 1
    assert rounding.relative_error(tf.constant([math.inf, 1.0]), [1, 1]) == math.inf
    assert rounding.relative_error(tf.constant([math.nan]), [1]) == math.inf
    assert rounding.relative_error(tf.constant([0.0]), [0]) == 0
    assert rounding.relative_error(tf.constant([1.0]), [0]) == math.inf


@pytest.mark.parametrize("addends", [[1.5e308, 1.5e308], [math.inf, -math.inf]])
def test_float64_overflow_is_rejected(addends):
    with pytest.raises(ValueError, match=r"addends must have sums that float64 can represent, got .*(overflow|-inf)"):
        rounding.errors([tf.constant([addend], tf.float64) for addend in addends])


def test_measure_reports_the_error_of_each_method():
    addends = aggregation.make_addends(512, dtype="float16", signs="positive")
    rows = {row["method"]: row for row in rounding.measure(addends)}
    exact = rounding.exact_sum(addends)
    for name, row in rows.items():
        assert row["error"] == rounding.relative_error(aggregation.METHODS[name](addends), exact)
        assert row["seconds"] > 0
    assert rows["kahan"]["error"] < rows["pairwise"]["error"] * 1.01 < rows["sequential"]["error"]


def test_order_sensitivity_matches_closed_form():
    addends = [np.array([number, 1.0], np.float32) for number in (2.0**24, 1.0, 1.0)]
    orders = [(0, 1, 2), (1, 2, 0), (0, 2, 1)]
    apart = rounding.apart_by_order(sum, addends, orders)
    assert apart == {"different sums": 2, "elements that differ": 0.5, "farthest apart": 2 / (2**24 + 2)}
    whole = [addend.astype(np.int64) for addend in addends]
    same = {"different sums": 1, "elements that differ": 0, "farthest apart": 0}
    assert rounding.apart_by_order(sum, whole, orders) == same
    assert rounding.apart_by_order(aggregation.sequential_sum, addends, orders[:1]) == same
    assert rounding.apart_by_order(sum, [np.zeros(2)], [[0]]) == same


def test_overflow_counts_as_infinite_error():
    rows = rounding.measure([tf.constant([40000.0], tf.float16)] * 2)
    assert {row["error"] for row in rows} == {math.inf}


# Graphs and traces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uses", [2, 3, 8, 20])
def test_addn_nodes_of_each_aggregation_method(uses):
    for method in ("ADD_N", "DEFAULT"):
        nodes = gradient_graph.sum_nodes(gradient_graph.gradient_graph(uses, method)[1])
        assert [len(node.inputs) for node in nodes] == [uses]
    for method in ("EXPERIMENTAL_TREE", "EXPERIMENTAL_ACCUMULATE_N"):
        nodes = gradient_graph.sum_nodes(gradient_graph.gradient_graph(uses, method)[1])
        assert [len(node.inputs) for node in nodes] == [2] * (uses - 1)
        assert gradient_graph.depth(nodes) == uses - 1, "a chain, despite the name"
    nodes = gradient_graph.sum_nodes(gradient_graph.tape_graph(uses)[1])
    assert [len(node.inputs) for node in nodes] == [uses]


@pytest.mark.parametrize(("uses", "width", "inputs"), [(8, 2048, [8]), (20, 2048, [9, 9, 4]), (8, 4096, [5, 4])])
def test_tape_sums_large_contributions_early(uses, width, inputs):
    nodes = gradient_graph.sum_nodes(gradient_graph.tape_graph(uses, width)[1])
    assert [len(node.inputs) for node in nodes] == inputs


def test_a_single_use_needs_no_addn():
    assert gradient_graph.sum_nodes(gradient_graph.gradient_graph(1)[1]) == []
    assert gradient_graph.depth([]) == 0
    assert aggregation_pictures.sum_graphs({"one": []}).alt.endswith("one: no AddN, because the gradient is not a sum.")


def test_chains_longer_than_the_recursion_limit_work():
    nodes = gradient_graph.sum_nodes(gradient_graph.gradient_graph(1100, "EXPERIMENTAL_TREE")[1])
    assert len(nodes) == gradient_graph.depth(nodes) == 1099


def test_a_single_worker_sends_nothing():
    _, messages = links.ring([np.zeros(4, np.float32)])
    assert "ring: 0 links in use" in aggregation_pictures.links({"ring": messages}, 1).alt


def test_gradient_graph_rejects_invalid_arguments():
    with pytest.raises(ValueError, match=r"method must be one of ADD_N, .*, got 'TREE'"):
        gradient_graph.gradient_graph(8, "TREE")
    with pytest.raises(ValueError, match="uses must be a whole number from 1 to 4096, got 0"):
        gradient_graph.gradient_graph(0)


def test_aggregation_methods_agree_on_the_gradient():
    """Compares the gradients that all methods compute for the same graph."""
    values = {}
    for method in gradient_graph.AGGREGATION_METHODS:
        graph, gradient = gradient_graph.gradient_graph(30, method, width=16)
        with traces.session(graph, grappler=False) as running:
            values[method] = running.run(gradient)
    for value in values.values():
        np.testing.assert_allclose(value, values["ADD_N"], rtol=1e-5, atol=1e-8)


def test_session_trace_shows_additions_and_memory():
    uses, width = 16, 128
    part = 4 * width * width
    one = traces.session_trace(uses, "ADD_N", width)
    chain = traces.session_trace(uses, "EXPERIMENTAL_TREE", width)
    assert (one.count("AddN"), chain.count("AddN")) == (1, uses - 1)
    assert one.peak_bytes >= uses * part, "a single AddN holds all contributions at once"
    assert chain.peak_bytes < one.peak_bytes / 2
    assert one.memory[-1][1] == 0, "all memory is released"
    assert all(0 <= operation.start <= operation.end <= one.seconds for operation in one.operations)


def test_grappler_merges_the_chain_into_large_sums():
    trace = traces.session_trace(16, "EXPERIMENTAL_TREE", 128, grappler=True)
    assert trace.count("AddN") < 15
    assert trace.peak_bytes >= 15 * 4 * 128 * 128, "the merged sum holds all but one contribution at once"


def profiler_agrees_with_the_session():
    weight, start = tf.eye(512), tf.ones([32, 512])  # 1 MiB: on a CPU the profiler misses tensors below 256 KiB
    with traces.without_grappler():
        chain = traces.profiler_trace(traces.recurrent_gradient(16, "EXPERIMENTAL_TREE"), weight, start)
        one = traces.profiler_trace(traces.recurrent_gradient(16, "ADD_N"), weight, start)
    assert (one.count("AddN"), chain.count("AddN")) == (1, 15)
    assert one.peak_bytes == pytest.approx(traces.session_trace(16, "ADD_N", 512).peak_bytes, rel=0.2)
    assert chain.peak_bytes <= 1.1 * one.peak_bytes  # the saving depends on how early its additions are scheduled
    after = traces.profiler_trace(traces.recurrent_gradient(16, "EXPERIMENTAL_TREE"), weight, start)
    assert after.count("AddN") < 15, "Grappler must be enabled again"


@pytest.mark.nightly
def test_profiler_agrees_with_the_session():
    """Runs in a subprocess: the profiler only sees oneDNN's allocator, which older processors disable."""
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1"}
    program = "import test_aggregation as tests; tests.profiler_agrees_with_the_session()"
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_grappler_is_reenabled_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), traces.without_grappler():
        raise RuntimeError("inside")
    assert not tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]


def test_make_trace_matches_closed_form():
    trace = traces.make_trace([("Mul", 12.0, 15.0), ("AddN", 10.0, 11.0)], [(10.0, 5), (12.0, 7), (13.0, -5)])
    assert [operation.kind for operation in trace.operations] == ["AddN", "Mul"]
    assert (trace.seconds, trace.peak_bytes) == (5, 12)
    assert trace.memory == ((0.0, 0), (0.0, 5), (2.0, 12), (3.0, 7))
    with pytest.raises(traces.TraceError, match="no operation"):
        traces.make_trace([], [])


@pytest.mark.parametrize("count", [2, 3, 8, 13])
def test_built_sums_have_the_expected_depth(count):
    depths = {"one AddN": 1, "chain": count - 1, "pairs": math.ceil(math.log2(count))}
    for shape, expected in depths.items():
        with tf.Graph().as_default():
            addends = [tf.compat.v1.placeholder(tf.float32, [2]) for _ in range(count)]
            assert gradient_graph.depth(gradient_graph.sum_nodes(sum_speed.build_sum(addends, shape))) == expected


def test_time_sums_returns_positive_times():
    assert all(seconds > 0 for seconds in sum_speed.time_sums(4, 10, repeats=2).values())
    with pytest.raises(ValueError, match="count x size must be"):
        sum_speed.time_sums(4096, 2**20)


def test_fastest_needs_ranges_that_do_not_overlap():
    assert sum_speed.fastest({"a": [3, 4], "b": [1, 2], "c": [2.5, 9]}) == "b"
    assert sum_speed.fastest({"a": [3, 4], "b": [1, 3]}) == "undecided"
    assert sum_speed.fastest({"a": iter([3, 4]), "b": iter([1, 2])}) == "b"
    with pytest.raises(ValueError, match=r"at least two labels, got \['a'\]"):
        sum_speed.fastest({"a": [1]})
    with pytest.raises(ValueError, match=r"rounds\['b'\]"):
        sum_speed.fastest({"a": [1], "b": []})


# Links and training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", links.TOPOLOGIES)
@given(workers=st.integers(1, 17), size=st.integers(1, 40))
def test_every_worker_receives_the_sum(topology, workers, size):
    gradients = [np.full(size, 2.0**worker) + np.arange(size) for worker in range(workers)]
    before = [gradient.copy() for gradient in gradients]
    sums, messages = links.exchange(gradients, topology)
    assert len(sums) == workers
    for total in sums:
        assert np.array_equal(total, np.sum(gradients, axis=0))
    assert all(np.array_equal(one, other) for one, other in zip(gradients, before, strict=True))
    assert sum(message.bytes for message in messages) == 2 * (workers - 1) * 8 * size


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16])
def test_bytes_sent_match_closed_form(workers):
    size = 4 * 240
    gradients = [np.zeros(240, np.float32)] * workers
    central, tree, ring = (links.summary(links.exchange(gradients, name)[1]) for name in ("central", "tree", "ring"))
    assert central["steps"] == 2
    assert central["busiest worker"] == 2 * (workers - 1) * size
    assert tree["steps"] == 2 * math.ceil(math.log2(workers))
    assert tree["busiest worker"] == 2 * math.ceil(math.log2(workers)) * size
    assert ring["steps"] == 2 * (workers - 1)
    assert ring["busiest link"] == 2 * (workers - 1) * size // workers
    assert ring["busiest worker"] == 2 * ring["busiest link"]


def test_topologies_reject_invalid_arguments():
    with pytest.raises(ValueError, match="topology must be one of central, tree, ring, got 'star'"):
        links.exchange([np.ones(1)], "star")
    with pytest.raises(ValueError, match="1 to 64 workers, got 0"):
        links.ring([])
    with pytest.raises(ValueError, match="one dtype, got float32, float64"):
        links.tree([np.ones(1), np.ones(1, np.float32)])
    with pytest.raises(ValueError, match="one shape"):
        links.central([np.ones(1), np.ones(2)])


@pytest.mark.parametrize("name", links.TOPOLOGIES)
def test_single_worker_sum_is_a_copy(name):
    gradient = np.ones(2)
    [[total], _] = links.exchange([gradient], name)
    assert total.tolist() == [1, 1]
    assert not np.shares_memory(total, gradient)


def test_messages_are_listed_in_step_order():
    """No step uses data that arrives in a later step."""
    for topology in links.TOPOLOGIES.values():
        _, messages = topology([np.ones(8)] * 6)
        assert [message.step for message in messages] == sorted(message.step for message in messages)


def test_training_is_identical_for_all_methods_and_learns(digits):
    runs = tied_training.train_each_way(digits, steps=60)
    first = runs["ADD_N"]
    assert first["losses"][-1] < first["losses"][0] / 2
    for way in tied_training.WAYS:
        np.testing.assert_allclose(runs[way]["losses"], first["losses"], rtol=1e-4)
        assert len(runs[way]["seconds"]) == 60
    with pytest.raises(ValueError, match="way must be one of ADD_N"):
        tied_training.training_step("TREE", digits)


# Figures -----------------------------------------------------------------------------------------------------------


def test_alt_texts_describe_the_figures():
    nodes = {
        name: gradient_graph.sum_nodes(gradient_graph.gradient_graph(4, name)[1])
        for name in ("ADD_N", "EXPERIMENTAL_TREE")
    }
    assert "ADD_N: 1 AddN with 4 inputs, depth 1" in aggregation_pictures.sum_graphs(nodes).alt
    assert "EXPERIMENTAL_TREE: 3 AddN with 2 inputs, depth 3" in aggregation_pictures.sum_graphs(nodes).alt
    trace = traces.make_trace([("AddN", 0.0, 0.001)], [(0.0, 2_000_000)])
    assert "one: 1 AddN, 1.00 ms, peak 2.00 MB" in aggregation_pictures.timeline({"one": trace}).alt
    nothing = traces.make_trace([("AddN", 0.0, 0.001)], [(0.0, 0)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "peak 0.00 MB" in aggregation_pictures.timeline({"nothing held": nothing}).alt
    _, messages = links.ring([np.zeros(4, np.float32)] * 4)
    assert "ring: 4 links in use, at most 24 bytes on one" in aggregation_pictures.links({"ring": messages}, 4).alt
    rows = [
        {"method": name, "error": error, "seconds": 0.002} for name, error in (("a", math.inf), ("b", 0), ("c", 1e-3))
    ]
    alt = aggregation_pictures.error_and_time_bars(rows, "b").alt
    assert "a: error overflow, 2 ms; b: error exact, 2 ms; c: error 1.0e-03" in alt
    assert "x: 0.1 at 2, inf at 4" in aggregation_pictures.lines({"x": [(2, 0.1), (4, math.inf)]}, "n", "error").alt


def test_guides_share_the_colour_of_their_line():
    points = [(2, 0.1), (4, 0.2)]
    [axes] = aggregation_pictures.lines(
        {"x": points, "y": points}, "n", "error", {"y": points, "√n": points}
    ).figure.axes
    colours = [line.get_color() for line in axes.lines]
    assert colours[1] == colours[2] != colours[3]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["x", "y", "√n"]


def test_panels_show_every_time_and_difference():
    dots = aggregation_pictures.time_dots({"small": {"a": [1.0, 2.0], "b": [5.0]}, "large": {"a": [7.0]}}, "ms")
    assert [[len(line.get_xdata()) for line in axes.lines] for axes in dots.figure.axes[:2]] == [[2, 1], [1]]
    assert dots.alt == "ms. small: a 1 to 2, b 5 to 5; large: a 7 to 7."
    losses = {"a": [2.0, 1.0], "b": [2.0, 1.5], "c": [2.0, 1.0]}
    panels = aggregation_pictures.loss_differences(losses).figure.axes[:3]
    assert [list(axes.lines[0].get_ydata()) for axes in panels] == [[2, 1], [0, 0.5], [0, 0]]
    assert aggregation_pictures.loss_differences({"a": [2.0]}).alt.endswith("Largest difference from it: no other run.")


def test_training_step_figure_shows_its_table():
    step = pd.DataFrame({"weight": 2.0, "own gradient": [-2.0, -8.0], "mean": -5.0}, index=["worker 0", "worker 1"])
    picture = aggregation_pictures.training_step(step)
    assert picture.alt == (
        "One training step of 2 workers. worker 0: weight 2, own gradient -2, mean -5; "
        "worker 1: weight 2, own gradient -8, mean -5. In the exchange, each worker's gradient reaches all workers."
    )
    shown = {text.get_text() for text in picture.figure.findobj(Text)}
    assert {"weight", "own gradient", "mean", "worker 1", "-8", "compute", "exchange"} <= shown


def test_overlapping_operations_get_separate_lanes():
    operations = [traces.Operation("Mul", *times) for times in ((0, 2), (1, 3), (2, 4))]
    assert [lane for lane, _ in aggregation_pictures._lanes(operations)] == [0, 1, 0]


def test_concurrent_profilers_raise_trace_error(tmp_path):
    at_once = pytest.raises(traces.TraceError, match="TensorFlow allows one profiler at a time")
    with tf.profiler.experimental.Profile(str(tmp_path)), at_once:
        traces.profiler_trace(tf.function(tf.add_n), [tf.ones([4])])


def test_profiler_rejects_a_visible_gpu(monkeypatch):
    """GPU operations are stored elsewhere in the profile; on an H200 no operation was found."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [f"a {kind}"])
    with pytest.raises(traces.TraceError, match=r"set_visible_devices\(\[\], .GPU.\)"):
        traces.profiler_trace(tf.function(tf.add_n), [tf.ones([4])])


def test_wait_for_ignores_values_that_are_not_tensors():
    assert traces.wait_for([tf.ones([2]), 3.0, "words"]) is None


def test_errors_accept_an_iterator():
    addends = [tf.constant([1.0, 3.0]), tf.constant([0.1, 0.2])]
    assert rounding.errors(iter(addends)) == rounding.errors(addends)
    assert [row["error"] for row in rounding.measure(iter(addends))] == list(rounding.errors(addends).values())


def test_summary_accepts_an_iterator():
    made = links.central([np.zeros(10, np.float32)] * 4)[1]
    assert links.summary(iter(made)) == links.summary(list(made))
