"""Grade a folder of submissions: each in a process of its own, one line of report each, none lost, resumable.

Everything is written below the grading folder: nbgrader's ``source``, ``release``, ``submitted``, ``autograded`` and
``gradebook.db``, our ``report.json``, and ``logs`` for those who look for a reason.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, replace
from multiprocessing import active_children, get_context
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.entries import Entry, check_secret, one_each, read_entry, submit
from dgc_lab.course.report import line_of, locked, read_report, without_control, write_report
from dgc_lab.course.sources import is_prepared, notebook, prepare
from dgc_lab.course.submissions import Submission, find, meant
from dgc_lab.course.unzip import is_full
from dgc_lab.marking import supervision
from dgc_lab.marking.repair import is_variant
from dgc_lab.marking.sandbox import end_with, entrance, fence_missing
from dgc_lab.marking.supervision import Limits
from dgc_lab.marking.worker import Task

TEMPORARY = "/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()  # a short name, for sockets
MOST_NAMED = 10
SHARE_OF_CELLS, SHARE_OF_TESTS = 0.65, 0.25  # of a submission's time; the rest is for starting and for saving


def grade(
    place: Path,
    assignment: str,
    source: Path,
    folder: Path,
    secret: str | None = None,
    roster: Collection[str] | None = None,
    limits: Limits | None = None,
    again: bool = False,
    jobs: int = 1,
    say: Callable[[str], None] = print,
    only: Collection[str] = (),
    unfenced: bool = False,
    forget: Collection[str] = (),
) -> list[dict]:
    """Grade all submissions of an exercise; its report, a row for each student, is kept after each of them.

    Who is in the report and has handed in nothing else since is graded only ``again``, or with other ``limits`` where
    running it had failed; with ``only``, these students are graded whatever they have handed in, and nobody else. Those
    to ``forget`` are taken out of the report first: their file is called otherwise now. Where there is a ``secret``,
    students have variants; with a ``roster``, a notebook is known by its variant whatever the file is called.

    A row has student, status (``"graded"`` or ``"not graded"``), score, most, remarks, seconds, handed_in, number and
    time (see `dgc_lab.course.submissions.Submission`), the digest of the ``exercise``, in ``read`` how many of the
    remarks are not of its grading, and of those that were graded ``by_hand``, the answers that wait for a person.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be 1 or more, got {jobs}")
    folder, limits = Path(folder).resolve(), limits or Limits()
    missing = fence_missing()
    if missing and not unfenced:
        raise LabError(
            f"this machine allows no fence ({missing}), and what students hand in would run with your rights and your "
            "network. Grade on a machine that does, or say --unfenced"
        )
    exercise = _digest(notebook(source, assignment))
    if not Path(place).exists():
        raise LabError(f"no submissions at {place}")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with _full_disk_named(folder), locked(folder), _no_home_left(folder):
        say(
            f"WARNING: no fence ({missing}): submissions run with your rights and your network"
            if missing
            else "each kernel runs behind a fence: no network, nothing of this machine but its programs and Python"
        )
        report = read_report(folder)
        rows = report.setdefault(assignment, {})
        for name in forget:
            del rows[meant(name, rows, f"row in the report of {assignment}")]
        before = report.setdefault("exercises", {}).get(assignment)
        lost = before is not None and not is_prepared(folder, assignment)
        if lost:
            say("gradebook.db knows nothing of this exercise: all are graded again; enter points given by hand again")
        if lost or before != exercise:
            prepare(source, folder, assignment)
            report["exercises"][assignment] = exercise
            for row in rows.values():
                row.setdefault("exercise", before)  # an older report does not say of which version they are
                row["fingerprint"] = "" if lost else row.get("fingerprint")
            write_report(folder, report)
        unpacked = folder / "unpacked" / assignment
        shutil.rmtree(unpacked, ignore_errors=True)
        found, remarks = find(place, assignment, unpacked)
        for remark in remarks:
            say(without_control(remark))
        found = _as_before(found, rows)
        entries = one_each([read_entry(submission, assignment, secret, roster) for submission in found], rows)
        check_secret(entries, secret)
        everybody = [entry.student for entry in entries]
        if gone := sorted(rows.keys() - set(everybody)):
            more = f" and {len(gone) - MOST_NAMED} more" if len(gone) > MOST_NAMED else ""
            say(f"in the report, but not among these hand-ins: {', '.join(gone[:MOST_NAMED])}{more}")
        if only:
            again, chosen = True, {meant(name, everybody, f"hand-in in {place}") for name in only}
            entries = [entry for entry in entries if entry.student in chosen]
        known = {entry.student: _fingerprint(entry.submission, exercise, secret) for entry in entries}
        kept = {} if again else {name: rows[name] for name in known if name in rows}
        done = {name for name, row in kept.items() if row.get("fingerprint") == known[name] and _holds(row, limits)}
        read = {entry.student: [without_control(remark) for remark in entry.remarks] for entry in entries}
        if done:
            say(f"{len(done)} of {len(entries)} were graded before and have not changed")
        for entry in entries:
            if entry.student in done:  # the same file, which may have come under another name, or among others
                row, now = rows[entry.student], read[entry.student]
                of_grading = [remark for remark in row["remarks"][row.get("read", 0) :] if remark not in now]
                row |= _told(entry) | {"remarks": now + of_grading, "read": len(now)}
                if row["remarks"]:
                    words = [] if row["status"] == "graded" else ["NOT GRADED"]
                    say(f"{entry.student}: {'; '.join(words + row['remarks'])}")
        new = [entry for entry in entries if entry.student not in done]
        seconds = (int(limits.seconds * SHARE_OF_CELLS), int(limits.seconds * SHARE_OF_TESTS), limits.cell_seconds)
        use = ("", *seconds, limits.memory, limits.disk, entrance())
        whole = (entry if submit(entry, folder, assignment) else None for entry in new)
        tasks = [entry and Task(str(folder), assignment, entry.student, entry.number, *use) for entry in whole]
        for number, (row, answer) in enumerate(_each(new, tasks, limits, jobs), len(done) + 1):
            row |= answer | {"fingerprint": known[row["student"]], "exercise": exercise}
            row["remarks"] = [without_control(remark) for remark in row["remarks"]]
            row["read"] = len(read[row["student"]])
            rows[row["student"]] = row
            write_report(folder, report)
            say(line_of(row, number, len(entries)))
        write_report(folder, report)
        shutil.rmtree(unpacked, ignore_errors=True)
        return [rows[student] for student in sorted(rows)]


