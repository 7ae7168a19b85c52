"""What Horovod did and when: a reader of the timeline that Horovod writes.

``HOROVOD_TIMELINE=FILE`` in the environment asks for one from the start on; with ``HOROVOD_TIMELINE=DYNAMIC`` there,
``hvd.start_timeline(FILE)`` and ``hvd.stop_timeline()`` do in between. https://ui.perfetto.dev shows it, too.

Source: https://horovod.readthedocs.io/en/stable/timeline.html
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd

from dgc_lab.common import LabError


class TimelineError(LabError):
    """The file is no timeline of Horovod's; the message says why."""


def read(file: str | os.PathLike) -> pd.DataFrame:
    """The phases in a timeline file, in the order of their beginnings; Horovod may still write it, or have been killed.

    Returns:
        One row per phase that has ended: ``tensor``, ``phase`` as Horovod names it, such as ``NEGOTIATE_ALLREDUCE``
        (the ranks tell that they are ready) and ``ALLREDUCE``; ``depth``, 0 for a phase that is in no other one;
        ``start ms`` since the first of them began, and ``ms``. That a rank was ready is a row of 0 ms.

    Raises:
        TimelineError: it is empty or in another format.
        OSError: it cannot be read.
    """
    names, opened, rows = {}, {}, []
    try:
        for event in events_in(Path(file).read_text(encoding="utf-8", errors="replace")):
            kind, tensor = event.get("ph"), names.get(event.get("pid"))
            if kind == "M" and event.get("name") == "process_name":
                names[event["pid"]] = event["args"].get("name")  # the first process is the clock, and has none
            elif tensor is None or "ts" not in event:
                continue  # sort indices, and marks of Horovod's cycles, which belong to no tensor
            elif kind == "B":
                opened.setdefault(tensor, []).append((event.get("name"), event["ts"]))
            elif kind == "E" and opened.get(tensor):
                phase, start = opened[tensor].pop()
                rows.append((tensor, phase, len(opened[tensor]), start, event["ts"] - start))
            elif kind == "X":
                phase = f"rank {event['name']} ready" if str(event["name"]).isdigit() else event["name"]
                rows.append((tensor, phase, len(opened.get(tensor, [])), event["ts"], event.get("dur", 0)))
    except (AttributeError, KeyError, TypeError) as error:
        raise TimelineError(f"this is no timeline of Horovod's: {error!r} in an event") from None
    if not rows:
        raise TimelineError(f"{file} holds no phase: was anything exchanged between start_timeline and stop_timeline?")
    frame = pd.DataFrame(rows, columns=["tensor", "phase", "depth", "start ms", "ms"])
    frame["start ms"] = (frame["start ms"] - frame["start ms"].min()) / 1000
    frame["ms"] = frame["ms"] / 1000
    return frame.sort_values(["start ms", "depth"], ignore_index=True)


def events_in(text: str) -> list[dict]:
    """The events of a file that need not be complete: Horovod closes its list only when the timeline is stopped."""
    try:
        whole = text[: text.rindex("}") + 1].strip()
        events = json.loads(whole if whole.startswith("{") else whole + "]")
    except ValueError as error:
        raise TimelineError(f"this is no timeline of Horovod's: {error}") from None
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise TimelineError("this is no timeline of Horovod's: it must be a list of events")
    return events


def by_phase(frame: pd.DataFrame) -> pd.DataFrame:
    """By phase of a ``frame`` that `read` gives: how often it ran, when the first began, the last ended, and ms in all.

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
