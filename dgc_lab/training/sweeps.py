"""A sweep over ratios: one training run and one row per ratio, kept in a file as each row ends. Lessons 4 and 5.

The file holds one JSON object per line. Every row carries its whole configuration, so a sweep finds its own rows in
it, goes on where it stopped, and never takes over a row that another configuration made.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from dgc_lab.cluster.processes import interrupt_held_back
from dgc_lab.common import at_file, check_file, check_number, check_some, check_text
from dgc_lab.training.events import Evaluation, RowEnded, RowFailed, RowStarted, Step, TrainingDiverged
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Dataset

if TYPE_CHECKING:
    from dgc_lab.training.distributed_trainer import DistributedTrainer, TrainerOnRanks
    from dgc_lab.training.masking_trainer import MaskingConfig, Trainer

COLUMNS = ("ratio", "accuracy", "loss", "kept", "seconds")
BEFORE = {"scheme": "dgc"}  # what rows have that do not say so
ROW_START = '{"ratio": '
NO_SETTINGS = (*COLUMNS, "started", "device", "tensorflow", "model", "data", "bytes a step", "evaluations")


def configuration(settings: MaskingConfig, data: Dataset) -> dict:
    """What two rows must have in common to stand in one table: all settings, the model and the very examples."""
    return {**settings.facts(), "model": settings.model, "data": data.fingerprint()}


def sweep(
    settings: MaskingConfig,
    ratios: Sequence[float],
    out: str | os.PathLike | None = None,
    data: Dataset | None = None,
    trainer: Trainer | DistributedTrainer | TrainerOnRanks | None = None,
) -> Iterator:
    """Train once per ratio and yield what happens: `RowStarted`, the trainer's events, `RowEnded` or `RowFailed`.

    The arguments are checked, the data loaded and the file read at the call, before the first event is asked for.

    Args:
        settings: everything but the ratio (`dgc_lab.training.MaskingConfig`).
        ratios: shares of the gradient to keep, each in [0, 1]; at least one, none twice.
        out: file for the finished rows; rows that this configuration has there already are not made again.
        data: the data set, when it is loaded already.
        trainer: one made with these settings before, to spare its second trace; comes with its data.

    Raises:
        ValueError: ratios is empty, names a ratio twice or one outside [0, 1], or one other than 1 with rule "off";
            the trainer was made with other settings, or chooses by masks of its own while rows go to a file.
        DataError: the data set could not be had.

    Example:
        >>> from dgc_lab.training import MaskingConfig
        >>> events = sweep(MaskingConfig(steps=5), [1, 0.1])
        >>> [event.row["ratio"] for event in events if isinstance(event, RowEnded)]
        [1.0, 0.1]
    """
    from dgc_lab.training.masking_trainer import Trainer, check_alone

    ratios = checked_ratios(ratios)
    if trainer and trainer.settings != settings:
        raise ValueError(f"trainer must have been made with these settings, {settings}; its own are {trainer.settings}")
    if getattr(trainer, "has_masks", False) and out is not None:
        raise ValueError("out must be None for a trainer with masks of its own: a row would not say what they were")
    if not trainer:
        check_alone(settings)
    data = trainer.data if trainer else data or load(settings.dataset)
    trainer_of = functools.cache(lambda settings: trainer or Trainer(settings, data))
    return train_each([(settings, ratio) for ratio in ratios], trainer_of, data, out)


def train_each(
    runs: list[tuple[MaskingConfig, float]],
    trainer_of: Callable,
    data: Dataset,
    out: str | os.PathLike | None = None,
    more: Callable = lambda trainer: {},
) -> Iterator:
    """The events of `sweep` for runs that differ in more than the ratio; at the call all is checked, and the file read.

    Args:
        runs: settings and ratio of each, none twice.
        trainer_of: function of the settings to a trainer for them, asked where a row is not there yet.
        out: file for the finished rows, which are looked for in it.
        more: function of the trainer, after a run, to what else its row says.

    Raises:
        ValueError: there are no runs, one is there twice, or a ratio that its settings do not allow.
    """
    same = [{**configuration(settings, data), "ratio": ratio} for settings, ratio in check_some("runs", runs)]
    for (settings, ratio), own in zip(runs, same, strict=True):
        settings.check_ratios([ratio])
        if same.count(own) > 1:
            raise ValueError(f"runs must differ from each other, got {settings} at ratio {ratio} more than once")
    if out is not None:
        if any(own.get("scheme") == "" for own in same):
            raise ValueError("out must be None for a scheme without a name: name it, as in Scheme(step, name='mine')")
        check_file("out", out).parent.mkdir(parents=True, exist_ok=True)
    finished = [read_rows(out, own)[:1] if out is not None else [] for own in same]
    return _train_each(runs, same, finished, trainer_of, out, more)


def _train_each(runs, same, finished, trainer_of, out, more):
    for number, ((settings, ratio), own, there) in enumerate(zip(runs, same, finished, strict=True)):
        yield RowStarted(number, ratio)
        if there:
            yield RowEnded(number, there[0], from_file=True)
            continue
        trainer = trainer_of(settings)
        try:
            row = yield from _train_row(trainer, ratio)
        except TrainingDiverged as error:
            yield RowFailed(number, ratio, str(error))
            continue
        row = {**row, **own, **more(trainer)}
        try:
            with interrupt_held_back():
                if out is not None:
                    append_row(out, row)
        finally:  # told before an interrupt that waited, and where it cannot be written
            yield RowEnded(number, row, from_file=False)


def _train_row(trainer, ratio: float) -> Iterator[Step | Evaluation]:
    """Train at one ratio, pass its events on, and return the row."""
    import tensorflow as tf

    kept, seconds, sent, start = 0.0, 0.0, 0, time.time()
    for event in trainer.run(ratio):
        if isinstance(event, Evaluation):
            accuracy, loss = event.accuracy, event.loss
        else:
            kept += event.kept_overall
            seconds = event.seconds
            sent += event.bytes_sent or 0
        yield event
    return {
        "ratio": ratio,
        "accuracy": round(accuracy, 6),
        "loss": round(loss, 6),
        "kept": kept / trainer.settings.steps,
        "seconds": round(seconds, 3),
        **({"bytes a step": sent / trainer.settings.steps} if sent else {}),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)),
        "device": "GPU" if tf.config.list_physical_devices("GPU") else "CPU",
        "tensorflow": tf.__version__,
    }


def checked_ratios(ratios) -> list[float]:
    """The ratios as floats, in the order given; a ValueError for an empty list, a repeated or an impossible one."""
    try:
        if any(isinstance(ratio, bool) for ratio in ratios):
            raise TypeError
        ratios = [float(ratio) for ratio in ratios]
    except (TypeError, ValueError):
        raise ValueError(f"ratios must be numbers in [0, 1], got {ratios!r}") from None
    if not ratios:
        raise ValueError("ratios must hold at least one number in [0, 1], got none")
    for ratio in ratios:
        check_number("ratios", ratio, "in [0, 1]")
        if ratios.count(ratio) > 1:
            raise ValueError(f"ratios must differ from each other, got {ratio!r} more than once")
    return ratios


def parse_ratios(text: str) -> list[float]:
    """Ratios from text: numbers between commas or spaces, each a share such as 0.01 or a percentage such as ``1%``.

    Raises:
        ValueError: something in it is no number, or the list fails `checked_ratios`.

    Example:
        >>> parse_ratios("1, 0.1, 1%")
        [1.0, 0.1, 0.01]
    """
    ratios = []
    for word in check_text("text", text).replace(",", " ").replace(";", " ").split():
        try:
            # Divide the decimal digits, not the float: 0.1 % is then the same number as 0.001.
            ratios.append(float(f"{word[:-1]}e-2") if word.endswith("%") else float(word))
        except ValueError:
            raise ValueError(f"ratios must be numbers such as 0.01 or 1%, got {word!r}") from None
    return checked_ratios(ratios)


def read_rows(file: str | os.PathLike, same: dict) -> list[dict]:
    """Rows of a file that agree with ``same`` in every field; of a file that is not there, none.

    A last line that a crash cut short is left out, since its row was not finished.

    Raises:
        ValueError: another line is not a row; the message names file and line. LabError: it cannot be read.

    Example:
        >>> read_rows("not_there_yet.jsonl", {"steps": 300})
        []
    """
    if not (file := check_file("file", file)).exists():
        return []
    with at_file(file, "read"):
        lines, rows = file.read_text(encoding="utf-8", errors="replace").split("\n"), []
    for number, line in enumerate(lines, start=1):
        rows.append(parsed_row(line))
        cut_short = number == len(lines) and (line.startswith(ROW_START) or ROW_START.startswith(line))
        if rows[-1] is None and line.strip() and not cut_short:
            told = f"line {number} of {file} is not a row of a sweep: {line[:80]!r}"
            raise ValueError(f"{told}. Name another file; or, where it was a row, remove it, and the sweep goes on")
    return [row for row in rows if row and is_of(row, same)]


def is_of(row: dict, same: dict) -> bool:
    """Whether a row agrees in every field; in those that it is older than, it has what was done then."""
    return all(row.get(name, BEFORE.get(name)) == value for name, value in same.items())


def parsed_row(line: str) -> dict | None:
    """The row in a line of the file; None where the line holds no whole row."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "ratio" in row else None


