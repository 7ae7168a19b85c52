"""Read submissions: identify the student and the variant, and write the notebook where nbgrader expects it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course.names import spelled_like
from dgc_lab_grading.course.report import submitted
from dgc_lab_grading.course.roster import variant_number
from dgc_lab_grading.course.sources import with_variant
from dgc_lab_grading.course.submissions import Submission
from dgc_lab_grading.course.unzip import is_full
from dgc_lab_grading.marking.reading import read
from dgc_lab_grading.marking.repair import repair


@dataclass
class Entry:
    """A submission after reading, with its student and variant number; ``cells`` is None if it is not a notebook."""

    submission: Submission
    student: str
    number: int = 0
    cells: list | None = None
    own: bool = True  # whether the notebook holds the variant that it is graded with
    remarks: list[str] = field(default_factory=list)


def with_earlier_names(found: list[Submission], rows: dict[str, dict]) -> list[Submission]:
    """Give students the names of earlier downloads, by the platform's numbers: two may share a name."""
    renamed = []
    for each in found:
        name = each.student.removesuffix(f"-{each.number}")
        candidates = (name, f"{name}-{each.number}")
        if each.number and (matches := [old for old in candidates if rows.get(old, {}).get("number") == each.number]):
            each = replace(each, student=matches[0])
        elif each.number and rows.get(each.student, {}).get("number") not in (None, "", each.number):
            words = f"{each.student} had number {rows[each.student]['number']} before, and this is number {each.number}"
            each = replace(each, student=f"{each.student}-{each.number}", remarks=(*each.remarks, words))
        renamed.append(each)
    return renamed


def read_entry(submission: Submission, assignment: str, secret: str | None, roster: Collection[str] | None) -> Entry:
    """Read a submission; problems become remarks."""
    entry = Entry(submission, submission.student, remarks=list(submission.remarks))
    if submission.path is not None:
        with _errors_as_remarks(entry):
            cells = read(submission.path)
            entry.student, entry.number = whose(cells, submission.student, secret, roster, entry.remarks)
            entry.cells, entry.own = cells, stated(cells) in (str(entry.number), "")
    return entry


def one_each(entries: list[Entry], rows: Mapping[str, dict] | None = None) -> list[Entry]:
    """Return one entry for each student, preferring notebooks, then the newest; its remarks name the others.

    ``rows`` is the report so far, by student: its platform numbers help to identify the students.
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
            kept.remarks.append(f"also handed in as {entry.submission.student}, which was ignored")
    return sorted(best.values(), key=lambda entry: entry.student)


def _keep_apart(entries: list[Entry], rows: Mapping[str, dict]) -> None:
    """Separate people who handed in the same student's variant, and add a remark to each of their entries.

    The student of that name, or else of the platform number in the report, keeps the entry; the others go by their own
    names, which are unique.
    """
    for student in {entry.student for entry in entries}:
        same = [entry for entry in entries if entry.student == student]
        people = {_person(entry): entry.submission.student for entry in same}
        if len(people) == 1:
            continue
        by = " and by ".join(sorted(people.values()))
        words = f"the variant of {student} was handed in by {by}: check who copied it"
        before = rows.get(student, {}).get("number") or None
        keepers = [entry for entry in same if entry.submission.student == student]
        keepers += [entry for entry in same if entry.submission.number == before]
        for entry in same:
            entry.remarks.append(words)
            if not keepers or _person(entry) != _person(keepers[0]):
                entry.student = entry.submission.student
                entry.remarks[:] = [remark for remark in entry.remarks if remark != f"handed in as {entry.student}"]


def _person(entry: Entry) -> str:
    """Return a person's identity: the platform's number, or else the name, which is unique in a download."""
    return entry.submission.number or entry.submission.student


def submit(entry: Entry, folder: Path, assignment: str) -> bool:
    """Write the repaired notebook where nbgrader expects it; return whether there is one.

    The earlier submission is removed even if this one cannot be repaired, so that overrides made for it are flagged.
    """
    import nbformat

    release = nbformat.read(folder / "release" / assignment / f"{assignment}.ipynb", as_version=4)
    with _errors_as_remarks(entry):
        target = submitted(folder, entry.student, assignment)
        target.unlink(missing_ok=True)
        if entry.cells is None:
            return False
        repaired, remarks = repair(entry.cells, with_variant(release, entry.number), assignment)
        entry.remarks += remarks
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(repaired, target)
        return True
    return False


@contextmanager
def _errors_as_remarks(entry: Entry):
    """Turn errors into remarks: a broken or malicious file must not stop the grading of the others."""
    try:
        yield
    except LabError as error:
        entry.remarks.append(str(error))
    except Exception as error:
        if is_full(error):  # not the file's fault
            raise
        entry.remarks.append(f"{type(error).__name__}: {str(error)[:200]}")


def stated(cells) -> str:
    """Return the variant number as written in a notebook, or an empty string."""
    return next((c.source.partition("=")[2].strip() for c in cells if c.source.startswith("VARIANT =")), "")


def check_secret(entries: list[Entry], secret: str | None) -> None:
    """Raise a LabError if most notebooks hold another variant than they are graded with; with a secret, at least two.

    With a secret, a single mismatch is the student's doing; many mean that the secret belongs to another course.
    """
    read = [entry for entry in entries if entry.cells is not None]
    others = [entry.student for entry in read if not entry.own]
    if 2 * len(others) > len(read) and (len(others) > 1 or secret is None):
        words = f"{len(others)} of {len(read)} notebooks hold a variant"
        if secret is None:
            raise LabError(f"{words} of their own: pass the --secret of the release")
        raise LabError(f"{words} that this secret does not give for their names: wrong --secret, or --roster missing?")


def whose(cells, student: str, secret, roster, remarks) -> tuple[str, int]:
    """Return a submission's student and variant number; with a roster, the variant identifies the student."""
    held = stated(cells)
    if secret is None:
        if held not in ("", "0"):
            remarks.append(f"the variant in the notebook is {held[:20]}; graded without a variant")
        return student, 0
    student = spelled_like(student, roster or ())
    owners = {str(variant_number(secret, name)): name for name in roster or ()}
    if student not in owners.values() and held in owners:
        remarks.append(f"handed in as {student}")
        student = owners[held]
    number = variant_number(secret, student)
    if held != str(number):
        holder = f"that of {owners[held]}" if held in owners else f"{held[:20] or 'none'}, which is nobody's"
        remarks.append(f"the variant in the notebook is {holder}; graded with the student's own variant")
    if roster and student not in roster:
        remarks.append("not on the roster")
    return student, number
