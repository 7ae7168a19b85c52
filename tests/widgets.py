"""Helpers for widget tests without a browser: operate controls and read the display."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import Image


def press(widget, name):
    """Click a button like the front end does; disabled buttons do nothing."""
    button = getattr(widget, f"{name}_button")
    if not button.disabled:
        button.click()


def set_and_wait(explorer, **values):
    """Set control values and wait until the result is shown."""
    for name, value in values.items():
        explorer.controls[name].value = value
    assert explorer.wait(60)


def assert_rejected(explorer, name, value, pattern):
    """Check that a control's value is reported in the message, keeps the figure, and is an error of ``show()``."""
    before = explorer.image.value
    set_and_wait(explorer, **{name: value})
    assert 'role="alert"' in explorer.message.value
    assert re.search(pattern, said(explorer))
    assert "still show the previous values" in explorer.message.value
    assert explorer.image.value == before
    with pytest.raises(ValueError, match=pattern):
        explorer.show()


def said(widget):
    """Return the message line's text, with HTML escapes."""
    return re.sub("<[^>]+>", "", widget.message.value)


def picture_of(widget):
    """Return the figure as an RGB array."""
    data = re.search(r"base64,([^\"]+)", widget.image.value).group(1)
    return pixels(base64.b64decode(data))


def pixels(png):
    """Return a PNG file as an RGB array."""
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def assert_matches_the_full_figure(picture):
    """Check that a live figure's panels match matplotlib's rendering except for their reduced palette."""
    frame = np.hstack([pixels(panel) for panel in picture.panels()]).astype(int)
    picture.canvas.draw()
    whole = np.asarray(picture.canvas.buffer_rgba())[..., :3].astype(int)
    assert frame.shape == whole.shape
    # The frame draws the current lines last, over legend and spines, so a few pixels really differ.
    assert np.mean(np.abs(frame - whole).max(axis=2) > 40) < 0.005
