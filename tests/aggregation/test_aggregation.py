"""Lesson 1's modules: sums and their errors, the graphs that make them, what they cost, links, tied training."""

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
def test_whole_numbers_are_summed_exactly(method, dtype, count):
    """1 + 2 + ... stays within the 8 bits of a bfloat16 for no method but by exactness: sums of ones up to 64."""
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
def test_no_error_is_above_its_bound(method, dtype, count, spread, signs, order, seed):
    addends = aggregation.make_addends(count, 8, dtype, spread, signs, order, seed)
    total = np.asarray(aggregation.METHODS[method](addends), np.float64)
    sizes = np.sum([np.abs(np.asarray(addend, np.float64)) for addend in addends], axis=0)
    underflow = count * 2.0**-24  # half's subnormals: Higham's model leaves them out; Kahan's corrections can be such
    distance = np.abs(total - rounding.exact_sum(addends))
    assert np.all(distance <= rounding.error_bound(method, count, dtype) * sizes * (1 + 1e-9) + underflow)


def test_bounds_by_closed_form():
    for dtype, unit in UNITS.items():
        assert rounding.error_bound("sequential", 2, dtype) == pytest.approx(unit / (1 - unit))
        assert rounding.error_bound("pairwise", 9, dtype) == pytest.approx(4 * unit / (1 - 4 * unit))
        assert rounding.error_bound("add_n", 1, dtype) == 0
    assert rounding.error_bound("sequential", 257, "bfloat16") == math.inf


def test_a_chain_stops_growing_where_an_addend_is_below_half_a_unit():
    """2 048 is where float16 ends to tell n from n + 1: the chain of ones stays there, pairs and Kahan go on."""
    ones = [tf.ones([], tf.float16)] * 4096
    assert float(aggregation.sequential_sum(ones)) == 2048
    assert float(aggregation.pairwise_sum(ones)) == 4096
    assert float(aggregation.kahan_sum(ones)) == 4096


def test_order_decides_for_a_chain():
    small = [tf.constant(2.0**-25)] * 64
    big = [tf.constant(1.0)]
    assert float(aggregation.sequential_sum(big + small)) == 1
    assert float(aggregation.sequential_sum(small + big)) == 1 + 2.0**-19
    assert float(aggregation.kahan_sum(big + small)) == 1 + 2.0**-19


def test_accumulate_n_is_add_n():
    addends = aggregation.make_addends(100)
    assert np.array_equal(aggregation.accumulate_n_sum(addends), aggregation.add_n_sum(addends))


@pytest.mark.parametrize("method", aggregation.METHODS)
def test_unfit_addends_are_refused(method):
    function = aggregation.METHODS[method]
    with pytest.raises(ValueError, match="at least one tensor, got none"):
        function([])
    with pytest.raises(ValueError, match="one dtype, got float32 first and float16 at index 1"):
        function([tf.ones([2]), tf.ones([2], tf.float16)])
    with pytest.raises(ValueError, match=r"one shape, got \(2,\) first and \(3,\) at index 1"):
        function([tf.ones([2]), tf.ones([3])])
    with pytest.raises(ValueError, match="floating point, got int32"):
        function([tf.constant([1])])


def test_unknown_names_and_numbers_are_refused():
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
    ):
        name = list(wrong)[-1]
        with pytest.raises(ValueError, match=f"{name} must be .*, got"):
            aggregation.make_addends(**wrong)


def test_more_addends_than_fit_in_memory_are_refused_before_any_work():
    with pytest.raises(
        ValueError, match=r"must fit in memory, got 1000000 addends of 1000000000 elements: they need 3.2e\+07 GB"
    ):
        aggregation.make_addends(1_000_000, size=10**9)


