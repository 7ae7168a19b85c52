"""Commands that follow grading; `dgc_lab_grading.__main__` adds them to its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course.names import spelled_like
from dgc_lab_grading.course.report import graded_rows, outdated
from dgc_lab_grading.course.roster import read_roster

EXERCISES = Path("notebooks") / "exercises"
PLATFORMS = ("moodle", "canvas", "brightspace", "blackboard")  # as in `platforms`


def add_commands(commands) -> None:
    """Add these commands to a parser's subparsers."""
    text = "write the marks as a table, or into a platform's own file"
    sub = add_command(commands, "marks", run_marks, text, add_roster, add_folder)
    sub.add_argument("assignment", nargs="?", metavar="EXERCISE", help="default: all exercises")
    text = "output file (default: in the grading folder, marks.csv or the name of the platform's file)"
    sub.add_argument("--to", type=Path, help=text)
    text = "CSV of the answers to mark by hand, one per marker; created if missing, else its points are entered"
    sub.add_argument("--by-hand", type=Path, nargs="+", default=[], metavar="SHEET", help=text)
    group = sub.add_mutually_exclusive_group()
    for platform in PLATFORMS:
        text = f"fill this file, downloaded from {platform.capitalize()}"
        group.add_argument(f"--{platform}", type=Path, metavar="FILE", help=text)
    text = "heading of the platform's column to fill, if it does not name the exercise"
    sub.add_argument("--column", help=text)
    sub.add_argument("--scale", action="store_true", help="scale marks to the platform's maximum")
    text = "replace the points of a test, with a reason; kept when regrading"
    sub = add_command(commands, "override", run_override, text, add_folder)
    sub.add_argument("student", help="name in the report")
    sub.add_argument("assignment", metavar="EXERCISE", help="for example 04_masking")
    sub.add_argument("task", help="name of the task")
    sub.add_argument("points", type=points, help="points for the task, or none to remove an override")
    sub.add_argument("--reason", default="", help="why; the student sees it, too")
    for name, run, text in (
        ("statistics", run_statistics, "show results by task, and the most frequent wrong answers"),
        ("similar", run_similar, "list pairs of students with similar answers that few others have"),
    ):
        sub = add_command(commands, name, run, text, add_folder)
        sub.add_argument("assignment", nargs="?", metavar="EXERCISE", help="default: all exercises")
    add_command(commands, "contest", run_contest, "rank exercise 8's contest, best first", add_folder)
    text = "write notebooks with solutions and without hidden tests"
    sub = add_command(commands, "solutions", run_solutions, text, add_source)
    sub.add_argument("names", nargs="*", metavar="EXERCISE", help="default: all exercises")
    sub.add_argument("--to", type=Path, default=Path("solutions"), help="output folder (default: ./solutions)")
    text = "copy the repository for students, without solutions or history"
    sub = add_command(commands, "publish", run_publish, text)
    sub.add_argument("to", type=Path, help="folder for the copy, a repository: empty, or with --update an earlier copy")
    text = "add a commit and a tag to an earlier copy, so that students can pull the changes"
    sub.add_argument("--update", action="store_true", help=text)
    text = "its repository on GitHub, for badges and setup cells (default: the same as in yours)"
    sub.add_argument("--repo", metavar="OWNER/NAME", help=text)


def add_command(commands, name: str, run: Callable, text: str, *shared: Callable) -> argparse.ArgumentParser:
    """Add a command with shared options, and return its parser."""
    sub = commands.add_parser(name, help=text, description=text)
    sub.set_defaults(command=run)
    for add in shared:
        add(sub)
    return sub


def add_source(sub: argparse.ArgumentParser) -> None:
    """Add the option for the exercises' sources."""
    text = "folder of the exercises' sources (default: %(default)s)"
    sub.add_argument("--source", type=Path, default=EXERCISES / "source", help=text)


def add_roster(sub: argparse.ArgumentParser) -> None:
    """Add the option for the students' names."""
    sub.add_argument("--roster", type=Path, help="file with the students' names, one per line, or a CSV")


def add_folder(sub: argparse.ArgumentParser) -> None:
    """Add the option for the grading folder; only the instructor may read the output of these commands."""
    text = "grading folder (default: ./%(default)s)"
    sub.add_argument("--folder", type=grading_folder, default="grading", help=text)
    sub.set_defaults(private=True)


def grading_folder(text: str) -> Path:
    """Parse the path of a grading folder.

    Example:
        >>> grading_folder("grading").name
        'grading'
    """
    if found := set("[?*") & set(str(Path(text).resolve())):
        name = str(Path(text).resolve())[:200]
        raise argparse.ArgumentTypeError(
            f"must not have {' '.join(sorted(found))} in its path, for nbgrader, got {name}"
        )
    return Path(text)


def points(text: str) -> float | None:
    """Parse points from the command line; None for the word none.

    Example:
        >>> points("2.5"), points("none")
        (2.5, None)
    """
    return None if text == "none" else float(text.replace(",", "."))


