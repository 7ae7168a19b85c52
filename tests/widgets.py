"""Helpers for widget tests without a browser: operate controls and read the display."""

import base64
import io
import re

import numpy as np
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


def said(widget):
    """Return the message line's text, with HTML escapes."""
    return re.sub("<[^>]+>", "", widget.message.value)


def picture_of(widget):
    """Return the figure as an RGB array."""
    data = re.search(r"base64,([^\"]+)", widget.image.value).group(1)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
