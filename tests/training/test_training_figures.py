"""Figures and tables of training runs: invalid arguments are named, and a share of 0 has its own tick."""

import numpy as np
import pytest

from dgc_lab.training import (
    comparison,
    errors_by_share,
    gradient_histograms,
    loss_and_accuracy,
    spread,
    timelines,
)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (comparison, [[1]], r"runs must be an instance of dict, got \[1\]"),
        (loss_and_accuracy, [[1]], r"runs must be an instance of dict, got \[1\]"),
        (spread, [[0.9]], r"figures must be an instance of dict, got \[0.9\]"),
        (spread, [{}], "figures must have at least one element"),
        (spread, [{"a": []}], r"figures\['a'\] must have at least one element"),
        (gradient_histograms, [[0.5]], r"gradients must be an instance of dict, got \[0.5\]"),
        (gradient_histograms, [{"a": [0.5]}, [0.1]], r"limits must hold a threshold for each of \['a'\], got \[0.1\]"),
        (gradient_histograms, [{"a": []}], r"gradients\['a'\] must have at least one element"),
        (gradient_histograms, [{"a": [1.0, np.inf]}], r"gradients\['a'\] must be finite, got NaN or infinity"),
        (gradient_histograms, [{"a": [1.0, np.nan]}], r"gradients\['a'\] must be finite, got NaN or infinity"),
        (errors_by_share, [[(1, 0.9)]], "tables must be an instance of dict, got"),
        (errors_by_share, [{"a": []}], r"tables\['a'\] must have at least one element"),
        (timelines, [[1]], r"frames must be an instance of dict, got \[1\]"),
    ],
)
def test_invalid_arguments_of_figures_are_named(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(*arguments)


@pytest.mark.parametrize("smallest", [0.5, 0.1, 0.001, 1.648e-5])
def test_a_share_of_zero_has_a_tick_left_of_all_others(smallest):
    picture = errors_by_share({"a": [(1, 0.9), (smallest, 0.8), (0, 0.1)]})
    [axes] = picture.figure.axes
    picture.figure.canvas.draw()
    left = min(axes.lines[0].get_xdata())
    ticks = dict(zip(axes.get_xticks(), [text.get_text() for text in axes.get_xticklabels()], strict=True))
    nearest = min(ticks, key=lambda at: abs(at - left))
    assert nearest == pytest.approx(left)
    assert left < smallest
    assert ticks[nearest] == "0%"
    assert all(text != "0%" for at, text in ticks.items() if at > nearest)
