"""A fence around a student's kernel: ``python -m dgc_lab.marking.sandbox PLAN COMMAND...``.

Where the kernel allows user namespaces (`user_namespaces(7)`), the command gets

- a network of its own, on which nobody is;
- process numbers of its own: when its first process ends, all others end with it;
- a file system of its own in memory: the Python it runs on can be read, its own folder and ``/tmp`` can be written,
  and nothing else of the machine is there, no home, no submissions of others, no gradebook;
- no right of root's over any of that.

Everywhere it gets limits on memory and on the size of a file, and no core dumps; in namespaces of others than root
also on processes. Nothing but the standard library is imported here, for this is run once for each submission.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from dgc_lab.cluster.private_network import first_way

SPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child")
# For any user; and for root, where user namespaces are forbidden.
WAYS = (("unshare", "--user", "--map-root-user", *SPACES), ("unshare", *SPACES))
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/sys")
SETTINGS = ("ld.so.cache", "passwd", "group", "nsswitch.conf", "localtime", "hosts", "fonts", "alternatives", "ssl")
DEVICES = ("null", "zero", "full", "random", "urandom")
MOST_THREADS = 1024  # of all processes together; root has no such limit
MS_BIND, MS_REC, MS_PRIVATE, MS_NOSUID, MS_NODEV = 0x1000, 0x4000, 0x40000, 0x2, 0x4  # linux/mount.h
MOUNT_SETATTR, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, 0x8000, 0x1  # the same number on every processor
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38  # linux/prctl.h


@dataclass(frozen=True)
class Plan:
    """What a command may use."""

    home: str  # an empty folder that it may write to, at the same place inside; its root is built in there
    readable: tuple[str, ...]  # folders and files, at the same places
    memory: int  # bytes of its own data (RLIMIT_DATA)
    disk: int  # bytes of a file, and of all files in /tmp together
    entrance: tuple[str, ...]  # command that enters the namespaces; empty for none

    def text(self) -> str:
        """As one argument of a command."""
        return json.dumps(asdict(self))


def fence_missing() -> str | None:
    """Why there can be no fence on this machine; None where there can."""
    return first_way(WAYS)[1]


def entrance() -> tuple[str, ...]:
    """What to put before a command so that it runs in namespaces of its own; empty where `fence_missing`."""
    return first_way(WAYS)[0]


def python_folders() -> tuple[str, ...]:
    """What this Python reads: its prefixes and its path, but of a checkout the package alone, and not where we stand.

    A checkout has the solutions in it, and the folder that an instructor works in, submissions and the secret.
    """
    package = Path(__file__).resolve().parents[1]
    found = {str(package), sys.prefix, sys.base_prefix}
    for place in map(Path, filter(None, sys.path)):
        if (place / "dgc_lab" / "__init__.py").exists() and place.name != "site-packages":
            found.add(str(place / "dgc_lab"))
        elif place.exists() and place.resolve() != Path.cwd():
            found.add(str(place))
    if (package.parent / "results").is_dir():
        found.add(str(package.parent / "results"))
    return tuple(sorted(found))


def main() -> None:
    """Outside: enter the namespaces, and come back here inside. Inside: build the fence, and run the command."""
    inside = sys.argv[1] == "--inside"
    plan, command = Plan(**json.loads(sys.argv[1 + inside])), sys.argv[2 + inside :]
    if inside:
        build(plan)
        sys.exit(first_process(plan, command))
    end_with_parent()
    if plan.entrance:
        again = [sys.executable, "-m", "dgc_lab.marking.sandbox", "--inside", plan.text(), *command]
        os.execvp(plan.entrance[0], [*plan.entrance, *again])
    limit(plan)
    os.execvp(command[0], command)


def end_with_parent() -> None:
    """When the process that started this one ends, whatever way, so does this one (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def build(plan: Plan) -> None:
    """Make a root that holds what the plan allows, and move there."""
    from dgc_lab.cluster.private_network import raise_loopback

    raise_loopback()
    root = Path(tempfile.mkdtemp(prefix="root-", dir=plan.home))
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, f"size={plan.disk},mode=755")
    settings = [f"/etc/{name}" for name in SETTINGS]
    for place in sorted({*SYSTEM, *settings, *plan.readable}):
        if os.path.islink(place) and place in SYSTEM:  # /bin is mostly a link to usr/bin
            os.symlink(os.readlink(place), f"{root}{place}")
        elif os.path.exists(place) and not os.path.exists(f"{root}{place}"):
            bind(place, root, read_only=True)
    for name in DEVICES:
        bind(f"/dev/{name}", root)
    for name in ("tmp", "dev/shm"):
        (root / name).mkdir(exist_ok=True, parents=True)
    (root / "proc").mkdir()
    try:
        mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV)
    except OSError:  # inside some containers; the processes that it then shows cannot be reached from here
        bind("/proc", root, read_only=True)
    bind(plan.home, root, mounts_below=False)  # the new root is one of them
    os.chroot(root)
    os.chdir("/tmp")


def bind(place: str, root: Path, read_only: bool = False, mounts_below: bool = True) -> None:
    """Show a file or folder of the machine inside, at the same place."""
    target = Path(f"{root}{os.path.abspath(place)}")
    if os.path.isdir(place):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(place, target, "", MS_BIND | MS_REC * mounts_below)
    if read_only:
        attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
        call("syscall", MOUNT_SETATTR, -100, os.fsencode(target), AT_RECURSIVE, attributes, ctypes.sizeof(attributes))


def first_process(plan: Plan, command: list[str]) -> int:
    """Start the command without root's rights, and bury orphans until it ends; its exit code."""
    # A kernel that is interrupted passes it on to its process group, which must not be this process's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.setsid()
            for right in range(64):
                with contextlib.suppress(OSError):  # higher numbers than this kernel knows
                    call("prctl", PR_CAPBSET_DROP, right, 0, 0, 0)
            call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            limit(plan)
            os.execvp(command[0], command)
        finally:
            os._exit(127)
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status) % 256


def limit(plan: Plan) -> None:
    """Limits of the process that every child inherits."""
    import resource

    limits = [
        (resource.RLIMIT_DATA, plan.memory),
        (resource.RLIMIT_FSIZE, plan.disk),
        (resource.RLIMIT_CORE, 0),
    ]
    # Linux counts them in each user namespace by itself since 5.14; before, the user's others would count, too.
    if "--user" in plan.entrance and tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 14):
        limits.append((resource.RLIMIT_NPROC, MOST_THREADS))
    for what, most in limits:
        with contextlib.suppress(ValueError, OSError):  # a lower limit is already there, or macOS has none
            resource.setrlimit(what, (most, most))


def mount(source, target, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    call("mount", *(os.fsencode(str(each)) for each in (source, target, kind)), flags, os.fsencode(data))


def call(name: str, *arguments) -> int:
    """A function of the C library; an OSError with its reason when it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = getattr(libc, name)(*converted)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main()
