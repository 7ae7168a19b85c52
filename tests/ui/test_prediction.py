"""The widget that keeps a prediction."""

import pytest

from dgc_lab.ui.prediction import NONE_MADE, Prediction


def test_a_prediction_is_kept_and_cannot_be_changed_afterwards():
    guess = Prediction("How accurate?", of=("a", "b"))
    guess.sliders["a"].value = 0.25
    guess.button.click()
    assert guess.kept == {"a": 0.25, "b": 0.5}
    assert all(slider.disabled for slider in guess.sliders.values())
    guess.sliders["a"].value = 0.75
    guess.button.click()
    table = guess.confront({"a": 0.25, "b": 0.9})
    assert table.loc["b"].tolist() == ["0.50", "0.90", "+0.40"]
    assert "Furthest from what you said: b" in guess.message.value


def test_without_a_prediction_the_result_is_shown_all_the_same():
    table = Prediction("How accurate?", of=["a"], form=".0%").confront({"a": 0.9})
    assert table.loc["a"].tolist() == [NONE_MADE, "90%", ""]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"of": ()}, r"of must name one thing or several, none of them twice, got \(\)"),
        ({"of": ("a", "a")}, r"none of them twice, got \('a', 'a'\)"),
        ({"of": ("a",), "least": 1, "most": 1}, r"least must be below most, and both finite, got 1 and 1"),
        ({"of": ("a",), "form": "+.2f"}, r"form must be a number's format such as .2f, .* got '\+\.2f'"),
        ({"of": ("a",), "form": ">8.2f"}, r"form must be .* got '>8\.2f'"),
    ],
)
def test_what_cannot_be_predicted(arguments, message):
    with pytest.raises(ValueError, match=message):
        Prediction("?", **arguments)


def test_what_was_seen_must_be_what_was_asked():
    with pytest.raises(ValueError, match=r"seen must have the names a, got b"):
        Prediction("?", of=("a",)).confront({"b": 1.0})
