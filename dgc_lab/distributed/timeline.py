"""Reader for Horovod's timeline, which records each phase of each tensor's exchange.

The environment variable ``HOROVOD_TIMELINE=FILE`` records from the start. With ``HOROVOD_TIMELINE=DYNAMIC``,
``hvd.start_timeline(FILE)`` and ``hvd.stop_timeline()`` record in between. https://ui.perfetto.dev shows the file, too.

References:
    https://horovod.readthedocs.io/en/stable/timeline.html
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd

from dgc_lab.common import LabError


class TimelineError(LabError):
    """Error raised if a file is not a Horovod timeline; the message gives the reason."""


def read(file: str | os.PathLike) -> pd.DataFrame:
    """Return the phases in a timeline file by start time, even if Horovod is still writing it or was killed.

    Returns:
        One row per finished phase: ``tensor``; ``phase`` as Horovod names it, such as ``NEGOTIATE_ALLREDUCE`` (ranks
        report that they are ready) and ``ALLREDUCE``; ``depth``, 0 for a phase that is not inside another one;
        ``start ms`` since the first phase began; and ``ms``. A rank that becomes ready is a row of 0 ms.

    Raises:
        TimelineError: the file is empty or in a different format.
        OSError: the file cannot be read.
    """
    names, opened, rows = {}, {}, []
    try:
        for event in parse_events(Path(file).read_text(encoding="utf-8", errors="replace")):
            kind, tensor = event.get("ph"), names.get(event.get("pid"))
            if kind == "M" and event.get("name") == "process_name":
                names[event["pid"]] = event["args"].get("name")  # the first process, the clock, has no name
            elif tensor is None or "ts" not in event:
                continue  # sort indices and Horovod's cycle marks belong to no tensor
            elif kind == "B":
                opened.setdefault(tensor, []).append((event.get("name"), event["ts"]))
            elif kind == "E" and opened.get(tensor):
                phase, start = opened[tensor].pop()
                rows.append((tensor, phase, len(opened[tensor]), start, event["ts"] - start))
            elif kind == "X":
                phase = f"rank {event['name']} ready" if str(event["name"]).isdigit() else event["name"]
                rows.append((tensor, phase, len(opened.get(tensor, [])), event["ts"], event.get("dur", 0)))
    except (AttributeError, KeyError, TypeError) as error:
        raise TimelineError(f"this is not a Horovod timeline: {error!r} in an event") from None
    if not rows:
        raise TimelineError(f"{file} holds no phases: was a tensor exchanged between start_timeline and stop_timeline?")
    frame = pd.DataFrame(rows, columns=["tensor", "phase", "depth", "start ms", "ms"])
    frame["start ms"] = (frame["start ms"] - frame["start ms"].min()) / 1000
    frame["ms"] = frame["ms"] / 1000
    return frame.sort_values(["start ms", "depth"], ignore_index=True)


def parse_events(text: str) -> list[dict]:
    """Return the events of a file, which may be incomplete: Horovod closes its list when the timeline is stopped."""
    try:
        whole = text[: text.rindex("}") + 1].strip()
        events = json.loads(whole if whole.startswith("{") else whole + "]")
    except ValueError as error:
        raise TimelineError(f"this is not a Horovod timeline: {error}") from None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise TimelineError("this is not a Horovod timeline: it must be a list of events")
    return events


def by_phase(frame: pd.DataFrame) -> pd.DataFrame:
    """Summarize a ``frame`` from `read` by phase: number of runs, first start, last end and total duration in ms.

    Example:
        >>> rows = [("kernel", "ALLREDUCE", 0, 1.0, 0.5), ("bias", "ALLREDUCE", 0, 2.0, 0.25)]
        >>> by_phase(pd.DataFrame(rows, columns=["tensor", "phase", "depth", "start ms", "ms"])).to_dict("records")
        [{'depth': 0, 'times': 2, 'begins': 1.0, 'ends': 2.25, 'ms': 0.75}]
    """
    ends = frame.assign(end=frame["start ms"] + frame["ms"])
    table = ends.groupby("phase", sort=False).agg(
        depth=("depth", "min"), times=("ms", "size"), begins=("start ms", "min"), ends=("end", "max"), ms=("ms", "sum")
    )
    return table.sort_values("begins")
