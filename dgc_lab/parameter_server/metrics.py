"""Metrics of a training run from its records: staleness, throughput, and how each worker spent its time. Lesson 3."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable

import pandas as pd

from dgc_lab.common import check_choice, check_number, check_text, check_whole
from dgc_lab.parameter_server.events import Score
from dgc_lab.parameter_server.schedule import DROPPED, GradientEvent


def count_staleness(events: Iterable[tuple]) -> dict[Hashable, int]:
    """Count each gradient's staleness from the order of events alone, and return it by the gradient's name.

    Staleness is the number of updates between reading the weights and the update that includes the gradient.

    Args:
        events: events in the order in which the servers handled them: ``("read", name)`` when the weights for that
            gradient were read, ``("update", name, ...)`` when an update with one or more gradients was applied.

    Raises:
        ValueError: an event is of an unknown kind, a gradient is read or applied twice, or applied before it is read.

    Example:
        >>> count_staleness([("read", "a"), ("read", "b"), ("update", "a"), ("update", "b")])
        {'a': 0, 'b': 1}
    """
    updates, version, staleness = 0, {}, {}
    for kind, *names in events:
        check_choice("event", kind, ("read", "update"))
        for name in names:
            if kind == "read":
                if name in version:
                    raise ValueError(f"events must read weights for each gradient once, got {name!r} again")
                version[name] = updates
            elif name not in version:
                raise ValueError(f"events must read weights for a gradient before its update, got {name!r}")
            elif name in staleness:
                raise ValueError(f"events must apply each gradient once, got {name!r} again")
            else:
                staleness[name] = updates - version[name]
        updates += kind == "update"
    return staleness


def events_in_order(records: list[GradientEvent]) -> list[tuple]:
    """Return the reads and updates of ``records`` in chronological order, as input for `count_staleness`.

    A gradient's name is its position in ``records``. Times are measured on workers, not where the variables are. Two
    events can therefore be swapped if they are closer together than the latency of a message.

    Example:
        >>> moments = {0: (0.0, 0.0, 0.4, 0.5), 1: (0.1, 0.1, 0.7, 0.8)}  # of two workers, both from the first weights
        >>> events_in_order([GradientEvent(n, n, *own, version=0, update=n, loss=2.3) for n, own in moments.items()])
        [('read', 0), ('read', 1), ('update', 0), ('update', 1)]
    """
    members = defaultdict(list)
    for position, record in enumerate(records):
        members[record.update].append(position)
    times = [(record.read, 1, ("read", position)) for position, record in enumerate(records)]
    times += [(time, 0, ("update", *members[update])) for update, time in update_times(records).items()]
    return [event for _, _, event in sorted(times)]


def update_times(records: Iterable[GradientEvent]) -> dict[int, float]:
    """Return the time of each update in seconds, by its number: when the last of its gradients was done."""
    times = {}
    for record in records:
        if record.update != DROPPED:
            times[record.update] = max(record.done, times.get(record.update, record.done))
    return times


def summary(runs: dict[str, list[GradientEvent]], batch_size: int) -> pd.DataFrame:
    """Return a table with a row for each of the ``runs``; ``batch_size`` is the number of examples in a mini-batch.

    Its columns are ``gradients`` (computed) and ``dropped``; ``updates``; ``seconds`` until the last gradient was done;
    ``gradients/s`` (computed); ``updates/s``; ``samples/s``, counting only gradients that are part of an update; ``mean
    staleness`` and ``max staleness`` of these; ``idle share``, the mean over the workers (see `by_worker`).

    Raises:
        ValueError: there are no runs, a run has no records, or ``batch_size`` is not positive.

    Example:
        >>> run = [GradientEvent(0, n, n, n + 0.1, n + 0.9, n + 1.0, version=n, update=n, loss=2.3) for n in range(4)]
        >>> summary({"one worker": run}, batch_size=32)["samples/s"].to_dict()
        {'one worker': 32.0}
    """
    check_runs(runs)
    check_whole("batch_size", batch_size, 1, 1_000_000_000)
    return pd.DataFrame([summary_row(records, batch_size) for records in runs.values()], index=list(runs))


def summary_row(records: list[GradientEvent], batch_size: int) -> dict[str, float]:
    """Return one run's row of `summary`."""
    applied = stalenesses(records)
    seconds = max(record.done for record in records)
    updated = len(update_times(records))
    return {
        "gradients": len(records),
        "updates": updated,
        "dropped": len(records) - len(applied),
        "seconds": seconds,
        "gradients/s": len(records) / seconds,
        "updates/s": updated / seconds,
        "samples/s": len(applied) * batch_size / seconds,
        "mean staleness": sum(applied) / len(applied) if applied else 0.0,
        "max staleness": max(applied, default=0),
        "idle share": float(by_worker(records)["idle share"].mean()),
    }


def seconds_to(scores: list[Score], name: str, least: float) -> float:
    """Return the seconds until a score by that ``name`` was ``least`` or more for the first time; infinite if never.

    ``scores`` are those of a `Training`, in chronological order. Raises ValueError if ``least`` is not finite, or a
    score has no value of that name.

    Example:
        >>> run = [Score(10 * n, seconds=float(n), values={"accuracy": n / 10}) for n in range(10)]
        >>> seconds_to(run, "accuracy", 0.75)
        8.0
    """
    check_text("name", name)
    check_number("least", least, "finite")
    for score in scores:
        if name not in score.values:
            raise ValueError(f"name must be one of {', '.join(score.values)}, got {name!r}")
    return next((score.seconds for score in scores if score.values[name] >= least), math.inf)


def stalenesses(records: list[GradientEvent]) -> list[int]:
    """Return the staleness of each gradient that is part of an update, in the order of the records."""
    return [record.staleness for record in records if record.update != DROPPED]


def by_worker(records: list[GradientEvent]) -> pd.DataFrame:
    """Return a table with a row per worker: how it spent its time until the last of the ``records``.

    Its columns are ``gradients`` (computed) and ``dropped``; the seconds ``computing`` (including a straggler's delay),
    ``waiting`` for its turn and for the weights, and ``exchanging`` gradients; ``idle``, all seconds in which it did
    not compute: the latter two, and the time without a batch; and ``idle share``, as a share of all seconds.

    Raises:
        ValueError: there are no records.

    Example:
        >>> by_worker([GradientEvent(0, 0, 0.0, 0.25, 0.75, 1.0, version=0, update=0, loss=2.3)])["idle share"].item()
        0.5
    """
    frame = table_of(records)
    table = pd.DataFrame(
        {
            "worker": frame["worker"],
            "gradients": 1,
            "dropped": (frame["update"] == DROPPED).astype(int),
            "computing": frame["computed"] - frame["read"],
            "waiting": frame["read"] - frame["began"],
            "exchanging": frame["done"] - frame["computed"],
        }
    ).groupby("worker")
    table, seconds = table.sum(), frame["done"].max()
    return table.assign(idle=seconds - table["computing"], **{"idle share": 1 - table["computing"] / seconds})


def table_of(records: list[GradientEvent]) -> pd.DataFrame:
    """Return a table with a row per record and a column per field; raise ValueError if there are no records."""
    check_runs({"records": records})
    return pd.DataFrame([vars(record) for record in records])


def check_runs(runs: dict[str, list[GradientEvent]]) -> None:
    """Raise ValueError if there are no runs, or a run has no records."""
    if not runs:
        raise ValueError("runs must have at least one run, got none")
    for name, records in runs.items():
        if not len(records):
            raise ValueError(f"runs must have at least one gradient each, got none for {name!r}")
