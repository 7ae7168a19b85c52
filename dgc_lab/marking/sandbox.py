"""A fence around a student's kernel: ``python -m dgc_lab.marking.sandbox PARENT PLAN COMMAND...``.

Where the kernel allows user namespaces (`user_namespaces(7)`), or to root, the command gets

- a network of its own, on which nobody is;
- process numbers of its own: when its first process ends, all others end with it;
- a file system of its own in memory: the system's programs and the Python it runs on can be read, its own folder and
  ``/tmp`` can be written, and nothing else of the machine is there, no home, no accounts, no submissions of others;
- no right of root's over any of that: where root grades, the command runs as nobody.

Everywhere it gets limits on memory and on the size of a file, and no core dumps; for others than root also on
processes. Nothing but the standard library is imported here, for this is run twice for each submission.
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

SPACES = ("--net", "--ipc", "--mount", "--pid", "--fork", "--kill-child")
# In a user namespace of root's, root would be the same root to the files and the settings of the machine.
WAYS_OF_ROOT, WAYS = (("unshare", *SPACES),), (("unshare", "--user", "--map-root-user", *SPACES),)
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/sys/devices/system")
SETTINGS = ("ld.so.cache", "nsswitch.conf", "localtime", "fonts", "alternatives")
ACCOUNTS = {"passwd": "{0}:x:{1}:{1}::/tmp:/bin/sh\n", "group": "{0}:x:{1}:\n"}  # none of the machine's
HOSTS = "127.0.0.1 localhost\n"
NOBODY = 65534  # the number of the user and of the group that own nothing, on every Linux
DEVICES = ("null", "zero", "full", "random", "urandom")
MOST_THREADS = 1024  # of all processes together; root has no such limit
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x2, 0x4, 0x1000, 0x4000, 0x40000  # linux/mount.h
MOUNT_SETATTR, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 442, 0x8000, 0x1  # the same number on every processor
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38  # linux/prctl.h
INSIDE = "--inside"  # in the place of the parent's number


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
    return first_way(_ways())[1]


def entrance() -> tuple[str, ...]:
    """What to put before a command so that it runs in namespaces of its own; empty where `fence_missing`."""
    return first_way(_ways())[0]


def _ways() -> tuple[tuple[str, ...], ...]:
    return WAYS_OF_ROOT if os.geteuid() == 0 else WAYS


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
    parent, plan, command = sys.argv[1], Plan(**json.loads(sys.argv[2])), sys.argv[3:]
    if parent == INSIDE:
        build(plan)
        sys.exit(first_process(plan, command))
    end_with(int(parent))
    if plan.entrance:
        again = [sys.executable, "-m", "dgc_lab.marking.sandbox", INSIDE, plan.text(), *command]
        os.execvp(plan.entrance[0], [*plan.entrance, *again])
    limit(plan)
    os.execvp(command[0], command)


def end_with(parent: int) -> None:
    """When the process that started this one ends, whatever way, so does this one (Linux); it may have by now."""
    with contextlib.suppress(AttributeError, OSError):
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def build(plan: Plan) -> None:
    """Make a root that holds what the plan allows, and move there."""
    from dgc_lab.cluster.private_network import raise_loopback

    raise_loopback()
    os.umask(0o022)  # the command, which can be nobody's, must get through the folders that are made here
    if runs_as_root(plan):
        for path in (Path(plan.home), *Path(plan.home).rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
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
        (root / name).chmod(0o1777)
    names = [("root", 0), ("nobody", NOBODY)]
    for file, line in ACCOUNTS.items():
        (root / "etc" / file).write_text("".join(line.format(*account) for account in names))
    (root / "etc" / "hosts").write_text(HOSTS)
    with contextlib.suppress(OSError), open("/proc/sys/kernel/shmall", "w") as pages:  # this namespace's own
        pages.write(str(plan.disk // 4096))
    (root / "proc").mkdir()
    try:
        mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_RDONLY)
    except OSError:  # inside some containers; the processes that it then shows cannot be reached from here
        bind("/proc", root, read_only=True)
    bind(plan.home, root, mounts_below=False)  # the new root is one of them
    os.chroot(root)
    os.chdir("/tmp")


def runs_as_root(plan: Plan) -> bool:
    """Whether the fence is root's, whose rights the command must not have."""
    return bool(plan.entrance) and "--user" not in plan.entrance


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
            if runs_as_root(plan):
                os.setgroups([])
                os.setresgid(NOBODY, NOBODY, NOBODY)
                os.setresuid(NOBODY, NOBODY, NOBODY)
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
        (resource.RLIMIT_MSGQUEUE, 0),
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
