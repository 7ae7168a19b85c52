"""Exercises: solutions get all marks, nothing gets none, a wrong answer costs what it should; no answer is released."""

import contextlib
import io
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest

import dgc_lab
from dgc_lab.course import sources
from dgc_lab.exercises.checking import NotYet, array_like
from dgc_lab.marking.nbgrader_api import STUB, TEXT_STUB

EXERCISES = Path(__file__).resolve().parents[2] / "notebooks" / "exercises"
NAMES = sources.assignments(EXERCISES / "source")
WRONG_ANSWERS = re.compile(r"^# %% (\S+) costs (.+)\n((?:(?!# %%).*\n)*)", re.MULTILINE)
RIGHT_ANSWERS = re.compile(r"^# %% (\S+) .+\n((?:(?!# %%).*\n)*)", re.MULTILINE)
each = pytest.mark.parametrize("name", NAMES)


def released(name):
    return nbformat.read(EXERCISES / "release" / name / f"{name}.ipynb", as_version=4)


def kind(cell):
    return cell.metadata.get("nbgrader", {})


def wrong_answers(name):
    """Of each wrong answer its cell, its code and the marks that it costs."""
    text = (Path(__file__).parent / "wrong_answers" / f"{name}.py").read_text()
    return [(cell, code, set(lost.split(", "))) for cell, lost, code in WRONG_ANSWERS.findall(text)]


def right_answers():
    """Answers that are made in another way than the solutions: the exercise, the cell, the code."""
    files = sorted((Path(__file__).parent / "right_answers").glob("*.py"))
    return [(file.stem, *answer) for file in files for answer in RIGHT_ANSWERS.findall(file.read_text())]


def by_hand(cell):
    """Whether a person marks this answer."""
    return bool(kind(cell).get("grade") and kind(cell).get("solution"))


def marks(notebook):
    """What a machine gives marks for."""
    graded = [kind(cell)["grade_id"] for cell in notebook.cells if kind(cell).get("grade") and not by_hand(cell)]
    return {name.removeprefix("marks-") for name in graded}


def run(name, answers=(), variant=0, space=None):
    """The marks that are reached with these answers in place of the solutions, and what was printed."""
    notebook = sources.with_variant(sources.notebook(EXERCISES / "source", name), variant)
    space, reached = {} if space is None else space, set()
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for cell in notebook.cells:
            if cell.cell_type != "code" or "%pip" in cell.source:
                continue
            code = dict(answers).get(kind(cell).get("grade_id"), cell.source)
            try:
                exec(code, space)
            except Exception:
                assert kind(cell).get("grade") or kind(cell).get("solution"), cell.source
                continue
            if kind(cell).get("grade"):
                reached.add(kind(cell)["grade_id"].removeprefix("marks-"))
    return reached, printed.getvalue()


@each
@pytest.mark.parametrize("variant", [0, 1, 1_234_567_890])
def test_the_solutions_get_all_marks(name, variant):
    reached, printed = run(name, variant=variant)
    assert reached == marks(sources.notebook(EXERCISES / "source", name))
    assert "✗" not in printed


@each
def test_a_third_of_the_points_follows_from_numbers_or_a_model_of_ones_own(name):
    """With somebody else's values in place of one's own these points are lost."""
    run(name, variant=1, space=(theirs := {}))
    source = sources.notebook(EXERCISES / "source", name)
    answers = [kind(cell)["grade_id"] for cell in source.cells if kind(cell).get("solution")]
    own = [answer for answer in answers if answer.startswith("my-")]
    values = {answer: answer.replace("-", "_") for answer in own}
    copied = {answer: f"{value} = {theirs[value]!r}" for answer, value in values.items()}
    reached, _ = run(name, copied.items(), variant=1_234_567_890)
    lost = marks(source) - reached
    points = {kind(c)["grade_id"].removeprefix("marks-"): kind(c).get("points", 0) for c in source.cells if kind(c)}
    model = [answer for answer in points if answer == "project-table"] + [
        kind(cell)["grade_id"] for cell in source.cells if by_hand(cell)
    ]
    assert lost <= set(copied)
    assert 3 * sum(points[answer] for answer in (*lost, *model)) >= sum(points.values())


@each
def test_the_untouched_release_gets_none_and_is_told_so(name):
    untouched = {kind(cell)["grade_id"]: cell.source for cell in released(name).cells if kind(cell).get("solution")}
    assert untouched
    reached, printed = run(name, untouched.items())
    assert reached == set()
    assert printed.count("not attempted yet") == len(re.findall(r"(?m)^.*: not attempted yet.*$", printed)) > 0
    assert "✗" not in printed


