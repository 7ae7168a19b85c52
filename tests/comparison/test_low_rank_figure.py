"""Lesson 8's picture of M = P Q^T: its factors are PowerSGD's, and its errors those of their products."""

import numpy as np
import pytest
import tensorflow as tf
from matplotlib.text import Text

from dgc_lab.comparison import low_rank_products, low_rank_table
from dgc_lab.compression import Compressor, powersgd, sent_alone
from dgc_lab.distributed import OneWorker
from dgc_lab.ui.charts import png

GRADIENT = tf.random.stateless_normal([12, 8], (0, 1)) @ tf.linalg.diag(2.0 ** -tf.range(8.0))


def relative(error):
    return np.linalg.norm(error) / np.linalg.norm(GRADIENT)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_error_is_that_of_powersgd(rank):
    [row] = low_rank_table(GRADIENT, [rank]).to_dict("records")
    assert row["error"] == pytest.approx(relative(GRADIENT - sent_alone(powersgd(rank), GRADIENT)), rel=1e-5)
    assert row["numbers sent"] == rank * (12 + 8)
    assert row["share"] == rank * 20 / 96


def test_numbers_sent_match_the_bytes_of_a_compressor():
    weight = tf.Variable(tf.zeros([40, 50]))
    gradient = tf.random.stateless_normal([40, 50], (0, 0))
    _, report = Compressor(powersgd(2), [weight], OneWorker())([[gradient]])
    [row] = low_rank_table(gradient, [2]).to_dict("records")
    assert 0 <= int(report.allreduce_bytes) - 4 * row["numbers sent"] <= 8


def test_more_steps_approach_the_smallest_possible_error():
    once, often = (low_rank_table(GRADIENT, [1, 2, 4], steps=steps) for steps in (1, 50))
    values = np.linalg.svd(GRADIENT.numpy().astype(np.float64), compute_uv=False)
    smallest = [np.sqrt((values[rank:] ** 2).sum() / (values**2).sum()) for rank in (1, 2, 4)]
    assert once["smallest possible"].tolist() == pytest.approx(smallest)
    assert (once["error"] > once["smallest possible"]).all()
    assert often["error"].tolist() == pytest.approx(smallest, rel=1e-3)


def test_low_rank_picture_draws_factors_and_their_products():
    figure = low_rank_products(GRADIENT, [1, 4], steps=2).figure
    images = [np.asarray(axes.images[0].get_array()) for axes in figure.axes]
    assert [image.shape for image in images] == [(12, 8), (12, 8), (12, 1), (1, 8), (12, 8), (12, 4), (4, 8)]
    given, *rest = images
    assert np.array_equal(given, GRADIENT)
    for product, left, right in (rest[:3], rest[3:]):
        np.testing.assert_allclose(product, left @ right, atol=1e-6)
        np.testing.assert_allclose(left.T @ left, np.eye(left.shape[1]), atol=1e-5)


def test_low_rank_alt_text_has_the_facts_of_the_table():
    alt = low_rank_products(GRADIENT, [1, 2], steps=3).alt
    assert "A gradient as a matrix of 12 x 8" in alt
    for row in low_rank_table(GRADIENT, [1, 2], steps=3).to_dict("records"):
        assert (
            f"Rank {row['rank']}: {row['numbers sent']} instead of 96 numbers, error {100 * row['error']:.0f} %" in alt
        )


def test_convolution_kernels_have_a_column_for_each_output():
    [row] = low_rank_table(tf.random.stateless_normal([3, 3, 2, 5], (0, 0)), [1]).to_dict("records")
    assert row["numbers sent"] == 18 + 5


def test_low_rank_pictures_are_readable_at_800_pixels():
    figure = low_rank_products(GRADIENT).figure
    assert int.from_bytes(png(figure)[16:20]) <= 800
    assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_text())


@pytest.mark.parametrize("make", [low_rank_table, low_rank_products])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((GRADIENT, [9]), "ranks must be a whole number from 1 to 8, got 9"),
        ((GRADIENT, [0]), "ranks must be a whole number from 1 to 8, got 0"),
        ((GRADIENT, []), "ranks must have at least one element"),
        ((GRADIENT, 2), "ranks must be a list, got 2"),
        ((GRADIENT, [1], 0), "steps must be a whole number from 1 to 1000, got 0"),
        ((tf.zeros([3, 3]), [1]), "gradient must be finite and not all zeros"),
        (([[1.0, np.nan]], [1]), "gradient must be finite and not all zeros"),
        (([], [1]), "gradient must have at least one element"),
    ],
)
def test_invalid_low_rank_arguments_are_rejected(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(*arguments)


def test_low_rank_picture_has_room_for_four_ranks():
    with pytest.raises(ValueError, match="ranks must be at most 4 numbers, got 5"):
        low_rank_products(GRADIENT, [1, 2, 3, 4, 5])


def test_low_rank_picture_has_room_for_32_columns_of_p():
    assert len(low_rank_products(np.eye(64), [1, 5, 10, 16]).figure.axes) == 13
    for ranks in ([17], [10, 11, 12]):
        with pytest.raises(ValueError, match=rf"ranks must be at most 16 each and at most 32 .*, got \[{ranks[0]}"):
            low_rank_products(np.eye(64), ranks)