@pytest.mark.parametrize("order", aggregation.ORDERS)
def test_addends_are_as_asked(order):
    addends = np.stack(aggregation.make_addends(200, 50, spread=4, signs="positive", order=order))
    assert addends.shape == (200, 50)
    assert 0.5e-4 <= addends.min() < 3e-4
    assert 0.7 < addends.max() <= 1
    steps = np.diff(addends, axis=0)
    assert {"drawn": (steps.min() < 0 < steps.max()), "ascending": steps.min() >= 0, "descending": steps.max() <= 0}[
        order
    ]
    mixed = np.stack(aggregation.make_addends(200, 50, spread=4, signs="mixed", order=order))
    assert np.array_equal(np.abs(mixed), addends), "the sign changes nothing else"
    assert 0.45 < np.mean(mixed > 0) < 0.55
    again = np.stack(aggregation.make_addends(200, 50, spread=4, signs="mixed", order=order))
    assert np.array_equal(mixed, again)


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1.0, 1e200, 1e308])
def test_relative_error_of_the_smallest_and_largest_numbers(size):
    exact = np.array([size, 0.0])
    found = rounding.relative_error(exact + exact / 8, exact)
    assert found == pytest.approx(1 / 8, rel=1e-3)


@pytest.mark.parametrize("exact", [math.inf, math.nan])
def test_an_exact_sum_is_finite(exact):
    with pytest.raises(ValueError, match="exact must contain only finite numbers"):
        rounding.relative_error([1.0], [exact])


def test_relative_error_by_closed_form():
    assert rounding.relative_error(tf.constant([3.0, 4.0]), [3, 4]) == 0
    assert rounding.relative_error(tf.constant([3.0, 9.0]), [3, 4]) == 1
    assert rounding.relative_error(tf.constant([math.inf, 1.0]), [1, 1]) == math.inf
    assert rounding.relative_error(tf.constant([math.nan]), [1]) == math.inf
    assert rounding.relative_error(tf.constant([0.0]), [0]) == 0
    assert rounding.relative_error(tf.constant([1.0]), [0]) == math.inf


@pytest.mark.parametrize("addends", [[1.5e308, 1.5e308], [math.inf, -math.inf]])
def test_a_sum_that_float64_does_not_hold_is_refused(addends):
    with pytest.raises(ValueError, match=r"addends must have sums that float64 can represent, got .*(overflow|-inf)"):
        rounding.errors([tf.constant([addend], tf.float64) for addend in addends])


def test_measure_gives_each_methods_own_error():
    addends = aggregation.make_addends(512, dtype="float16", signs="positive")
    rows = {row["method"]: row for row in rounding.measure(addends)}
    exact = rounding.exact_sum(addends)
    for name, row in rows.items():
        assert row["error"] == rounding.relative_error(aggregation.METHODS[name](addends), exact)
        assert row["seconds"] > 0
    assert rows["kahan"]["error"] < rows["pairwise"]["error"] * 1.01 < rows["sequential"]["error"]


def test_sums_in_several_orders_by_closed_form():
    addends = [np.array([number, 1.0], np.float32) for number in (2.0**24, 1.0, 1.0)]
    orders = [(0, 1, 2), (1, 2, 0), (0, 2, 1)]
    apart = rounding.apart_by_order(sum, addends, orders)
    assert apart == {"different sums": 2, "elements that differ": 0.5, "farthest apart": 2 / (2**24 + 2)}
    whole = [addend.astype(np.int64) for addend in addends]
    same = {"different sums": 1, "elements that differ": 0, "farthest apart": 0}
    assert rounding.apart_by_order(sum, whole, orders) == same
    assert rounding.apart_by_order(aggregation.sequential_sum, addends, orders[:1]) == same
    assert rounding.apart_by_order(sum, [np.zeros(2)], [[0]]) == same


def test_overflow_counts_as_an_infinite_error():
    rows = rounding.measure([tf.constant([40000.0], tf.float16)] * 2)
    assert {row["error"] for row in rows} == {math.inf}


