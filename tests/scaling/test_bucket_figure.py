"""Lesson 9's picture of buckets: the modelled moments, and what the picture says about them."""

import math

import pandas as pd
import pytest
from matplotlib.text import Text

from dgc_lab.scaling import Link, bucket_moment, fill_buckets, model_buckets
from dgc_lab.scaling.bucket_figure import COMPUTED, ENDS, STARTS
from dgc_lab.scaling.network import fastest

SIZES, TIMES = [3_000_000, 1_000_000, 1_000_000, 2_000_000, 500_000], [1.0, 2.0, 1.0, 4.0, 0.5]
LINK = Link(1e9)
EVEN = Link(1e9, latency=0, efficiency=1)  # 1 MB takes 1 ms between two ranks


def modelled(largest=2_000_000):
    return model_buckets(SIZES, TIMES, largest, LINK, ranks=8)


@pytest.fixture
def even():
    """Six gradients of 1.5 MB, one per ms, in buckets of two, whose exchange takes 3 ms."""
    return model_buckets([1_500_000] * 6, [1.0] * 6, 3_000_000, EVEN, ranks=2)


@pytest.mark.parametrize("largest", [0, 2_000_000, math.inf])
def test_modelled_buckets_are_those_of_fill_buckets(largest):
    table = modelled(largest)
    assert table["layer"].tolist() == [5, 4, 3, 2, 1], "the backward pass starts with the last layer"
    assert (1e6 * table["MB"]).tolist() == SIZES
    own = table.groupby("bucket")["layer"].agg(list).tolist()
    assert own == [[5 - place for place in places] for places in fill_buckets(SIZES, largest)]
    assert table[COMPUTED].tolist() == [1, 3, 4, 8, 8.5]


@pytest.mark.parametrize("largest", [0, 2_000_000, math.inf])
def test_exchanges_wait_for_gradients_and_for_the_link(largest):
    buckets = modelled(largest).groupby("bucket").agg({"MB": "sum", COMPUTED: "max", STARTS: "first", ENDS: "first"})
    free = 0
    for row in buckets.to_dict("records"):
        assert row[STARTS] == max(row[COMPUTED], free)
        exchange = LINK.seconds(*fastest(LINK, "allreduce", 8, 1e6 * row["MB"]))
        assert row[ENDS] - row[STARTS] == pytest.approx(1000 * exchange)
        free = row[ENDS]


def test_buckets_end_earlier_than_one_exchange_at_the_end():
    ends = {largest: modelled(largest)[ENDS].max() for largest in (2_000_000, math.inf)}
    assert sum(TIMES) < ends[2_000_000] < ends[math.inf]
    slow = Link(1e9, latency=0.01)
    one_by_one, together = (model_buckets(SIZES, TIMES, largest, slow, 8)[ENDS].max() for largest in (0, math.inf))
    assert one_by_one > together, "each exchange pays the latency"


@pytest.mark.parametrize(
    ("ms", "states"),
    [
        (0, ["empty", "empty", "empty"]),
        (1.5, ["1 of 2", "empty", "empty"]),
        (3.5, ["50 % done", "1 of 2", "empty"]),
        (4.5, ["83 % done", "waits", "empty"]),
        (8, ["done", "done", "0 % done"]),
        (11, ["done", "done", "done"]),
    ],
)
def test_bucket_picture_shows_the_state_of_each_bucket(even, ms, states):
    picture = bucket_moment(even, ms)
    said = picture.alt.partition(". ")[2].rstrip(".").split("; ")
    assert [text.partition(": ")[2] for text in said] == states
    labels = [text.get_text() for text in picture.figure.axes[1].texts]
    assert [state.removesuffix(" done") for state in states] == [text for text in labels if not text.isdigit()]
    computed = [text for text in labels if text.isdigit()]
    assert computed == [str(layer) for layer in even.loc[even[COMPUTED] <= ms, "layer"]]


def test_bucket_picture_draws_the_past_only(even):
    over_time = bucket_moment(even, 4.5).figure.axes[0]
    ends = [round(bar.get_x() + bar.get_width(), 6) for bar in over_time.patches]
    assert ends == [1, 2, 3, 4, 4.5, 4.5], "five gradients, one of them in part, and the first exchange"


def test_bucket_picture_says_that_it_is_modelled(even):
    picture = bucket_moment(even, 4.5)
    assert picture.figure.axes[0].get_title().startswith("Modelled, not measured: 4.5 ms")
    assert picture.alt.startswith("4.5 of 11 ms, modelled: 4 of 6 gradients are computed, 0 of 3 buckets are exchanged")


def test_bucket_picture_has_readable_texts_and_fits_a_lesson():
    figure = bucket_moment(model_buckets([10] * 16, [1.0] * 16, 0, LINK, ranks=64), 9.5).figure
    assert figure.get_size_inches()[0] * figure.dpi <= 800
    assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_text())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sizes": []}, "sizes must have at least one element"),
        ({"sizes": [-1]}, "sizes must be a whole number"),
        ({"times": [1.0]}, "times must have a number for each of the 5 sizes, got 1"),
        ({"times": [0.0] * 5}, "times must be above 0"),
        ({"largest": -1}, "largest must be at least 0"),
        ({"link": 1e9}, "link must be an instance of Link"),
        ({"ranks": 1}, "ranks must be a whole number from 2"),
    ],
)
def test_invalid_models_of_buckets_are_rejected(changed, message):
    valid = {"sizes": SIZES, "times": TIMES, "largest": 0, "link": LINK, "ranks": 2}
    with pytest.raises(ValueError, match=message):
        model_buckets(**valid | changed)


def test_bucket_picture_rejects_what_it_cannot_draw(even):
    with pytest.raises(ValueError, match="ms must be at least 0 and finite, got -1"):
        bucket_moment(even, -1)
    with pytest.raises(ValueError, match=r"modelled must have the columns layer; .* but lacks bucket; MB"):
        bucket_moment(even.drop(columns=["bucket", "MB"]), 1)
    with pytest.raises(ValueError, match="rows of modelled must be a whole number from 1 to 16, got 18"):
        bucket_moment(pd.concat([even] * 3), 1)
