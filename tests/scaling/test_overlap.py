"""Buckets, measured steps of two real ranks over a limited link, and their picture."""

import math

import numpy as np
import pytest

from dgc_lab.cluster import RankFailed
from dgc_lab.common import LabError
from dgc_lab.scaling import (
    ExchangePlan,
    fill_buckets,
    measure_overlap,
    overlap_rows,
    overlap_table,
    step_timelines,
)
from dgc_lab.scaling.overlap import MIB, PLANS, check_limited
from dgc_lab.scaling.overlap_figure import busy_times

LINKS = (125e6, 12.5e6)
QUICK = (ExchangePlan(ratio=0), ExchangePlan(), ExchangePlan(6 * MIB), ExchangePlan(ratio=0.01))


@pytest.mark.parametrize("largest", [0, 3, 10, 11, 25, math.inf])
def test_buckets_hold_all_gradients_in_order(largest):
    sizes = [10, 1, 1, 12, 3, 3, 3, 0, 9]
    buckets = fill_buckets(sizes, largest)
    assert [number for bucket in buckets for number in bucket] == list(range(len(sizes)))
    for bucket, following in zip(buckets, [*buckets[1:], None], strict=True):
        filled = sum(sizes[number] for number in bucket)
        assert len(bucket) == 1 or filled <= largest
        assert following is None or filled + sizes[following[0]] > largest, "a bucket is filled before the next begins"


def test_extreme_buckets_are_one_by_one_and_all_together():
    assert fill_buckets([5, 5, 5], 0) == [[0], [1], [2]]
    assert fill_buckets([5, 5, 5], math.inf) == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("sizes", "largest", "message"),
    [
        ([], 1, "sizes must have at least one"),
        ([-1], 1, "sizes must be a whole"),
        ([1], -1, "largest must be at least 0"),
    ],
)
def test_invalid_buckets_are_rejected(sizes, largest, message):
    with pytest.raises(ValueError, match=message):
        fill_buckets(sizes, largest)


@pytest.mark.parametrize(("setting", "value"), [("bucket_bytes", -1), ("ratio", 1.5), ("ratio", math.nan)])
def test_invalid_plans_are_rejected(setting, value):
    with pytest.raises(ValueError, match=f"{setting} must be"):
        ExchangePlan(**{setting: value})


def test_plans_have_different_names():
    assert len(set(map(str, PLANS))) == len(PLANS)


@pytest.fixture(scope="module")
def measured(warm_ranks):
    """Rows of both ranks over 1 Gbit/s."""
    return warm_ranks.run(measure_overlap, QUICK, 125e6, 3, batch=8)


def test_all_ranks_return_the_same_times(measured):
    own, other = ([row["ms"] for row in rows] for rows in measured)
    assert own == other
    assert len(own) == len(QUICK) + 1


def test_bytes_are_those_of_the_gradients(measured):
    rows = {row["plan"]: row for row in measured[0]}
    whole = 12 * MIB / 1000
    assert rows["no exchange"]["kB sent"] < whole / 100
    for plan in ("uncompressed, all at the end", "uncompressed, buckets of 6 MiB", "exchange alone"):
        assert whole <= rows[plan]["kB sent"] < 1.02 * whole
    assert rows["DGC 1 %, all at the end"]["kB sent"] < whole / 30
    assert [row["buckets"] for row in measured[0]] == [0, 1, 2, 1, 1]


def test_buckets_are_exchanged_when_their_gradients_are_ready(measured):
    for row in measured[0][:-1]:
        moments = row["timeline"]
        assert len(moments["gradients"]) == 48
        assert 0 < moments["forward"] < max(moments["gradients"])
        assert len(moments["exchanges"]) == row["buckets"]
        assert all(ready < done for ready, done in moments["exchanges"])
    together, halves = (measured[0][number]["timeline"] for number in (1, 2))
    assert together["exchanges"][0][0] == max(together["gradients"])
    assert halves["exchanges"][0][0] == max(halves["gradients"][:24])
    assert measured[0][-1]["timeline"] == {}


def test_exchanges_over_the_link_take_its_time(measured):
    rows = {row["plan"]: row for row in measured[0]}
    least = 1000 * 12 * MIB / 125e6
    assert rows["exchange alone"]["ms"] > least / 1.5
    assert rows["uncompressed, all at the end"]["max ms"] > least / 1.5


