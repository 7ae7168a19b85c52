"""When compression pays: a model of a step's time, fitted to measured steps, and many simulated workers. Lesson 6.

`cost_model` says how long a step takes on a `network`; `timing` measures what a worker needs for it here, `calibration`
finds a link's figures from the steps in `tables`. `worker_sweep` trains 1 to 32 workers on the same examples, and
`residual_staleness` looks how old what they send has become.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "calibration": "Measured fit",
        "cost_model": "Estimate Workload break_even_bandwidth gain step",
        "figures": "age_histograms bandwidth_label errors_by_workers lines_and_marks",
        "named_shapes": "SHAPES resnet_50",
        "network": "COLLECTIVES GBIT Link",
        "residual_staleness": "sent_ages waiting_ages with_ages",
        "tables": "break_even_table errors_over_links fit_links gains_by_bandwidth link_rows measured_links "
        "steps_over_links times_over_links",
        "timing": "StepTimes measured selection_times times_of workload",
        "widget": "ScaleExplorer",
        "worker_sweep": "Run clipping_of table table_runs train_runs watched_trainer worker_rows",
    },
)