def append_row(file: str | os.PathLike, row: dict) -> None:
    """Add a row to the file and wait until it is on disk; a half line left by a crash is cut off first."""
    with at_file(file), open(file, "a+b") as out:
        out.seek(0)
        before = out.read()
        last = before[before.rfind(b"\n") + 1 :]
        if last and parsed_row(last.decode(errors="replace")) is None:
            out.truncate(len(before) - len(last))
            last = b""
        out.write((b"\n" if last else b"") + json.dumps(row).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())


def table(rows: list[dict]) -> pd.DataFrame:
    """The rows as a table: ratio, accuracy, loss, measured kept share, seconds and bytes sent; largest ratio first.

    Settings in which the rows differ come in front, so that no two lines look alike that were made differently.

    Example:
        >>> table([{"ratio": ratio, "accuracy": 0.9, "steps": 300} for ratio in (0.1, 1)])["ratio"].tolist()
        [1.0, 0.1]
    """
    rows = [{**BEFORE, **row} for row in rows]
    names = dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, list))
    differing = [name for name in names if name not in NO_SETTINGS and len({row.get(name) for row in rows}) > 1]
    counted = ["bytes a step"] if any("bytes a step" in row for row in rows) else []
    frame = pd.DataFrame(rows, columns=[*differing, *COLUMNS, *counted])
    # By ratio alone, in a stable order: runs to compare stand under each other.
    return frame.sort_values("ratio", ascending=False, kind="stable", ignore_index=True)
