"""Call a function on a student's file in a fork with limits: a small file can take hours, or all memory."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import time

import psutil

from dgc_lab.common import LabError
from dgc_lab_grading.marking.forks import fork

SECONDS_TO_WAIT = 10  # for each second of processor time: the fork may wait for a disk


class TooMuch(LabError):
    """A function took too much time or memory."""


def call_in_fork(make, *arguments, seconds: int, memory: int):
    """Return a function's result, as JSON, from a fork with limits on processor time and memory.

    An OSError keeps its number, so that the caller notices a full disk. Any other error becomes a LabError; exceeding a
    limit raises `TooMuch`.
    """
    here, there = os.pipe()
    child = fork()
    if child == 0:
        try:
            os.setsid()
            _limit(seconds, memory)
            message = json.dumps(_outcome(make, arguments)).encode()
            while message:
                message = message[os.write(there, message) :]
        finally:
            os._exit(0)
    os.close(there)
    parts, deadline = [], time.monotonic() + SECONDS_TO_WAIT * seconds
    try:
        while select.select([here], [], [], max(0, deadline - time.monotonic()))[0] and (part := os.read(here, 2**20)):
            parts.append(part)
    finally:
        os.close(here)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    try:
        outcome = json.loads(b"".join(parts))
    except ValueError:  # the fork was killed
        outcome = {"too much": True}
    if "too much" in outcome:
        raise TooMuch(f"takes more than {seconds} s or {memory / 2**30:g} GB of memory")
    if "system" in outcome:
        raise OSError(*outcome["system"])
    if "error" in outcome:
        raise LabError(outcome["error"])
    return outcome["result"]


def _limit(seconds: int, memory: int) -> None:
    """Limit this process; ``memory`` is in addition to the memory that it has."""
    most = psutil.Process().memory_info().vms + memory
    for what, limit in ((resource.RLIMIT_AS, most), (resource.RLIMIT_CPU, seconds), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # a lower limit is already set, or macOS has none
            resource.setrlimit(what, (limit, limit))


def _outcome(make, arguments) -> dict:
    """Call the function, and describe its result or error."""
    try:
        return {"result": make(*arguments)}
    except LabError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"too much": True}
    except OSError as error:
        return {"system": [error.errno, error.strerror, os.fsdecode(error.filename or "")]}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"[:1000]}
