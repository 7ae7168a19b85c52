"""The judge with slow answers, slow tests and late processes."""

import inspect
import json
import os
from pathlib import Path

import pytest
from test_judge import RIGHT, cells_of, judged, passed
from test_reading import WaitsInAFork

pytestmark = pytest.mark.nightly


def test_slow_answers_are_tested_last():
    slow = "def double(x):\n    while True:\n        pass"
    results, _ = judged({"double": slow}, seconds=20)
    assert passed(results) == {"my-sum", "quadruple"}
    assert "took longer than" in results["double"]["remark"]
    late = "import time\ndef double(x):\n    time.sleep(2.5)\n    return 2 * x"
    results, _ = judged({"double": late}, seconds=40)
    assert "double" in passed(results), "an answer may be slow"


ASKS_OFTEN = """
# given setup
import time
# answer double
def double(x):
    return 2 * x
# marks marks-double
assert double(1) == 2
### BEGIN HIDDEN TESTS
for number in range(3000):
    assert double(number) == 2 * number
### END HIDDEN TESTS
"""


def test_many_quick_calls_that_time_out_are_retried():
    quick = "import time\ndef double(x):\n    time.sleep(0.002)\n    return 2 * x"
    results, _ = judged({"double": quick}, cells=cells_of(ASKS_OFTEN), seconds=250)
    assert passed(results) == {"double"}, results


LATE_CLOCK = """
import signal, time
set_timer = signal.setitimer
signal.setitimer = lambda which, seconds: time.sleep(0.01 if seconds else 0.5) or set_timer(which, seconds)
def double(x):
    return 2 * x
"""


def test_a_fork_killed_by_a_late_alarm_spoils_no_retry():
    """Its time ran out after it had answered: the late report of its end must not be taken for the next fork's."""
    results, _ = judged({"double": LATE_CLOCK}, cells=cells_of(ASKS_OFTEN.replace("3000", "12")), seconds=60)
    assert passed(results) == {"double"}, results


LENDS = """
# given setup
import os, time
VARIANT = "{0}"
def lent(x):
    if not os.path.exists(VARIANT):
        open(VARIANT, "w").close()
        time.sleep(12)
    return x + 3
# answer applied
def applied(function, x):
    return function(x)
# marks marks-applied
passed = applied(lent, 1) == 4
### BEGIN HIDDEN TESTS
assert passed
### END HIDDEN TESTS
"""


def test_a_slow_function_of_the_tests_spoils_no_retry(tmp_path):
    """The fork that waited for it has died, and the report of its end has not been read yet."""
    answer = "def applied(function, x):\n    return function(x)"
    results, _ = judged({"applied": answer}, cells=cells_of(LENDS.format(tmp_path / "once")), seconds=60)
    assert passed(results) == {"applied"}, results


BUSY = """
# given setup
import os, time
VARIANT = "{0}"
# answer double
def double(x):
    return 2 * x
# marks marks-double
assert double(1) == 2
### BEGIN HIDDEN TESTS
if not os.path.exists(VARIANT):
    open(VARIANT, "w").close()
    end = time.monotonic() + 12
    while time.monotonic() < end:
        pass
assert double(2) == 4
### END HIDDEN TESTS
"""


def test_time_spent_by_the_tests_is_not_the_answers_fault(tmp_path):
    results, _ = judged(cells=cells_of(BUSY.format(tmp_path / "once")), seconds=40)
    assert passed(results) == {"double"}, results


LATE_AND_WRONG = """
# given setup
import time
# answer double
def double(x):
    return 2 * x
# marks marks-double
pass
### BEGIN HIDDEN TESTS
class Slow(AssertionError):
    own_line = property(lambda self: time.sleep(1.5))
time.sleep(9)
raise Slow
### END HIDDEN TESTS
# answer my-sum
my_sum = 6
# marks marks-my-sum
assert my_sum == 6
"""


def test_a_slow_error_message_ends_no_other_tests():
    """The alarm once killed the judge while it formatted an error."""
    results, _ = judged(cells=cells_of(LATE_AND_WRONG), seconds=30)
    assert passed(results) == {"my-sum"}


def test_a_fork_that_starts_late_is_awaited():
    """On a busy machine, the last fork may connect after the judge is ready."""
    late = """import os, time
pauses = iter([4])
os.register_at_fork(after_in_child=lambda: time.sleep(next(pauses, 0)))
my_sum = 6"""
    results, _ = judged({"my-sum": late})
    assert passed(results) == {"double", "quadruple", "my-sum"}


def test_a_missing_fork_is_reported():
    results, _ = judged({"my-sum": "import os\nos.fork = lambda: 1\nmy_sum = 6"})
    assert passed(results) == {"double", "quadruple"}
    assert results["my-sum"]["remark"] == "was not tested: no fork of the process connected"


def test_a_reference_lent_to_one_task_answers_for_no_other():
    """A slow function writes its argument to a file, and another one passes it to the reference."""
    notes = Path(f"/tmp/lent-{os.getpid()}.json")
    spy = f"""
import json, os, time
def double(x):
    if not isinstance(x, int):
        return x + x
    if os.path.exists({str(notes)!r}):
        told = json.load(open({str(notes)!r}))
        if told["asked"] == x and "answer" in told:
            return told["answer"]
    if x == 1234567:
        json.dump({{"asked": x}}, open({str(notes)!r}, "w"))
        time.sleep(60)
    return 4"""
    teller = f"""
def quadruple(x):
    if os.path.exists({str(notes)!r}):
        told = json.load(open({str(notes)!r}))
        json.dump(told | {{"answer": double(told["asked"])}}, open({str(notes)!r}, "w"))
    return 0"""
    try:
        results, _ = judged({"double": spy, "quadruple": teller}, seconds=30)
        assert json.loads(notes.read_text())["answer"] == 2469134, (
            "the reference must have been called, or this test shows nothing"
        )
    finally:
        notes.unlink(missing_ok=True)
    assert passed(results) == {"my-sum"}


def test_an_answer_may_use_tensorflow_after_the_kernel_did():
    """A fork lacks TensorFlow's threads, and work for them would never end."""
    ones = "import tensorflow as tf\nones = tf.ones([1000, 1000])\nones @ ones"
    answer = "def double(x):\n    return x * float((ones @ ones)[0, 0]) / 500"
    results, _ = judged({"double": answer}, before=ones)
    assert passed(results) == {"double", "quadruple", "my-sum"}, results


GARBAGE = f"import gc, os, time\ngc.disable()\n{inspect.getsource(WaitsInAFork)}\nmade = WaitsInAFork()\ndel made"
COLLECTS = "def double(x):\n    import gc\n    gc.collect()\n    return 2 * x"


@pytest.mark.parametrize(
    ("before", "setup", "answer"),
    [(GARBAGE, "gc.collect()", RIGHT["double"]), ("", GARBAGE, COLLECTS)],
    ids=["of the kernel", "of the setup cell"],
)
def test_answers_ignore_earlier_garbage(before, setup, answer):
    results, _ = judged({"double": answer}, before=before, setup=setup, seconds=10)
    assert passed(results) == {"double", "quadruple", "my-sum"}, results
