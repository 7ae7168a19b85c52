"""Solutions get full marks, blank answers none, wrong answers lose the right ones; no solution is released."""

import contextlib
import io
import re
from functools import cache
from pathlib import Path

import nbformat
import numpy as np
import pytest

import dgc_lab
from dgc_lab.exercises import checking
from dgc_lab.exercises.checking import NotYet, array_like
from dgc_lab_grading.course import sources
from dgc_lab_grading.marking.nbgrader_api import STUB, TEXT_STUB
from dgc_lab_grading.marking.repair import is_variant

EXERCISES = Path(__file__).resolve().parents[2] / "notebooks" / "exercises"
NAMES = sources.assignments(EXERCISES / "source")
WRONG_ANSWERS = re.compile(r"^# %% (\S+) costs (.+)\n((?:(?!# %%).*\n)*)", re.MULTILINE)
RIGHT_ANSWERS = re.compile(r"^# %% (\S+) .+\n((?:(?!# %%).*\n)*)", re.MULTILINE)
each = pytest.mark.parametrize("name", NAMES)


@cache
def source_of(name):
    """Source of an exercise, read once."""
    return sources.notebook(EXERCISES / "source", name)


@cache
def released(name):
    return nbformat.read(EXERCISES / "release" / name / f"{name}.ipynb", as_version=4)


def kind(cell):
    return cell.metadata.get("nbgrader", {})


def wrong_answers(name):
    """Cell, code and lost marks of each wrong answer."""
    text = (Path(__file__).parent / "wrong_answers" / f"{name}.py").read_text()
    return [(cell, code, set(lost.split(", "))) for cell, lost, code in WRONG_ANSWERS.findall(text)]


def right_answers():
    """Exercise, cell and code of each right answer that differs from the solution."""
    files = sorted((Path(__file__).parent / "right_answers").glob("*.py"))
    return [(file.stem, *answer) for file in files for answer in RIGHT_ANSWERS.findall(file.read_text())]


def by_hand(cell):
    """Whether a person marks this answer."""
    return bool(kind(cell).get("grade") and kind(cell).get("solution"))


def marks(notebook):
    """Names of the tasks that are graded automatically."""
    graded = [kind(cell)["grade_id"] for cell in notebook.cells if kind(cell).get("grade") and not by_hand(cell)]
    return {name.removeprefix("marks-") for name in graded}


def run(name, answers=(), variant=0, space=None):
    """Run an exercise with these answers in place of the solutions; return the tasks that pass, and the output."""
    space, reached, answers = {} if space is None else space, set(), dict(answers)
    checking.wrong_values.clear()  # each run stands for a new kernel
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for cell in source_of(name).cells:
            if cell.cell_type != "code" or "%pip" in cell.source:
                continue
            code = answers.get(kind(cell).get("grade_id"), cell.source)
            code = f"VARIANT = {variant}" if is_variant(cell) else code
            try:
                exec(code, space)
            except Exception:
                assert kind(cell).get("grade") or kind(cell).get("solution"), cell.source
                continue
            if kind(cell).get("grade"):
                reached.add(kind(cell)["grade_id"].removeprefix("marks-"))
    return reached, printed.getvalue()


def contest_of(name):
    """Empty cells in place of exercise 8's contest, whose training takes long and needs no other answer."""
    names = [kind(cell).get("grade_id", "") for cell in source_of(name).cells]
    return [(grade_id, "") for grade_id in names if "contest" in grade_id]


@each
@pytest.mark.parametrize("variant", [0, 1, 1_234_567_890])
def test_solutions_get_full_marks(name, variant):
    reached, printed = run(name, variant=variant)
    assert reached == marks(source_of(name))
    assert "✗" not in printed


@pytest.mark.nightly
@each
def test_a_third_of_the_points_depends_on_own_numbers(name):
    """Another student's values lose these points."""
    run(name, variant=1, space=(theirs := {}))
    source = source_of(name)
    answers = [kind(cell)["grade_id"] for cell in source.cells if kind(cell).get("solution")]
    own = [answer for answer in answers if answer.startswith("my-")]
    values = {answer: answer.replace("-", "_") for answer in own}
    copied = {answer: f"{value} = {theirs[value]!r}" for answer, value in values.items()}
    reached, _ = run(name, copied.items(), variant=1_234_567_890)
    lost = marks(source) - reached
    points = {kind(c)["grade_id"].removeprefix("marks-"): kind(c).get("points", 0) for c in source.cells if kind(c)}
    model = [answer for answer in points if answer == "project-table" or answer.startswith("contest-")]
    model += [kind(cell)["grade_id"] for cell in source.cells if by_hand(cell)]
    assert lost <= set(copied)
    assert 3 * sum(points[answer] for answer in (*lost, *model)) >= sum(points.values())


