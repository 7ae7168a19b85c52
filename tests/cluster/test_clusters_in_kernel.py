"""Horovod ranks in a real Jupyter kernel: %%px, interrupt, the kernel's exit and its sudden death."""

import os
import signal
import time

import pytest

from dgc_lab.cluster.processes import is_running
from kernels import until

START = """
import os, time
import psutil
from dgc_lab.cluster import HorovodRanks, stop_requested

def train():
    import horovod.tensorflow as hvd
    import tensorflow as tf
    step = 0
    while not float(hvd.allreduce(tf.constant(float(stop_requested())), op=hvd.Sum)):
        step += 1
        yield step

def stubborn():
    while True:
        time.sleep(0.01)
        yield 1

ranks = HorovodRanks(2, grace=2).start()
"""


pytestmark = pytest.mark.usefixtures("horovod")


def test_px_and_the_cell_run_twice_and_exit(kernel):
    printed = kernel.ok(START)
    assert "2 ranks ready after" in printed.split("\r")[-1]
    cell = "%%px\nimport horovod.tensorflow as hvd\nprint('rank', hvd.rank(), 'of', hvd.size())"
    printed = kernel.ok(cell)
    assert "rank 0 of 2" in printed
    assert "rank 1 of 2" in printed
    first = set(kernel.seen)
    assert len(first) >= 3, "their host and two ranks"
    assert kernel.ok(START)  # the same cell again: new ranks, and the old ones end
    until(lambda: not any(is_running(kernel.seen[pid]) for pid in first))
    printed = kernel.ok(cell)
    assert "rank 1 of 2" in printed
    assert kernel.ok("print(next(ranks.stream(train)))") == "1\n"
    # Restart and shut down in Jupyter ask the kernel to end.
    kernel.manager.shutdown_kernel(now=False)
    until(lambda: kernel.left() == ([], []))


def test_px_after_stop_says_what_is_wrong(kernel):
    kernel.ok(START)
    kernel.ok("ranks.stop(); ranks.stop()")
    assert kernel.left() == ([], [])
    _, error = kernel.run("%px 1")
    assert error == ("LabError", "the ranks are not running. start() starts them")


def test_cells_on_all_ranks_and_on_one(kernel):
    kernel.ok(START)
    printed = kernel.ok(
        "%%px\nimport sys\nimport horovod.tensorflow as hvd\nmine = 10 * hvd.rank()\nprint('has')\nmine"
    )
    assert printed == "[rank 0] has\n[rank 0] 0\n[rank 1] has\n[rank 1] 10\n"
    assert kernel.ok("%%rank 1\nmine += 1\nmine") == "[rank 1] 11\n"
    assert kernel.ok("%%px --rank 0\nprint('to stderr', file=sys.stderr)\nmine") == "[rank 0] to stderr\n[rank 0] 0\n"
    assert kernel.ok("%px mine") == "[rank 0] 0\n[rank 1] 11\n"
    assert kernel.ok("%%px --rank 0,1\nmine + 1;") == ""
    assert kernel.ok("%%px\nfor _ in range(2):\n    mine") == "", "no expression at the end, nothing to show"
    _, error = kernel.run("mine")
    assert error[0] == "NameError", "the ranks' variables are not the notebook's"
    for wrong, message in (
        ("%%rank 2\n1", "rank must be a whole number from 0 to 1, got 2"),
        ("%%rank all\n1", "%%rank takes numbers of ranks, as %%rank 1 or %%rank 0,2, got 'all'"),
        ("%%px --targets 1\n1", "%%px takes --rank and numbers"),
    ):
        _, error = kernel.run(wrong)
        assert error[0] == "ValueError"
        assert message in error[1]
    kernel.ok("print(ranks.run(lambda: None))\nimport keras")


def test_an_error_in_a_cell_shows_the_ranks_traceback_and_its_name(kernel):
    kernel.ok(START)
    cell = "%%px\nimport horovod.tensorflow as hvd\ndef share(whole):\n    return whole / hvd.rank()\nshare(2)"
    printed, error = kernel.run(cell)
    assert "[rank 1] 2.0" in printed, "the one that did not fail"
    assert error[0] == "CellFailed"
    assert "rank 0 raised ZeroDivisionError: division by zero" in error[1]
    shown = kernel.traceback
    assert shown.startswith("[rank 0] Traceback")
    assert "return whole / hvd.rank()" in shown
    assert "dgc_lab" not in shown, "the cell's own lines alone"
    _, error = kernel.run("%%px\nfrom nowhere import nothing")
    assert error == ("CellFailed", "every rank raised ModuleNotFoundError: No module named 'nowhere'")
    assert kernel.traceback.startswith("[rank 0, rank 1] Traceback")
    _, error = kernel.run("%%px\n1 +")
    assert error[0] == "SyntaxError"
    assert kernel.ok("%px share(2) if hvd.rank() else None") == "[rank 1] 2.0\n"


