"""One fault from the work's start to the verdict: what is promised, and whether it held."""

from __future__ import annotations

import functools
import re
import shutil
import signal
import tempfile
import time
from pathlib import Path

from faults import traces
from faults.plan import Fault
from faults.strikes import NOTHING, STRIKES
from faults.works import LIMIT, WORKS, Run, Work

CALLS = 8  # that may be needed where each is told to remove something
TRACEBACK = "Traceback (most recent call last)"
EXPLAINED = re.compile(r"error: \S|Stopped[:. ]")
ADVICE = re.compile(r"goes? on|start\w*\(\)|remove|make room|name another|resume|use an(?:other| empty)", re.IGNORECASE)
REMOVE = re.compile(r"(?:line (\d+) of )?(/\S+) (?:is not a row|cannot be read)[^\n]*?[Rr]emove it")
REMOVE_ALL = re.compile(r"(/\S+) holds [^\n]+, or remove all (\S+) to begin anew")
PREFIX = "dgc_lab_faults-"


class Broken(Exception):
    """A promise was not kept; ``what`` is rows, hang, left or message."""

    def __init__(self, what: str, message: str):
        super().__init__(message)
        self.what = what


@functools.cache
def undisturbed(work: Work) -> tuple[dict, list[float]]:
    """What a work comes to that nothing disturbs, and the seconds when it kept something; the last are its end's."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        run, seconds = Run(work, Path(folder)), [0.0]
        while run.until(lambda: work.progress(run.out) >= len(seconds)):
            seconds.append(time.monotonic() - run.began)
        if status := run.wait():
            raise RuntimeError(f"{' '.join(work.command)} ended with {status} undisturbed:\n{run.said()[-2000:]}")
        seconds += [time.monotonic() - run.began] * (work.parts + 2 - len(seconds))
        return work.kept(run.out), seconds


def strike(fault: Fault, work: Work | None = None) -> dict:
    """Strike once, and give the row that says what came of it."""
    kind, work = STRIKES[fault.kind], work or WORKS[fault.work]
    row = {**vars(fault), "moment": None, "struck": "", "checked": [], "seconds": 0.0, "verdict": "kept"}
    row |= {"broken": None, "message": kind.missing(), "said": ""}
    if row["message"]:
        return row | {"verdict": "left out"}
    expected, seconds = undisturbed(work)
    folder, began = Path(tempfile.mkdtemp(prefix=PREFIX)), time.monotonic()
    try:
        check(fault, work, folder, expected, seconds, row)
    except Broken as broken:
        row |= {"verdict": "broken", "broken": broken.what, "message": str(broken)}
    finally:
        for process in traces.family(folder):
            process.kill()
        kind.after(folder)
        row["said"] = (folder / "said").read_text(errors="replace")[-1500:] if row["broken"] else row["said"]
        shutil.rmtree(folder)
    return row | {"seconds": round(time.monotonic() - began, 1)}


def check(fault: Fault, work: Work, folder: Path, expected: dict, seconds: list[float], row: dict) -> None:
    """Raise at the first promise that is not kept; ``row`` is told what was struck, and what was checked."""
    kind = STRIKES[fault.kind]
    run = Run(work, folder, *kind.before(folder, fault, work.megabytes))
    done = int(fault.after * work.parts)
    run.until(lambda: work.progress(run.out) >= done)
    moment = time.monotonic() + fault.wait * (seconds[done + 1] - seconds[done])
    run.until(lambda: time.monotonic() >= moment)
    before, row["moment"] = work.kept(run.out), round(time.monotonic() - run.began, 2)
    hit = run.running()
    row["struck"] = kind.hit(run, fault) if hit or kind.from_start else NOTHING
    status = ended(run, {0, *kind.statuses}, row)
    nothing_left(run, status < 0, False, row)
    if hit:
        row["struck"] += f"; {kind.mend(folder, fault)}".removesuffix("; ")
    if fault.kind not in ("truncated file", "garbled file"):
        there = work.kept(run.out)
        lost = sorted(name for name, facts in before.items() if less(there.get(name), facts))
        if lost:
            raise Broken("rows", f"{', '.join(lost)}: {before[lost[0]]} became {there.get(lost[0])}")
        row["checked"].append("what was finished is there")
    run = go_on(work, folder, row)
    found = work.kept(run.out)
    if found != expected:
        wrong = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
        told = "; ".join(f"{name}: {found.get(name)} in place of {expected.get(name)}" for name in wrong)
        raise Broken("rows", told)
    row["checked"].append("the same call came to the same end")
    nothing_left(run, False, True, row)


def less(now: dict | None, before: dict) -> bool:
    """Whether something that was finished is gone or another; a save may have been followed by a later one."""
    return now is None or (now["step"] < before["step"] if "step" in before else now != before)


def ended(run: Run, statuses: set[int], row: dict) -> int:
    """The exit status, when it came in time, is one of these, and what went wrong was explained."""
    status, said = run.wait(), run.said()
    if status is None:
        raise Broken("hang", f"did not end within {LIMIT} s")
    row["checked"].append("it ended in time")
    if status == -signal.SIGINT:  # so Python ends where an interrupt met TensorFlow's import; a shell calls both 130
        status = 130
    told = said.strip().splitlines()[-1:] if status else []
    row["said"] = "".join(told)[-300:]
    if status not in statuses:
        raise Broken("message", f"ended with {status}, not with {' or '.join(map(str, sorted(statuses)))}")
    if TRACEBACK in said:
        raise Broken("message", "a traceback was printed")
    if status > 0 and not (EXPLAINED.search(said) and ADVICE.search(said)):
        raise Broken("message", "nothing says what happened and what to do")
    row["checked"].append("it said what happened and what to do" if status > 0 else "it said nothing wrong")
    return status


def go_on(work: Work, folder: Path, row: dict) -> Run:
    """Make the same call again, and remove what it says has to be removed, until it comes to its end."""
    for _ in range(CALLS):
        run = Run(work, folder)
        if ended(run, {0, 1}, row) == 0:
            return run
        if everything := REMOVE_ALL.search(run.said()):
            for file in Path(everything[1]).glob(everything[2]):
                file.unlink()
            row["struck"] += f"; removed all {everything[2]} as it said"
            continue
        asked = REMOVE.search(run.said())
        if not asked:
            raise Broken("rows", "the same call did not go on")
        line, file = asked[1], Path(asked[2])
        row["struck"] += f"; removed {f'line {line} of ' if line else ''}{file.name} as it said"
        lines = file.read_bytes().split(b"\n") if line else []
        if line:
            file.write_bytes(b"\n".join(lines[: int(line) - 1] + lines[int(line) :]))
        else:
            file.unlink()
    raise Broken("rows", f"the same call did not go on after {CALLS} removals")


def nothing_left(run: Run, killed: bool, finished: bool, row: dict) -> None:
    """Raise when something is left of the run."""
    if found := traces.left(run, killed, finished):
        raise Broken("left", f"left behind: {', '.join(found)}")
    row["checked"].append("nothing was left behind")
