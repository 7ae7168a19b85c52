"""Sweeps over ratios: one training run and one row per ratio; finished rows are saved in a file. Lessons 4 and 5.

The file contains one JSON object per line. Every row records its whole configuration, so a sweep finds its own rows
and resumes where it stopped. It never uses a row of another configuration. A custom scheme is known by its name alone.
"""

from __future__ import annotations

import functools
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from dgc_lab.cluster.processes import defer_sigint
from dgc_lab.common import at_file, check_file, check_folder, check_list, check_number, check_some, check_text
from dgc_lab.training.events import Evaluation, RowEnded, RowFailed, RowStarted, Step, TrainingDiverged
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Dataset

if TYPE_CHECKING:
    from dgc_lab.training.distributed_trainer import DistributedTrainer, TrainerOnRanks
    from dgc_lab.training.masking_trainer import MaskingConfig, Trainer

COLUMNS = ("ratio", "accuracy", "loss", "share sent", "seconds")
# Values of settings that older rows do not record.
LEGACY_VALUES = {"scheme": "dgc", "schedule": "constant", "network": "default"}
ROW_START = '{"ratio": '
NO_SETTINGS = (*COLUMNS, "started", "device", "tensorflow", "model", "data", "bytes per step", "evaluations")


def configuration(settings: MaskingConfig, data: Dataset) -> dict:
    """Return the fields that the rows of a table share: all settings, the model, and a fingerprint of the data."""
    return {**settings.to_dict(), "model": settings.model, "data": data.fingerprint()}


def sweep(
    settings: MaskingConfig,
    ratios: Sequence[float],
    out: str | os.PathLike | None = None,
    data: Dataset | None = None,
    trainer: Trainer | DistributedTrainer | TrainerOnRanks | None = None,
) -> Iterator:
    """Train once per ratio and yield events: `RowStarted`, the trainer's events, then `RowEnded` or `RowFailed`.

    The call itself checks the arguments, loads the data, and opens the file for writing; training starts with the first
    event.

    Args:
        settings: all settings except the ratio (`dgc_lab.training.MaskingConfig`).
        ratios: distinct shares of the gradient to keep, each in [0, 1]; at least one.
        out: file for finished rows. Ratios with a row of this configuration in it are not trained again.
        data: the data set, if it is loaded already.
        trainer: a trainer with the same settings, to avoid another trace; its data set is used.

    Raises:
        ValueError: ratios is empty, contains a ratio twice, one outside [0, 1], or one other than 1 with rule "off";
            the trainer has other settings, workers in other processes, or custom masks although ``out`` is given;
            ``out`` cannot be written.
        DataError: the data set cannot be loaded.

    Example:
        >>> from dgc_lab.training import MaskingConfig
        >>> events = sweep(MaskingConfig(steps=5), [1, 0.1])
        >>> [event.row["ratio"] for event in events if isinstance(event, RowEnded)]
        [1.0, 0.1]
    """
    from dgc_lab.training.masking_trainer import Trainer, check_one_worker

    ratios = checked_ratios(ratios)
    if trainer and trainer.settings != settings:
        raise ValueError(f"trainer must have the settings of the sweep, {settings}, got {trainer.settings}")
    if getattr(trainer, "has_masks", False) and out is not None:
        raise ValueError("out must be None for a trainer with custom masks, which rows do not record")
    communicator = getattr(trainer, "communicator", None)
    if communicator and communicator.local < communicator.size:
        raise ValueError("trainer must train all workers in this process: use TrainerOnRanks for Horovod ranks")
    if not trainer:
        check_one_worker(settings)
    data = trainer.data if trainer else data or load(settings.dataset)
    trainer_of = functools.cache(lambda settings: trainer or Trainer(settings, data))
    return train_each([(settings, ratio) for ratio in ratios], trainer_of, data, out)


