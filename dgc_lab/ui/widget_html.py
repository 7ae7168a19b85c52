"""What all widgets of the lab have in common on the page: the line that speaks, a table's frame, controls' tooltips."""

from __future__ import annotations

import html


def message_line(text: str, error: bool = False) -> str:
    """A line of text that screen readers announce: as an alert, in red, where it tells an error.

    Example:
        >>> message_line("a < b")
        '<div role="status" style="color: inherit; line-height: 1.5">a &lt; b</div>'
    """
    role, colour = ("alert", "#B00020") if error else ("status", "inherit")
    return f'<div role="{role}" style="color: {colour}; line-height: 1.5">{html.escape(text)}</div>'


def with_tooltips(controls) -> None:
    """Give every control its label as a tooltip too; without one ipywidgets 8 shows "null" over the label."""
    for control in controls:
        control.tooltip = control.description


def framed(table: str) -> str:
    """A table's HTML with the looks of JupyterLab's and of the classic notebook's own tables."""
    return f'<div class="jp-RenderedHTMLCommon rendered_html">{table}</div>'
