"""Refuse system calls that no submission needs: a seccomp filter.

The kernel's keyrings outlive a process and belong to a user or a login, not to a namespace (`keyrings(7)`). System V
IPC and message queues have a namespace of their own, but their memory belongs to no process. The last four are rarely
needed, and have had many vulnerabilities that expose the kernel; Docker refuses them, too.
"""

from __future__ import annotations

import ctypes
import errno
import os

REFUSED = ("add_key", "request_key", "keyctl", "shmget", "semget", "msgget", "mq_open")
REFUSED += ("bpf", "perf_event_open", "io_uring_setup", "userfaultfd")
# The architecture's number in linux/audit.h, and its numbers of these calls in asm/unistd.h.
MACHINES = {
    "x86_64": (0xC000003E, (248, 249, 250, 29, 64, 68, 240, 321, 298, 425, 323)),
    "aarch64": (0xC00000B7, (217, 218, 219, 194, 190, 186, 180, 280, 241, 425, 282)),
}
X32_CALLS = 0x40000000  # on x86-64, numbers from here on are a second way to each call
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06  # instructions, linux/bpf_common.h
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM  # results, linux/seccomp.h
NUMBER_AT, MACHINE_AT = 0, 4  # offsets in struct seccomp_data


class Instruction(ctypes.Structure):
    """The struct sock_filter of linux/filter.h."""

    _fields_ = (("code", ctypes.c_uint16), ("then", ctypes.c_uint8), ("other", ctypes.c_uint8), ("k", ctypes.c_uint32))


class Program(ctypes.Structure):
    """The struct sock_fprog of linux/filter.h."""

    _fields_ = (("length", ctypes.c_uint16), ("instructions", ctypes.POINTER(Instruction)))


def unfiltered() -> str | None:
    """Return why system calls cannot be filtered on this machine, or None if they can."""
    machine = os.uname().machine
    return None if machine in MACHINES else f"no filter of system calls for the processor {machine}"


def program() -> list[tuple[int, int, int, int]]:
    """Return the filter's instructions: code, jump if true, jump if false, constant."""
    machine, numbers = MACHINES[os.uname().machine]
    refuse = len(numbers) + 5  # the place of the last instruction
    start = [(LOAD, 0, 0, MACHINE_AT), (EQUAL, 0, refuse - 2, machine), (LOAD, 0, 0, NUMBER_AT)]
    tests = [(AT_LEAST, X32_CALLS), *((EQUAL, number) for number in numbers)]
    jumps = [(code, refuse - place - 1, 0, number) for place, (code, number) in enumerate(tests, len(start))]
    return [*start, *jumps, (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE)]


def refusing() -> Program:
    """Return the filter in the form that prctl(2) takes."""
    instructions = program()
    return Program(len(instructions), (Instruction * len(instructions))(*(Instruction(*each) for each in instructions)))
