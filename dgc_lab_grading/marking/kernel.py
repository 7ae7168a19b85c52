"""Start a student's kernel: ``python -m dgc_lab_grading.marking.kernel CONNECTION_FILE OPTIONS...``.

Its folder is on the instructor's disk. Files that are hidden, deeply nested, or deleted but still open would escape any
count, so the folder is closed before the first cell runs: then a submission can write only to memory.
"""

from __future__ import annotations

import sys

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from traitlets import Type

from dgc_lab_grading.marking.sandbox import close_home


class Shell(ZMQInteractiveShell):
    """IPython's shell, in which ``exit()`` ends only its cell, and not the process of all cells."""

    def ask_exit(self):
        """Handle ``exit()`` and ``quit()``."""
        raise SystemExit


class Kernel(IPythonKernel):
    """IPython's kernel with this shell."""

    shell_class = Type(Shell)


if __name__ == "__main__":
    app = IPKernelApp.instance(kernel_class=Kernel)
    app.initialize(["-f", *sys.argv[1:]])  # makes the sockets
    close_home()
    app.start()