# Graphs and traces -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("uses", [2, 3, 8, 20])
def test_nodes_of_each_aggregation_method(uses):
    for method in ("ADD_N", "DEFAULT"):
        nodes = gradient_graph.sum_nodes(gradient_graph.gradient_graph(uses, method)[1])
        assert [len(node.inputs) for node in nodes] == [uses]
    for method in ("EXPERIMENTAL_TREE", "EXPERIMENTAL_ACCUMULATE_N"):
        nodes = gradient_graph.sum_nodes(gradient_graph.gradient_graph(uses, method)[1])
        assert [len(node.inputs) for node in nodes] == [2] * (uses - 1)
        assert gradient_graph.depth(nodes) == uses - 1, "a chain, whatever its name says"
    nodes = gradient_graph.sum_nodes(gradient_graph.tape_graph(uses)[1])
    assert [len(node.inputs) for node in nodes] == [uses]


@pytest.mark.parametrize(("uses", "width", "inputs"), [(8, 2048, [8]), (20, 2048, [9, 9, 4]), (8, 4096, [5, 4])])
def test_a_tape_sums_large_contributions_early(uses, width, inputs):
    nodes = gradient_graph.sum_nodes(gradient_graph.tape_graph(uses, width)[1])
    assert [len(node.inputs) for node in nodes] == inputs


def test_one_use_needs_no_sum():
    assert gradient_graph.sum_nodes(gradient_graph.gradient_graph(1)[1]) == []
    assert gradient_graph.depth([]) == 0
    assert aggregation_pictures.sum_graphs({"one": []}).alt.endswith("one: no AddN, the gradient is no sum.")


def test_a_chain_may_be_longer_than_calls_may_be_deep():
    nodes = gradient_graph.sum_nodes(gradient_graph.gradient_graph(1100, "EXPERIMENTAL_TREE")[1])
    assert len(nodes) == gradient_graph.depth(nodes) == 1099


def test_one_worker_sends_nothing_and_has_a_picture():
    _, messages = links.ring([np.zeros(4, np.float32)])
    assert "ring: 0 links in use" in aggregation_pictures.links({"ring": messages}, 1).alt


def test_graph_refuses_bad_arguments():
    with pytest.raises(ValueError, match=r"method must be one of ADD_N, .*, got 'TREE'"):
        gradient_graph.gradient_graph(8, "TREE")
    with pytest.raises(ValueError, match="uses must be a whole number from 1 to 4096, got 0"):
        gradient_graph.gradient_graph(0)


def test_methods_agree_on_the_gradient():
    """All against float64, with as many additions as roundings allow."""
    values = {}
    for method in gradient_graph.AGGREGATION_METHODS:
        graph, gradient = gradient_graph.gradient_graph(30, method, width=16)
        with traces.session(graph, grappler=False) as running:
            values[method] = running.run(gradient)
    for value in values.values():
        np.testing.assert_allclose(value, values["ADD_N"], rtol=1e-5, atol=1e-8)


def test_session_trace_shows_the_additions_and_what_they_hold():
    uses, width = 16, 128
    part = 4 * width * width
    one = traces.session_trace(uses, "ADD_N", width)
    chain = traces.session_trace(uses, "EXPERIMENTAL_TREE", width)
    assert (one.count("AddN"), chain.count("AddN")) == (1, uses - 1)
    assert one.peak_bytes >= uses * part, "one AddN needs all contributions at a time"
    assert chain.peak_bytes < one.peak_bytes / 2
    assert one.memory[-1][1] == 0, "everything was given back"
    assert all(0 <= operation.start <= operation.end <= one.seconds for operation in one.operations)


def test_grappler_turns_the_chain_back_into_large_sums():
    trace = traces.session_trace(16, "EXPERIMENTAL_TREE", 128, grappler=True)
    assert trace.count("AddN") < 15
    assert trace.peak_bytes >= 15 * 4 * 128 * 128, "the rewritten sum takes all but one contribution at a time"


