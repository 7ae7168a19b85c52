"""Horovod's own launcher, ``horovodrun``, on this machine, in a network that nobody else is on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile

from dgc_lab.cluster import private_network
from dgc_lab.cluster.processes import interrupt_held_back, kill, start_guarded
from dgc_lab.cluster.watchdog import remove_semaphores
from dgc_lab.common import LabError, check_flag, check_number, check_text, check_whole
from dgc_lab.install.build_horovod import require_horovod

LAST_LINES = 20  # of what a failed command said
SECONDS_TO_END = 30  # that the other ranks have when one has failed; Horovod gives them 5, and a slow disk needs more


def horovodrun(size: int, *command: str, timeout: float = 300, reachable: bool = False) -> list[str]:
    """Run a command on several ranks of this machine, as ``horovodrun -np SIZE COMMAND...`` in a terminal does.

    Args:
        size: number of ranks, from 1 to 4096.
        command: program and arguments.
        timeout: seconds that it may take, a million at most; horovodrun itself needs about 8 before the program runs.
        reachable: consent to listen on all of this machine's addresses where it allows no private network.

    Returns:
        The lines that it printed; horovodrun marks each with its rank.

    Raises:
        ValueError: size or timeout is none of those allowed, or the command is no program that is there.
        LabError: Horovod is not built; there is no private network; the command failed (with its last lines), or took
            too long. All ranks have ended by then.

    Example:
        >>> horovodrun(2, "python", "-m", "dgc_lab", "train", "--steps", "20")  # doctest: +SKIP
        [..., '[0]<stdout>:step 20: accuracy 0.3083, loss 2.1917, 84176 bytes sent', ...]
    """
    check_whole("size", size, 1, 4096)
    check_number("timeout", timeout, "above 0 and at most 1000000")
    check_flag("reachable", reachable)
    for word in command:
        check_text("command", word)
    if not command:
        raise ValueError("command must name a program, got nothing")
    paths = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    if not shutil.which(command[0], path=paths):
        raise ValueError(f"command must name a program that is there, got {command[0]!r}")
    require_horovod()
    reason = private_network.why_not()
    if reason and not reachable:
        raise LabError(
            f"this machine allows no private network ({reason}), and horovodrun would listen on all of its addresses, "
            "with no password. reachable=True runs it so"
        )
    process = folder = None
    try:
        with interrupt_held_back():
            process, folder = start_guarded(
                "dgc_lab.cluster.horovod_launcher",
                *([] if reason else ["--network-interfaces", "lo"]),
                # Told so, it need not load TensorFlow once more only to learn that Horovod was built without MPI.
                *["--gloo", "-np", str(size), *command],
                private=not reason,
                variables={"PATH": paths},
                stdout=subprocess.PIPE,
                text=True,
            )
        said, _ = process.communicate(timeout=timeout)
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
            kill(process)  # what is left of its group
            shutil.rmtree(folder, ignore_errors=True)
    lines = said.replace("\r", "\n").splitlines()
    if process.returncode:
        told = f"{' '.join(command)} ended with {process.returncode} on {size} ranks:\n{last_words(lines)}"
        raise LabError(f"{told}\nThe same call starts it again; it goes on from what the command has kept, if anything")
    return lines


def last_words(lines: list[str]) -> str:
    """The last lines without horovodrun's own tracebacks, which would hide what ranks say; what ranks say is marked.

    Of what is printed at once the pieces can stand in one line.
    """
    told = []
    for line in lines:
        if marked := re.search(r"\[\d+\]<std(out|err)>:.*", line):
            told.append(marked[0])
        elif line.strip() and not re.search(r"^  |Traceback \(most recent call last\)|Exception in thread ", line):
            told.append(line)
    return "\n".join(told[-LAST_LINES:])


def patient_middleman(*arguments) -> None:
    """What stands between horovodrun and a rank, in a process of its own; it puts the rank down when another failed."""
    from horovod.runner.common.util import safe_shell_exec

    safe_shell_exec.GRACEFUL_TERMINATION_TIME_S = SECONDS_TO_END
    safe_shell_exec._exec_middleman(*arguments)


if __name__ == "__main__":  # in the process beside the notebook, which is horovodrun
    import multiprocessing
    from multiprocessing import resource_tracker

    from horovod.runner.common.util import safe_shell_exec
    from horovod.runner.launch import run_commandline

    from dgc_lab.cluster import horovod_launcher  # not __main__, which the middleman could not import

    # Its semaphores bear the name of the folder, by which they are found when all are killed. Python's own tracker of
    # them is then of no use, and one that was killed has the next one print a traceback for each.
    multiprocessing.current_process()._config["semprefix"] = f"/{os.path.basename(tempfile.gettempdir())}"
    resource_tracker.register = resource_tracker.unregister = lambda *_: None
    safe_shell_exec._exec_middleman = horovod_launcher.patient_middleman
    sys.argv[0] = "horovodrun"
    run_commandline()