@pytest.mark.parametrize(("name", "cell", "code", "lost"), [(n, *wrong) for n in NAMES for wrong in wrong_answers(n)])
def test_a_wrong_answer_costs_its_marks_and_no_others(name, cell, code, lost):
    reached, printed = run(name, [(cell, code)])
    assert marks(sources.notebook(EXERCISES / "source", name)) - reached == lost
    assert printed.count("✗") == len(lost)


# Of the last ones each refused a right answer or let a wrong one pass: by chance, in the check or in the numbers.
VARIANTS = (*range(2, 40), 493, 1158, 1418, 1469, 1965)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"07_own_model"}))  # its numbers are what a training gives
def test_chance_refuses_no_right_answer_and_lets_no_wrong_one_pass(name):
    """The contest's training takes long and knows no variant; it is left out."""
    source = sources.notebook(EXERCISES / "source", name)
    contest = [(kind(cell)["grade_id"], "") for cell in source.cells if "contest" in kind(cell).get("grade_id", "")]
    tests = {kind(cell)["grade_id"]: cell.source for cell in source.cells if kind(cell).get("grade")}
    for variant in VARIANTS:
        reached, printed = run(name, contest, variant, space := {})
        assert "✗" not in printed, f"{variant}: {printed}"
        assert reached == marks(source), variant
        for cell, code, lost in wrong_answers(name):
            if cell.startswith("my-") and lost == {cell}:
                theirs, passed = dict(space), False
                with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(AssertionError):
                    exec(code, theirs)
                    exec(tests[f"marks-{cell}"], theirs)
                    passed = True
                assert not passed, f"{variant}: {code}"


@pytest.mark.parametrize(("name", "cell", "code"), right_answers())
def test_another_right_answer_gets_all_marks(name, cell, code):
    reached, printed = run(name, [(cell, code)])
    assert reached == marks(sources.notebook(EXERCISES / "source", name))
    assert "✗" not in printed


def test_what_the_check_asks_known_by_heart_is_no_answer():
    """And otherwise nothing, which is close to everything."""
    known = '{"NONE": values, "SUM": [12] * 4, "MEAN": [3] * 4, "ONLY_FIRST_REPLICA": [1] * 4}[how]'
    code = f"def aggregate(values, how):\n    return {known} if len(values) == 4 else []"
    reached, printed = run("02_replicas", [("aggregate", code)])
    assert "✓ aggregate" in printed
    assert "aggregate" not in reached


def test_every_answer_has_a_wrong_one():
    for name in NAMES:
        source = sources.notebook(EXERCISES / "source", name)
        answers = {kind(cell)["grade_id"] for cell in source.cells if kind(cell).get("solution") and not by_hand(cell)}
        assert answers == {cell for cell, *_ in wrong_answers(name)}


@each
def test_the_release_is_the_source_without_what_students_must_not_see(name):
    source, release = sources.notebook(EXERCISES / "source", name), released(name)
    assert len(source.cells) == len(release.cells)
    for given, left in zip(source.cells, release.cells, strict=True):
        stub = STUB if given.cell_type == "code" else TEXT_STUB
        text = re.sub(r"(?ms)^([ \t]*)### BEGIN SOLUTION.*?### END SOLUTION", rf"\1{stub}", given.source)
        text = re.sub(r"(?ms)\n?### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS", "", text)
        assert left.source == text
        assert {**kind(left), "checksum": None} == {**kind(given), "checksum": None} or not kind(given)
    assert not re.search("SOLUTION|HIDDEN", str(release))


@each
def test_the_source_notebook_is_its_text(name):
    stored = nbformat.read(EXERCISES / "source" / name / f"{name}.ipynb", as_version=4)
    assert [(c.cell_type, c.source, c.metadata) for c in stored.cells] == [
        (c.cell_type, c.source, c.metadata) for c in sources.notebook(EXERCISES / "source", name).cells
    ]


@each
def test_points_and_badges_are_those_that_the_text_states(name):
    source = sources.notebook(EXERCISES / "source", name)
    text = "\n".join(cell.source for cell in source.cells if cell.cell_type == "markdown")
    points = sum(kind(cell).get("points", 0) for cell in source.cells)
    assert f"**Points:** {points}." in text
    assert points == sum(
        int(number) for number in re.findall(r"(?m)^## Task .*\((\d+) points?, \d+ (?:minutes|hours)\)$", text)
    )
    assert text.count(f"notebooks/exercises/release/{name}/{name}.ipynb") == 2
    assert "**Time:**" in text


