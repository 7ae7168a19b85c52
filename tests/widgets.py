"""What tests of widgets without a browser share: they drive the controls and read what is shown."""

import base64
import io
import re

import numpy as np
from PIL import Image


def press(widget, name):
    """Click a button as the front end does: a disabled one does not react."""
    button = getattr(widget, f"{name}_button")
    if not button.disabled:
        button.click()


def set_and_wait(explorer, **values):
    """Move the controls, and wait until what they say is shown."""
    for name, value in values.items():
        explorer.controls[name].value = value
    assert explorer.wait(60)


def said(widget):
    """The message line's text, with HTML's escapes."""
    return re.sub("<[^>]+>", "", widget.message.value)


def picture_of(widget):
    """The picture as an RGB array."""
    data = re.search(r"base64,([^\"]+)", widget.image.value).group(1)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))
