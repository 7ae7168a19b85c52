"""Horovod's own launcher, ``horovodrun``, on this machine, in a private network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile

from dgc_lab.cluster import private_network
from dgc_lab.cluster.processes import defer_sigint, kill, start_guarded
from dgc_lab.cluster.stalls import stall_variables
from dgc_lab.cluster.watchdog import remove_semaphores
from dgc_lab.common import LabError, check_flag, check_number, check_text, check_whole
from dgc_lab.install.build_horovod import require_horovod
from dgc_lab.install.launch_env import gloo_variables

LAST_LINES = 20  # of a failed command's output
SECONDS_TO_END = 30  # for the other ranks after one has failed; Horovod's 5 are too few for a slow disk


def horovodrun(size: int, *command: str, timeout: float = 300, reachable: bool = False) -> list[str]:
    """Run a command on several ranks of this machine, like ``horovodrun -np SIZE COMMAND...`` in a terminal.

    Args:
        size: number of ranks, from 1 to 4096.
        command: program and arguments.
        timeout: time limit in seconds, at most a million; horovodrun itself needs about 8 before the program runs.
        reachable: consent to listen on all of this machine's addresses if it allows no private network.

    Returns:
        The lines of output; horovodrun marks each with its rank.

    Raises:
        ValueError: an argument is not in its range, or the command does not name an existing program.
        LabError: Horovod is not built, there is no private network, the command failed (the message has its last
            lines), or it took too long. All ranks have ended by then.

    Example:
        >>> horovodrun(2, "python", "-m", "dgc_lab", "train", "--steps", "20")  # doctest: +SKIP
        [..., '[0]<stdout>:step 20: accuracy 0.3083, loss 2.1917, 84176 bytes sent', ...]
    """
    size = check_whole("size", size, 1, 4096)
    check_number("timeout", timeout, "above 0 and at most 1000000")
    check_flag("reachable", reachable)
    for word in command:
        check_text("command", word)
    if not command:
        raise ValueError("command must name a program, got nothing")
    paths = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    if not shutil.which(command[0], path=paths):
        raise ValueError(f"command must name an existing program, got {command[0]!r}")
    require_horovod()
    reason = private_network.unavailable_reason()
    if reason and not reachable:
        raise LabError(
            f"this machine allows no private network ({reason}), and horovodrun would listen on all of its addresses, "
            "with no password. Pass reachable=True to run it anyway"
        )
    process = folder = None
    try:
        with defer_sigint():
            process, folder = start_guarded(
                "dgc_lab.cluster.horovod_launcher",
                *([] if reason else ["--network-interfaces", "lo"]),
                # Without --gloo, it would load TensorFlow again only to find that Horovod was built without MPI.
                *["--gloo", "-np", str(size), *command],
                private=not reason,
                variables={"PATH": paths, **stall_variables(), **gloo_variables(timeout)},
                stdout=subprocess.PIPE,
                text=True,
                errors="replace",  # a killed command may leave half a character
            )
        output, _ = process.communicate(timeout=timeout)
    except BaseException as error:
        if process is not None:
            kill(process)
            process.communicate()
            remove_semaphores(folder)
        if isinstance(error, subprocess.TimeoutExpired):
            raise LabError(f"{' '.join(command)} took longer than {timeout:g} s on {size} ranks") from None
        raise
    finally:
        if folder is not None:
            kill(process)  # any remaining processes of its group
            shutil.rmtree(folder, ignore_errors=True)
    lines = output.replace("\r", "\n").splitlines()
    if process.returncode:
        text = f"{' '.join(command)} ended with {process.returncode} on {size} ranks:\n{last_lines(lines)}"
        raise LabError(f"{text}\nThe same call starts it again. A command that has saved its state resumes from it")
    return lines


def last_lines(lines: list[str]) -> str:
    """Return the last lines without horovodrun's own tracebacks, which would hide the ranks' output.

    A rank's output begins with its mark, which may be inside a line if several processes print at the same time.
    """
    shown = []
    for line in lines:
        if marked := re.search(r"\[\d+\]<std(out|err)>:.*", line):
            shown.append(marked[0])
        elif line.strip() and not re.search(r"^  |Traceback \(most recent call last\)|Exception in thread ", line):
            shown.append(line)
    return "\n".join(shown[-LAST_LINES:])


def exec_middleman(*arguments) -> None:
    """Run the shim process between horovodrun and a rank, which kills the rank after another one has failed."""
    from horovod.runner.common.util import safe_shell_exec

    safe_shell_exec.GRACEFUL_TERMINATION_TIME_S = SECONDS_TO_END
    safe_shell_exec._exec_middleman(*arguments)


if __name__ == "__main__":  # in the process that becomes horovodrun
    import multiprocessing
    from multiprocessing import resource_tracker

    from horovod.runner.common.util import safe_shell_exec
    from horovod.runner.launch import run_commandline

    from dgc_lab.cluster import horovod_launcher  # not __main__, which the shim process could not import

    # Semaphores are named after the folder, so that they can be removed even if all processes are killed. This replaces
    # Python's resource tracker: if it were killed, the next one would print a traceback for each semaphore.
    multiprocessing.current_process()._config["semprefix"] = f"/{os.path.basename(tempfile.gettempdir())}"
    resource_tracker.register = resource_tracker.unregister = lambda *_: None
    safe_shell_exec._exec_middleman = horovod_launcher.exec_middleman
    sys.argv[0] = "horovodrun"
    run_commandline()
