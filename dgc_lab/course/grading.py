"""Grade a folder of submissions: each in a process of its own, one line of report each, none lost, resumable.

Everything is written below the grading folder: nbgrader's ``source``, ``release``, ``submitted``, ``autograded`` and
``gradebook.db``, our ``report.json``, and ``logs`` for those who look for a reason.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from dgc_lab.course import supervision
from dgc_lab.course.repair import read, repair
from dgc_lab.course.roster import variant_number
from dgc_lab.course.sandbox import entrance, fence_missing
from dgc_lab.course.sources import is_variant, notebook, prepare, with_variant
from dgc_lab.course.submissions import Submission, find
from dgc_lab.course.supervision import Limits
from dgc_lab.course.worker import Task
from dgc_lab.errors import LabError


def grade(
    place: Path,
    assignment: str,
    source: Path,
    folder: Path,
    secret: str | None = None,
    roster: list[str] | None = None,
    limits: Limits | None = None,
    again: bool = False,
    say: Callable[[str], None] = print,
) -> list[dict]:
    """Grade all submissions of an exercise.

    Args:
        place: folder or zip of submissions, see `dgc_lab.course.submissions`.
        assignment: name of the exercise.
        source: folder of the sources.
        folder: the grading folder; made when it is not there.
        secret: of the course, where students have variants.
        roster: students' names; with it, a notebook is known by its variant whatever the file is called.
        limits: of each submission.
        again: grade those, too, that are in the report and have not changed.
        say: takes the lines of progress.

    Returns:
        The report, a dict for each student: student, status (``"graded"`` or ``"not graded"``), score, most, remarks,
        seconds, and of those that were graded ``by_hand``, the answers that wait for a person.

    Raises:
        LabError: there are no submissions or no such exercise, or somebody else is grading in this folder.
    """
    folder, limits = Path(folder).resolve(), limits or Limits()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        missing = fence_missing()
        say(
            "each kernel runs behind a fence: no network, nothing of this machine but Python"
            if missing is None
            else f"WARNING: this machine allows no fence ({missing}): submissions run with your rights and your network"
        )
        exercise = _digest(notebook(source, assignment))
        report = read_report(folder)
        rows = report.setdefault(assignment, {})
        if report.get("exercises", {}).get(assignment) != exercise:
            prepare(source, folder, assignment)
            report.setdefault("exercises", {})[assignment] = exercise
        unpacked = folder / "unpacked" / assignment
        shutil.rmtree(unpacked, ignore_errors=True)
        found, remarks = find(place, assignment, unpacked)
        for remark in remarks:
            say(remark)
        files: dict[str, str] = {}
        for number, submission in enumerate(found, 1):
            known = _fingerprint(submission, exercise, secret)
            row = next((row for row in rows.values() if row["fingerprint"] == known), None)
            if row is None or again:
                row = _graded(submission, assignment, folder, secret, roster, limits)
                row["fingerprint"] = known
                if row["student"] in files:  # two files, one student: by a roster a variant tells whose each is
                    row["remarks"].append(f"also handed in as {files[row['student']]}, which does not count")
                rows[row["student"]] = row
                write_report(folder, report)
            files[row["student"]] = submission.student
            say(line_of(row, number, len(found)))
        shutil.rmtree(unpacked, ignore_errors=True)
        return [rows[student] for student in sorted(rows)]


def line_of(row: dict, number: int, of: int) -> str:
    """A student's line of the progress report."""
    marks = f"{row['score']:g} of {row['most']:g}" if row["status"] == "graded" else "NOT GRADED"
    remarks = [*row["remarks"]]
    if row.get("by_hand"):
        remarks.append(f"to be marked by hand: {', '.join(row['by_hand'])}")
    return f"[{number}/{of}] {row['student']}: {marks}, {row['seconds']:.0f} s{''.join('; ' + r for r in remarks)}"


def _graded(submission: Submission, assignment, folder, secret, roster, limits) -> dict:
    """The row of one submission, whatever is in it."""
    start, remarks = time.monotonic(), list(submission.remarks)
    row = {"student": submission.student, "status": "not graded", "score": 0.0, "most": 0.0, "remarks": remarks}
    try:
        if submission.path is not None:
            cells = read(submission.path, assignment)
            student, number = whose(cells, submission.student, secret, roster, remarks)
            row["student"] = student
            _submit(cells, folder, assignment, student, number, remarks)
            row |= _run(
                Task(str(folder), assignment, student, "", limits.cell_seconds, limits.memory, limits.disk, entrance()),
                limits,
                remarks,
            )
    except LabError as error:
        remarks.append(str(error))
    except Exception as error:  # whatever a file made of chance or malice brings about must not hold up the others
        remarks.append(f"{type(error).__name__}: {str(error)[:200]}")
    return row | {"seconds": round(time.monotonic() - start, 1)}