def exchange_once(plan):
    """Return what a bucket of two gradients becomes on a rank."""
    import tensorflow as tf

    from dgc_lab.distributed import HorovodWorkers
    from dgc_lab.scaling.overlap_steps import WIDTH, exchange_of

    workers = HorovodWorkers()
    weights = [tf.Variable(tf.zeros([WIDTH, WIDTH])) for _ in range(2)]
    gradients = [tf.fill([WIDTH, WIDTH], 1.0 + workers.first), tf.fill([WIDTH, WIDTH], 10.0)]
    return [answer.numpy() for answer in exchange_of(plan, 0, weights, workers)(gradients)]


def test_an_exchange_returns_the_means_over_all_ranks(warm_ranks):
    for first, second in warm_ranks.run(exchange_once, ExchangePlan()):
        np.testing.assert_array_equal(first, 1.5)
        np.testing.assert_array_equal(second, 10)


def start_with_one_thread():
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    return float(tf.reduce_sum(tf.ones([3])))


@pytest.mark.nightly
def test_ranks_that_started_with_one_thread_must_restart(horovod):
    from dgc_lab.cluster import HorovodRanks

    with HorovodRanks(2, progress=None) as ranks:
        ranks.run(start_with_one_thread)
        with pytest.raises(RankFailed, match=r"another number of threads .*: restart the ranks"):
            ranks.run(measure_overlap, QUICK)


def test_a_link_without_a_limit_is_noticed():
    check_limited(100.0, 100.0)
    check_limited(100.0, 0.0)
    with pytest.raises(LabError, match="an exchange took 10 ms instead of 100 ms"):
        check_limited(10.0, 100.0)


def test_table_has_a_column_for_each_link():
    rows = [
        {"plan": plan, "bandwidth": link * 125e6, "ms": ms, "kB sent": 5.0}
        for plan, link, ms in (("one", 1, 10.0), ("two", 1, 20.0), ("one", 0.1, 30.0), ("two", 0.1, 40.0))
    ]
    table = overlap_table(rows)
    assert table.loc["one"].tolist() == [10, 5, 30]
    assert list(table.columns) == ["ms at 1 Gbit/s", "kB sent per step", "ms at 0.1 Gbit/s"]


def test_stored_rows_cover_all_plans_and_settings():
    rows = overlap_rows()
    buckets = [row for row in rows if row["study"] == "buckets"]
    names = [*map(str, PLANS), "exchange alone"]
    assert [(row["plan"], row["bandwidth"]) for row in buckets] == [(name, link) for link in LINKS for name in names]
    assert {(row["fusion"], row["cycle"]) for row in buckets} == {(0, 1)}
    fusion = {(row["fusion"], row["cycle"]) for row in rows if row["study"] == "fusion"}
    assert fusion == {(threshold, cycle) for threshold in (0, MIB, 64 * MIB) for cycle in (1, 10)}
    assert all(row["min ms"] <= row["ms"] <= row["max ms"] for row in rows)


@pytest.mark.parametrize("link", LINKS)
def test_stored_rows_agree_on_overlap_and_compression(link):
    ms = {row["plan"]: row["ms"] for row in overlap_rows() if (row["study"], row["bandwidth"]) == ("buckets", link)}
    assert ms["uncompressed, buckets of 3 MiB"] < ms["uncompressed, all at the end"], "overlap helps"
    assert ms["uncompressed, all at the end"] > ms["no exchange"]
    if link == min(LINKS):
        assert ms["DGC 1 %, all at the end"] < ms["uncompressed, buckets of 3 MiB"] / 2, "on a slow link DGC helps more"


def test_exchanges_share_the_link_one_at_a_time():
    assert busy_times([[5.0, 20.0], [6.0, 12.0], [30.0, 31.0]]) == [(6.0, 12.0), (12.0, 20.0), (30.0, 31.0)]


def test_timeline_draws_passes_and_exchanges(measured):
    picture = step_timelines(measured[0])
    assert len(picture.figure.axes) == len(QUICK), "the exchange without a step is omitted"
    for axes, row in zip(picture.figure.axes, measured[0], strict=False):
        assert axes.get_title() == row["plan"]
        assert len(axes.patches) == 2 + row["buckets"]
        assert f"{row['plan']}: the backward pass ends after" in picture.alt


def test_timeline_needs_distinct_plans():
    with pytest.raises(ValueError, match="rows must have each plan once, got several of a plan"):
        step_timelines(overlap_rows())


def test_timeline_needs_a_step():
    with pytest.raises(ValueError, match="rows with a step must have at least one"):
        step_timelines([{"plan": "exchange alone", "timeline": {}}])