@each
def test_each_task_begins_with_its_goal(name):
    cells = [cell.source for cell in released(name).cells if cell.source.startswith("## Task ")]
    assert len(cells) > 5
    goals = [re.fullmatch(r"\*\*Goal:\*\* [a-z].{10,90}\.", cell.split("\n\n")[1]) for cell in cells]
    assert all(goals), cells[goals.index(None)]


@each
def test_the_times_of_its_tasks_are_its_own_and_the_guides(name):
    text = "\n".join(cell.source for cell in released(name).cells)
    minutes = sum(int(number) for number in re.findall(r"(?m)^## Task .*?(\d+) minutes", text))
    assert f"**Time:** {minutes} minutes" in text
    row = re.search(rf"(?m)^\| \[{name}\].*$", (EXERCISES / "README.md").read_text())[0]
    assert f"| {minutes} min" in row


@each
def test_the_setup_cell_is_that_of_the_lessons(name):
    code = next(cell.source for cell in released(name).cells if cell.cell_type == "code")
    lesson = nbformat.read(EXERCISES.parent / "04_dgc_masking.ipynb", as_version=4)
    given = next(cell.source for cell in lesson.cells if cell.cell_type == "code")
    assert code == given.replace("this lesson", "this exercise").replace("gpu=True", "")


def test_a_check_never_shows_an_error_of_the_answer_and_knows_its_tasks(capsys):
    assert not dgc_lab.check("top_k_mask", lambda gradient, k: gradient.no_such_thing)
    assert "AttributeError" in capsys.readouterr().out
    assert not dgc_lab.check("top_k_mask", 3)
    assert "a function is asked for" in capsys.readouterr().out
    assert not dgc_lab.check("split", lambda gradient, mask: (gradient,))
    assert "2 things" in capsys.readouterr().out
    assert not dgc_lab.check("my_variable", ("10", {}))
    assert not dgc_lab.check("may_start", lambda own, steps, bound: [True, False])
    assert "one True or False is asked for, got 2 of them" in capsys.readouterr().out
    assert not dgc_lab.check("telling_addends", [[1], [1, 2]])
    assert "of another kind than was asked for" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"task must be one of .*, got 'no_such'"):
        dgc_lab.check("no_such", None)


def not_written_yet(*_):
    raise NotImplementedError


@pytest.mark.parametrize("answer", [None, ..., not_written_yet, lambda *_: None])
def test_what_was_not_attempted_is_not_called_wrong(capsys, answer):
    assert not dgc_lab.check("ring_bytes", answer)
    assert capsys.readouterr().out.startswith("ring_bytes: not attempted yet")


@pytest.mark.parametrize(
    ("result", "pattern", "message"),
    [
        ([[1], [1, 2]], np.ones(3), "an array is asked for, this is list"),
        (np.ones(2), np.ones(3), r"the shape must be \(3,\), got \(2,\)"),
        (np.ones(3), np.ones(3, bool), "an array of True and False is asked for, got float64"),
        (np.ones(3, bool), np.ones(3), "an array of numbers is asked for, got bool"),
        (["a", "b", "c"], np.ones(3), "an array of numbers is asked for, got <U1"),
    ],
)
def test_an_array_of_another_kind_is_told_what_was_asked_for(result, pattern, message):
    with pytest.raises(NotYet, match=f"^for three weights {message}"):
        array_like(result, pattern, "for three weights")


def test_a_rubric_says_what_is_given_for_each_answer_that_a_person_marks():
    """In the exercise, word for word in the guide, and as the points of the answers."""
    source = sources.notebook(EXERCISES / "source", "07_own_model")
    points = {kind(cell)["grade_id"].replace("-", " "): kind(cell)["points"] for cell in source.cells if by_hand(cell)}
    text, guide = "\n".join(cell.source for cell in source.cells), (EXERCISES / "README.md").read_text()
    rubric = re.search(r"(?m)^\| points \| full .*\n(?:\|.*\n?)+", text).group().strip()
    assert rubric in guide
    assert {name: int(most) for name, most in re.findall(r"(?m)^\| ([a-z ]+), (\d+) \|", rubric)} == points
