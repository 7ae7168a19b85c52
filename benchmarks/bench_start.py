"""How long new users wait: `make lab` in a new clone, its second call, and lesson 4's first live point.

python benchmarks/bench_start.py

Everything runs in a clone of the last commit with an empty home folder: pip's cache is empty, nothing has been built,
and no kernel has been started. The time of `make lab` ends when the address that it prints returns JupyterLab's page.
The time to the first live point is measured in headless Chromium, from the click on Run All Cells to the first picture
with a curve: that of the sweep that a cell runs. (A click on a widget's Run button waits until all queued cells have
run, with ipykernel 7.4 as on Colab.) The last rows are the import of the package, and the default sweep of lesson 4 in
a terminal.
"""

import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from bench import report

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))
LESSON = "04_dgc_masking.ipynb"
# These variables could lead to earlier downloads, builds or kernels.
LEFT_OUT = {"PIP_CACHE_DIR", "XDG_CACHE_HOME", "DGC_LAB_CACHE", "VIRTUAL_ENV", "PYTHONPATH", "MPLCONFIGDIR"}
LEFT_OUT |= {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"}


@contextlib.contextmanager
def make_lab(clone: Path, home: Path):
    """Run ``make lab``; yield the seconds until JupyterLab answered, its address, and its token."""
    environment = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    environment |= {"HOME": str(home), "BROWSER": "true"}  # JupyterLab must not open the page
    start, log = time.perf_counter(), home / "make_lab.log"
    with log.open("w") as out:
        command = subprocess.Popen(
            ["make", "lab"], cwd=clone, env=environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)/\S*\?token=(\w+)", log.read_text())):
            if command.poll() is not None:
                raise SystemExit(f"make lab ended:\n{log.read_text()}")
            time.sleep(0.05)
        address, token = f"http://127.0.0.1:{found[1]}", found[2]
        with urllib.request.urlopen(f"{address}/lab?token={token}", timeout=60) as answer:
            assert b"JupyterLab" in answer.read()
        yield time.perf_counter() - start, address, token
    finally:
        os.killpg(command.pid, signal.SIGTERM)
        command.wait(30)


def first_live_point(address: str, token: str) -> float:
    """Return the seconds from Run All Cells in lesson 4 to the first picture with a point of a curve."""
    from playwright.sync_api import sync_playwright

    from browser import BROWSER, FLAGS

    with sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS).new_page()
        page.goto(f"{address}/lab/tree/{LESSON}?token={token}")
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
        # JupyterLab shows stored pictures without alternative text, as they are PNG files. Only live ones have it.
        point = page.locator("img[alt*=' at step ']")
        assert not point.count()
        page.locator(".lm-MenuBar-itemLabel", has_text=re.compile("^Run$")).click()
        start = time.perf_counter()
        page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells")).first.click()
        point.first.wait_for(state="attached", timeout=120_000)
        return time.perf_counter() - start


def newcomer(folder: Path) -> list[dict]:
    """Return rows for a new user who only has Python, a compiler and the repository's address."""
    home, clone = folder / "home", folder / "clone"
    home.mkdir(parents=True)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    with make_lab(clone, home) as (first, *_):
        pass
    row = {"what": "make lab in a new clone, until JupyterLab answers", "seconds": first, "goal": "under 360"}
    return [row, *once_installed(clone, home)]


def once_installed(clone: Path, home: Path) -> list[dict]:
    """Return rows for a user who has installed the lab already."""
    with make_lab(clone, home) as (again, address, token):
        live = first_live_point(address, token)
    return [
        {"what": "make lab, called again", "seconds": again, "goal": "under 8"},
        {"what": "lesson 4, Run All to the first live point", "seconds": live, "goal": "under 15"},
    ]


def seconds(*command):
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


def main():
    with tempfile.TemporaryDirectory() as folder:
        rows = newcomer(Path(folder))
    keep(rows + package())


def package() -> list[dict]:
    """Return rows for the package itself, without a notebook."""
    inside = "import time; start = time.perf_counter(); import dgc_lab; print(time.perf_counter() - start)"
    taken = [
        float(subprocess.run([sys.executable, "-c", inside], check=True, capture_output=True, text=True).stdout)
        for _ in range(5)
    ]
    rows = [{"what": "import dgc_lab", "seconds": statistics.median(taken), "goal": "under 0.3"}]
    ratios = "1,0.1,0.01,0.001,0"
    taken = [seconds(sys.executable, "-m", "dgc_lab", "sweep", "--ratios", ratios) for _ in range(3)]
    name = "lesson 4's default sweep (5 ratios, 300 steps), TensorFlow's start included"
    return [*rows, {"what": name, "seconds": statistics.median(taken), "goal": "under 60"}]


def keep(rows: list[dict]) -> None:
    """Report the rows, with the goal of each."""
    goals = {}
    for row in rows:
        limit = float(row["goal"].removeprefix("under "))
        goals[f"{limit:g} s divided by: {row['what']}"] = (limit / row["seconds"], 1)
    report("start", rows, goals)


if __name__ == "__main__":
    main()
