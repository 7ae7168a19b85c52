"""Grade a folder of submissions, each in its own process, and report on each; an interrupted run can be continued.

All files are written below the grading folder: nbgrader's ``source``, ``release``, ``submitted``, ``autograded`` and
``gradebook.db``, our ``report.json``, and ``logs`` for debugging.
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
from contextlib import contextmanager, suppress
from dataclasses import asdict
from multiprocessing import active_children, get_context
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course.entries import Entry, check_secret, one_each, read_entry, submit, with_earlier_names
from dgc_lab_grading.course.names import meant
from dgc_lab_grading.course.report import line_of, locked, read_report, without_control, write_report
from dgc_lab_grading.course.sources import is_prepared, notebook, prepare
from dgc_lab_grading.course.submissions import Submission, find
from dgc_lab_grading.course.unzip import is_full
from dgc_lab_grading.marking import supervision
from dgc_lab_grading.marking.repair import is_variant
from dgc_lab_grading.marking.sandbox import end_with, entrance, fence_missing
from dgc_lab_grading.marking.supervision import Limits
from dgc_lab_grading.marking.worker import GradingJob

TEMPORARY = "/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()  # a short path, for sockets
MOST_NAMED = 10
SHARE_OF_CELLS, SHARE_OF_TESTS = 0.65, 0.25  # of a submission's time; the rest is for starting and saving


def grade(
    place: Path,
    assignment: str,
    source: Path,
    folder: Path,
    *,
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
    """Grade all submissions of an exercise; the report, a row per student, is saved after each one and returned.

    Students in the report who have handed in nothing new are skipped, except with ``again``, or with other ``limits``
    if running their submission failed. With ``only``, exactly these students are graded, changed or not. Students to
    ``forget`` are first removed from the report, for example because their file was renamed. With a ``secret``,
    students have variants; with a ``roster`` as well, the variant identifies the student, whatever the file is called.

    A row has student, status (``"graded"`` or ``"not graded"``), score, most, remarks, seconds, handed_in, number and
    time (see `submissions.Submission`), the digest of the ``exercise``, in ``read`` the number of remarks that do not
    come from grading, and if it was graded ``by_hand``, the answers to be marked by hand. If a limit ended the grading,
    ``limit`` says which.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be 1 or more, got {jobs}")
    folder, limits, say = Path(folder).resolve(), limits or Limits(), _printable(say)
    missing = fence_missing()
    if missing and not unfenced:
        raise LabError(
            f"this machine allows no sandbox ({missing}), so submissions would run with your permissions and your "
            "network. Grade on a machine that does, or pass --unfenced"
        )
    exercise = _digest(notebook(source, assignment))
    if not Path(place).exists():
        raise LabError(f"no submissions at {place}")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with _explain_full_disk(folder), locked(folder), _clean_homes(folder):
        say(
            f"WARNING: no sandbox ({missing}): submissions run with your permissions and your network"
            if missing
            else "each kernel runs in a sandbox: it has no network, and sees only this machine's programs and Python"
        )
        report = read_report(folder)
        rows = report.setdefault(assignment, {})
        for name in forget:
            del rows[meant(name, rows, f"row in the report of {assignment}")]
        _prepare_exercise(source, folder, assignment, exercise, report, say)
        unpacked = folder / "unpacked" / assignment
        shutil.rmtree(unpacked, ignore_errors=True)
        entries = _entries_to_grade(place, assignment, unpacked, secret, roster, rows, only, say)
        hashes = {entry.student: _fingerprint(entry.submission, exercise, secret) for entry in entries}
        kept = {} if again or only else {name: rows[name] for name in hashes if name in rows}
        done = {name for name, row in kept.items() if row.get("fingerprint") == hashes[name] and _is_final(row, limits)}
        read = {entry.student: [without_control(remark) for remark in entry.remarks] for entry in entries}
        if done:
            say(f"{len(done)} of {len(entries)} were graded before and have not changed")
        for entry in entries:
            if entry.student in done:
                _refresh_row(rows[entry.student], entry, read[entry.student], say)
        new = [entry for entry in entries if entry.student not in done]
        seconds = (int(limits.seconds * SHARE_OF_CELLS), int(limits.seconds * SHARE_OF_TESTS), limits.cell_seconds)
        settings = ("", *seconds, limits.memory, limits.disk, entrance())
        gradable = (entry if submit(entry, folder, assignment) else None for entry in new)
        queue = [
            entry and GradingJob(str(folder), assignment, entry.student, entry.number, *settings) for entry in gradable
        ]
        for number, (row, answer) in enumerate(_each(new, queue, limits, jobs), len(done) + 1):
            row |= answer | {"fingerprint": hashes[row["student"]], "exercise": exercise}
            row["remarks"] = [without_control(remark) for remark in row["remarks"]]
            row["read"] = len(read[row["student"]])
            rows[row["student"]] = row
            write_report(folder, report)
            say(line_of(row, number, len(entries)))
        write_report(folder, report)
        shutil.rmtree(unpacked, ignore_errors=True)
        return [rows[student] for student in sorted(rows)]


