"""The judge with references in place of earlier, wrong answers: each mistake costs its own task alone."""

from test_judge import cells_of, judged, passed


def test_a_reference_never_answers_for_the_tested_function():
    asks = "def double(x):\n    return double(x)"
    results, _ = judged({"double": asks, "my-sum": "my_sum = my_sum", "quadruple": "quadruple = double"})
    assert passed(results) == set()


def test_a_value_is_computed_again_with_references():
    """A wrong function costs its own task alone, although the student's value was computed with it."""
    wrong = {"double": "def double(x):\n    return x", "my-sum": "print('computed')\nmy_sum = double(3)"}
    results, _ = judged(wrong)
    assert passed(results) == {"quadruple", "my-sum"}
    assert results["my-sum"]["remark"] == "right with the reference answer in place of double"


VALUES = """
# given setup
import numpy as np
# answer my-base
my_base = np.array([2.0, 3.0])
# marks marks-my-base
### BEGIN HIDDEN TESTS
assert my_base.tolist() == [2, 3]
### END HIDDEN TESTS
# answer my-square
my_square = my_base**2
# marks marks-my-square
### BEGIN HIDDEN TESTS
assert my_square.tolist() == [4, 9]
### END HIDDEN TESTS
"""


def test_a_reference_stands_in_for_a_wrong_value():
    cells = cells_of(VALUES)
    right = {"my-square": "my_square = my_base**2"}
    results, _ = judged(right | {"my-base": "my_base = np.ones(2)"}, cells=cells)
    assert passed(results) == {"my-square"}
    assert results["my-square"]["remark"] == "right with the reference answer in place of my_base"
    results, _ = judged({"my-base": "my_base = None", "my-square": "my_square = my_base"}, cells=cells)
    assert passed(results) == set()


def test_value_that_ends_its_process_costs_only_its_own_task():
    """With references in place, the answer runs again in the fork, which must not keep the judge waiting."""
    for end in ("import os\n    os._exit(0)", "while True:\n        pass"):
        value = f"my_sum = double(3)\nif my_sum == 6:\n    {end}"
        results, _ = judged({"double": "def double(x):\n    return x", "my-sum": value})
        assert passed(results) == {"quadruple"}
