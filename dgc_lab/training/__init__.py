"""The training loops of lessons 4, 5 and 7, sweeps over ratios, and the widgets that show them live.

A loop is a generator of what happens in it and knows neither widget nor file.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "events": "DistributedStep Evaluation RowEnded RowFailed RowStarted Step TrainingDiverged",
        "masking_trainer": "MaskingConfig Trainer",
        "distributed_trainer": "DistributedConfig DistributedTrainer TrainerOnRanks",
        "model_trainer": "ModelTrainer batches_of dense",
        "sweeps": "parse_ratios read_rows sweep table",
        "rates_by_workers": "accuracy_by_rate updates",
        "run_comparison": "comparison run_with_progress spread steps_of",
        "figures": "accuracy_by_ratio gradient_histograms loss_and_accuracy masked_vector timelines",
        "masking_widget": "CompressionSweep CompressionTaste",
        "distributed_widget": "DistributedSweep",
        "published_tables": "PUBLISHED_STEPS SINGLE_NODE TWO_NODE single_node_rows two_node_rows",
    },
)
