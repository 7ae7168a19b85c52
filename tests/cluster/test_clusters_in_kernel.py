"""Horovod ranks in a real Jupyter kernel: %%px, interrupt, the kernel's exit and its sudden death."""

import os
import signal
import time

import pytest
from kernels import until

from dgc_lab.cluster.engines import is_running

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
    assert len(first) >= 6
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
    assert "cannot be used after" in error[1]


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
    for stage, seconds in (("starting engines", 0), ("starting engines", 1.5), ("ranks join", 0)):
        _, error = kernel.run(begin, kernel.interrupt_at(stage, seconds))
        assert error[0] == "KeyboardInterrupt", (stage, error)
        until(lambda: kernel.left() == ([], []))
    kernel.ok(START)


def test_sudden_death_of_the_kernel_leaves_nothing(kernel):
    kernel.ok(START)
    kernel.client.execute("for _ in ranks.stream(train): pass")
    time.sleep(1)
    kernel.note_family()
    assert len(kernel.left()[0]) >= 6
    os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    until(lambda: kernel.left() == ([], []))
