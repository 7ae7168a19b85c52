"""The words on the command line for what comes after grading; `dgc_lab.course.__main__` adds them to its own."""

from __future__ import annotations

from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.course.report import graded_rows, outdated
from dgc_lab.course.roster import read_roster

PLATFORMS = ("moodle", "canvas", "brightspace", "blackboard")  # as dgc_lab.gradebook.platforms has them


def add(command, sources, names, graded) -> None:
    """Add the commands by ``command(name, text, *shared)``; the others are options that commands share."""
    found = command("marks", "write the marks: a table, or a platform's own file", names, graded)
    found.add_argument("assignment", nargs="?", metavar="EXERCISE", help="all if none is named")
    found.add_argument(
        "--to", type=Path, help="the file to write; in the grading folder marks.csv, or the platform's name"
    )
    text = "CSV of the answers that a person marks, one for each marker, made when not there; the points are entered"
    found.add_argument("--by-hand", type=Path, nargs="+", default=[], metavar="SHEET", help=text)
    which = found.add_mutually_exclusive_group()
    for platform in PLATFORMS:
        which.add_argument(
            f"--{platform}", type=Path, metavar="FILE", help=f"fill this file, downloaded from {platform.capitalize()}"
        )
    found.add_argument(
        "--column", help="heading of the platform's column to fill, where its name is not the exercise's"
    )
    found.add_argument("--scale", action="store_true", help="stretch marks to the platform's maximum")
    found = command("override", "give points in place of a test, with a reason; kept when graded again", graded)
    found.add_argument("student", help="as in the report")
    found.add_argument("assignment", metavar="EXERCISE", help="for example 04_masking")
    found.add_argument("task", help="its name")
    found.add_argument("points", type=points, help="points for the task, or none to take an override back")
    found.add_argument("--reason", default="", help="why; the student reads it, too")
    for name, text in (
        ("statistics", "how the class did, task by task, and the wrong answers given most"),
        ("similar", "list pairs of students with like answers that few others have"),
    ):
        command(name, text, graded).add_argument(
            "assignment", nargs="?", metavar="EXERCISE", help="all if none is named"
        )
    command("contest", "the table of exercise 8's contest, the best first", graded)
    found = command("solutions", "write notebooks with solutions and without hidden tests", sources)
    found.add_argument("names", nargs="*", metavar="EXERCISE", help="all if none is named")
    found.add_argument("--to", type=Path, default=Path("solutions"), help="where to; ./solutions")
    found = command("publish", "copy the repository for students, without solutions and history")
    found.add_argument("to", type=Path, help="an empty folder, which becomes a repository with one commit")
    text = "where it will be on GitHub: its badges and setup cells lead there; where yours do if not given"
    found.add_argument("--repo", metavar="OWNER/NAME", help=text)


def points(text: str) -> float | None:
    """Points from the command line; None for the word none.

    Example:
        >>> points("2.5"), points("none")
        (2.5, None)
    """
    return None if text == "none" else float(text.replace(",", "."))


def many(count: int, thing: str) -> str:
    """So many things.

    Example:
        >>> many(1, "page"), many(2, "page")
        ('1 page', '2 pages')
    """
    return f"{count} {thing if count == 1 else f'{thing}s'}"


def marks(options) -> int:
    """The marks, with those that a person has given.

    1 when somebody on a platform was left as they were, or nobody on the roster has handed in.
    """
    from dgc_lab.gradebook import late, overrides
    from dgc_lab.gradebook.by_hand import by_hand
    from dgc_lab.gradebook.table import marks

    folder, platform = options.folder, next((name for name in PLATFORMS if getattr(options, name)), None)
    if not platform and (options.column or options.scale):
        raise LabError("--column and --scale are for a platform's own file: name it, as in --moodle FILE")
    if platform and options.roster:
        raise LabError(f"--roster is for the table of marks, and --{platform} fills a file that has its own names")
    for words in [*late.unmatched(folder), *overrides.unmatched(folder), *outdated(folder, options.assignment)]:
        print(words)
    if options.by_hand:
        entered, waiting = by_hand(options.folder, options.by_hand)
        sheets = ", ".join(map(str, options.by_hand))
        print(f"{many(entered, 'answer')} with points in {sheets}, {waiting} without")
    if platform:
        return fill(options, platform)
    roster = read_roster(options.roster) if options.roster else None
    target = options.to or options.folder / "marks.csv"
    print(f"{many(len(marks(folder, target, roster, options.assignment)), 'student')} in {target}")
    rows = graded_rows(folder, options.assignment).values()
    if roster and not any(roster.keys() & every.keys() for every in rows):
        column = f"names come from the first column of {options.roster}, as {next(iter(roster.values()))!r} does"
        print(f"0 of {len(roster)} names on the roster have handed in; {column}")
        return 1
    return 0


def fill(options, platform: str) -> int:
    """A platform's own file."""
    from dgc_lab.gradebook.ledger import marks_of
    from dgc_lab.gradebook.platforms import fill

    file = getattr(options, platform)
    target = options.to or options.folder / file.name
    if not file.exists():
        raise LabError(f"no file {file}")
    if target.exists() and target.samefile(file):
        raise LabError(f"{target} is the file that is to be filled, and would be lost: name another one (--to)")
    filled = fill(marks_of(options.folder, options.assignment), file, platform, options.column, options.scale)
    target.write_bytes(filled.data)
    for line in filled.left:
        print(f"left as it was: {line}")
    print(f"{many(filled.count, 'mark')} in {target}, nothing else in it has changed")
    return int(bool(filled.left))


def override(options) -> int:
    """One decision."""
    from dgc_lab.gradebook.overrides import override

    what = (options.student, options.assignment, options.task, options.points, options.reason)
    rows = override(options.folder, *what)
    hold = "1 override holds" if len(rows) == 1 else f"{len(rows)} overrides hold"
    print(f"{hold}, see {options.folder / 'overrides.csv'}")
    return 0


def statistics(options) -> int:
    """How the class did."""
    from dgc_lab.gradebook.statistics import write_statistics

    page, rows = write_statistics(options.folder, options.assignment)
    for row in rows:
        print(
            "{exercise} {task}: {attempted} of {handed in} attempted, {right} right, mean {mean} of {points}".format(
                **row
            )
        )
    print(page)
    return 0


def similar(options) -> int:
    """Pairs to look at."""
    from dgc_lab.gradebook.similar import write_similar

    path, rows = write_similar(options.folder, options.assignment)
    for row in rows[:20]:
        print(f"{row['exercise']} {row['first']} and {row['second']}, {row['bits']} bits: {row['answers']}")
    print(f"{many(len(rows), 'pair')} in {path}: look at them; alike is not copied")
    return 0


def contest(options) -> int:
    """The class's table."""
    from dgc_lab.gradebook.contest import write_contest

    path, rows = write_contest(options.folder)
    for row in rows:
        print("{place}. {student}: accuracy {accuracy:.3f}".format(**row))
    print(path)
    return 0


def solutions(options) -> int:
    """Solutions to hand out."""
    from dgc_lab.gradebook.solutions import solutions

    for path in solutions(options.source, options.to, options.names):
        print(path)
    return 0


def publish(options) -> int:
    """The students' copy."""
    from dgc_lab.gradebook.publish import publish

    print(f"{many(len(publish(Path(), options.to, options.repo)), 'file')} in {options.to}: a repository of one commit")
    address = f"https://github.com/{options.repo}" if options.repo else "ADDRESS"
    print(f"Push it with its tag, which setup cells install: git -C {options.to} push --tags {address} main")
    return 0
