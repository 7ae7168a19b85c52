"""What the records of a training say: staleness, throughput, and what each worker did with its time. Lesson 3."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable

import pandas as pd

from dgc_lab.common import check_choice, check_whole
from dgc_lab.parameter_server.schedule import DROPPED, GradientEvent


def count_staleness(events: Iterable[tuple]) -> dict[Hashable, int]:
    """Updates between the reading of a gradient and its own, by its name, counted from the order of events alone.

    Args:
        events: in the order in which the servers served them: ``("read", name)`` when the weights for the gradient of
            that name were read, ``("update", name, ...)`` when an update with one or more gradients was applied.

    Raises:
        ValueError: an event is neither, a gradient is read or applied twice, or applied and not read.

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
                    raise ValueError(f"events must read for each gradient once, got {name!r} again")
                version[name] = updates
            elif name not in version:
                raise ValueError(f"events must read for a gradient before its update, got {name!r}")
            elif name in staleness:
                raise ValueError(f"events must apply each gradient once, got {name!r} again")
            else:
                staleness[name] = updates - version[name]
        updates += kind == "update"
    return staleness


def events_in_order(records: list[GradientEvent]) -> list[tuple]:
    """Reads and updates of ``records`` in the order of their times, as `count_staleness` takes them.

    A gradient's name is its place. Times that are measured where a worker is, not where the variables are, can swap two
    events that lie closer together than a message takes.

    Example:
        >>> moments = {0: (0.0, 0.0, 0.4, 0.5), 1: (0.1, 0.1, 0.7, 0.8)}  # of two workers, both from the first weights
        >>> events_in_order([GradientEvent(n, n, *own, version=0, update=n, loss=2.3) for n, own in moments.items()])
        [('read', 0), ('read', 1), ('update', 0), ('update', 1)]
    """
    members = defaultdict(list)
    for place, record in enumerate(records):
        members[record.update].append(place)
    times = [(record.read, 1, ("read", place)) for place, record in enumerate(records)]
    times += [(time, 0, ("update", *members[update])) for update, time in update_times(records).items()]
    return [event for _, _, event in sorted(times)]


def update_times(records: Iterable[GradientEvent]) -> dict[int, float]:
    """When each update happened, in seconds, by its number: when the last of its gradients was done."""
    times = {}
    for record in records:
        if record.update != DROPPED:
            times[record.update] = max(record.done, times.get(record.update, record.done))
    return times


def summary(runs: dict[str, list[GradientEvent]], batch_size: int) -> pd.DataFrame:
    """A table with a row for each of the ``runs``, from its records and the number of examples in a mini-batch.

    Its columns are ``gradients`` computed and ``dropped``; ``updates``; ``seconds`` until the last gradient was taken;
    ``gradients/s`` computed; ``updates/s``; ``samples/s``, only those in gradients that went into an update; ``mean
    staleness`` and ``max staleness`` of these; ``idle share``, the mean over the workers (see `by_worker`).

    Raises:
        ValueError: there is no run, a run has no record, or batch_size is not positive.

    Example:
        >>> run = [GradientEvent(0, n, n, n + 0.1, n + 0.9, n + 1.0, version=n, update=n, loss=2.3) for n in range(4)]
        >>> summary({"one worker": run}, batch_size=32)["samples/s"].to_dict()
        {'one worker': 32.0}
    """
    check_runs(runs)
    check_whole("batch_size", batch_size, 1, 1_000_000_000)
    return pd.DataFrame([figures(records, batch_size) for records in runs.values()], index=list(runs))


def figures(records: list[GradientEvent], batch_size: int) -> dict[str, float]:
    """One run's row of `summary`."""
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


def speed_in_parts(records: list[GradientEvent], parts: int = 3) -> list[float]:
    """Gradients a second in each of so many parts of the ``records``, of equally many: how steady the speed was.

    Gradients that are left over at the end belong to no part. A ValueError where there are fewer gradients than parts.
    Infinite where all of a part were done at once.

    Example:
        >>> run = [GradientEvent(0, n, n, n, n, n + (n > 1), version=n, update=n, loss=2.3) for n in range(1, 5)]
        >>> speed_in_parts(run, parts=2)
        [0.6666666666666666, 1.0]
    """
    check_runs({"records": records})
    each = len(records) // check_whole("parts", parts, 1, len(records))
    ends = [0.0, *sorted(record.done for record in records)[each - 1 :: each]]
    return [each / (end - start) if end > start else math.inf for start, end in itertools.pairwise(ends[: parts + 1])]


def stalenesses(records: list[GradientEvent]) -> list[int]:
    """Of the gradients that went into an update, in the order of the records."""
    return [record.staleness for record in records if record.update != DROPPED]


def by_worker(records: list[GradientEvent]) -> pd.DataFrame:
    """A table with a row per worker: what it did until the last of the ``records``.

    Its columns are ``gradients`` computed and ``dropped``; seconds ``computing`` (a straggler's delay included),
    ``waiting`` for its turn and for the weights, and ``exchanging`` gradients; ``idle``, all seconds in which it did
    not compute: these two, and those without a batch; and ``idle share`` of all seconds.

    Raises:
        ValueError: there is no record.

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
    """A row for each record, a column for each of its fields; a ValueError where there is no record."""
    check_runs({"records": records})
    return pd.DataFrame([vars(record) for record in records])


def check_runs(runs: dict[str, list[GradientEvent]]) -> None:
    """A ValueError where there is no run, or a run without a record."""
    if not runs:
        raise ValueError("runs must name at least one run, got none")
    for name, records in runs.items():
        if not len(records):
            raise ValueError(f"runs must hold at least one gradient each, got none for {name!r}")
