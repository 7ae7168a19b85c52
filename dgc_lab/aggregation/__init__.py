"""Ways to add up the contributions to one gradient: TensorFlow's, by hand, and over a network. Lesson 1."""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "summation": "METHODS ORDERS SIGNS make_addends pairwise_sum",
        "rounding_error": "measure",
        "widget": "AggregationExplorer",
    },
)
