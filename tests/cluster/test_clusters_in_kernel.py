"""Horovod ranks in a real Jupyter kernel: %%px, interrupts, kernel exit and kernel crash."""

import os
import signal
import textwrap
import time

import pytest

from dgc_lab.cluster.processes import is_running
from kernels import Kernel, until

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

ranks = HorovodRanks(2, grace=20).start()
"""


pytestmark = pytest.mark.usefixtures("horovod")


@pytest.fixture(scope="module")
def warm_kernel(tmp_path_factory):
    kernel = Kernel(tmp_path_factory.mktemp("kernel"))
    yield kernel
    kernel.close()


@pytest.fixture
def with_ranks(warm_kernel):
    """A kernel with running ``ranks``, restarted if an earlier test ended them."""
    warm_kernel.ok("if 'ranks' not in globals() or not ranks.ready:\n" + textwrap.indent(START, "    "))
    return warm_kernel


@pytest.mark.nightly
def test_px_rerun_cell_and_kernel_exit(kernel):
    printed = kernel.ok(START)
    assert "2 ranks ready after" in printed.split("\r")[-1]
    cell = "%%px\nimport horovod.tensorflow as hvd\nprint('rank', hvd.rank(), 'of', hvd.size())"
    printed = kernel.ok(cell)
    assert "rank 0 of 2" in printed
    assert "rank 1 of 2" in printed
    first = set(kernel.seen)
    assert len(first) >= 3, "expected a host and two ranks"
    assert kernel.ok(START)  # the same cell again: new ranks replace the old ones
    until(lambda: not any(is_running(kernel.seen[pid]) for pid in first))
    printed = kernel.ok(cell)
    assert "rank 1 of 2" in printed
    assert kernel.ok("print(next(ranks.stream(train)))") == "1\n"
    # Restart and shut down in Jupyter ask the kernel to end.
    kernel.manager.shutdown_kernel(now=False)
    until(lambda: kernel.left() == ([], []))


@pytest.mark.nightly
def test_px_after_stop_reports_the_cause(with_ranks):
    with_ranks.ok("ranks.stop(); ranks.stop()")
    assert with_ranks.left() == ([], [])
    _, error = with_ranks.run("%px 1")
    assert error == ("LabError", "the ranks are not running. start() starts them")


def test_cells_run_on_all_ranks_or_on_selected_ones(with_ranks):
    printed = with_ranks.ok(
        "%%px\nimport sys\nimport horovod.tensorflow as hvd\nmine = 10 * hvd.rank()\nprint('has')\nmine"
    )
    assert printed == "[rank 0] has\n[rank 0] 0\n[rank 1] has\n[rank 1] 10\n"
    assert with_ranks.ok("%%rank 1\nmine += 1\nmine") == "[rank 1] 11\n"
    assert (
        with_ranks.ok("%%px --rank 0\nprint('to stderr', file=sys.stderr)\nmine") == "[rank 0] to stderr\n[rank 0] 0\n"
    )
    assert with_ranks.ok("%px mine") == "[rank 0] 0\n[rank 1] 11\n"
    assert with_ranks.ok("%%px --rank 0,1\nmine + 1;") == ""
    assert with_ranks.ok("%%px\nfor _ in range(2):\n    mine") == "", "only a trailing expression may be displayed"
    _, error = with_ranks.run("mine")
    assert error[0] == "NameError", "ranks' variables must not leak into the notebook"
    for wrong, message in (
        ("%%rank 2\n1", "rank must be a whole number from 0 to 1, got 2"),
        ("%%rank all\n1", "%%rank takes rank numbers, as in %%rank 1 or %%rank 0,2, got 'all'"),
        ("%%px --targets 1\n1", "%%px takes --rank and numbers"),
    ):
        _, error = with_ranks.run(wrong)
        assert error[0] == "ValueError"
        assert message in error[1]
    with_ranks.ok("print(ranks.run(lambda: None))\nimport keras")


def test_cell_error_shows_the_ranks_name_and_traceback(with_ranks):
    cell = "%%px\nimport horovod.tensorflow as hvd\ndef share(whole):\n    return whole / hvd.rank()\nshare(2)"
    printed, error = with_ranks.run(cell)
    assert "[rank 1] 2.0" in printed, "the other rank must print its result"
    assert error[0] == "CellFailed"
    assert "rank 0 raised ZeroDivisionError: division by zero" in error[1]
    shown = with_ranks.traceback
    assert shown.startswith("[rank 0] Traceback")
    assert "return whole / hvd.rank()" in shown
    assert "dgc_lab" not in shown, "the traceback must show only the cell's lines"
    _, error = with_ranks.run("%%px\nfrom nowhere import nothing")
    assert error == ("CellFailed", "every rank raised ModuleNotFoundError: No module named 'nowhere'")
    assert with_ranks.traceback.startswith("[rank 0, rank 1] Traceback")
    _, error = with_ranks.run("%%px\n1 +")
    assert error[0] == "SyntaxError"
    assert with_ranks.ok("%px share(2) if hvd.rank() else None") == "[rank 1] 2.0\n"


def test_interrupting_a_cell_keeps_the_ranks_variables(with_ranks):
    cell = "%%px\nimport time\nkept = 1\nprint('begun')\ntime.sleep(100)"
    began = time.monotonic()
    _, error = with_ranks.run(cell, with_ranks.interrupt_at("begun", 0.5))
    assert error[0] == "KeyboardInterrupt"
    assert time.monotonic() - began < 50
    assert with_ranks.ok("%px kept") == "[rank 0] 1\n[rank 1] 1\n"
    printing = "%%px\nwhile True:\n    print('x' * 100_000)"
    _, error = with_ranks.run(printing, with_ranks.interrupt_at("x", 0.5))
    assert error[0] == "KeyboardInterrupt"
    assert with_ranks.ok("%px kept") == "[rank 0] 1\n[rank 1] 1\n"


def test_death_of_a_rank_in_a_cell_is_reported(with_ranks):
    _, error = with_ranks.run("%%rank 1\nimport os\nos._exit(1)")
    assert error == ("RankDied", "rank 1 died; the others were stopped. restart() starts all of them again")
    with_ranks.ok("ranks.restart()")
    assert with_ranks.ok("%px 1") == "[rank 0] 1\n[rank 1] 1\n"


def test_interrupting_a_call_leaves_the_ranks_usable(with_ranks):
    loop = "for step in ranks.stream(train):\n    if step == 20: print('twenty')"
    _, error = with_ranks.run(loop, with_ranks.interrupt_at("twenty"))
    assert error[0] == "KeyboardInterrupt"
    pids = eval(with_ranks.ok("print(ranks.run(os.getpid))"))
    _, error = with_ranks.run("print('begun')\nranks.run(lambda: list(train()))", with_ranks.interrupt_at("begun"))
    assert error[0] == "KeyboardInterrupt"
    assert eval(with_ranks.ok("print(ranks.run(os.getpid))")) == pids, "the ranks were restarted"


@pytest.mark.nightly
def test_interrupt_kills_ranks_that_do_not_stop(with_ranks):
    pids = eval(with_ranks.ok("ranks.grace = 1\nprint(ranks.run(os.getpid))"))
    # Inside the stream, not between items: a garbage-collected generator cannot raise.
    loop = "steps = ranks.stream(stubborn)\nnext(steps)\nprint('on', flush=True)\nlist(steps)"
    _, error = with_ranks.run(loop, with_ranks.interrupt_at("on", 1))
    assert error[0] == "RankFailed"
    assert "did not stop within 1 s" in error[1]
    until(lambda: not any(is_running(with_ranks.seen[pid]) for pid in pids))
    assert with_ranks.ok("ranks.grace = 20\nprint(ranks.restart().run(lambda: 1))").endswith("[1, 1]\n")


@pytest.mark.nightly
def test_interrupted_start_leaves_nothing(kernel):
    begin = START.replace("grace=20)", "grace=20, progress=lambda text: print(text, flush=True))")
    for stage, seconds in (("importing", 0), ("importing", 1.5), ("starting ranks", 0), ("ranks join", 0)):
        while not (error := kernel.run(begin, kernel.interrupt_at(stage, seconds))[1]):
            kernel.ok("ranks.stop()")  # startup finished before the interrupt arrived
        assert error[0] == "KeyboardInterrupt", (stage, error)
        until(lambda: kernel.left() == ([], []))
    kernel.ok(START)


def test_interrupted_start_on_a_slow_disk_leaves_nothing(kernel):
    kernel.ok("""
import os, time

def slow(*args, usual=os.mkdir):
    usual(*args)
    time.sleep(1)

os.mkdir = slow
""")
    begin = START.replace("grace=20)", "grace=20, progress=lambda text: print(text, flush=True))")
    _, error = kernel.run(begin, kernel.interrupt_at("importing", 0.5))
    assert error[0] == "KeyboardInterrupt"
    assert kernel.left() == ([], [])


def test_killed_kernel_leaves_nothing_behind(kernel):
    kernel.ok(START)
    kernel.client.execute("for _ in ranks.stream(train): pass")
    time.sleep(1)
    kernel.note_family()
    assert len(kernel.left()[0]) >= 3
    os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    until(lambda: kernel.left() == ([], []))
