"""What was handed in, read: whose it is, under which number, and put where nbgrader looks for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.report import submitted
from dgc_lab.course.roster import variant_number
from dgc_lab.course.sources import with_variant
from dgc_lab.course.submissions import Submission
from dgc_lab.course.unzip import is_full
from dgc_lab.marking.repair import read, repair


@dataclass
class Entry:
    """A submission that has been read: whose it is, under which number; no cells where it is no notebook."""

    submission: Submission
    student: str
    number: int = 0
    cells: list | None = None
    own: bool = True  # whether the variant that the notebook holds is the one that it is graded with
    remarks: list[str] = field(default_factory=list)


def read_entry(submission: Submission, assignment: str, secret: str | None, roster: Collection[str] | None) -> Entry:
    """A submission, read; what is wrong with it is among its remarks."""
    entry = Entry(submission, submission.student, remarks=list(submission.remarks))
    if submission.path is not None:
        with _told(entry):
            cells = read(submission.path)
            entry.student, entry.number = whose(cells, submission.student, secret, roster, entry.remarks)
            entry.cells, entry.own = cells, stated(cells) in (str(entry.number), "")
    return entry


def one_each(entries: list[Entry], rows: Mapping[str, dict] | None = None) -> list[Entry]:
    """One entry for each student: a notebook before what is none, then the newest; the others are in its remarks.

    ``rows`` is the report so far, by student: there a platform's number may have shown before who is who.
    """
    _keep_apart(entries, rows or {})

    def rank(entry):
        path = entry.submission.path
        modified = path.stat().st_mtime if path else 0
        return entry.cells is not None, entry.submission.time or "", modified, entry.submission.student

    best: dict[str, Entry] = {}
    for entry in sorted(entries, key=rank, reverse=True):
        kept = best.setdefault(entry.student, entry)
        if kept is not entry:
            kept.remarks.append(f"also handed in as {entry.submission.student}, which does not count")
    return sorted(best.values(), key=lambda entry: entry.student)


def _keep_apart(entries: list[Entry], rows: Mapping[str, dict]) -> None:
    """Where several people handed in one student's variant, each has their own, and is told of the others.

    Whoever is that student by name, or was before by the platform's number, stays so; the rest go by their own names.
    """
    for student in {entry.student for entry in entries}:
        same = [entry for entry in entries if entry.student == student]
        people = {entry.submission.number or entry.submission.student: entry.submission.student for entry in same}
        if len(people) == 1:
            continue
        by = " and by ".join(sorted(people.values()))
        words = f"the variant of {student} was handed in by {by}: who has copied it?"
        before = rows.get(student, {}).get("number") or None
        for entry in same:
            own = entry.submission.student
            entry.remarks.append(words)
            if own != student and entry.submission.number != before:
                entry.student = own
                entry.remarks.remove(f"handed in as {own}")


def submit(entry: Entry, folder: Path, assignment: str) -> bool:
    """Write the repaired notebook where nbgrader looks for it; whether there is one."""
    import nbformat

    release = nbformat.read(folder / "release" / assignment / f"{assignment}.ipynb", as_version=4)
    if entry.cells is None:
        return False
    with _told(entry):
        repaired, what = repair(entry.cells, with_variant(release, entry.number), assignment)
        entry.remarks += what
        target = submitted(folder, entry.student, assignment)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        nbformat.write(repaired, target)
        return True
    return False


@contextmanager
def _told(entry: Entry):
    """What a file made of chance or malice brings about is said of it, and must not hold up the others."""
    try:
        yield
    except LabError as error:
        entry.remarks.append(str(error))
    except Exception as error:
        if is_full(error):  # which is no file's fault
            raise
        entry.remarks.append(f"{type(error).__name__}: {str(error)[:200]}")


def stated(cells) -> str:
    """The variant that a notebook holds, as it is written there; empty where there is none."""
    return next((c.source.partition("=")[2].strip() for c in cells if c.source.startswith("VARIANT =")), "")


def check_secret(entries: list[Entry], secret: str | None) -> None:
    """A LabError where more than half of the notebooks hold another variant than they would be graded with.

    One of them is a student's doing; many are a secret that was forgotten, or is another course's.
    """
    read = [entry for entry in entries if entry.cells is not None]
    others = [entry.student for entry in read if not entry.own]
    if 2 * len(others) > len(read):
        words = f"{len(others)} of {len(read)} notebooks hold a variant that is not"
        if secret is None:
            raise LabError(f"{words} the exercise's own: grade needs the --secret of the release")
        raise LabError(f"{words} made from this secret for these names: is it another one's, or is a --roster missing?")


def whose(cells, student: str, secret, roster, remarks) -> tuple[str, int]:
    """The student and the variant number of a submission; with a roster, the number tells the student."""
    held = stated(cells)
    if secret is None:
        if held not in ("", "0"):
            remarks.append(f"the variant in the notebook is {held[:20]}; graded as the exercise that everybody has")
        return student, 0
    owners = {str(variant_number(secret, name)): name for name in roster or ()}
    if student not in owners.values() and held in owners:
        remarks.append(f"handed in as {student}")
        student = owners[held]
    number = variant_number(secret, student)
    if held != str(number):
        holder = f"that of {owners[held]}" if held in owners else f"{held[:20] or 'none'}, nobody's"
        remarks.append(f"the variant in the notebook is {holder}; graded with the student's own")
    if roster and student not in roster:
        remarks.append("not on the roster")
    return student, number
