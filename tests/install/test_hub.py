"""Two students run the same lesson at once on a local JupyterHub, each in their own browser.

The configuration is the instructors' ``hub/jupyterhub_config.py``. Test users have a user id and a home folder but no
system account, and share one password. Needs root, like any hub that starts servers for other users.
"""

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import psutil
import pytest

from browser import BROWSER, all_outputs, free_port, kernel_says, opened, run_all, screenshot
from dgc_lab_grading.gradebook.publish import publish

ROOT = Path(__file__).resolve().parents[2]
HUB = ROOT / ".venv-hub"
LESSON = "notebooks/00_start_here.ipynb"
USERS = {"ann": 61_001, "ben": 61_002}
PASSWORD = "only for this test"
SETTINGS = """
exec(open({recipe!r}).read())
from jupyterhub.spawner import LocalProcessSpawner

USERS, HOMES = {users!r}, {homes!r}

class Numbered(LocalProcessSpawner):
    def make_preexec_fn(self, name):
        def become():
            os.setgroups([])
            os.setgid(USERS[name])
            os.setuid(USERS[name])
            os.chdir(f"{{HOMES}}/{{name}}")
        return become

    def user_env(self, env):
        return env | {{"HOME": f"{{HOMES}}/{{self.user.name}}", "USER": self.user.name, "SHELL": "/bin/sh"}}

c.JupyterHub.spawner_class = Numbered
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allowed_users = set(USERS)
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.Spawner.args = c.Spawner.args + ["--LabApp.expose_app_in_browser=True"]
"""
RANKS = """
from dgc_lab.cluster import HorovodRanks
ranks = HorovodRanks(2, timeout=600, progress=None)
ranks.start()
"""
# Runs in a student's kernel: tries to access another student's processes and ports.
PROBE = """
import os, socket
def tried(what, *arguments):
    try:
        return repr(what(*arguments))[:80]
    except OSError as error:
        return type(error).__name__
said = {{"uid": os.getuid(), "home": tried(os.listdir, {home!r})}}
for pid in {pids!r}:
    said[f"environ {{pid}}"] = tried(lambda: open(f"/proc/{{pid}}/environ").read())
    said[f"network {{pid}}"] = tried(os.readlink, f"/proc/{{pid}}/ns/net")
    said[f"kill {{pid}}"] = tried(os.kill, pid, 0)
for port in {ports!r}:
    said[f"port {{port}}"] = tried(socket.create_connection, ("127.0.0.1", port), 2)
"""
pytestmark = [
    pytest.mark.alone,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not (HUB / ".installed").exists(), reason="no hub here: make hub"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a hub that starts servers for others is root's"),
    pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome on this machine"),
]


@contextlib.contextmanager
def running(command, log, up, **options):
    """Run a process, wait until ``up`` returns True, and finally end its whole process tree."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **options)
    try:
        end = time.monotonic() + 120
        while not up():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.2)
        yield process
    finally:
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        process.wait(60)
        _, alive = psutil.wait_procs(family, 60)
        for each in alive:
            each.kill()


def answers(address):
    """Return whether a page responds with 200; the proxy answers 404 until the hub is up."""
    try:
        return urllib.request.urlopen(address, timeout=2).status == 200
    except OSError:
        return False


def may_run(number, command):
    """Return whether a user can run a command."""
    with contextlib.suppress(PermissionError):
        return subprocess.run(command, user=number, group=number, extra_groups=[], cwd="/").returncode == 0
    return False


@pytest.fixture(scope="module")
def place():
    """A folder that students can traverse; pytest's own folders are private to their owner."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture(scope="module")
