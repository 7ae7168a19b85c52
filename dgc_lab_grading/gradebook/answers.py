"""A class's answers, task by task: read from the grading folder, and compared regardless of style."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course.report import graded_rows, submitted
from dgc_lab_grading.course.sources import MARKERS

MOST_CHARACTERS = 20_000  # of an answer; longer ones are compared as text
UNPARSED = (SyntaxError, ValueError, RecursionError, MemoryError)  # the last two if nested too deeply


@dataclass(frozen=True)
class Task:
    """One test cell of an exercise, and the answers that it tests: those between the previous test cell and this one.

    Consecutive test cells share the answers before the first of them.

    Attributes:
        name: the test cell's ``grade_id``.
        most: its points.
        stubs: the code that students are given, by answer.
        solutions: our solutions, by answer.
    """

    name: str
    most: float
    stubs: dict[str, str]
    solutions: dict[str, str]


def tasks_of(folder: Path, exercise: str) -> list[Task]:
    """Return the autograded tasks of an exercise, in order."""
    import nbformat

    folder, tasks, solutions, tested = Path(folder), [], {}, False
    source, release = (
        nbformat.read(folder / place / exercise / f"{exercise}.ipynb", as_version=4) for place in ("source", "release")
    )
    given = {kind["grade_id"]: cell.source for cell in release.cells if (kind := cell.metadata.get("nbgrader"))}
    for cell in source.cells:
        kind = cell.metadata.get("nbgrader", {})
        if kind.get("solution") and not kind.get("grade"):
            if tested:
                solutions, tested = {}, False
            solutions[kind["grade_id"]] = MARKERS.sub("", cell.source)
        elif kind.get("grade") and not kind.get("solution"):
            stubs = {name: given[name] for name in solutions}
            tasks.append(Task(kind["grade_id"], kind["points"], stubs, dict(solutions)))
            tested = True
    return tasks


def answers_of(folder: Path, exercise: str) -> dict[str, dict[str, str]]:
    """Return the answers to an exercise by student and ``grade_id``, for all graded submissions."""
    import nbformat

    answers: dict[str, dict[str, str]] = defaultdict(dict)
    for student, row in graded_rows(folder, exercise)[exercise].items():
        if row["status"] != "graded":
            continue
        path = submitted(folder, student, exercise)
        if not path.exists():
            raise LabError(f"{path} is missing: grade {student} again (--only {student})")
        for cell in nbformat.read(path, as_version=4).cells:
            kind = cell.metadata.get("nbgrader", {})
            if kind.get("solution"):
                answers[student][kind["grade_id"]] = cell.source
    return dict(answers)


def normal_form(source: str) -> str:
    """Strip an answer of comments, docstrings and layout, and number its local names.

    Text that is not Python stays as it is, except for white space.

    Example:
        >>> one = "def f(x):\\n    # twice\\n    y = 2*x\\n    return y"
        >>> other = 'def f(value):\\n    "Twice."\\n    result = 2 * value\\n    return result'
        >>> normal_form(one) == normal_form(other)
        True
        >>> print(normal_form(one))
        def f(_1):
            _2 = 2 * _1
            return _2
    """
    try:
        return _with_numbered_names(_parsed(source))
    except UNPARSED:
        return " ".join(source.split())


def _parsed(source: str) -> ast.Module:
    """Parse an answer; raises one of `UNPARSED`."""
    if len(source) > MOST_CHARACTERS:
        raise ValueError(f"more than {MOST_CHARACTERS} characters")
    return ast.parse(source)


def _with_numbered_names(tree: ast.Module) -> str:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            statements = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
            node.body = statements or [ast.Pass()]
    public = {getattr(node, "name", None) for node in tree.body}
    public |= {
        name.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    for node in _in_text_order(tree):
        bound = node.arg if isinstance(node, ast.arg) else None
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound = node.id
        if isinstance(node, ast.FunctionDef):
            bound = node.name
        if bound and bound not in public:
            names.setdefault(bound, f"_{len(names) + 1}")
    for node in ast.walk(tree):
        for part in ("id", "arg", "name"):
            if isinstance(node, ast.Name | ast.arg | ast.FunctionDef) and getattr(node, part, None) in names:
                setattr(node, part, names[getattr(node, part)])
        if isinstance(node, ast.arg | ast.FunctionDef):
            for part in ("annotation", "returns"):
                if hasattr(node, part):
                    setattr(node, part, None)
    return ast.unparse(ast.fix_missing_locations(tree))


def _in_text_order(node: ast.AST):
    """Yield all nodes in the order of the text."""
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_text_order(child)


def size(source: str) -> int:
    """Return the number of nodes in an answer's syntax tree; 0 if it is not Python."""
    try:
        return sum(1 for _ in ast.walk(_parsed(source)))
    except UNPARSED:
        return 0


def untouched(answer: str, stub: str) -> bool:
    """Return whether an answer is empty, or still the stub."""
    return not answer.strip() or " ".join(answer.split()) == " ".join(stub.split())
