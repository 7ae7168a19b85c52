"""A Jupyter kernel, for tests of how cells, interrupts, and shutdown affect the processes it started.

`tests/conftest.py` exports the fixture.
"""

import os
import time

import psutil
import pytest
from jupyter_client.manager import KernelManager

from dgc_lab.cluster.processes import is_running


class Kernel:
    """A kernel, its client, and the processes the kernel has started."""

    def __init__(self, folder):
        self.folder = folder
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(env={**os.environ, "TMPDIR": str(folder)})
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=180)
        self.seen, self.traceback = {}, ""

    def run(self, code, on_text=None):
        """Run a cell; return its output, and (class, message) of its error or None."""
        printed, errors = [], []

        def hook(message):
            if message["msg_type"] == "display_data":
                printed.append(message["content"]["data"].get("text/plain", ""))
            elif message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
                if on_text:
                    on_text(message["content"]["text"])
            elif message["msg_type"] == "error":
                errors.append((message["content"]["ename"], message["content"]["evalue"]))
                self.traceback = "\n".join(message["content"]["traceback"])

        # Without stop_on_error=False, ipykernel drops cells queued right after a failed one.
        self.client.execute_interactive(code, output_hook=hook, timeout=300, stop_on_error=False)
        self.note_family()
        return "".join(printed), errors[0] if errors else None

    def ok(self, code):
        printed, error = self.run(code)
        assert error is None, error
        return printed

    def interrupt_at(self, word, seconds=0):
        """Return a hook that interrupts the kernel's process group once, when a text is printed."""
        done = []

        def hook(text):
            if word in text and not done:
                done.append(word)
                time.sleep(seconds)
                self.manager.interrupt_kernel()

        return hook

    def note_family(self):
        for child in psutil.Process(self.manager.provisioner.pid).children(recursive=True):
            self.seen[child.pid] = child

    def left(self):
        """Return the kernel's processes that still run, and their remaining files."""
        running = [child for child in self.seen.values() if is_running(child)]
        return running, sorted(os.listdir(self.folder))

    def close(self):
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def there(pid):
    """Return whether a process is running; zombies do not count."""
    try:
        return is_running(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.05)


@pytest.fixture
def kernel(tmp_path):
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.close()