@each
def test_the_untouched_release_gets_no_marks(name):
    untouched = {kind(cell)["grade_id"]: cell.source for cell in released(name).cells if kind(cell).get("solution")}
    assert untouched
    reached, printed = run(name, untouched.items())
    assert reached == set()
    assert printed.count("not attempted yet") == len(re.findall(r"(?m)^.*: not attempted yet.*$", printed)) > 0
    assert "✗" not in printed


@pytest.mark.parametrize(("name", "cell", "code", "lost"), [(n, *wrong) for n in NAMES for wrong in wrong_answers(n)])
def test_a_wrong_answer_loses_its_own_marks_only(name, cell, code, lost):
    left_out = [] if "contest" in cell else contest_of(name)
    reached, printed = run(name, [*left_out, (cell, code)])
    assert marks(source_of(name)) - reached == lost
    assert printed.count("✗") == len(lost)


# With each of the last five, a check or its random numbers once rejected a right answer or accepted a wrong one.
VARIANTS = (*range(2, 40), 493, 1158, 1418, 1469, 1965)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"07_own_model"}))  # its numbers come from a training
def test_variants_accept_right_answers_and_reject_wrong_ones(name):
    source = source_of(name)
    tests = {kind(cell)["grade_id"]: cell.source for cell in source.cells if kind(cell).get("grade")}
    for variant in VARIANTS:
        reached, printed = run(name, contest_of(name), variant, space := {})
        assert "✗" not in printed, f"{variant}: {printed}"
        assert reached == marks(source), variant
        for cell, code, lost in wrong_answers(name):
            if cell.startswith("my-") and lost == {cell}:
                theirs, passed = dict(space), False
                checking.wrong_values.clear()
                with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(AssertionError):
                    exec(code, theirs)
                    exec(tests[f"marks-{cell}"], theirs)
                    passed = True
                assert not passed, f"{variant}: {code}"


@pytest.mark.parametrize(("name", "cell", "code"), right_answers())
def test_other_right_answers_get_full_marks(name, cell, code):
    reached, printed = run(name, [(cell, code)])
    assert reached == marks(source_of(name))
    assert "✗" not in printed


def test_hard_coding_the_checks_example_gets_no_marks():
    """Hard-coding the check's example passes the check, but not the hidden tests."""
    code = "def global_accuracy(correct, seen):\n    return {19: 0.19, 3: 0.75}.get(int(sum(correct)), 0)"
    reached, printed = run("02_replicas", [("global-accuracy", code)])
    assert "✓ global_accuracy" in printed
    assert "global-accuracy" not in reached


def test_every_task_has_a_wrong_answer():
    for name in NAMES:
        source = source_of(name)
        answers = {kind(cell)["grade_id"] for cell in source.cells if kind(cell).get("solution") and not by_hand(cell)}
        assert answers == {cell for cell, *_ in wrong_answers(name)}


@each
def test_the_release_hides_solutions_and_hidden_tests(name):
    source, release = source_of(name), released(name)
    assert len(source.cells) == len(release.cells)
    for given, left in zip(source.cells, release.cells, strict=True):
        stub = STUB if given.cell_type == "code" else TEXT_STUB
        text = re.sub(r"(?ms)^([ \t]*)### BEGIN SOLUTION.*?### END SOLUTION", rf"\1{stub}", given.source)
        text = re.sub(r"(?ms)\n?### BEGIN HIDDEN TESTS.*?### END HIDDEN TESTS", "", text)
        assert left.source == text
        assert {**kind(left), "checksum": None} == {**kind(given), "checksum": None} or not kind(given)
    assert not re.search("SOLUTION|HIDDEN", str(release))


@each
def test_the_source_notebook_matches_its_text(name):
    stored = nbformat.read(EXERCISES / "source" / name / f"{name}.ipynb", as_version=4)
    assert [(c.cell_type, c.source, c.metadata) for c in stored.cells] == [
        (c.cell_type, c.source, c.metadata) for c in source_of(name).cells
    ]