def _prepare_exercise(source: Path, folder: Path, assignment: str, exercise: str, report: dict, say) -> None:
    """Prepare a new or changed exercise for nbgrader, or one that is missing in its gradebook."""
    before = report.setdefault("exercises", {}).get(assignment)
    gradebook_lost = before is not None and not is_prepared(folder, assignment)
    if gradebook_lost:
        say("gradebook.db lacks this exercise: everyone is graded again; enter points given by hand again")
    if gradebook_lost or before != exercise:
        prepare(source, folder, assignment)
        report["exercises"][assignment] = exercise
        for row in report[assignment].values():
            row.setdefault("exercise", before)  # older reports do not record the version
            row["fingerprint"] = "" if gradebook_lost else row.get("fingerprint")
        write_report(folder, report)


def _entries_to_grade(place, assignment, unpacked, secret, roster, rows, only, say) -> list[Entry]:
    """Read all submissions; return one entry for each student, or for each one in ``only``."""
    found, remarks = find(place, assignment, unpacked)
    for remark in remarks:
        say(remark)
    found = with_earlier_names(found, rows)
    entries = one_each([read_entry(submission, assignment, secret, roster) for submission in found], rows)
    check_secret(entries, secret)
    everybody = [entry.student for entry in entries]
    if absent := sorted(rows.keys() - set(everybody)):
        more = f" and {len(absent) - MOST_NAMED} more" if len(absent) > MOST_NAMED else ""
        say(f"in the report, but not among these submissions: {', '.join(absent[:MOST_NAMED])}{more}")
    chosen = {meant(name, everybody, f"submission in {place}") for name in only} or everybody
    return [entry for entry in entries if entry.student in chosen]


def _refresh_row(row: dict, entry: Entry, from_reading: list[str], say) -> None:
    """Update the row of an unchanged file: its name or the files next to it may differ."""
    from_grading = [remark for remark in row["remarks"][row.get("read", 0) :] if remark not in from_reading]
    row |= _platform_fields(entry) | {"remarks": from_reading + from_grading, "read": len(from_reading)}
    if row["remarks"]:
        words = [] if row["status"] == "graded" else ["NOT GRADED"]
        say(f"{entry.student}: {'; '.join(words + row['remarks'])}")


