"""What a round of the soak does in its kernel (`soak`): each function uses a part of the lab, and leaves nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from IPython.display import display

LONGEST = 900  # seconds of one thing in a round


def sweeps() -> None:
    """Two rows of lesson 4, to a file, which is then removed.

    In a thread, as widgets do: TensorFlow never lets go of the code that stood on the stack when it traced a function,
    and a cell's code is new each time that it is run (half a megabyte for each).
    """
    from dgc_lab.training import MaskingConfig, RowEnded, sweep

    file = Path("rows.jsonl")
    with ThreadPoolExecutor(1) as thread:
        events = thread.submit(lambda: list(sweep(MaskingConfig(steps=60), [1, 0.01], out=file))).result()
    assert len([event for event in events if isinstance(event, RowEnded)]) == 2
    file.unlink()


def ranks() -> None:
    """Two Horovod ranks start, train and end."""
    from dgc_lab.cluster import HorovodRanks
    from dgc_lab.training import DistributedConfig, TrainerOnRanks

    with HorovodRanks(2, progress=None) as two:
        events = list(TrainerOnRanks(DistributedConfig(steps=40), two).run(0.01))
    assert events[-1].step == 40


def servers() -> None:
    """Parameter servers start, train and end, by the widget of lesson 3."""
    from dgc_lab.parameter_server import StragglerLab

    used(StragglerLab(mode="asynchronous", gradients=24, batch=16))


def widgets() -> None:
    """Every other kind of widget is opened, used and closed."""
    from dgc_lab.aggregation import AggregationExplorer
    from dgc_lab.comparison import SchemeLab
    from dgc_lab.replicas import ReplicaExplorer
    from dgc_lab.scaling import ScaleExplorer
    from dgc_lab.scaling.timing import StepTimes
    from dgc_lab.training import CompressionSweep, DistributedSweep
    from dgc_lab.ui import Prediction

    for explorer, name, value in (
        (AggregationExplorer(addends=64), "dtype", "float16"),
        (ReplicaExplorer(), "replicas", 2),
        (ScaleExplorer(StepTimes(0.05, 0.01, 1e-8)), "workers", 64),
    ):
        display(explorer)
        explorer.controls[name].value = value
        assert explorer.wait(LONGEST)
        assert explorer.frame is not None, explorer.message.value
        explorer.close()
    used(CompressionSweep(steps=30))
    used(SchemeLab(schemes="ef_sign", steps=30))
    used(DistributedSweep(steps=30))
    guess = Prediction("How many?", of=("one",))
    display(guess)
    guess.keep()
    guess.close()


def used(lab) -> None:
    """A widget that trains is shown, Run is pressed, and it is closed when it has its row."""
    display(lab)
    lab.start()
    assert lab.wait(LONGEST)
    assert len(lab.rows) == 1, lab.message.value
    lab.save()
    lab.close()
