"""The HTML that all widgets of the lab have in common: the line that speaks to the user, and the frame of a table."""

from __future__ import annotations

import html


def message_line(text: str, error: bool = False) -> str:
    """A line of text that screen readers announce: as an alert, in red, where it tells an error.

    Example:
        >>> message_line("a < b")
        '<div role="status" style="color: inherit">a &lt; b</div>'
    """
    role, colour = ("alert", "#B00020") if error else ("status", "inherit")
    return f'<div role="{role}" style="color: {colour}">{html.escape(text)}</div>'


def framed(table: str) -> str:
    """A table's HTML with the looks of JupyterLab's and of the classic notebook's own tables."""
    return f'<div class="jp-RenderedHTMLCommon rendered_html">{table}</div>'
