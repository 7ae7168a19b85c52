"""Release exercises, grade submissions, export marks: python -m dgc_lab_grading COMMAND."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import Counter
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course.report import outdated
from dgc_lab_grading.course.roster import read_roster, read_secret, variant_number
from dgc_lab_grading.gradebook import commands as after


def parser() -> argparse.ArgumentParser:
    """Return the command-line parser."""
    main = argparse.ArgumentParser(prog="python -m dgc_lab_grading", description=__doc__)
    main.set_defaults(private=False)
    commands = main.add_subparsers(required=True, metavar="COMMAND")
    sub = after.add_command(commands, "new", run_new, "create the text of a new exercise", after.add_source)
    sub.add_argument("name", metavar="EXERCISE", help="for example 08_my_idea")
    shared = (after.add_source, add_secret, after.add_roster)
    sub = after.add_command(commands, "release", run_release, "make the students' versions", *shared)
    sub.add_argument("names", nargs="*", metavar="EXERCISE", help="default: all exercises")
    text = "output folder (default: notebooks/exercises/release, with a roster ./variants)"
    sub.add_argument("--to", type=Path, help=text)
    text = "grade a folder or zip of submissions"
    add_grade(after.add_command(commands, "grade", run_grade, text, *shared, after.add_folder))
    text = "write a feedback page for each student"
    sub = after.add_command(commands, "feedback", run_feedback, text, after.add_folder)
    sub.add_argument("assignment", nargs="?", metavar="EXERCISE", help="default: all exercises")
    sub.add_argument("--zip", action="store_true", help="also zip the pages, named as the platform expects")
    text = "export the questions on the lessons to a learning platform"
    sub = after.add_command(commands, "questions", run_questions, text)
    sub.add_argument("lessons", nargs="*", metavar="LESSON", help="for example 04_dgc_masking (default: all lessons)")
    text = "Moodle's GIFT (default), or QTI 2.1 for other platforms"
    sub.add_argument("--format", choices=("gift", "qti"), default="gift", help=text)
    text = "output file (default: ./questions_gift.txt or ./questions_qti.zip)"
    sub.add_argument("--to", type=Path, help=text)
    after.add_commands(commands)
    return main


def add_secret(sub: argparse.ArgumentParser) -> None:
    """Add the option for the course's secret."""
    sub.add_argument("--secret", type=Path, help="file with the course's secret, created by release")


