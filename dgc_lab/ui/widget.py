"""What all widgets of the lab have in common: controls above a message, a picture and a table.

Works with ipywidgets 7.7 and 8.
"""

from __future__ import annotations

import base64
import html
import sys

import ipywidgets
from IPython import get_ipython
from traitlets import TraitError

from dgc_lab.common import LabError
from dgc_lab.ui.charts import image_tag

SHORTEST_REDRAW = 0.25  # seconds; four frames a second are enough for the eye
LONGEST_MESSAGE = 800  # characters
WRAP = {"flex_flow": "row wrap"}
EXPECTED_ERRORS = (ValueError, LabError, OSError)  # their messages are for the user as they are


class Column(ipywidgets.VBox):
    """What stands under one another, closed as a whole; a base class."""

    def close(self) -> None:
        """Close every part of the widget too: ipywidgets keeps what nobody closes until the kernel ends."""
        if self.comm is not None:  # it is open
            for part in parts_of(self)[1:]:
                part.close()
        super().close()


class Panel(Column):
    """Controls, and under them a line that speaks, a picture and a table; a base class.

    ``rows`` stand above the message, the ``controls`` among them. A ValueError for a setting that is not the name of a
    control, or that the control does not take.
    """

    def __init__(self, controls: dict, rows: list, settings: dict):
        send_copies()
        self.controls = controls
        self.message, self.image, self.table = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        super().__init__([*rows, self.message, self.image, self.table])
        try:
            for name, value in settings.items():
                if name not in controls:
                    raise ValueError(f"settings must be among {', '.join(controls) or 'none at all'}, got {name!r}")
                set_control(name, controls[name], value)
        except ValueError:
            self.close()
            raise

    _thread = None

    def close(self) -> None:
        """Wait for the end of the work, and close the widget with all its parts."""
        self.wait()
        super().close()

    def _values(self) -> dict:
        """The controls' values by name."""
        return {name: control.value for name, control in self.controls.items()}

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the work that was asked for has ended; False when it has not within ``timeout`` seconds."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _say(self, text: str, error: bool = False):
        self.message.value = message_line(text, error)

    def _show_image(self, png: bytes, alt: str):
        self.image.value = image_tag(png, alt)

    def _show_frame(self, frame, below: str = ""):
        """A table with the looks of JupyterLab's and of the classic notebook's own tables, and HTML under it."""
        table = frame.to_html(index=False, na_rep="", float_format=digits)
        self.table.value = f'<div class="jp-RenderedHTMLCommon rendered_html">{table}</div>{below}'


def parts_of(widget, found=None) -> list:
    """A widget and all that it is made of, each once: what it shows, their layouts and styles, what it keeps beside.

    Example:
        >>> sorted(type(part).__name__ for part in parts_of(ipywidgets.HBox([ipywidgets.Box()])))
        ['Box', 'HBox', 'Layout', 'Layout']
    """
    found = [] if found is None else found
    found.append(widget)
    for held in (*(getattr(widget, name) for name in widget.keys), *vars(widget).values()):
        several = held.values() if isinstance(held, dict) else held if isinstance(held, list | tuple) else [held]
        for part in several:
            if isinstance(part, ipywidgets.Widget) and not any(part is other for other in found):
                parts_of(part, found)
    return found


def send_copies() -> None:
    """Have the kernel, where there is one, copy whatever it sends.

    Large messages, which most pictures are, pyzmq sends uncopied, but no longer in the moment before the kernel ends:
    what a thread shows then breaks off, and JupyterLab takes the next message for the rest of it.
    """
    session = getattr(getattr(get_ipython(), "kernel", None), "session", None)
    if session is not None:
        session.copy_threshold = sys.maxsize


def wide(kind, description: str, label: int = 7, field: int = 14, **options):
    """A control with so much room for its label, and for what is right of it, in em."""
    layout, style = {"width": f"{label + field}em"}, {"description_width": f"{label}em"}
    control = kind(description=description, style=style, layout=layout, **options)
    control.tooltip = description  # without one ipywidgets 8 shows "null" over the label
    return control


def side_by_side(columns) -> ipywidgets.HBox:
    """Columns of controls, which stand under one another where the page is narrow."""
    return ipywidgets.HBox([ipywidgets.VBox(column) for column in columns], layout=WRAP)


KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def set_control(name: str, control, value) -> None:
    """Give a control its first value; a ValueError that names it when it takes no such value."""
    before, options = control.value, getattr(control, "_options_values", (value,))
    try:
        # A slider moves what is out of bounds to its nearest end, a field of whole numbers cuts fractions off.
        control.value = before if control.disabled else value
        taken = value in options and control.value == value and isinstance(value, bool) == isinstance(before, bool)
    except TraitError:
        taken = False
    if not taken:
        allowed = KINDS.get(type(before), "a value of another type")
        if control.disabled:
            allowed = repr(before)
        elif hasattr(control, "max"):
            allowed = f"from {control.min} to {control.max}"
        raise ValueError(f"{name} must be {getattr(control, '_options_values', allowed)}, got {value!r}")


def message_line(text: str, error: bool = False) -> str:
    """A line of text that screen readers announce: as an alert, in red, where it tells an error.

    Example:
        >>> message_line("a < b")
        '<div role="status" style="color: inherit; line-height: 1.5">a &lt; b</div>'
    """
    role, colour = ("alert", "#B00020") if error else ("status", "inherit")
    if len(text) > LONGEST_MESSAGE:  # it repeats what somebody has pasted into a field
        text = f"{text[: LONGEST_MESSAGE // 2]} ... {text[-LONGEST_MESSAGE // 2 :]}"
    return f'<div role="{role}" style="color: {colour}; line-height: 1.5">{html.escape(text)}</div>'


def digits(value: float) -> str:
    """A number with four digits, or with all of those before the point.

    Example:
        >>> digits(0.123456), digits(9999.6), digits(153128.0)
        ('0.1235', '10,000', '153,128')
    """
    return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:.4g}"


def save_link(text: str, file: str, data: bytes, kind: str) -> str:
    """A link that saves data, of a MIME type, under a file's name.

    Example:
        >>> save_link("CSV", "rows.csv", b"a", "text/csv")
        '<a download="rows.csv" style="text-decoration: underline" href="data:text/csv;base64,YQ==">CSV</a>'
    """
    look, address = "text-decoration: underline", f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return f'<a download="{file}" style="{look}" href="{address}">{html.escape(text)}</a>'