def profiler_agrees_with_the_session():
    weight, start = tf.eye(512), tf.ones([32, 512])  # 1 MiB: the profiler sees no tensor below 256 KiB on a CPU
    with traces.without_grappler():
        chain = traces.profiler_trace(traces.recurrent_gradient(16, "EXPERIMENTAL_TREE"), weight, start)
        one = traces.profiler_trace(traces.recurrent_gradient(16, "ADD_N"), weight, start)
    assert (one.count("AddN"), chain.count("AddN")) == (1, 15)
    assert one.peak_bytes == pytest.approx(traces.session_trace(16, "ADD_N", 512).peak_bytes, rel=0.2)
    assert chain.peak_bytes <= 1.1 * one.peak_bytes  # how much less depends on how early its additions get a thread
    after = traces.profiler_trace(traces.recurrent_gradient(16, "EXPERIMENTAL_TREE"), weight, start)
    assert after.count("AddN") < 15, "the optimiser is on again"


@pytest.mark.nightly
def test_profiler_agrees_with_the_session():
    """In a process of its own: the allocator that the profiler sees is oneDNN's, off by itself on older processors."""
    environment = os.environ | {"TF_ENABLE_ONEDNN_OPTS": "1"}
    program = "import test_aggregation as tests; tests.profiler_agrees_with_the_session()"
    folder = Path(__file__).parent
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_grappler_is_on_again_after_an_error():
    with pytest.raises(RuntimeError, match="inside"), traces.without_grappler():
        raise RuntimeError("inside")
    assert not tf.config.optimizer.get_experimental_options()["disable_meta_optimizer"]


def test_trace_by_closed_form():
    trace = traces.make_trace([("Mul", 12.0, 15.0), ("AddN", 10.0, 11.0)], [(10.0, 5), (12.0, 7), (13.0, -5)])
    assert [operation.kind for operation in trace.operations] == ["AddN", "Mul"]
    assert (trace.seconds, trace.seconds_in("Mul"), trace.peak_bytes) == (5, 3, 12)
    assert trace.memory == ((0.0, 0), (0.0, 5), (2.0, 12), (3.0, 7))
    with pytest.raises(traces.TraceError, match="no operation"):
        traces.make_trace([], [])


@pytest.mark.parametrize("count", [2, 3, 8, 13])
def test_arranged_sums_have_the_depth_they_say(count):
    depths = {"one AddN": 1, "chain": count - 1, "pairs": math.ceil(math.log2(count))}
    for shape, expected in depths.items():
        with tf.Graph().as_default():
            addends = [tf.compat.v1.placeholder(tf.float32, [2]) for _ in range(count)]
            assert gradient_graph.depth(gradient_graph.sum_nodes(sum_speed.build_sum(addends, shape))) == expected


def test_time_sums_and_crossing():
    assert all(seconds > 0 for seconds in sum_speed.time_sums(4, 10, repeats=2).values())
    with pytest.raises(ValueError, match="count x size must be"):
        sum_speed.time_sums(4096, 2**20)
    assert sum_speed.crossing([1, 100], [1, 2], [2, 4]) is None
    assert sum_speed.crossing([1, 10, 100, 1000], [1, 1, 4, 4], [2, 2, 2, 2]) == pytest.approx(10**1.5)


# Links and training ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topology", links.TOPOLOGIES)
@given(workers=st.integers(1, 17), size=st.integers(1, 40))
def test_every_worker_ends_with_the_sum(topology, workers, size):
    gradients = [np.full(size, 2.0**worker) + np.arange(size) for worker in range(workers)]
    before = [gradient.copy() for gradient in gradients]
    sums, messages = links.exchange(gradients, topology)
    assert len(sums) == workers
    for total in sums:
        assert np.array_equal(total, np.sum(gradients, axis=0))
    assert all(np.array_equal(one, other) for one, other in zip(gradients, before, strict=True))
    assert sum(message.bytes for message in messages) == 2 * (workers - 1) * 8 * size


@pytest.mark.parametrize("workers", [2, 3, 4, 8, 16])
def test_bytes_by_closed_form(workers):
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


def test_links_refuse_bad_arguments():
    with pytest.raises(ValueError, match="topology must be one of central, tree, ring, got 'star'"):
        links.exchange([np.ones(1)], "star")
    with pytest.raises(ValueError, match="1 to 64 workers, got 0"):
        links.ring([])
    with pytest.raises(ValueError, match="one dtype, got float32, float64"):
        links.tree([np.ones(1), np.ones(1, np.float32)])
    with pytest.raises(ValueError, match="one shape"):
        links.central([np.ones(1), np.ones(2)])


