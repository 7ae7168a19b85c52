"""Tables of a study's rows: the runs that are compared, and the search for the learning rates. Lessons 4 to 9."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dgc_lab.common import check_file, check_instance
from dgc_lab.comparison.study import SEARCH_SEEDS, Study, compared_runs, simulated, study_events
from dgc_lab.training.events import RowEnded
from dgc_lab.training.sweeps import row_matches

if TYPE_CHECKING:
    import pandas as pd

    from dgc_lab.workloads.dataset import Dataset

COLUMNS = ["learning rate", "accuracy", "min", "max", "seeds", "kB per step"]
VARIED = ("learning_rate", "seed")  # the settings in which runs of a method differ


def run_study(study: Study, data: Dataset | None = None, out: str | os.PathLike | None = None) -> pd.DataFrame:
    """Run a study on simulated workers and return its table, like `stored_study`.

    Args:
        study: the methods to compare, on simulated workers.
        data: the data set, if it is loaded already.
        out: file for finished rows; runs with a row in it are not trained again.

    Raises:
        ValueError: an argument is not allowed, or ``out`` is given and a method has a scheme without a name.

    Example:
        >>> study = Study({"dense": {}, "DGC": {"ratio": 0.1}}, {"steps": 2}, rates=(0.1,), seeds=(0,))
        >>> run_study(study).index.tolist()
        ['dense', 'DGC']
    """
    from dgc_lab.workloads.data import load
    from dgc_lab.workloads.dataset import Dataset

    if check_instance("study", study, Study).on_ranks:
        raise ValueError("study must run on simulated workers, got one on ranks: use python tools/make_table.py")
    if out is not None:
        check_file("out", out)
    if data is None:
        data = load(study.run(next(iter(study.methods)), study.rates[0], study.seeds[0])[0].dataset)
    check_instance("data", data, Dataset)
    events = study_events(study, simulated(data), data, out)
    return study_table(study, [event.row for event in events if isinstance(event, RowEnded)])


def rows_by_method(study: Study, rows: list[dict]) -> dict[str, list[dict]]:
    """Return the rows of the compared runs of each method: those at its best rate, with the study's seeds.

    ``rows`` may include rows of other studies. Methods without rows are omitted.
    """
    found = {}
    for method in study.methods:
        own, rates = rows_of(study, method, rows), study.rates_to_try(method)
        wanted = compared_runs(study, method, [row for row in own if row["learning_rate"] in rates])
        if compared := [row for row in own if (row["learning_rate"], row["seed"]) in wanted]:
            found[method] = compared
    return found


def rows_of(study: Study, method: str, rows: list[dict]) -> list[dict]:
    """Return the rows of a method, with any learning rate and seed."""
    settings, ratio = study.run(method, study.rates[0], study.seeds[0])
    same = {**settings.to_dict(), "ratio": ratio}
    return [row for row in rows if row_matches(row, {k: v for k, v in same.items() if k not in VARIED})]


def search_table(study: Study, rows: list[dict]) -> pd.DataFrame:
    """Return the test accuracy of the search: a row for each method, a column for each rate, NaN if it diverged.

    These are the runs with the first search seed.

    Example:
        >>> study = Study({"dense": {}}, {"steps": 100}, rates=(0.1, 0.2), seeds=(0, 1))
        >>> search_table(study, []).shape
        (1, 2)
    """
    import pandas as pd

    table = pd.DataFrame(index=list(study.methods), columns=sorted(study.rates), dtype=float)
    for method in study.methods:
        for row in rows_of(study, method, rows):
            if row["seed"] == SEARCH_SEEDS[0] and row["learning_rate"] in study.rates:
                table.loc[method, row["learning_rate"]] = row["accuracy"]
    return table


def study_table(study: Study, rows: list[dict]) -> pd.DataFrame:
    """Return a row for each method, most bytes first: its rate, accuracy over the seeds, and kB per step.

    ``rows`` may include rows of other studies.

    Columns: ``learning rate``; ``accuracy``, the mean over the seeds, with their ``min`` and ``max``; ``seeds``, their
    number; and ``kB per step``, a worker's payload averaged over the whole run, including the warm-up.

    Example:
        >>> study = Study({"dense": {}}, {"steps": 100}, rates=(0.1,), seeds=(0, 1))
        >>> study_table(study, []).empty
        True
    """
    import pandas as pd

    table = {}
    for method, own in rows_by_method(study, rows).items():
        accuracies = [row["accuracy"] for row in own]
        table[method] = {
            "learning rate": own[0]["learning_rate"],
            "accuracy": sum(accuracies) / len(own),
            "min": min(accuracies),
            "max": max(accuracies),
            "seeds": len(own),
            "kB per step": sum(row["bytes per step"] for row in own) / len(own) / 1000,
        }
    frame = pd.DataFrame.from_dict(table, orient="index", columns=COLUMNS)
    return frame.sort_values("kB per step", ascending=False, kind="stable")