def _printable(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that prints a line without control characters and lone surrogates, which names may contain."""
    return lambda words: say(without_control(words))


def _each(
    entries: list[Entry], queue: list[GradingJob | None], limits: Limits, jobs: int
) -> Iterator[tuple[dict, dict]]:
    """Run a queue of grading jobs, ``jobs`` at a time; yield for each entry its row and the fields to add."""
    for entry, job in zip(entries, queue, strict=True):
        if job is None:
            yield _row(entry), {}
    left = [(_row(entry), job) for entry, job in zip(entries, queue, strict=True) if job is not None]
    if jobs == 1 or len(left) < 2:
        for row, job in left:
            yield row, _run(job, limits, row["remarks"])
        return
    # Each worker supervises the processes of one submission at a time, and ends with this process.
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=end_with, initargs=(os.getpid(),))
    try:
        running = {pool.submit(_run, job, limits, row["remarks"]): row for row, job in left}
        for future in as_completed(running):
            yield running[future], future.result()
        pool.shutdown()
    except BrokenProcessPool:
        words = "a grading process was killed, perhaps because memory ran out"
        raise LabError(f"{words}; to continue, run the same command again, with fewer --jobs") from None
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in active_children():
            process.kill()
        raise


def _is_final(row: dict, limits: Limits) -> bool:
    """Return whether regrading would give the same row; a failure may not recur with other limits."""
    return row.get("limits") in (None, asdict(limits))


def _row(entry: Entry) -> dict:
    blank = {"status": "not graded", "score": 0.0, "most": 0.0, "seconds": 0.0}
    return blank | _platform_fields(entry) | {"student": entry.student, "remarks": entry.remarks}


def _platform_fields(entry: Entry) -> dict:
    """Return the fields that come from the platform's name for the file."""
    return {name: getattr(entry.submission, name) for name in ("handed_in", "number", "time")}


def _run(job: GradingJob, limits: Limits, remarks: list[str]) -> dict:
    """Grade a submission written by `submit`; return the fields to add to its row."""
    try:
        return _supervised(job, limits, remarks)
    except Exception as error:
        if is_full(error):  # no submission's fault
            raise
        words = f"it could not be graded: {type(error).__name__}: {error}"
        return {"remarks": [*remarks, words], "limits": {}}  # the next run tries again


def _supervised(job: GradingJob, limits: Limits, remarks: list[str]) -> dict:
    """Run the `worker` within its limits; return the fields to add to the row."""
    start = time.monotonic()
    log = Path(job.folder) / "logs" / f"{job.assignment}-{job.student}.log"
    log.parent.mkdir(exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix=home_prefix(Path(job.folder)), dir=TEMPORARY))
    try:
        text = json.dumps(asdict(job) | {"home": str(home)})
        command = [sys.executable, "-m", "dgc_lab_grading.marking.worker", str(os.getpid()), text]
        output, reason = supervision.run(command, limits, log)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    try:
        answer = json.loads(output)
    except ValueError:
        answer = {"success": False, "reason": reason or "grading gave no result", "remarks": []}
    remarks = [*remarks, *answer["remarks"]]
    row = {}
    if answer["success"]:
        row = {"status": "graded"} | {name: answer[name] for name in ("score", "most", "by_hand")}
    else:
        remarks.append(f"{reason or answer['reason']}; see {log.relative_to(job.folder)}")
        row = {"limits": asdict(limits)} | ({"limit": reason} if reason and reason.startswith("it ") else {})
    return row | {"remarks": remarks, "seconds": round(time.monotonic() - start, 1)}


def home_prefix(folder: Path) -> str:
    """Return the name prefix of this grading folder's temporary folders; short, as they hold sockets."""
    return f"dgc-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}-"


@contextmanager
def _explain_full_disk(folder: Path):
    """End the run with a LabError if the disk is full, which is no submission's fault."""
    try:
        yield
    except OSError as error:
        if is_full(error):
            place = error.filename or folder
            raise LabError(
                f"the disk of {place} is full: free some space, and run the same command again to continue"
            ) from error
        raise


@contextmanager
def _clean_homes(folder: Path):
    """Remove temporary folders, including those of a run that was killed."""

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
    """Hash everything that a row depends on."""
    content = repr(submission.remarks).encode()
    if submission.path:
        with suppress(OSError):  # `read_entry` has a remark on it
            content = submission.path.read_bytes()
    secret = hashlib.sha256((secret or "").encode()).hexdigest()
    return hashlib.sha256(f"{submission.student}\n{exercise}\n{secret}\n".encode() + content).hexdigest()
