"""Compression schemes side by side: their table at the learning rate of each, and the widget that makes such a table.

Lesson 8. The schemes themselves are in `dgc_lab.schemes`.
"""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "table": "scheme_rows scheme_table",
        "widget": "SchemeLab",
    },
)
