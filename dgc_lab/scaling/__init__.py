"""When compression pays: a model of a step's time, fitted to measured steps, and many simulated workers. Lesson 6."""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "network": "GBIT Link",
        "cost_model": "break_even_bandwidth",
        "named_shapes": "SHAPES resnet_50",
        "widget": "ScaleExplorer",
        "figures": "age_histograms bandwidth_label errors_by_workers lines_and_marks",
    },
)
