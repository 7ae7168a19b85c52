"""No check or hidden test accepts another shape, and no check is an oracle for a student's own values."""

import ast
import contextlib
import io
import re

import numpy as np
import pytest
from test_exercises import NAMES, by_hand, each, kind, run, source_of

import dgc_lab
from dgc_lab.exercises import checking
from dgc_lab.exercises.aggregation import my_value
from dgc_lab.exercises.checking import alike
from dgc_lab.exercises.variants import Variant

TRIED = 4  # a function's first and last calls whose results are altered
CONTEST = {"compress", "decompress"}  # each run trains for seconds, and `contest` checks the shape in every call


@pytest.fixture(autouse=True)
def restarted():
    """Forget the wrong values of other tests, like a kernel that has been restarted."""
    checking.wrong_values.clear()


def cells_of_marks(name):
    """The code and names of each test cell, and the answers that it tests: functions, and values of our own."""
    space, answers, found = {"__name__": "__main__"}, set(), []
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in source_of(name).cells:
            if cell.cell_type != "code" or "%pip" in cell.source:
                continue
            if kind(cell).get("grade"):
                shown = cell.source.partition("### BEGIN HIDDEN TESTS")[0]
                used = {node.id for node in ast.walk(ast.parse(shown)) if isinstance(node, ast.Name)}
                found.append((kind(cell)["grade_id"], cell.source, dict(space), answers & used - CONTEST))
            before = dict(space)
            exec(cell.source, space)
            if kind(cell).get("solution") and not by_hand(cell):
                answers = {each for each, value in space.items() if before.get(each, before) is not value}
    return found


def other_shapes(result):
    """Yield a result with one array or number in it replaced by one that comparisons might broadcast."""
    if isinstance(result, tuple):
        for place, part in enumerate(result):
            yield from ((*result[:place], other, *result[place + 1 :]) for other in other_shapes(part))
        return
    with contextlib.suppress(ValueError):
        array = np.asarray(result)
        if array.dtype.kind in "biuf":
            yield np.zeros((0, 1, 1, 1), array.dtype)
            yield np.zeros((0, *array.shape), array.dtype)
            yield array[None] if array.ndim else np.full(2, array)
            if array.size > 1 and np.all(array == array.flat[0]):
                yield array.flat[0]


class Altered:
    """A right function, one of whose results is replaced; ``results`` are the right ones."""

    def __init__(self, right, call=None, other=None):
        self.right, self.call, self.other, self.results = right, call, other, []

    def __call__(self, *arguments):
        self.results.append(self.right(*arguments))
        return self.other if len(self.results) - 1 == self.call else self.results[-1]


def passes(code, space):
    checking.wrong_values.clear()
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            exec(code, dict(space))
        except Exception:
            return False
    return True


@each
def test_answers_of_another_shape_get_no_marks(name):
    wrong, count = [], 0
    for task, code, space, answers in cells_of_marks(name):
        for answer in sorted(answers):
            right = space[answer]
            if not callable(right):
                altered = [(None, other, other) for other in other_shapes(right)]
            else:
                calls = Altered(right)
                assert passes(code, space | {answer: calls})
                results = list(enumerate(calls.results))
                results = [*results[:TRIED], *results[TRIED:][-TRIED:]]
                altered = [
                    (call, other, Altered(right, call, other)) for call, one in results for other in other_shapes(one)
                ]
            wrong += [(task, call, other) for call, other, it in altered if passes(code, space | {answer: it})]
            count += len(altered)
    assert wrong == []
    assert count > 30


def test_hidden_tests_compare_shapes():
    for name in NAMES:
        for cell in source_of(name).cells:
            hidden = "".join(re.findall(r"(?s)### BEGIN HIDDEN TESTS(.*?)### END", cell.source))
            assert "allclose" not in hidden, (name, kind(cell)["grade_id"])


@pytest.mark.parametrize("found", [np.zeros((0, 1, 1, 1)), np.zeros(0), [[1, 2]], 1.0, [1, 2, 3], [1, 2.1], [[1], [2]]])
def test_other_shapes_and_values_are_not_alike(found):
    assert not alike(found, [1, 2])
    assert alike((1, 2.0), np.array([1, 2]))


def test_a_loop_over_candidates_earns_no_points():
    candidates = "np.sort(np.abs(Variant(VARIANT).gradient('my_threshold', 1000)))"
    loop = f"my_threshold = next((t for t in {candidates} if dgc_lab.check('my_threshold', t, VARIANT)), None)"
    reached, printed = run("04_masking", [("my-threshold", loop)], variant=7)
    assert "my-threshold" not in reached
    assert printed.count("3 other values were wrong, so this one is not checked") > 900


def test_a_right_value_counts_after_two_wrong_ones(capsys):
    right = 2048 * my_value(Variant(5))
    for value, passed in ((right / 2, False), (right / 2, False), (right * 4, False), (right, True), (1, False)):
        assert dgc_lab.check("my_end", value, 5) == passed
    assert "not checked" not in capsys.readouterr().out
    assert not dgc_lab.check("my_end", right, "5"), "the same variant, written differently"
    assert "restart the kernel" in capsys.readouterr().out
    assert dgc_lab.check("my_end", 2048 * my_value(Variant(6)), 6)
