"""Run a command in a sandbox: ``python -m dgc_lab_grading.marking.sandbox PARENT PLAN COMMAND...``.

If Linux allows user namespaces (`user_namespaces(7)`), or for root, the command gets

- its own network, without any connection;
- its own process ids: when its first process ends, all others are killed;
- none of the objects that processes share without a file: keyrings, System V IPC, message queues (`system_calls`);
- its own file system in memory: the system's programs and its Python are readable, ``/tmp`` is writable, and nothing
  else of the machine is visible: no homes, no accounts, no other submissions;
- its own folder on the machine's disk, for sockets, which `close_home` makes read-only before a student's code runs;
- no root privileges over any of this: if root grades, the command runs as a user that nothing else runs as.

On every system it gets limits on memory and file size, and no core dumps; for users other than root, also a limit on
processes. Only the standard library is imported here, because each submission starts this module twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from dgc_lab.cluster.private_network import working_prefix
from dgc_lab_grading.marking.system_calls import refusing, unfiltered

SPACES = ("--net", "--ipc", "--mount", "--pid", "--fork", "--kill-child")
# In a user namespace made by root, root would keep its rights to the machine's files and settings.
WAYS_OF_ROOT, WAYS = (("unshare", *SPACES),), (("unshare", "--user", "--map-root-user", *SPACES),)
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/sys/devices/system")
SETTINGS = ("ld.so.cache", "nsswitch.conf", "localtime", "fonts", "alternatives")
ACCOUNTS = {"passwd": "{0}:x:{1}:{1}::/tmp:/bin/sh\n", "group": "{0}:x:{1}:\n"}  # replace the machine's
HOSTS = "127.0.0.1 localhost\n"
FIRST_USER, USERS = 61184, 4336  # ids that systemd gives to services while they run; no account has one of them
MOST_TERMINALS = 64
DEVICES = ("null", "zero", "full", "random", "urandom")
MOST_THREADS = 1024  # of all processes together; does not apply to root
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 0x1000, 0x4000, 0x40000
MOUNT_SETATTR = 442  # the same number on every architecture
AT_RECURSIVE, MOUNT_ATTR_RDONLY = 0x8000, 0x1  # linux/mount.h
PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 22, 24, 38  # linux/prctl.h
SECCOMP_MODE_FILTER = 2  # linux/seccomp.h
INSIDE = "--inside"  # in place of the parent's process id
GUARD = "DGC_LAB_GUARD"  # variable of the environment: number of the socket to the sandbox's first process


@dataclass(frozen=True)
class Plan:
    """Resources that a command may use."""

    home: str  # an empty folder, writable until `close_home`, with the same path inside; the new root is built in it
    readable: tuple[str, ...]  # folders and files, with the same paths inside
    memory: int  # bytes of a process's data (RLIMIT_DATA)
    disk: int  # bytes of a file, and of all files in /tmp together
    entrance: tuple[str, ...]  # command prefix that enters the namespaces; empty for none
    user: int  # id of the user and group that the command runs as, if root grades

    def text(self) -> str:
        """Return the plan as one command-line argument."""
        return json.dumps(asdict(self))


def fence_missing() -> str | None:
    """Return why this machine allows no sandbox, or None if it allows one."""
    return unfiltered() or working_prefix(_ways())[1]


def entrance() -> tuple[str, ...]:
    """Return the command prefix that enters new namespaces; empty without a sandbox."""
    return () if fence_missing() else working_prefix(_ways())[0]


def _ways() -> tuple[tuple[str, ...], ...]:
    return WAYS_OF_ROOT if os.geteuid() == 0 else WAYS


def python_folders() -> tuple[str, ...]:
    """Return the folders that this Python reads: its prefixes and its path, but only the package of a checkout.

    The rest of a checkout contains the solutions. The working directory is left out, too: it has submissions and the
    secret.
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
    """Outside: enter the namespaces, and run this again inside. Inside: build the sandbox, and run the command."""
    parent, plan, command = sys.argv[1], Plan(**json.loads(sys.argv[2])), sys.argv[3:]
    if parent == INSIDE:
        build(plan)
        sys.exit(first_process(plan, command))
    end_with(int(parent))
    if plan.entrance:
        again = [sys.executable, "-m", "dgc_lab_grading.marking.sandbox", INSIDE, plan.text(), *command]
        os.execvp(plan.entrance[0], [*plan.entrance, *again])
    limit(plan)
    os.execvp(command[0], command)