def add_grade(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of grade."""
    sub.add_argument("assignment", metavar="EXERCISE", help="for example 04_masking")
    text = "folder or zip as downloaded from the learning platform"
    sub.add_argument("submissions", type=Path, metavar="SUBMISSIONS", help=text)
    text = "time limit per submission (default: %(default)s)"
    sub.add_argument("--minutes", type=above_zero, default=5, help=text)
    text = "time limit per cell (default: %(default)s)"
    sub.add_argument("--cell-seconds", type=at_least_one, default=60, help=text)
    text = "memory limit per process, in GB (default: %(default)s)"
    sub.add_argument("--memory", type=above_zero, default=3, help=text)
    sub.add_argument("--jobs", type=at_least_one, default=1, metavar="N", help="submissions to grade in parallel")
    text = "grade even if no sandbox is possible: submissions then run with your permissions and your network"
    sub.add_argument("--unfenced", action="store_true", help=text)
    sub.add_argument("--again", action="store_true", help="also regrade submissions that have not changed")
    sub.add_argument("--only", nargs="+", default=[], metavar="STUDENT", help="regrade these students, and nobody else")
    text = "first remove these students from the report, for example because a file was renamed"
    sub.add_argument("--forget", nargs="+", default=[], metavar="STUDENT", help=text)


def at_least_one(text: str) -> int:
    """Parse a whole number from 1 to 100000.

    Example:
        >>> at_least_one("2")
        2
    """
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 100000, got {text[:20]!r}")
    return int(text)


def above_zero(text: str) -> float:
    """Parse a positive number of minutes or gigabytes.

    Example:
        >>> above_zero("0.5")
        0.5
    """
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 100_000:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number above 0, at most 100000, got {text[:20]!r}")


def run_release(options) -> int:
    """Write the students' versions: one for all, or one for each student on a roster."""
    from dgc_lab_grading.course.sources import release

    variants = None
    if options.roster:
        if not options.secret:
            raise LabError("variants for a roster need the course's secret: --secret FILE")
        secret = read_secret(options.secret, make=True)
        variants = {student: variant_number(secret, student) for student in read_roster(options.roster)}
    target = options.to or (Path("variants") if variants else after.EXERCISES / "release")
    written = release(options.source, target, options.names, variants)
    if variants:
        for name, count in sorted(Counter(path.name for path in written).items()):
            print(f"{name}: {after.many(count, 'student')} in {target}")
    else:
        print(*written, sep="\n")
    return 0


def run_grade(options) -> int:
    """Grade submissions; return 1 if any could not be graded."""
    from dgc_lab_grading.course.grading import grade
    from dgc_lab_grading.gradebook.journal import Journal
    from dgc_lab_grading.gradebook.ledger import marks_of
    from dgc_lab_grading.gradebook.overrides import unmatched
    from dgc_lab_grading.marking.supervision import Limits

    if options.roster and not options.secret:
        raise LabError("--roster identifies students by their variants, which needs the course's secret: --secret FILE")
    limits = Limits(int(60 * options.minutes), options.cell_seconds, int(options.memory * 2**30))
    roster = read_roster(options.roster) if options.roster else None
    secret = read_secret(options.secret)
    rows = grade(
        options.submissions,
        options.assignment,
        options.source,
        options.folder,
        secret=secret,
        roster=roster,
        limits=limits,
        again=options.again,
        jobs=options.jobs,
        say=Journal(options.folder),
        only=options.only,
        unfenced=options.unfenced,
        forget=options.forget,
    )
    for student, mark in marks_of(options.folder, options.assignment)[options.assignment].items():
        if mark.late:
            print(f"{student}: {mark.late.words}")
    for words in [*unmatched(options.folder), *outdated(options.folder, options.assignment)]:
        print(words)
    failed = [row["student"] for row in rows if row["status"] != "graded"]
    print(f"{len(rows) - len(failed)} graded" + (f", {len(failed)} not graded: {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


def run_feedback(options) -> int:
    """Write feedback pages; return 1 if any is missing."""
    from dgc_lab_grading.course.feedback import feedback
    from dgc_lab_grading.gradebook.ledger import marks_of, note
    from dgc_lab_grading.gradebook.pages import pack

    marks = marks_of(options.folder, options.assignment)
    for words in outdated(options.folder, options.assignment):
        print(words)
    each = ((name, student, mark) for name, rows in marks.items() for student, mark in rows.items())
    notes = {(name, student): (mark.points, note(mark)) for name, student, mark in each}
    pages, failed = feedback(options.folder, options.assignment, notes)
    print(f"{after.many(len(pages), 'page')} in {options.folder / 'feedback'}")
    zips, missing = pack(options.folder, options.assignment) if options.zip else ([], [])
    for line in (*zips, *failed, *missing):
        print(line)
    return int(bool(failed or missing))


def run_questions(options) -> int:
    """Export the questions on the lessons."""
    from dgc_lab_grading.course.questions import FILES, chosen_questions

    write, file = FILES[options.format]
    chosen, target = chosen_questions(options.lessons), options.to or file
    write(chosen, target)
    print(f"{after.many(sum(map(len, chosen.values())), 'question')} in {target}")
    return 0


def run_new(options) -> int:
    """Create a new exercise."""
    from dgc_lab_grading.course.scaffold import new

    path = new(options.source, options.name)
    print(f"{path}\nEdit it, then run: python -m dgc_lab_grading release {options.name}")
    return 0


def main(arguments=None) -> int:
    """Run a command; print expected errors as one line."""
    options = parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.private or getattr(options, "roster", None):
        os.umask(0o077)
    try:
        return options.command(options)
    except (LabError, OSError) as error:
        print(f"{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; run the same command again to continue", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