def many(count: int, thing: str) -> str:
    """Format a count of things.

    Example:
        >>> many(1, "page"), many(2, "page")
        ('1 page', '2 pages')
    """
    return f"{count} {thing if count == 1 else f'{thing}s'}"


def run_marks(options) -> int:
    """Write the marks, including manual ones.

    Returns 1 if the platform's file lacks a student's marks, or if nobody on the roster has handed in.
    """
    from dgc_lab_grading.gradebook import late, overrides
    from dgc_lab_grading.gradebook.by_hand import by_hand
    from dgc_lab_grading.gradebook.table import marks

    folder, platform = options.folder, next((name for name in PLATFORMS if getattr(options, name)), None)
    if not platform and (options.column or options.scale):
        raise LabError("--column and --scale need a platform's own file, for example --moodle FILE")
    if platform and options.roster:
        raise LabError(f"--roster applies to the table of marks; --{platform} fills a file with its own names")
    for words in [*late.unmatched(folder), *overrides.unmatched(folder), *outdated(folder, options.assignment)]:
        print(words)
    if options.by_hand:
        entered, waiting = by_hand(options.folder, options.by_hand)
        sheets = ", ".join(map(str, options.by_hand))
        print(f"{many(entered, 'answer')} with points in {sheets}, {waiting} without")
    if platform:
        return fill_platform_file(options, platform)
    roster = read_roster(options.roster) if options.roster else None
    target = options.to or options.folder / "marks.csv"
    print(f"{many(len(marks(folder, target, roster, options.assignment)), 'student')} in {target}")
    rows = graded_rows(folder, options.assignment).values()
    if roster and not any(spelled_like(student, every) in every for every in rows for student in roster):
        column = f"names come from the first column of {options.roster}, like {next(iter(roster.values()))!r}"
        print(f"0 of {len(roster)} students on the roster have handed in; {column}")
        return 1
    return 0


def fill_platform_file(options, platform: str) -> int:
    """Fill a platform's own file; return 1 if the mark of a student is missing in it."""
    from dgc_lab_grading.gradebook.ledger import marks_of
    from dgc_lab_grading.gradebook.platforms import fill

    file = getattr(options, platform)
    target = options.to or options.folder / file.name
    if not file.exists():
        raise LabError(f"no such file: {file}")
    if target.exists() and target.samefile(file):
        raise LabError(f"{target} is the downloaded file, and would be overwritten: name another output file (--to)")
    filled = fill(marks_of(options.folder, options.assignment), file, platform, options.column, options.scale)
    target.write_bytes(filled.data)
    for line in filled.left + filled.kept:
        print(f"not filled: {line}")
    print(f"{many(filled.count, 'mark')} in {target}; nothing else in it has changed")
    return int(bool(filled.left))


def run_override(options) -> int:
    """Override the points of a task."""
    from dgc_lab_grading.gradebook.overrides import override

    what = (options.student, options.assignment, options.task, options.points, options.reason)
    rows = override(options.folder, *what)
    print(f"{many(len(rows), 'override')} in {options.folder / 'overrides.csv'}")
    return 0


def run_statistics(options) -> int:
    """Show how the class did."""
    from dgc_lab_grading.gradebook.statistics import write_statistics

    page, rows = write_statistics(options.folder, options.assignment)
    for row in rows:
        print(
            "{exercise} {task}: {attempted} of {handed in} attempted, {right} right, mean {mean} of {points}".format(
                **row
            )
        )
    print(page)
    return 0


def run_similar(options) -> int:
    """List pairs of students with similar answers."""
    from dgc_lab_grading.gradebook.similar import write_similar

    path, rows = write_similar(options.folder, options.assignment)
    for row in rows[:20]:
        print(f"{row['exercise']} {row['first']} and {row['second']}, {row['bits']} bits: {row['answers']}")
    print(f"{many(len(rows), 'pair')} in {path}: read them; similar does not mean copied")
    return 0


def run_contest(options) -> int:
    """Rank the class's contest."""
    from dgc_lab_grading.gradebook.contest import write_contest

    path, rows = write_contest(options.folder)
    for row in rows:
        print("{place}. {student}: accuracy {accuracy:.3f}".format(**row))
    print(path)
    return 0


def run_solutions(options) -> int:
    """Write solutions to hand out."""
    from dgc_lab_grading.gradebook.solutions import solutions

    for path in solutions(options.source, options.to, options.names):
        print(path)
    return 0


def run_publish(options) -> int:
    """Copy the repository for students."""
    from dgc_lab_grading.gradebook.publish import publish

    names = publish(Path(), options.to, options.repo, options.update)
    print(f"{many(len(names), 'file')} in {options.to}, as {'another' if options.update else 'one'} commit")
    address = f"https://github.com/{options.repo}" if options.repo else "ADDRESS"
    print(f"Push it with its tag, which setup cells install: git -C {options.to} push --tags {address} main")
    return 0