def end_with(parent: int) -> None:
    """End this process when its parent ends for any reason (Linux), or has ended already."""
    with contextlib.suppress(AttributeError, OSError):
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def build(plan: Plan) -> None:
    """Build a root that contains everything the plan allows, and move into it."""
    from dgc_lab.cluster.private_network import raise_loopback

    raise_loopback()
    os.umask(0o022)  # the command may run as another user, and must be able to enter the folders made here
    if runs_as_root(plan):
        for path in (Path(plan.home), *Path(plan.home).rglob("*")):
            os.chown(path, plan.user, plan.user, follow_symlinks=False)
    root = Path(tempfile.mkdtemp(prefix="root-", dir=plan.home))
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, f"size={plan.disk},mode=755")
    settings = [f"/etc/{name}" for name in SETTINGS]
    for place in sorted({*SYSTEM, *settings, *plan.readable}):
        if os.path.islink(place) and place in SYSTEM:  # /bin is usually a link to usr/bin
            os.symlink(os.readlink(place), f"{root}{place}")
        elif os.path.exists(place) and not os.path.exists(f"{root}{place}"):
            bind(place, root, read_only=True)
    for name in DEVICES:
        bind(f"/dev/{name}", root)
    for name in ("tmp", "dev/shm"):
        (root / name).mkdir(exist_ok=True, parents=True)
        (root / name).chmod(0o1777)
    names = [("root", 0), ("nobody", plan.user)]
    for file, line in ACCOUNTS.items():
        (root / "etc" / file).write_text("".join(line.format(*account) for account in names))
    (root / "etc" / "hosts").write_text(HOSTS)
    (root / "dev/pts").mkdir()
    terminals = f"newinstance,ptmxmode=0666,mode=0620,max={MOST_TERMINALS}"  # IPython runs "!command" in one
    mount("devpts", root / "dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, terminals)
    os.symlink("pts/ptmx", root / "dev/ptmx")
    (root / "proc").mkdir()
    try:
        mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_RDONLY)
    except OSError:  # in some containers; processes of other users or namespaces cannot be reached from here
        bind("/proc", root, read_only=True)
    bind(plan.home, root, mounts_below=False)  # the new root is one of them
    os.chroot(root)
    os.chdir("/tmp")


def runs_as_root(plan: Plan) -> bool:
    """Return whether root sets up the sandbox, so that the command must drop its privileges."""
    return bool(plan.entrance) and "--user" not in plan.entrance


def bind(place: str, root: Path, read_only: bool = False, mounts_below: bool = True) -> None:
    """Make a file or folder of the machine visible inside, with the same path."""
    target = Path(f"{root}{os.path.abspath(place)}")
    if os.path.isdir(place):
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    mount(place, target, "", MS_BIND | MS_REC * mounts_below)
    if read_only:
        make_read_only(target)


def make_read_only(target: str | Path) -> None:
    """Make a mount, and the mounts below it, read-only; sockets in it can still be used."""
    attributes = (ctypes.c_uint64 * 4)(MOUNT_ATTR_RDONLY, 0, 0, 0)
    call("syscall", MOUNT_SETATTR, -100, os.fsencode(target), AT_RECURSIVE, attributes, ctypes.sizeof(attributes))


def close_home() -> None:
    """In the command: make its folder read-only, once its sockets are there; does nothing without a sandbox."""
    if number := os.environ.pop(GUARD, ""):
        with socket.socket(fileno=int(number)) as guard:
            guard.send(b"!")
            guard.recv(1)  # returns when the other end is closed


def first_process(plan: Plan, command: list[str]) -> int:
    """Run the command without root's privileges, and reap orphans until it ends; return its exit code."""
    # A kernel passes an interrupt on to its process group, which must not include this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.setsid()
            os.set_inheritable(there.fileno(), True)
            os.environ[GUARD] = str(there.fileno())
            for capability in range(64):
                with contextlib.suppress(OSError):  # Linux has fewer capabilities
                    call("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
            if runs_as_root(plan):
                os.setgroups([])
                os.setresgid(plan.user, plan.user, plan.user)
                os.setresuid(plan.user, plan.user, plan.user)
            call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(refusing()), 0, 0)
            limit(plan)
            os.execvp(command[0], command)
        finally:
            os._exit(127)
    there.close()
    with here:
        here.recv(1)  # sent by `close_home`; nothing if the command has ended
        make_read_only(plan.home)
    while True:
        ended, status = os.wait()
        if ended == child:
            return os.waitstatus_to_exitcode(status) % 256


def limit(plan: Plan) -> None:
    """Set the limits of this process, which every child inherits."""
    import resource

    limits = [
        (resource.RLIMIT_DATA, plan.memory),
        (resource.RLIMIT_FSIZE, plan.disk),
        (resource.RLIMIT_CORE, 0),
    ]
    # Linux counts processes per user namespace since 5.14; before, the user's other processes count, too.
    if "--user" in plan.entrance and tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) >= (5, 14):
        limits.append((resource.RLIMIT_NPROC, MOST_THREADS))
    for what, most in limits:
        with contextlib.suppress(ValueError, OSError):  # a lower limit is already set, or macOS has none
            resource.setrlimit(what, (most, most))


def mount(source, target, kind: str, flags: int, data: str = "") -> None:
    """Call mount(2)."""
    call("mount", *(os.fsencode(str(each)) for each in (source, target, kind)), flags, os.fsencode(data))


def call(name: str, *arguments) -> int:
    """Call a function of the C library; raise an OSError with the reason if it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    converted = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = getattr(libc, name)(*converted)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    main()