def train_each(
    runs: list[tuple[MaskingConfig, float]],
    trainer_of: Callable,
    data: Dataset,
    out: str | os.PathLike | None = None,
) -> Iterator:
    """Yield the events of `sweep` for runs that differ in more than the ratio.

    The call itself checks the arguments, and opens and reads the file.

    Args:
        runs: distinct pairs of settings and ratio.
        trainer_of: function of the settings that returns a trainer; called for each run without a row.
        out: file for finished rows; runs with a row in it are not trained again.

    Raises:
        ValueError: there are no runs, two runs are equal, a run's settings do not allow its ratio, or ``out`` cannot
            be written.
    """
    same = [{**configuration(settings, data), "ratio": ratio} for settings, ratio in check_some("runs", runs)]
    for (settings, ratio), own in zip(runs, same, strict=True):
        settings.check_ratios([ratio])
        if same.count(own) > 1:
            raise ValueError(f"runs must differ from each other, got {settings} at ratio {ratio} more than once")
    if out is not None:
        if any(own.get("scheme") == "" for own in same):
            raise ValueError("out must be None for a scheme without a name: name it, as in Scheme(step, name='mine')")
        check_writable("out", out)
    stored = [] if out is None else read_rows(out, {})
    finished = [next((row for row in stored if row_matches(row, own)), None) for own in same]
    return _train_each(runs, same, finished, trainer_of, out)


def _train_each(runs, same, finished, trainer_of, out):
    for number, ((settings, ratio), own, row) in enumerate(zip(runs, same, finished, strict=True)):
        yield RowStarted(number, ratio)
        if row is not None:
            yield RowEnded(number, row, from_file=True)
            continue
        try:
            row = yield from _train_row(trainer_of(settings), ratio)
        except TrainingDiverged as error:
            yield RowFailed(number, ratio, str(error))
            continue
        row = {**row, **own}
        try:
            with defer_sigint():
                if out is not None:
                    append_row(out, row)
        finally:  # report the row before a delayed interrupt, and even if writing failed
            yield RowEnded(number, row, from_file=False)


def _train_row(trainer, ratio: float) -> Iterator[Step | Evaluation]:
    """Train at one ratio, yield the trainer's events, and return the row."""
    import tensorflow as tf

    share_sent, seconds, sent, start = 0.0, 0.0, 0, time.time()
    for event in trainer.run(ratio):
        if isinstance(event, Evaluation):
            accuracy, loss = event.accuracy, event.loss
        else:
            share_sent += event.share_sent
            seconds = event.seconds
            sent += event.bytes_sent or 0
        yield event
    return {
        "ratio": ratio,
        "accuracy": round(accuracy, 6),
        "loss": round(loss, 6),
        "share sent": share_sent / trainer.settings.steps,
        "seconds": round(seconds, 3),
        **({"bytes per step": sent / trainer.settings.steps} if sent else {}),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(start)),
        "device": "GPU" if tf.config.list_physical_devices("GPU") else "CPU",
        "tensorflow": tf.__version__,
    }


def checked_ratios(ratios) -> list[float]:
    """Return the ratios as floats, in their order.

    Raises ValueError if the list is empty, a ratio appears twice, or one is not in [0, 1].
    """
    ratios = check_some("ratios", check_list("ratios", ratios))
    ratios = [float(check_number("ratios", ratio, "in [0, 1]")) for ratio in ratios]
    for ratio in ratios:
        if ratios.count(ratio) > 1:
            raise ValueError(f"ratios must differ from each other, got {ratio!r} more than once")
    return ratios


def parse_ratios(text: str) -> list[float]:
    """Parse ratios from text: shares such as 0.01 or percentages such as ``1%``, separated by commas or spaces.

    Raises:
        ValueError: a word of the text is not a number, or has a leading zero, as after a decimal comma (0,01); or
            `checked_ratios` rejects the list.

    Example:
        >>> parse_ratios("1, 0.1, 1%")
        [1.0, 0.1, 0.01]
    """
    ratios = []
    for word in check_text("text", text).replace(",", " ").replace(";", " ").split():
        if re.fullmatch(r"0\d+%?", word):  # the digits after a decimal comma, as in 0,01
            raise ValueError(f"ratios must have decimal points, not commas, as in 0.01, got {text!r}")
        try:
            # Shift the decimal digits instead of dividing the float: 0.1 % then equals 0.001 exactly.
            ratios.append(float(f"{word[:-1]}e-2") if word.endswith("%") else float(word))
        except ValueError:
            raise ValueError(f"ratios must be numbers such as 0.01 or 1%, got {word!r}") from None
    return checked_ratios(ratios)


