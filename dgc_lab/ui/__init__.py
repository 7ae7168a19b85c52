"""What the widgets and figures of all lessons share."""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "prediction": "Prediction",
    },
)