@each
def test_stated_points_and_badges_are_correct(name):
    source = source_of(name)
    text = "\n".join(cell.source for cell in source.cells if cell.cell_type == "markdown")
    points = sum(kind(cell).get("points", 0) for cell in source.cells)
    assert f"**Points:** {points}." in text
    assert points == sum(
        int(number) for number in re.findall(r"(?m)^## Task .*\((\d+) points?, \d+ (?:minutes|hours)\)$", text)
    )
    assert text.count(f"notebooks/exercises/release/{name}/{name}.ipynb") == 2
    assert "**Time:**" in text


@each
def test_stated_times_add_up_and_match_the_guide(name):
    text = "\n".join(cell.source for cell in released(name).cells)
    minutes = sum(int(number) for number in re.findall(r"(?m)^## Task .*?(\d+) minutes", text))
    assert f"**Time:** {minutes} minutes" in text
    row = re.search(rf"(?m)^\| \[{name}\].*$", (EXERCISES / "README.md").read_text())[0]
    assert f"| {minutes} min" in row


@each
def test_the_setup_cell_matches_the_lessons(name):
    code = next(cell.source for cell in released(name).cells if cell.cell_type == "code")
    lesson = nbformat.read(EXERCISES.parent / "04_dgc_masking.ipynb", as_version=4)
    given = next(cell.source for cell in lesson.cells if cell.cell_type == "code")
    assert code == given.replace("this lesson", "this exercise").replace("gpu=True", "")


def test_a_check_turns_errors_into_feedback(capsys):
    assert not dgc_lab.check("top_k_mask", lambda gradient, k: gradient.no_such_thing)
    assert "AttributeError" in capsys.readouterr().out
    assert not dgc_lab.check("top_k_mask", 3)
    assert "expected a function, got int" in capsys.readouterr().out
    assert not dgc_lab.check("split", lambda gradient, mask: (gradient,))
    assert "expected 2 values" in capsys.readouterr().out
    assert not dgc_lab.check("my_moments", ("10", {}))
    assert not dgc_lab.check("may_start", lambda own, steps, bound: [True, False])
    assert "expected a single True or False, got 2 values" in capsys.readouterr().out
    assert not dgc_lab.check("telling_addends", [[1], [1, 2]])
    assert "does not have the expected type" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"task must be one of .*, got 'no_such'"):
        dgc_lab.check("no_such", None)


def not_written_yet(*_):
    raise NotImplementedError


@pytest.mark.parametrize("answer", [None, ..., not_written_yet, lambda *_: None])
def test_an_unattempted_task_is_not_called_wrong(capsys, answer):
    assert not dgc_lab.check("ring_bytes", answer)
    assert capsys.readouterr().out.startswith("ring_bytes: not attempted yet")


@pytest.mark.parametrize(
    ("result", "pattern", "got"),
    [
        ([[1], [1, 2]], np.ones(3), "list"),
        (np.ones(2), np.ones(3), r"\(2,\)"),
        (np.ones(3), np.ones(3, bool), "float64"),
        (np.ones(3, bool), np.ones(3), "bool"),
        (["a", "b", "c"], np.ones(3), "<U1"),
    ],
)
def test_arrays_of_another_type_or_shape_are_refused(result, pattern, got):
    with pytest.raises(NotYet, match=f"^for three weights, .* got {got}"):
        array_like(result, pattern, "for three weights")


def test_the_rubric_matches_the_points_of_manual_answers():
    """The exercise and the guide have the same rubric, with the points of the answers."""
    source = source_of("07_own_model")
    points = {kind(cell)["grade_id"].replace("-", " "): kind(cell)["points"] for cell in source.cells if by_hand(cell)}
    text, guide = "\n".join(cell.source for cell in source.cells), (EXERCISES / "README.md").read_text()
    rubric = re.search(r"(?m)^\| points \| full .*\n(?:\|.*\n?)+", text).group().strip()
    assert rubric in guide
    assert {name: int(most) for name, most in re.findall(r"(?m)^\| ([a-z ]+), (\d+) \|", rubric)} == points


@each
def test_rubrics_cover_all_points_of_manual_answers(name):
    source = source_of(name)
    text = "\n".join(cell.source for cell in source.cells if cell.cell_type == "markdown")
    criteria = re.findall(r"(?m)^\| [a-z ]+, (\d+) \|", text)
    assert sum(map(int, criteria)) == sum(kind(cell)["points"] for cell in source.cells if by_hand(cell)) > 0
