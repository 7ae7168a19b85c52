"""From an exercise's source to marks on the learning platform: python -m dgc_lab.course COMMAND."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections import Counter
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.report import outdated
from dgc_lab.course.roster import read_roster, read_secret, variant_number
from dgc_lab.gradebook import commands as after

EXERCISES = Path("notebooks") / "exercises"
# What these write is nobody else's.
PRIVATE = ("grade", "feedback", "marks", "override", "statistics", "similar", "contest")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    main = argparse.ArgumentParser(prog="python -m dgc_lab.course", description=__doc__)
    commands = main.add_subparsers(dest="command", required=True)

    def command(name, text, *shared):
        found = commands.add_parser(name, help=text, description=text)
        for options in shared:
            options(found)
        return found

    def sources(found):
        found.add_argument(
            "--source", type=Path, default=EXERCISES / "source", help="folder of the sources; %(default)s"
        )

    def secret(found):
        found.add_argument("--secret", type=Path, help="file with the course's secret; the release makes it")

    def names(found):
        found.add_argument("--roster", type=Path, help="file with the students' names, one a line, or a CSV")

    def graded(found):
        found.add_argument("--folder", type=Path, default=Path("grading"), help="the grading folder; ./%(default)s")

    command("new", "write the text of a new exercise", sources).add_argument(
        "name", metavar="EXERCISE", help="for example 08_my_idea"
    )
    found = command("release", "make the students' versions", sources, secret, names)
    found.add_argument("names", nargs="*", metavar="EXERCISE", help="all if none is named")
    found.add_argument("--to", type=Path, help="where to; notebooks/exercises/release, with a roster ./variants")
    found = command("grade", "grade a folder or zip of hand-ins", sources, secret, names, graded)
    found.add_argument("assignment", metavar="EXERCISE", help="for example 04_masking")
    text = "folder or zip as the learning platform hands it out"
    found.add_argument("submissions", type=Path, metavar="HAND-INS", help=text)
    found.add_argument("--minutes", type=above_zero, default=5, help="longest time of a hand-in; %(default)s")
    found.add_argument("--cell-seconds", type=at_least_one, default=60, help="longest time of a cell; %(default)s")
    found.add_argument("--memory", type=above_zero, default=3, help="most memory of a process, in GB; %(default)s")
    found.add_argument("--jobs", type=at_least_one, default=1, metavar="N", help="how many to grade at a time")
    text = "grade where there can be no fence: what is handed in then runs with your rights and your network"
    found.add_argument("--unfenced", action="store_true", help=text)
    found.add_argument("--again", action="store_true", help="grade those, too, that were graded and have not changed")
    found.add_argument("--only", nargs="+", default=[], metavar="STUDENT", help="grade these again, and nobody else")
    text = "take these out of the report first, where a file is called otherwise now"
    found.add_argument("--forget", nargs="+", default=[], metavar="STUDENT", help=text)
    found = command("feedback", "write a page for each student", graded)
    found.add_argument("assignment", nargs="?", metavar="EXERCISE", help="all if none is named")
    found.add_argument("--zip", action="store_true", help="pack them, too, under the names that the platform wants")
    after.add(command, sources, names, graded)
    return main


def at_least_one(text: str) -> int:
    """A number of things.

    Example:
        >>> at_least_one("2")
        2
    """
    if not text.isdecimal() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to 100000, got {text[:20]!r}")
    return int(text)


def above_zero(text: str) -> float:
    """Minutes, or gigabytes.

    Example:
        >>> above_zero("0.5")
        0.5
    """
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 100_000:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a number above 0, at most 100000, got {text[:20]!r}")


def release(options) -> int:
    """The students' versions, one for all or one for each student of a roster."""
    from dgc_lab.course.sources import release

    variants = None
    if options.roster:
        if not options.secret:
            raise LabError("variants for a roster need the course's secret: --secret FILE")
        secret = read_secret(options.secret, make=True)
        variants = {student: variant_number(secret, student) for student in read_roster(options.roster)}
    target = options.to or (Path("variants") if variants else EXERCISES / "release")
    written = release(options.source, target, options.names, variants)
    if variants:
        for name, count in sorted(Counter(path.name for path in written).items()):
            print(f"{name}: {after.many(count, 'student')} in {target}")
    else:
        print(*written, sep="\n")
    return 0


def grade(options) -> int:
    """Grade; 1 when somebody's hand-in could not be graded."""
    from dgc_lab.course.grading import grade
    from dgc_lab.gradebook.journal import Journal
    from dgc_lab.gradebook.ledger import marks_of
    from dgc_lab.gradebook.overrides import unmatched
    from dgc_lab.marking.supervision import Limits

    if options.roster and not options.secret:
        raise LabError("a roster tells whose variant a notebook holds, which takes the course's secret: --secret FILE")
    limits = Limits(int(60 * options.minutes), options.cell_seconds, int(options.memory * 2**30))
    roster = read_roster(options.roster) if options.roster else None
    secret = read_secret(options.secret)
    what = (options.submissions, options.assignment, options.source, options.folder, secret, roster, limits)
    how = (options.again, options.jobs, Journal(options.folder), options.only, options.unfenced, options.forget)
    rows = grade(*what, *how)
    for student, mark in marks_of(options.folder, options.assignment)[options.assignment].items():
        if mark.late:
            print(f"{student}: {mark.late.words}")
    for words in [*unmatched(options.folder), *outdated(options.folder, options.assignment)]:
        print(words)
    left = [row["student"] for row in rows if row["status"] != "graded"]
    print(f"{len(rows) - len(left)} graded" + (f", {len(left)} not: {', '.join(left)}" if left else ""))
    return int(bool(left))


def feedback(options) -> int:
    """Pages of feedback; 1 when somebody has none."""
    from dgc_lab.course.feedback import feedback
    from dgc_lab.gradebook.ledger import marks_of, note
    from dgc_lab.gradebook.pages import pack

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


def new(options) -> int:
    """A new exercise."""
    from dgc_lab.course.scaffold import new

    path = new(options.source, options.name)
    print(f"{path}\nEdit it, then: python -m dgc_lab.course release {options.name}")
    return 0


def main(arguments=None) -> int:
    """Run a command; what goes wrong around it is said in a line."""
    options = parser().parse_args(arguments)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.command in PRIVATE or getattr(options, "roster", None):
        os.umask(0o077)
    try:
        return (globals().get(options.command) or getattr(after, options.command))(options)
    except (LabError, OSError) as error:
        print(f"{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on where it was", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
