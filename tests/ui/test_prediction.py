"""The widget that saves a prediction, and the general-purpose charts."""

import math

import numpy as np
import pandas as pd
import pytest

from dgc_lab.ui import charts
from dgc_lab.ui.prediction import Prediction


def test_saved_predictions_cannot_be_changed():
    guess = Prediction("How accurate?", of=("a", "b"))
    guess.sliders["a"].value = 0.25
    guess.button.click()
    assert guess.saved == {"a": 0.25, "b": 0.5}
    assert all(slider.disabled for slider in guess.sliders.values())
    guess.sliders["a"].value = 0.75
    guess.button.click()
    table = guess.confront({"a": 0.25, "b": 0.9})
    assert table.loc["b"].tolist() == ["0.50", "0.90", "+0.40"]
    assert "furthest off for b" in guess.message.value


def test_exact_predictions_are_praised():
    guess = Prediction("How accurate?", of=iter(["a", "b"]))
    guess.keep()
    guess.confront({"a": 0.5, "b": math.nan})
    assert "Your prediction was right." in guess.message.value


def test_only_the_result_is_shown_without_a_prediction():
    table = Prediction("How accurate?", of=["a"], form=".0%").confront({"a": 0.9})
    assert table.to_dict() == {"observed": {"a": "90%"}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"of": ()}, r"of must have at least one name, and each name only once, got \[\]"),
        ({"of": ("a", "a")}, r"each name only once, got \['a', 'a'\]"),
        ({"of": ("a",), "least": 1, "most": 1}, r"least must be below most, got 1 and 1"),
        ({"of": ("a",), "form": "+.2f"}, r"form must be a number format such as .2f, .* got '\+\.2f'"),
        ({"of": ("a",), "form": ">8.2f"}, r"form must be .* got '>8\.2f'"),
    ],
)
def test_invalid_prediction_arguments_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        Prediction("?", **arguments)


def test_observed_names_must_match_the_prediction():
    with pytest.raises(ValueError, match=r"seen must have the names a, got b"):
        Prediction("?", of=("a",)).confront({"b": 1.0})


@pytest.mark.parametrize("seen", [0.9, None, [0.5], {"a": "0.5"}, {"a": None}, {"a": np.array([0.5])}])
def test_observed_values_must_be_numbers(seen):
    with pytest.raises(ValueError, match="seen must be a dict of numbers, got"):
        Prediction("?", of=("a",)).confront(seen)


def test_nan_observations_are_never_furthest_off():
    guess = Prediction("?", of=("a", "b"))
    guess.keep()
    table = guess.confront({"a": math.nan, "b": np.float32(0.75)})
    assert table.loc["a"].tolist() == ["0.50", "nan", ""]
    assert "furthest off for b" in guess.message.value


def test_charts_reject_invalid_data():
    for wrong, message in (
        ({}, "runs must have"),
        ({"a": []}, r"runs\['a'\] must have"),
        ([[3.0, 1.0]], r"runs must be an instance of dict, got \[\[3.0, 1.0\]\]"),
    ):
        with pytest.raises(ValueError, match=message):
            charts.losses(wrong)
    for wrong in ({"a": "x"}, pd.DataFrame({"a": [1.0, None], "b": ["x", "y"]})):
        with pytest.raises(ValueError, match="table must have only numbers, got 'x'"):
            charts.bars(wrong, "what")


def test_later_lines_are_thinner():
    for lines in (1, 2, 5, 12):
        widths = [look["linewidth"] for look in charts.thinning(map(str, range(lines))).values()]
        assert sorted(set(widths), reverse=True) == widths
        assert 1 < widths[-1] <= widths[0] <= 6


def test_dollar_signs_in_labels_are_literal():
    for picture in (charts.losses({"a $b^$": [1, 2]}), charts.bars({"a $b^$": 1.0, "c": 2}, "what")):
        assert charts.png(picture.figure)
