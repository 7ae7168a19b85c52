"""Does for hours what a class does, in one kernel and one JupyterLab, and writes down what the machine gives for it.

make soak HOURS=2: sweeps, ranks, parameter servers, widgets that are opened, used and closed, in JupyterLab too, and
gradings of a hand-in, one after the other, over and over. Each round is a row of ``results/soak.jsonl``; the table of
them is printed at the end and after Ctrl-C, their picture is ``docs/soak.png``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil

from soak_round import LONGEST

ROOT = Path(__file__).resolve().parent.parent
ROWS, PICTURE = ROOT / "results" / "soak.jsonl", ROOT / "docs" / "soak.png"
EXERCISE = "01_aggregation"
IN_KERNEL = ("sweeps", "ranks", "servers", "widgets")  # functions of `soak_round`
CELL = """from dgc_lab.training import CompressionTaste
from IPython.display import display
if "lab" in globals():
    lab.close()
lab = CompressionTaste()
display(lab)"""
# What is written down, and in which unit.
MEMORY = ("kernel MB", "lab MB", "grading MB", "all MB", "all RSS MB")
COUNTED = ("descriptors", "threads", "processes")


# Who does it -------------------------------------------------------------------------------------------------------


class Kernel:
    """A Jupyter kernel in a folder of its own."""

    def __init__(self, folder: Path):
        from jupyter_client.manager import start_new_kernel

        folder.mkdir()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}  # it imports `soak_round`
        self.manager, self.client = start_new_kernel(cwd=str(folder), env=environment)
        self.pid = self.manager.provisioner.pid

    def run(self, code: str) -> None:
        """Run a cell, show nothing of it, and raise its error here."""
        failed = []

        def note(message):
            if message["msg_type"] == "error":
                failed.append("\n".join(message["content"]["traceback"]))

        self.client.execute_interactive(code, output_hook=note, timeout=LONGEST)
        if failed:
            raise RuntimeError(failed[0])

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()


def in_lab(address: str) -> None:
    """Open the notebook in a browser, run its cell, press Run in its widget, and close the browser."""
    from playwright.sync_api import expect

    from browser import opened_notebook, run_all

    with opened_notebook(address, "soak.ipynb") as page:
        run_all(page)
        widget = page.locator(".jp-OutputArea-output .widget-vbox").first
        widget.get_by_role("button", name="Run").click()
        expect(widget.locator("[role=status]").first).to_contain_text("Done: 1 row", timeout=1000 * LONGEST)


def grading(instructor, folder: Path) -> None:
    """Grade a hand-in, whether or not it was graded before."""
    place = ("--folder", folder / "grading", "--source", ROOT / "notebooks" / "exercises" / "source")
    assert "1 graded" in instructor("grade", EXERCISE, folder / "handed_in", *place, "--again")


@contextlib.contextmanager
def everything(folder: Path, browser: bool = True, course: bool = True):
    """Start all that lives long: what a round does, by name, and the processes to look at, by name.

    ``browser`` and ``course`` say whether JupyterLab and gradings are part of it, where the machine has them.
    """
    from browser import BROWSER, jupyterlab_on, one_cell_notebook
    from instructor import CAN_GRADE, Instructor, answered, write

    with contextlib.ExitStack() as stack:
        kernel = Kernel(folder / "kernel")
        stack.callback(kernel.close)
        kernel.run("from dgc_lab.replicas import start_devices\nstart_devices(4)")  # first, as lesson 2 does
        kernel.run("import soak_round\nfrom dgc_lab.common import free_memory")
        doing = {name: lambda name=name: kernel.run(f"soak_round.{name}()") for name in IN_KERNEL}
        watched = {"kernel MB": psutil.Process(kernel.pid)}
        if browser and BROWSER:
            (folder / "lab").mkdir()
            before = set(psutil.Process().children())
            file = one_cell_notebook(folder, "soak.ipynb", CELL)
            address = stack.enter_context(jupyterlab_on([file], folder / "lab", {}))
            doing["lab"] = lambda: in_lab(address)
            [watched["lab MB"]] = set(psutil.Process().children()) - before
        if course and CAN_GRADE:
            write(answered(EXERCISE), folder / "handed_in" / "Ann" / f"{EXERCISE}.ipynb")
            instructor = Instructor()
            stack.callback(instructor.process.wait)
            stack.callback(instructor.process.stdin.close)
            doing["grading"] = lambda: grading(instructor, folder)
            watched["grading MB"] = psutil.Process(instructor.process.pid)
        doing["rest"] = lambda: kernel.run("free_memory()")  # what is left cannot be freed
        yield doing, watched


# What it costs -----------------------------------------------------------------------------------------------------


def measured(folder: Path, watched: dict[str, psutil.Process]) -> dict:
    """What everything below this process has now: memory of its own, descriptors, threads, processes, files."""
    family = psutil.Process().children(recursive=True)
    own = {process: megabytes([process]) for process in family}  # once, that parts are no more than the whole
    row = {
        name: sum(own.get(each, 0) for each in [process, *process.children(recursive=True)])
        for name, process in watched.items()
    }
    row |= {"all MB": sum(own.values()), "all RSS MB": megabytes(family, "rss")}
    row |= {"descriptors": 0, "threads": 0, "processes": 0}
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            # Matplotlib keeps up to 64 fonts open, some for each thread that has drawn: how many is chance.
            fonts = sum(file.path.endswith(".ttf") for file in process.open_files())
            row["descriptors"] += process.num_fds() - fonts
            row["threads"] += process.num_threads()
            row["processes"] += 1
    from dgc_lab.course.grading import TEMPORARY, home_prefix

    places = [folder, *Path(TEMPORARY).glob(f"{home_prefix(folder / 'grading')}*")]
    files = [file for place in places for file in place.rglob("*") if file.is_file() and not file.is_symlink()]
    return row | {"files": len(files), "disk MB": sum(file.stat().st_size for file in files) / 1e6}


def megabytes(processes, kind: str = "uss") -> float:
    """Memory of processes: that which they share with nobody, or ``"rss"``, all that is in memory."""
    found = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += getattr(process.memory_full_info() if kind == "uss" else process.memory_info(), kind)
    return found / 1e6


def soak(hours: float, out: Path, rounds: int | None = None, say=print, **parts) -> list[dict]:
    """Do rounds until the time is over (or so many), and append each to ``out``, whose old rows go with the first."""
    rows, kept = [], {name: os.environ.get(name) for name in ("HOME", "TMPDIR")}
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        folder = Path(place)
        for name in kept:  # whatever is left behind in either is then in the folder
            (folder / name.lower()).mkdir()
            os.environ[name] = str(folder / name.lower())
        try:
            with everything(folder, **parts) as (doing, watched):
                began = time.monotonic()
                while len(rows) < rounds if rounds else time.monotonic() < began + 3600 * hours:
                    for do in doing.values():
                        do()
                    row = {"round": len(rows) + 1, "hours": (time.monotonic() - began) / 3600}
                    rows.append({name: round(value, 4) for name, value in (row | measured(folder, watched)).items()})
                    with out.open("w" if len(rows) == 1 else "a", encoding="utf-8") as file:
                        file.write(json.dumps(rows[-1]) + "\n")
                    say(", ".join(f"{name} {value:g}" for name, value in rows[-1].items()), flush=True)
        finally:
            for name, value in kept.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
    return rows


# What it shows -----------------------------------------------------------------------------------------------------


def settled(rows: list[dict]) -> pd.DataFrame:
    """The rows after the first tenth of the time, in which everything is loaded and traced."""
    frame = pd.DataFrame(rows)
    return frame[frame["hours"] >= 0.1 * frame["hours"].max()]


def slope(rows: list[dict], what: str = "kernel MB") -> float:
    """How much more of something there is with each hour, by least squares after the first tenth.

    Example:
        >>> slope([{"hours": hour / 10, "kernel MB": 500 + hour} for hour in range(1, 11)])
        10.0
    """
    late = settled(rows).dropna(subset=[what])
    return round(float(np.polyfit(late["hours"], late[what], 1)[0]), 6) + 0.0  # -0.0 becomes 0.0


def table(rows: list[dict]) -> pd.DataFrame:
    """For each thing that was measured: after the first tenth, at the end, the most of it, and how it grows."""
    late, found = settled(rows), []
    for what in [name for name in late if name not in ("round", "hours")]:
        values = late[what]
        found.append((what, values.iloc[0], values.iloc[-1], values.max(), slope(rows, what)))
    return pd.DataFrame(found, columns=["", "after the first tenth", "at the end", "most", "more each hour"])


def picture(rows: list[dict]):
    """Memory, and what is counted, by the hours that have gone, as a `dgc_lab.ui.charts.Picture`."""
    from dgc_lab.ui.charts import Picture, grid, label_panel, style

    frame = pd.DataFrame(rows)
    figure, panels = grid(3, 3, 3.6, 3.2)
    for axes, title, names in zip(
        panels, ("memory, MB", "number of", "files, MB"), (MEMORY, COUNTED, ("disk MB",)), strict=True
    ):
        for number, name in enumerate(name for name in names if name in frame):
            axes.plot(frame["hours"], frame[name], label=name, **style(number))
        axes.set_ylim(bottom=0)
        label_panel(axes, title, "hours")
        axes.legend(fontsize=7)
    ends = "; ".join(
        f"{name} from {first:,.5g} to {last:,.5g}" for name, first, last, *_ in table(rows).itertuples(index=False)
    )
    hours = frame["hours"].max()
    return Picture(figure, f"{len(rows)} rounds in {hours:.2f} hours. After the first tenth, and at the end: {ends}.")


def read(file: Path = ROWS) -> list[dict]:
    """The rows of a soak."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def main() -> int:
    """Do it, and show it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--hours", type=float, default=2)
    given = options.parse_args()
    if given.hours <= 0:
        options.error(f"--hours must be above 0, got {given.hours:g}")
    with contextlib.suppress(KeyboardInterrupt):
        soak(given.hours, ROWS)
    if not ROWS.exists():
        return 1
    from dgc_lab.ui.charts import png

    shown = picture(read())
    print(table(read()).to_string(index=False), shown.alt, sep="\n")
    PICTURE.write_bytes(png(shown.figure))
    return 0


if __name__ == "__main__":
    sys.exit(main())
