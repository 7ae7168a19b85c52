"""Training on parameter servers in a real Jupyter kernel: interrupts, kernel exit and kernel crash."""

import os
import signal

import pytest

from kernels import until

pytestmark = pytest.mark.nightly

START = """
from dgc_lab.cluster import ParameterServers
from dgc_lab.parameter_server import AsyncConfig, Classifier, GradientEvent, Schedule, train
from dgc_lab.workloads.data import load
from dgc_lab.workloads.models import digits_cnn

task = Classifier(digits_cnn, load("digits"))
config = AsyncConfig(Schedule("asynchronous"), gradients=100_000, batch=32)
servers = ParameterServers(2, 1, grace=60).start()
"""
LOOP = """
for event in servers.stream(train, task, config):
    if isinstance(event, GradientEvent) and event.update == 20:
        print("twenty", flush=True)
"""


def test_interrupted_training_and_kernel_exit_leave_nothing(kernel):
    assert "parameter servers ready after" in kernel.ok(START)
    first = kernel.ok("import os; print(servers.run(os.getpid))")
    _, error = kernel.run(LOOP, kernel.interrupt_at("twenty"))
    assert error[0] == "KeyboardInterrupt"
    assert kernel.ok("print(servers.run(os.getpid))") == first, "the coordinator must survive the interrupt"
    begin = START.replace("grace=60", "grace=60, progress=lambda text: print(text, flush=True)")
    while not (error := kernel.run("servers.stop()" + begin, kernel.interrupt_at("starting servers"))[1]):
        continue  # startup finished before the interrupt arrived
    assert error[0] == "KeyboardInterrupt"
    until(lambda: kernel.left() == ([], []))
    kernel.ok(START)
    assert len(kernel.left()[0]) >= 5
    kernel.manager.shutdown_kernel(now=False)  # as Restart and Shut down do in Jupyter
    until(lambda: kernel.left() == ([], []))


def test_kernel_crash_during_training_leaves_nothing(kernel):
    kernel.ok(START)
    assert len(kernel.left()[0]) >= 5
    kernel.client.execute(LOOP)
    while "twenty" not in kernel.client.get_iopub_msg(timeout=60)["content"].get("text", ""):
        continue
    os.kill(kernel.manager.provisioner.pid, signal.SIGKILL)
    until(lambda: kernel.left() == ([], []))
