"""Building blocks of all widgets of the lab: controls above a message, a picture and a table.

Works with ipywidgets 7.7 and 8.
"""

from __future__ import annotations

import base64
import contextlib
import html
import io
import sys
import threading

import ipywidgets
from IPython import get_ipython
from traitlets import TraitError

from dgc_lab.common import LabError
from dgc_lab.ui.charts import panels_tag

SHORTEST_REDRAW = 0.25  # seconds; four frames a second look smooth enough
LONGEST_MESSAGE = 800  # characters
WRAP = {"flex_flow": "row wrap"}
INLINE = "matplotlib_inline.backend_inline"  # module of pyplot's backend in notebooks, once pyplot is used there
EXPECTED_ERRORS = (ValueError, LabError, OSError)  # their messages are written for users


class Panel(ipywidgets.VBox):
    """Base class for widgets with controls above a message line, a picture and a table.

    Args:
        controls: the controls that ``settings`` may set, by name.
        rows: the widgets above the message line, including the controls.
        settings: initial values of controls, by name.

    Raises:
        ValueError: a setting is not the name of a control, or its value is not accepted.
    """

    _thread = None

    def __init__(self, controls: dict, rows: list, settings: dict):
        send_copies()
        show_figures_after_cells()
        self.controls = controls
        self.message, self.image, self.table = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        super().__init__([*rows, self.message, self.image, self.table])
        try:
            for name, value in settings.items():
                if name not in controls:
                    raise ValueError(f"settings must be among {', '.join(controls) or 'none at all'}, got {name!r}")
                set_control(name, controls[name], value)
        except ValueError:
            close_all(self)
            raise

    def close(self) -> None:
        """Wait until the work has ended, then close the widget and all its parts."""
        self.wait()
        close_all(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the work has ended; return False if that takes longer than ``timeout`` seconds."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def _values(self, without: tuple[str, ...] = ()) -> dict:
        return {name: control.value for name, control in self.controls.items() if name not in without}

    def _say(self, text: str, error: bool = False):
        self.message.value = message_line(text, error)

    def _describe(self, error: Exception) -> str:
        """Return an error's message, with its type unless the message is written for users."""
        return str(error) if isinstance(error, EXPECTED_ERRORS) else f"{type(error).__name__}: {error}"

    def _show_panels(self, panels: list[bytes], alt: str):
        """Show PNG files side by side, as the panels of one picture."""
        self.image.value = panels_tag(panels, alt)

    def _show_frame(self, frame, below: str = ""):
        """Show a table, with HTML below it."""
        self.table.value = table_html(frame) + below


def table_html(frame) -> str:
    """Return a table as HTML, in the style of JupyterLab and the classic notebook."""
    frame = frame.rename(columns=lambda name: str(name).replace("_", " "))
    table = frame.to_html(index=False, na_rep="", float_format=digits)
    return f'<div class="jp-RenderedHTMLCommon rendered_html">{table}</div>'


def close_all(widget: ipywidgets.Widget) -> None:
    """Close a widget and all its parts, because ipywidgets keeps open parts until the kernel ends."""
    if widget.comm is not None:  # the widget is open
        for part in parts_of(widget):
            ipywidgets.Widget.close(part)


def parts_of(widget, found=None) -> list:
    """Return a widget and its parts, each once: children, layouts, styles, and widgets that it holds but does not show.

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
    """Make the kernel, if there is one, copy every message that it sends.

    pyzmq sends large messages, such as most pictures, without a copy. When the kernel ends, it drops the rest of such a
    message, and JupyterLab reads the next message as that rest.
    """
    session = getattr(getattr(get_ipython(), "kernel", None), "session", None)
    if session is not None:
        session.copy_threshold = sys.maxsize


def show_figures_after_cells() -> None:
    """Make the kernel, if there is one, show a cell's pyplot figures when the cell ends, even if a widget is moved.

    JupyterLab sends the messages of widgets to another thread of the kernel, a subshell. After each message the kernel
    triggers IPython's ``post_execute``, as after a cell, and pyplot's inline backend then closes the figures of the
    cell that is still running, and sends them to no cell (https://github.com/ipython/ipykernel/issues/1564).
    ``post_run_cell`` follows cells only.
    """
    shell = get_ipython()
    if hasattr(shell, "kernel"):
        shell.events.register("pre_execute", move_figures_to_cells)


def move_figures_to_cells() -> None:
    """Before a message of a widget in a subshell, move pyplot's display of figures to the end of cells."""
    events, inline = get_ipython().events, sys.modules.get(INLINE)
    if inline and threading.current_thread() is not threading.main_thread():
        with contextlib.suppress(ValueError):  # moved already, or the user has chosen another backend
            events.unregister("post_execute", inline.flush_figures)
            events.register("post_run_cell", show_figures)


def show_figures(result) -> None:
    """Show the figures that a cell drew with pyplot."""
    sys.modules[INLINE].flush_figures()


def wide(kind, description: str, label: int = 7, field: int = 14, **options):
    """Return a control of class ``kind`` whose label is ``label`` em wide and whose field is ``field`` em wide."""
    layout = {"width": f"{label + field}em", "max_width": "100%"}  # of a narrow page
    style = {"description_width": f"{label}em"}
    control = kind(description=description, style=style, layout=layout, **options)
    control.tooltip = description  # without a tooltip, ipywidgets 8 shows "null" over the label
    return control


def side_by_side(columns) -> ipywidgets.HBox:
    """Arrange columns of controls side by side, or one below the other on a narrow page, without disabled controls."""
    usable = [[control for control in column if not control.disabled] for column in columns]
    return ipywidgets.HBox([ipywidgets.VBox(column) for column in usable], layout=WRAP)


AS_TYPED = "as typed"


def preset_menu(label: str, controls: dict, presets: dict[str, dict], field: int = 14) -> ipywidgets.Dropdown:
    """Return a menu that sets controls to a preset, and shows which preset they match, or "as typed".

    Args:
        label: label of the menu.
        controls: the controls that it sets, by name.
        presets: the value of every control, for each preset.
        field: width in em of the field, which shows a preset's name.
    """
    menu = wide(ipywidgets.Dropdown, label, field=field, options=[AS_TYPED, *presets])

    def set_controls(_):
        for name, value in presets.get(menu.value, {}).items():
            controls[name].value = value

    def show_preset(_=None):
        values = {name: control.value for name, control in controls.items()}
        menu.value = next((name for name, preset in presets.items() if preset == values), AS_TYPED)

    menu.observe(set_controls, "value")
    for control in controls.values():
        control.observe(show_preset, "value")
    show_preset()
    return menu


KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


def set_control(name: str, control, value) -> None:
    """Set a control's initial value; raise ValueError if the control does not accept it."""
    before, options = control.value, getattr(control, "_options_values", (value,))
    try:
        # Sliders clip values to their bounds, and an IntText truncates fractions.
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
    """Return a line of text that screen readers announce; an error is a red alert.

    Example:
        >>> message_line("a < b")
        '<div role="status" style="color: inherit; line-height: 1.5">a &lt; b</div>'
    """
    role, colour = ("alert", "#B00020") if error else ("status", "inherit")
    if len(text) > LONGEST_MESSAGE:  # a user pasted a long text into a field
        text = f"{text[: LONGEST_MESSAGE // 2]} ... {text[-LONGEST_MESSAGE // 2 :]}"
    return f'<div role="{role}" style="color: {colour}; line-height: 1.5">{html.escape(text)}</div>'


def digits(value: float) -> str:
    """Format a number with four digits, or with all digits before the decimal point.

    Example:
        >>> digits(0.123456), digits(9999.6), digits(153128.0)
        ('0.1235', '10,000', '153,128')
    """
    return f"{value:,.0f}" if abs(value) >= 9999.5 else f"{value:.4g}"


def button(name: str, icon: str, action, **looks) -> ipywidgets.Button:
    """Return a button that calls ``action`` when pressed."""
    made = ipywidgets.Button(description=name, icon=icon, layout={"width": "6.5em"}, **looks)
    made.on_click(lambda _: action())
    return made


def save_link(text: str, file: str, data: bytes, kind: str) -> str:
    """Return a link that saves ``data`` of MIME type ``kind`` as ``file``.

    Example:
        >>> save_link("CSV", "rows.csv", b"a", "text/csv")
        '<a download="rows.csv" style="text-decoration: underline" href="data:text/csv;base64,YQ==">CSV</a>'
    """
    look, address = "text-decoration: underline", f"data:{kind};base64,{base64.b64encode(data).decode()}"
    return f'<a download="{file}" style="{look}" href="{address}">{html.escape(text)}</a>'


def save_links(frame, figure) -> str:
    """Return links that save a table (None if it is empty) and a figure, and the table as text to copy."""
    text = "" if frame is None else frame.to_csv(index=False)
    links = [save_link("table as CSV", "table.csv", text.encode(), "text/csv")]
    for kind, mime in {"png": "image/png", "svg": "image/svg+xml"}.items():
        file = io.BytesIO()
        figure.savefig(file, format=kind, dpi=168)
        links.append(save_link(f"picture as {kind.upper()}", f"picture.{kind}", file.getvalue(), mime))
    to_copy = f"<details><summary>Table to copy</summary><pre>{html.escape(text)}</pre></details>"
    return f"<div>Save {', '.join(links)}.</div>{to_copy}"
