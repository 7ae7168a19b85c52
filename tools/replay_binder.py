"""Does here what Binder does with this checkout, without Docker, and runs a lesson with the memory that Binder gives.

python tools/replay_binder.py [LESSON ...]        lesson 5 if none is given

The Dockerfile that repo2docker writes says what is done; binder/ is its only source. Two of its steps are done by other
means: Debian's packages must be here already, and the Jupyter packages that it starts from come from PyPI in place of
conda, at the same versions. Then the server that Binder starts has to answer, and beside it each lesson runs on one
processor core with 2 GB for both together. The limit is a control group, which needs root; everything else then runs
as an ordinary user.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import psutil

from binder_image import USER, USER_ID, copy_tracked, image_of

ROOT = Path(__file__).resolve().parent.parent
LESSONS = ["05_dgc_on_horovod"]
MEMORY = 2 * 10**9  # bytes; Binder says 2 GB, and its next machine may count in GiB
PASSED_ON = re.compile(r"PIP_|SSL_|REQUESTS_|.*_PROXY$|.*_proxy$")  # how this machine reaches a package index


class ControlGroup:
    """Processes that share a limit of memory, in either version of Linux's control groups.

    Args:
        limit: bytes; the kernel kills a process when all of them together need more.
        name: of the group.
    """

    def __init__(self, limit: int, name: str = "dgc_lab_binder"):
        folder = Path("/sys/fs/cgroup")
        if (folder / "memory").is_dir():
            own = re.search(r":memory:(.*)", Path("/proc/self/cgroup").read_text())[1]
            self.folder = folder / "memory" / own.lstrip("/") / name
            limits = {"memory.limit_in_bytes": limit, "memory.memsw.limit_in_bytes": limit}
        else:
            self.folder, limits = folder / name, {"memory.max": limit, "memory.swap.max": 0}
        self.folder.mkdir(exist_ok=True)
        for name, value in limits.items():
            (self.folder / name).write_text(str(value))

    def start(self, command: list[str], **options) -> subprocess.Popen:
        """Start a command in the group, on the first processor core, as the ordinary user."""
        enter = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self.folder / "cgroup.procs"), "taskset", "-c", "0"]
        return subprocess.Popen([*enter, *as_user(command)], start_new_session=True, **options)

    def processes(self) -> list[psutil.Process]:
        """All processes of the group that are alive."""
        found = map(int, (self.folder / "cgroup.procs").read_text().split())
        return [psutil.Process(pid) for pid in found if psutil.pid_exists(pid)]

    def memory(self) -> int:
        """Bytes of all processes now, pages that several of them hold counted once (the sum of PSS)."""
        together = 0
        for process in self.processes():
            try:
                together += process.memory_full_info().pss
            except psutil.NoSuchProcess:
                continue
        return together

    def killed(self) -> int:
        """How many processes the kernel killed for want of memory."""
        names = ("memory.oom_control", "memory.events")
        text = "".join((self.folder / name).read_text() for name in names if (self.folder / name).exists())
        return int(re.search(r"^oom_kill (\d+)", text, re.MULTILINE)[1])

    def close(self) -> None:
        """End all processes, and the group."""
        for end in (psutil.Process.terminate, psutil.Process.kill):
            processes = self.processes()
            for process in processes:
                end(process)
            psutil.wait_procs(processes, timeout=10)
        self.folder.rmdir()


def as_user(command: list[str]) -> list[str]:
    """The command, run by a user without rights where this is root, as on Binder."""
    if os.geteuid():
        return command
    return ["setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", *command]


def hand_over(folder: Path) -> None:
    """Give a folder and all in it to the user."""
    if not os.geteuid():
        subprocess.run(["chown", "-R", f"{USER_ID}:{USER_ID}", str(folder)], check=True)


def megabytes(folder: Path) -> float:
    """Size of a folder on the disk."""
    return int(subprocess.run(["du", "-sm", str(folder)], capture_output=True, text=True).stdout.split()[0])


class Replay:
    """The image's steps, done in a folder.

    Args:
        folder: empty; Binder's ``/srv`` and ``/home`` are made in it.
    """

    def __init__(self, folder: Path):
        self.home = folder / "home" / USER
        self.checkout = copy_tracked(ROOT, self.home)  # Binder's home is the checkout
        self.image, self.times = image_of(self.checkout), []
        self.variables = self.image.variables({"HOME": str(self.home), "APP_BASE": str(folder / "srv")})
        self.variables |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}  # which every machine has
        self.environment = Path(self.variables["NB_PYTHON_PREFIX"])
        here = {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
        self.variables = {**here, **self.variables}
        self.environment.parent.mkdir(parents=True, exist_ok=True)
        hand_over(folder)

    def do(self, name: str, command: list[str]) -> str:
        """Run a step as the user and keep its time; returns what it printed.

        Raises:
            SystemExit: it failed.
        """
        print(f"{name} ...", flush=True)
        start = time.monotonic()
        done = subprocess.run(
            as_user(command),
            cwd=self.home,
            env=self.variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.times.append((name, time.monotonic() - start))
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stdout[-5000:]}")
        return done.stdout

    def build(self) -> None:
        """From nothing to the finished image."""
        for package in self.image.debian_packages():
            if subprocess.run(["dpkg", "--status", package], capture_output=True).returncode:
                raise SystemExit(f"binder/apt.txt asks for {package}. Run: apt-get install {package}")
        name = f"python{self.image.python}"
        # A user without rights cannot use what is in root's home.
        python = shutil.which(name, path="/usr/local/bin:/usr/bin") or shutil.which(name)
        if python is None:
            raise SystemExit(f"binder/runtime.txt asks for Python {self.image.python}: no {name} here")
        self.do("Python", [python, "-m", "venv", str(self.environment)])
        pip = str(self.environment / "bin" / "pip")
        self.do("what repo2docker starts from", [pip, "install", "--quiet", "--no-cache-dir", *self.image.base])
        print(f"  {megabytes(self.environment)} MB")
        for command in self.image.commands():
            self.do(command, ["bash", "-c", command])

    def look(self) -> list[str]:
        """What is wrong with the finished image, one line each."""
        scraps = (".cache/pip", ".cache/dgc_lab/horovod")  # the native step beside the latter must stay
        wrong = [f"left behind: {path}" for path in scraps if (self.home / path).exists()]
        done = subprocess.run([self.environment / "bin" / "pip", "check"], capture_output=True, text=True)
        complaints = done.stdout.splitlines() if done.returncode else []
        known = "requires tensorflow, which is not installed"  # tensorflow-cpu stands for it, which pip cannot know
        return wrong + [complaint for complaint in complaints if known not in complaint]

    def serve(self, group: ControlGroup) -> None:
        """Start the server as Binder does, but for its address, and wait for JupyterLab's page of a lesson."""
        command = ["127.0.0.1" if word == "0.0.0.0" else word for word in self.image.start()]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command += ["--no-browser", f"--ServerApp.port={port}"]
        token = secrets.token_urlsafe()
        variables = self.variables | {"JUPYTER_TOKEN": token}
        start = time.monotonic()
        with (self.home / ".jupyter-server-log.txt").open("w") as log:
            server = group.start(command, cwd=self.home, env=variables, stdout=log, stderr=log)
        url = f"http://127.0.0.1:{port}/lab/tree/notebooks/{LESSONS[0]}.ipynb?token={token}"
        while True:
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    assert b"JupyterLab" in answer.read()
                break
            except OSError as error:
                if server.poll() is not None or time.monotonic() - start > 120:
                    said = (self.home / ".jupyter-server-log.txt").read_text()[-5000:]
                    raise SystemExit(f"{' '.join(command)} does not answer: {error}\n{said}") from None
                time.sleep(0.2)
        self.times.append((" ".join(self.image.start()), time.monotonic() - start))

    def run_lesson(self, name: str, group: ControlGroup) -> tuple[int, str]:
        """Run all cells of a lesson beside the server; the largest memory of all meanwhile, and what was printed."""
        command = ["jupyter", "execute", f"notebooks/{name}.ipynb"]
        start, peak = time.monotonic(), 0
        with tempfile.TemporaryFile("w+") as printed:
            lesson = group.start(command, cwd=self.home, env=self.variables, stdout=printed, stderr=subprocess.STDOUT)
            while lesson.poll() is None:
                peak = max(peak, group.memory())
                time.sleep(0.5)
            printed.seek(0)
            self.times.append((" ".join(command), time.monotonic() - start))
            return peak, printed.read()[-3000:] if lesson.returncode else ""


def main(lessons: list[str]) -> int:
    """Replay and report; the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(Path(folder))
        replay.build()
        wrong = replay.look()
        group = ControlGroup(MEMORY)
        try:
            replay.serve(group)
            print(f"server alone: {group.memory() / 1e9:.2f} GB")
            for lesson in lessons:
                peak, trouble = replay.run_lesson(lesson, group)
                print(f"{lesson}: {peak / 1e9:.2f} GB with the server, of {MEMORY / 1e9:g}; killed: {group.killed()}")
                wrong += [f"{lesson} failed:\n{trouble}"] * bool(trouble) + ["out of memory"] * bool(group.killed())
        finally:
            group.close()
        for step, seconds in replay.times:
            print(f"{seconds:6.0f} s  {step}")
        print(f"{megabytes(replay.environment):6} MB environment")
        print(f"{megabytes(replay.home):6} MB home folder, this repository in it")
    print("\n".join(wrong) or "nothing wrong", file=sys.stderr if wrong else sys.stdout)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main([Path(name).stem for name in sys.argv[1:]] or LESSONS))
