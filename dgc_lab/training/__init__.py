"""The training loops of lessons 4, 5 and 7, sweeps over ratios, and the widgets that show them live.

A loop is a generator of what happens in it and knows neither widget nor file.
"""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "masking_trainer": "Evaluation MaskingConfig Step Trainer TrainingDiverged",
        "distributed_trainer": "DistributedConfig DistributedStep DistributedTrainer TrainerOnRanks",
        "model_trainer": "ModelTrainer make_evaluator",
        "sweeps": "RowEnded RowFailed RowStarted parse_ratios read_rows sweep table",
        "masking_widget": "CompressionSweep CompressionTaste",
        "distributed_widget": "DistributedSweep",
        "published_tables": "PUBLISHED_STEPS SINGLE_NODE TWO_NODE single_node_rows two_node_rows",
    },
)