def _as_before(found: list[Submission], rows: dict[str, dict]) -> list[Submission]:
    """Who is who from one download to the next, by the platform's numbers: two may have one name."""
    same = []
    for each in found:
        name = each.student.removesuffix(f"-{each.number}")
        both = (name, f"{name}-{each.number}")
        if each.number and (known := [one for one in both if rows.get(one, {}).get("number") == each.number]):
            each = replace(each, student=known[0])
        elif each.number and rows.get(each.student, {}).get("number") not in (None, "", each.number):
            words = f"{each.student} was number {rows[each.student]['number']} before, and this is number {each.number}"
            each = replace(each, student=f"{each.student}-{each.number}", remarks=(*each.remarks, words))
        same.append(each)
    return same


def _each(entries: list[Entry], tasks: list[Task | None], limits: Limits, jobs: int) -> Iterator[tuple[dict, dict]]:
    """Run tasks, so many at a time; of each, when it is done, the row so far and what is to be added to it."""
    for entry, task in zip(entries, tasks, strict=True):
        if task is None:
            yield _row(entry), {}
    left = [(_row(entry), task) for entry, task in zip(entries, tasks, strict=True) if task is not None]
    if jobs == 1 or len(left) < 2:
        for row, task in left:
            yield row, _run(task, limits, row["remarks"])
        return
    # Each of them watches over the processes of one submission at a time, and ends when this process does.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=end_with, initargs=(os.getpid(),))
    try:
        running = {pool.submit(_run, task, limits, row["remarks"]): row for row, task in left}
        for future in as_completed(running):
            yield running[future], future.result()
        pool.shutdown()
    except BrokenProcessPool:
        words = "a grading process was ended from outside, perhaps for memory"
        raise LabError(f"{words}; the same command goes on where it was, try fewer --jobs") from None
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            process.kill()
        raise


def _holds(row: dict, limits: Limits) -> bool:
    """Whether a row is what grading would give again: what failed may be done within other limits."""
    return row.get("limits") in (None, asdict(limits))


def _row(entry: Entry) -> dict:
    nothing = {"status": "not graded", "score": 0.0, "most": 0.0, "seconds": 0.0}
    return nothing | _told(entry) | {"student": entry.student, "remarks": entry.remarks}


def _told(entry: Entry) -> dict:
    """What the platform's name for the file says."""
    return {name: getattr(entry.submission, name) for name in ("handed_in", "number", "time")}


def _run(task: Task, limits: Limits, remarks: list[str]) -> dict:
    """Grade a submission that is in its place; what is to be added to its row."""
    start = time.monotonic()
    log = Path(task.folder) / "logs" / f"{task.assignment}-{task.student}.log"
    log.parent.mkdir(exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix=home_prefix(Path(task.folder)), dir=TEMPORARY))
    try:
        text = json.dumps(asdict(task) | {"home": str(home)})
        command = [sys.executable, "-m", "dgc_lab.marking.worker", str(os.getpid()), text]
        output, reason = supervision.run(command, limits, home, log)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    try:
        answer = json.loads(output)
    except ValueError:
        answer = {"success": False, "reason": reason or "grading it gave no answer", "remarks": []}
    remarks = [*remarks, *answer["remarks"]]
    row = {}
    if answer["success"]:
        row = {"status": "graded"} | {name: answer[name] for name in ("score", "most", "by_hand")}
    else:
        remarks.append(f"{reason or answer['reason']}; see {log.relative_to(task.folder)}")
        row["limits"] = asdict(limits)
    return row | {"remarks": remarks, "seconds": round(time.monotonic() - start, 1)}


def home_prefix(folder: Path) -> str:
    """What the names of temporary folders for this grading folder begin with; short, for sockets are in there."""
    return f"dgc-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}-"


@contextmanager
def _full_disk_named(folder: Path):
    """A full disk is no hand-in's fault: it ends the run, in words that name the folder."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            place = error.filename or folder
            raise LabError(
                f"no room is left on the disk of {place}: make some, and the same command goes on where it was"
            ) from error
        raise


@contextmanager
def _no_home_left(folder: Path):
    """Remove temporary folders, also those that a run left which was killed."""

    def sweep():
        for home in Path(TEMPORARY).glob(f"{home_prefix(folder)}*"):
            shutil.rmtree(home, ignore_errors=True)

    sweep()
    try:
        yield
    finally:
        sweep()


def _digest(found) -> str:
    cells = [(cell.cell_type, cell.source, cell.metadata.get("nbgrader", is_variant(cell))) for cell in found.cells]
    return hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()


def _fingerprint(submission: Submission, exercise: str, secret: str | None) -> str:
    """What a row depends on."""
    content = submission.path.read_bytes() if submission.path else repr(submission.remarks).encode()
    secret = hashlib.sha256((secret or "").encode()).hexdigest()
    return hashlib.sha256(f"{submission.student}\n{exercise}\n{secret}\n".encode() + content).hexdigest()