def whose(cells, student: str, secret, roster, remarks) -> tuple[str, int]:
    """The student and the variant number of a submission; with a roster, the number tells the student."""
    if secret is None:
        return student, 0
    stated = next((c.source.partition("=")[2].strip() for c in cells if c.source.startswith("VARIANT =")), "")
    owners = {str(variant_number(secret, name)): name for name in roster or ()}
    if student not in owners.values() and stated in owners:
        remarks.append(f"handed in as {student}")
        student = owners[stated]
    number = variant_number(secret, student)
    if stated != str(number):
        holder = f"that of {owners[stated]}" if stated in owners else f"{stated[:20] or 'none'}, nobody's"
        remarks.append(f"the variant in the notebook is {holder}; graded with the student's own")
    if roster and student not in roster:
        remarks.append("not on the roster")
    return student, number


def _submit(cells, folder, assignment, student, number, remarks) -> None:
    """Write the repaired notebook where nbgrader looks for it."""
    import nbformat

    release = nbformat.read(folder / "release" / assignment / f"{assignment}.ipynb", as_version=4)
    repaired, what = repair(cells, with_variant(release, number), assignment)
    remarks += what
    target = folder / "submitted" / student / assignment / f"{assignment}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    nbformat.write(repaired, target)


def _run(task: Task, limits: Limits, remarks: list[str]) -> dict:
    """Grade a submission that is in its place; status, score and most."""
    log = Path(task.folder) / "logs" / f"{task.assignment}-{task.student}.log"
    log.parent.mkdir(exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="dgc-", dir="/tmp" if os.path.isdir("/tmp") else None))  # short, for sockets
    try:
        text = json.dumps(asdict(task) | {"home": str(home)})
        output, reason = supervision.run([sys.executable, "-m", "dgc_lab.course.worker", text], limits, home, log)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    try:
        answer = json.loads(output)
    except ValueError:
        answer = {"success": False, "reason": reason or "grading it gave no answer", "remarks": []}
    remarks += answer["remarks"]
    if not answer["success"]:
        remarks.append(f"{reason or answer['reason']}; see {log.relative_to(task.folder)}")
        return {}
    return {"status": "graded"} | {name: answer[name] for name in ("score", "most", "by_hand")}


@contextmanager
def locked(folder: Path):
    """Nobody else grades in this folder meanwhile.

    Raises:
        LabError: somebody does.
    """
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LabError(f"another process is grading in {folder}") from None
        yield


def read_report(folder: Path) -> dict:
    """What is known so far: of each exercise a row for each student."""
    path = Path(folder) / "report.json"
    return json.loads(path.read_text()) if path.exists() else {}


def graded_rows(folder: Path, assignment: str | None = None) -> dict[str, dict]:
    """Of each exercise that was graded, or of one, the rows of the report by student.

    Raises:
        LabError: nothing has been graded in that folder.
    """
    report = read_report(folder)
    report.pop("exercises", None)
    report = {name: rows for name, rows in report.items() if rows and assignment in (None, name)}
    if not report:
        raise LabError(f"nothing has been graded in {folder}{f' of {assignment}' if assignment else ''}")
    return report


def write_report(folder: Path, report: dict) -> None:
    """Replace the report in one go, so that a break leaves the old or the new one."""
    path = Path(folder) / "report.json"
    path.with_suffix(".new").write_text(json.dumps(report, indent=1, sort_keys=True))
    path.with_suffix(".new").replace(path)


def _digest(found) -> str:
    cells = [(cell.cell_type, cell.source, cell.metadata.get("nbgrader", is_variant(cell))) for cell in found.cells]
    return hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()


def _fingerprint(submission: Submission, exercise: str, secret: str | None) -> str:
    """What a row depends on."""
    content = submission.path.read_bytes() if submission.path else repr(submission.remarks).encode()
    secret = hashlib.sha256((secret or "").encode()).hexdigest()
    return hashlib.sha256(f"{submission.student}\n{exercise}\n{secret}\n".encode() + content).hexdigest()