def test_an_interrupt_of_a_cell_interrupts_the_ranks_and_keeps_their_variables(kernel):
    kernel.ok(START)
    cell = "%%px\nimport time\nkept = 1\nprint('begun')\ntime.sleep(100)"
    began = time.monotonic()
    _, error = kernel.run(cell, kernel.interrupt_at("begun", 0.5))
    assert error[0] == "KeyboardInterrupt"
    assert time.monotonic() - began < 50
    assert kernel.ok("%px kept") == "[rank 0] 1\n[rank 1] 1\n"
    printing = "%%px\nwhile True:\n    print('x' * 100_000)"
    _, error = kernel.run(printing, kernel.interrupt_at("x", 0.5))
    assert error[0] == "KeyboardInterrupt"
    assert kernel.ok("%px kept") == "[rank 0] 1\n[rank 1] 1\n"


def test_death_of_a_rank_in_a_cell_is_told(kernel):
    kernel.ok(START)
    _, error = kernel.run("%%rank 1\nimport os\nos._exit(1)")
    assert error == ("RankDied", "rank 1 died; the others were put down. restart() brings all back")
    kernel.ok("ranks.restart()")
    assert kernel.ok("%px 1") == "[rank 0] 1\n[rank 1] 1\n"


def test_interrupt_of_a_call_stops_the_ranks_and_they_stay_usable(kernel):
    kernel.ok(START)
    loop = "for step in ranks.stream(train):\n    if step == 20: print('twenty')"
    _, error = kernel.run(loop, kernel.interrupt_at("twenty"))
    assert error[0] == "KeyboardInterrupt"
    pids = eval(kernel.ok("print(ranks.run(os.getpid))"))
    _, error = kernel.run("print('begun')\nranks.run(lambda: list(train()))", kernel.interrupt_at("begun"))
    assert error[0] == "KeyboardInterrupt"
    assert eval(kernel.ok("print(ranks.run(os.getpid))")) == pids, "the same processes as before"


def test_interrupt_of_ranks_that_do_not_stop_puts_them_down(kernel):
    kernel.ok(START)
    pids = eval(kernel.ok("print(ranks.run(os.getpid))"))
    loop = "for _ in ranks.stream(stubborn):\n    print('on', end=' ')"
    _, error = kernel.run(loop, kernel.interrupt_at("on"))
    assert error[0] == "RankFailed"
    assert "did not stop within 2 s" in error[1]
    until(lambda: not any(is_running(kernel.seen[pid]) for pid in pids))
    assert kernel.ok("print(ranks.restart().run(lambda: 1))").endswith("[1, 1]\n")


def test_interrupt_of_a_start_leaves_nothing(kernel):
    begin = START.replace("grace=2)", "grace=2, progress=lambda text: print(text, flush=True))")
    for stage, seconds in (("importing", 0), ("importing", 1.5), ("starting ranks", 0), ("ranks join", 0)):
        _, error = kernel.run(begin, kernel.interrupt_at(stage, seconds))
        assert error[0] == "KeyboardInterrupt", (stage, error)
        until(lambda: kernel.left() == ([], []))
    kernel.ok(START)


def test_interrupt_on_a_slow_disk_leaves_nothing(kernel):
    kernel.ok("""
import os, time

def slow(*args, usual=os.mkdir):
    usual(*args)
    time.sleep(1)

os.mkdir = slow
""")
    begin = START.replace("grace=2)", "grace=2, progress=lambda text: print(text, flush=True))")
    _, error = kernel.run(begin, kernel.interrupt_at("importing", 0.5))
    assert error[0] == "KeyboardInterrupt"
    assert kernel.left() == ([], [])


def test_sudden_death_of_the_kernel_leaves_nothing(kernel):
    kernel.ok(START)
    kernel.client.execute("for _ in ranks.stream(train): pass")
    time.sleep(1)
    kernel.note_family()
    assert len(kernel.left()[0]) >= 3
    os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    until(lambda: kernel.left() == ([], []))