def read_rows(file: str | os.PathLike, same: dict) -> list[dict]:
    """Return the rows of a file that agree with ``same`` in every field; none if the file does not exist.

    An incomplete last line, left by a crash, is ignored.

    Raises:
        ValueError: any other line is not a row; the message names file and line.
        LabError: the file cannot be read.

    Example:
        >>> read_rows("not_there_yet.jsonl", {"steps": 300})
        []
    """
    if not (file := check_file("file", file)).exists():
        return []
    with at_file(file, "read"):
        lines, rows = file.read_text(encoding="utf-8", errors="replace").split("\n"), []
    for number, line in enumerate(lines, start=1):
        rows.append(parse_row(line))
        cut_short = number == len(lines) and (line.startswith(ROW_START) or ROW_START.startswith(line))
        if rows[-1] is None and line.strip() and not cut_short:
            problem = f"line {number} of {file} is not a row of a sweep: {line[:80]!r}"
            raise ValueError(f"{problem}. Use another file; or, if it is a damaged row, remove it to resume the sweep")
    return [row for row in rows if row and row_matches(row, same)]


def row_matches(row: dict, same: dict) -> bool:
    """Return whether a row agrees with ``same`` in every field; older rows lack the fields in `LEGACY_VALUES`."""
    return all(row.get(name, LEGACY_VALUES.get(name)) == value for name, value in same.items())


def parse_row(line: str) -> dict | None:
    """Return the row in a line of the file, or None if the line is not a complete row."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and "ratio" in row else None


def check_writable(argument: str, given: str | os.PathLike, is_folder: bool = False) -> Path:
    """Create a file or folder if it does not exist, and return its path; raise a ValueError if it cannot be written."""
    path = check_folder(argument, given) if is_folder else check_file(argument, given)
    folder = path if is_folder else path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not is_folder:
            path.open("ab").close()
        if is_folder or os.access(folder, os.W_OK):  # a file may be writable in a folder that is not
            with tempfile.TemporaryFile(dir=folder) as probe:
                probe.write(bytes(4096))  # a full disk still takes empty files
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"{argument} must be writable, got {str(path)!r} ({reason}): choose another") from None
    return path


def append_row(file: str | os.PathLike, row: dict) -> None:
    """Append a row to the file and wait until it is on disk; remove an incomplete last line first."""
    with at_file(file), open(file, "a+b") as out:
        out.seek(0)
        before = out.read()
        last = before[before.rfind(b"\n") + 1 :]
        if last and parse_row(last.decode(errors="replace")) is None:
            out.truncate(len(before) - len(last))
            last = b""
        out.write((b"\n" if last else b"") + json.dumps(row).encode() + b"\n")
        out.flush()
        os.fsync(out.fileno())


def table(rows: list[dict]) -> pd.DataFrame:
    """Return the rows as a table: ratio, accuracy, loss, share sent, seconds and bytes sent.

    The largest ratio comes first. Settings in which the rows differ are the leftmost columns.

    Example:
        >>> table([{"ratio": ratio, "accuracy": 0.9, "steps": 300} for ratio in (0.1, 1)])["ratio"].tolist()
        [1.0, 0.1]
    """
    rows = [{**LEGACY_VALUES, **row} for row in rows]
    names = dict.fromkeys(name for row in rows for name in row)
    differing = [name for name in names if name not in NO_SETTINGS and len({row.get(name) for row in rows}) > 1]
    counted = ["bytes per step"] if any("bytes per step" in row for row in rows) else []
    frame = pd.DataFrame(rows, columns=[*differing, *COLUMNS, *counted])
    # A stable sort by ratio alone keeps runs of the same ratio next to each other, in their order.
    return frame.sort_values("ratio", ascending=False, kind="stable", ignore_index=True)