def link(place):
    """The nbgitpuller link that students receive, to a lesson in a published copy of this repository."""
    if not may_run(USERS["ann"], [HUB / "bin" / "python", "-c", "import dgc_lab"]):
        pytest.skip("the hub's Python is not for all users: make hub PYTHON=/usr/bin/python3")
    homes = place / "homes"
    homes.mkdir(mode=0o711)
    for name, number in USERS.items():
        (homes / name).mkdir(mode=0o700)
        os.chown(homes / name, number, number)
    publish(ROOT, place / "git" / "lab")
    port, git_port, hub_port, api_port = (free_port() for _ in range(4))
    served = ["git", "daemon", "--export-all", f"--base-path={place / 'git'}"]
    served += ["--listen=127.0.0.1", f"--port={git_port}"]
    settings = place / "config.py"
    ports = {"hub_port": hub_port, "api_port": api_port}
    recipe = str(ROOT / "hub" / "jupyterhub_config.py")
    settings.write_text(
        SETTINGS.format(recipe=recipe, users=USERS, homes=str(homes), password=PASSWORD, **ports), encoding="utf-8"
    )
    environment = {**os.environ, "HUB_ADDRESS": f"http://127.0.0.1:{port}"}
    for name in ("PYTHONPATH", "JUPYTER_CONFIG_DIR"):
        environment.pop(name, None)
    hub = [HUB / "bin" / "jupyterhub", "--config", settings]
    repo = f"git://127.0.0.1:{git_port}/lab"
    with (
        running(
            served,
            place / "git.log",
            lambda: subprocess.run(["git", "ls-remote", repo], capture_output=True).returncode == 0,
        ),
        running(
            hub, place / "hub.log", lambda: answers(f"http://127.0.0.1:{port}/hub/login"), env=environment, cwd=place
        ),
    ):
        asked = {"repo": repo, "branch": "main", "urlpath": f"lab/tree/lab/{LESSON}"}
        yield f"http://127.0.0.1:{port}/hub/user-redirect/git-pull?{urlencode(asked)}", homes
        shutil.copy(place / "hub.log", ROOT / "artefacts" / "hub.log")


def listening(pid):
    """List the listening ports in a process's network namespace."""
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return sorted({int(line.split()[1].split(":")[1], 16) for line in lines if line.split()[3] == "0A"})


@contextlib.contextmanager
def abort_on_failure(barrier):
    """Abort the barrier on failure, so that no thread waits forever."""
    try:
        yield
    except BaseException:
        barrier.abort()
        raise


@pytest.mark.nightly
def test_two_students_cannot_see_each_others_ranks(link):
    address, homes = link
    together, ranks = threading.Barrier(len(USERS), timeout=900), {}

    def student(name):
        with abort_on_failure(together), opened(address) as page:
            page.get_by_label("Username").fill(name)
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name=re.compile("Sign in", re.IGNORECASE)).click()
            page.locator(".jp-Notebook").wait_for(timeout=240_000)
            page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=120_000)
            together.wait()
            start = time.monotonic()
            run_all(page)
            seconds = time.monotonic() - start
            screenshot(page, f"hub_{name}")
            errors = [output["evalue"] for kind, output in all_outputs(page) if kind == "error"]
            kernel_says(page, f"exec({RANKS!r})")
            ranks[name] = json.loads(kernel_says(page, "ranks.run(__import__('os').getpid)"))
            networks = {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in ranks[name]}
            together.wait()
            other = next(each for each in USERS if each != name)
            seen = {"pids": ranks[other], "ports": listening(ranks[other][0]), "home": str(homes / other)}
            probe = PROBE.format(**seen)
            said = kernel_says(
                page, f"[space := {{}}, exec({probe!r}, space), __import__('json').dumps(space['said'])][2]"
            )
            together.wait()
            return errors, json.loads(ast.literal_eval(said)), seen, seconds, networks

    with ThreadPoolExecutor(len(USERS)) as pool:
        found = dict(zip(USERS, pool.map(student, USERS), strict=True))
    for name, (errors, said, seen, seconds, _) in found.items():
        print(f"{name}: {seconds:.0f} s, {said}")
        assert errors == []
        assert said.pop("uid") == USERS[name]
        assert seen["ports"], "the other student's ranks must listen"
        kinds = {}
        for what, came in said.items():
            kinds.setdefault(what.split()[0], set()).add(came)
        assert kinds.pop("port") == {"ConnectionRefusedError"}
        assert kinds == {what: {"PermissionError"} for what in ("home", "environ", "network", "kill")}
    networks = [networks for *_, networks in found.values()]
    assert not networks[0] & networks[1]
