"""Compression schemes side by side: a table at the learning rate of each, errors, cost, and a widget that trains them.

Lesson 8. The schemes themselves are in `dgc_lab.compression`.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "cost": "exchange_table message",
        "errors": "error_table",
        "figures": "bias_and_variance bytes_and_accuracy",
        "table": "scheme_rows scheme_table",
        "widget": "SchemeLab",
    },
)