@pytest.mark.parametrize("name", links.TOPOLOGIES)
def test_one_workers_sum_is_not_its_gradient_itself(name):
    gradient = np.ones(2)
    [[total], _] = links.exchange([gradient], name)
    assert total.tolist() == [1, 1]
    assert not np.shares_memory(total, gradient)


def test_a_message_of_the_tree_holds_what_its_sender_had_by_then():
    """No step uses what only a later step brings."""
    for topology in links.TOPOLOGIES.values():
        _, messages = topology([np.ones(8)] * 6)
        assert [message.step for message in messages] == sorted(message.step for message in messages)


def test_training_is_the_same_each_way_and_learns(digits):
    runs = tied_training.train_each_way(digits, steps=60)
    first = runs["ADD_N"]
    assert first["losses"][-1] < first["losses"][0] / 2
    for way in tied_training.WAYS:
        np.testing.assert_allclose(runs[way]["losses"], first["losses"], rtol=1e-4)
    with pytest.raises(ValueError, match="way must be one of ADD_N"):
        tied_training.training_step("TREE", digits)


# Pictures ----------------------------------------------------------------------------------------------------------


def test_pictures_say_what_they_show():
    nodes = {
        name: gradient_graph.sum_nodes(gradient_graph.gradient_graph(4, name)[1])
        for name in ("ADD_N", "EXPERIMENTAL_TREE")
    }
    assert "ADD_N: 1 AddN with 4 inputs, 1 in a row" in aggregation_pictures.sum_graphs(nodes).alt
    assert "EXPERIMENTAL_TREE: 3 AddN with 2 inputs, 3 in a row" in aggregation_pictures.sum_graphs(nodes).alt
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
    assert (
        "x: 2 gives 0.1, 4 gives inf" in aggregation_pictures.lines({"x": [(2, 0.1), (4, math.inf)]}, "n", "error").alt
    )


def test_a_training_step_is_drawn_from_its_table():
    step = pd.DataFrame({"weight": 2.0, "own gradient": [-2.0, -8.0], "mean": -5.0}, index=["worker 0", "worker 1"])
    picture = aggregation_pictures.training_step(step)
    assert picture.alt == (
        "One training step of 2 workers. worker 0: weight 2, own gradient -2, mean -5; "
        "worker 1: weight 2, own gradient -8, mean -5. In the exchange each worker's gradient reaches all of them."
    )
    shown = {text.get_text() for text in picture.figure.findobj(Text)}
    assert {"weight", "own gradient", "mean", "worker 1", "-8", "compute", "exchange"} <= shown


def test_bars_side_by_side_in_time_get_rows_of_their_own():
    operations = [traces.Operation("Mul", *times) for times in ((0, 2), (1, 3), (2, 4))]
    assert [lane for lane, _ in aggregation_pictures._lanes(operations)] == [0, 1, 0]


def test_two_profilers_at_once_are_told(tmp_path):
    at_once = pytest.raises(traces.TraceError, match="TensorFlow runs one profiler at a time")
    with tf.profiler.experimental.Profile(str(tmp_path)), at_once:
        traces.profiler_trace(tf.function(tf.add_n), [tf.ones([4])])


def test_a_gpu_is_no_place_for_the_profiler(monkeypatch):
    """Its operations stand elsewhere in the profile; seen on an H200: no operation was found."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [f"a {kind}"])
    with pytest.raises(traces.TraceError, match=r"set_visible_devices\(\[\], .GPU.\)"):
        traces.profiler_trace(tf.function(tf.add_n), [tf.ones([4])])


def test_what_is_no_tensor_needs_no_waiting():
    assert traces.wait_for([tf.ones([2]), 3.0, "words"]) is None


def test_a_summary_reads_messages_once():
    made = links.central([np.zeros(10, np.float32)] * 4)[1]
    assert links.summary(iter(made)) == links.summary(list(made))
