"""Lesson 5's pictures of residuals: they show what accumulation and selection do in a real training."""

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from matplotlib.text import Text

from dgc_lab.compression.scheme import StepContext
from dgc_lab.compression.selection import Rule, accumulate_and_select
from dgc_lab.training import residual_history, residual_step
from dgc_lab.ui.charts import PALETTE, png
from dgc_lab.workloads.batches import cross_entropy, pick_batch
from dgc_lab.workloads.models import digits_cnn

STEPS, RATIO, RATE = 12, 0.01, 0.1  # the last two are those of the history


@pytest.fixture(scope="module")
def history():
    return residual_history(STEPS)


def elements_of(history):
    return [name for name in history if name.startswith("element")]


def test_history_matches_accumulate_and_select_step_by_step(history, digits):
    """The same training, written with the selection alone; the other layers are compressed in the same way."""
    model = digits_cnn(0)
    weights = [variable.value for variable in model.trainable_variables]
    residuals = [tf.zeros([tf.size(weight)]) for weight in weights]
    largest = int(np.argmax([tf.size(weight) for weight in weights]))
    for step, row in zip(range(STEPS), history.to_dict("records"), strict=True):
        images, labels = pick_batch(digits.x_train, digits.y_train, step, 64, 0)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(cross_entropy(labels, model(images)))
        for place, gradient in enumerate(tape.gradient(loss, weights)):
            size = int(tf.size(gradient))
            whole = gradient.shape.rank < 2 or size < 1024
            context = StepContext((size,), (0, 0), (0, 0), workers=1)
            before = residuals[place]
            rule = Rule(1.0 if whole else RATIO, "exact")
            indices, values, [residuals[place]] = accumulate_and_select(
                tf.reshape(gradient, [-1]), (before,), rule, context
            )
            update = tf.scatter_nd(indices[:, None], values, [size])
            if place == largest:
                assert row["threshold"] == pytest.approx(np.abs(values).min(), rel=1e-4)
                accumulated = before + tf.reshape(gradient, [-1])
                for name in elements_of(history):
                    element = int(name.split()[1])
                    assert row[name] == pytest.approx(float(accumulated[element]), rel=1e-3, abs=1e-7)
                    assert (name in row["sent"].split(", ")) == (element in indices.numpy())
            weights[place].assign_sub(RATE * tf.reshape(update, gradient.shape))


def test_history_has_elements_that_fill_and_fire(history):
    often, twice, once = elements_of(history)
    times = {name: sum(name in row.split(", ") for row in history["sent"]) for name in (often, twice, once)}
    assert times[often] > times[twice] == 2 > times[once] == 1
    assert once in history["sent"].iloc[-1].split(", "), "it has waited for the whole run"


def test_sent_elements_are_those_at_or_above_the_threshold(history):
    for name in elements_of(history):
        above = history[name].abs() >= history["threshold"]
        assert above.tolist() == [name in row.split(", ") for row in history["sent"]]


def test_history_is_the_same_in_every_run(history):
    pd.testing.assert_frame_equal(history, residual_history(STEPS))


MADE = pd.DataFrame(
    {
        "step": [1, 2, 3],
        "threshold": [2.0, 2.5, 1.5],
        "a": [3.0, -1.0, 1.5],
        "b": [0.5, 1.0, -1.25],
        "sent": ["a", "", "a"],
    }
)


def test_residual_lines_drop_to_zero_where_an_element_is_sent():
    over_time, _ = residual_step(MADE, 3).figure.axes
    by_colour = {line.get_color(): line for line in over_time.lines if len(line.get_xdata()) > 3}
    assert list(zip(*by_colour[PALETTE[0]].get_data(), strict=True)) == [
        (0, 0), (1, 3), (1, 0), (2, 1), (3, 1.5), (3, 0),
    ]  # fmt: skip
    assert list(zip(*by_colour[PALETTE[1]].get_data(), strict=True)) == [(0, 0), (1, 0.5), (2, 1), (3, 1.25)]


@pytest.mark.parametrize(("step", "heights", "sent"), [(1, [3, 0.5], ["sent"]), (2, [1, 1], []), (0, [0, 0], [])])
def test_residual_bars_show_the_step(step, heights, sent):
    _, bars = residual_step(MADE, step).figure.axes
    assert [patch.get_height() for patch in bars.patches] == heights
    assert [text.get_text() for text in bars.texts if text.get_text()] == sent


def test_more_elements_than_colours_can_be_drawn():
    many = {f"element {number}": [3.0] for number in range(len(PALETTE) + 2)}
    history = pd.DataFrame({"step": [1], "threshold": [2.0], **many, "sent": [", ".join(many)]})
    assert residual_step(history, 1).alt.count("3, sent") == len(many)


def test_residual_alt_text_has_the_facts_of_the_step():
    assert residual_step(MADE, 2).alt == "Step 2 of 3, threshold 2.5. a: 1, waits; b: 1, waits."
    assert residual_step(MADE, 3).alt == "Step 3 of 3, threshold 1.5. a: 1.5, sent; b: 1.25, waits."
    assert residual_step(MADE, 0).alt == "Step 0 of 3. a: 0, waits; b: 0, waits."


def test_axes_of_residual_pictures_do_not_move():
    limits = [[axes.get_ylim() for axes in residual_step(MADE, step).figure.axes] for step in range(4)]
    assert all(each == limits[0] for each in limits)


def test_residual_pictures_are_readable_at_800_pixels():
    figure = residual_step(MADE, 3).figure
    assert int.from_bytes(png(figure)[16:20]) <= 800
    assert all(text.get_fontsize() >= 8 for text in figure.findobj(Text) if text.get_text())


@pytest.mark.parametrize(
    ("history", "step", "message"),
    [
        (MADE, 4, "step must be a whole number from 0 to 3, got 4"),
        (MADE, -1, "step must be a whole number from 0 to 3, got -1"),
        (MADE.drop(columns="sent"), 1, "history must have the columns step, threshold, sent and one for each element"),
        (MADE[["step", "threshold", "sent"]], 1, "history must have the columns .* and one for each element"),
        ([1, 2], 1, "history must be an instance of DataFrame"),
    ],
)
def test_residual_picture_rejects_invalid_arguments(history, step, message):
    with pytest.raises(ValueError, match=message):
        residual_step(history, step)
