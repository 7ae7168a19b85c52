"""Peak memory of each lesson: kernel, ranks, servers and all other processes that it starts.

python benchmarks/bench_memory.py

The measure is PSS (a process's own pages, plus its share of pages used by several processes), summed over the kernel
and all its descendants twice a second while all cells run. The table shows the peak and its composition. Pages of
TensorFlow's files are shared with all programs of the same environment, so none should run during the measurement.
Binder kills containers that use more than 2 GB, including 0.1 GB of JupyterLab itself. To repeat the measurement of
some lessons only, pass their names on the command line.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from bench import RESULTS, report

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
EVERY = 0.5  # seconds
GOAL = 1.6e9  # bytes


class Sampler(threading.Thread):
    """Thread that samples a process and all its descendants; `peak` is the largest sum of PSS so far, by process."""

    def __init__(self, pid: int):
        import psutil

        super().__init__(daemon=True)
        self.root, self.ended = psutil.Process(pid), threading.Event()
        self.peak: list[tuple[str, int]] = []
        self.seen: set = set()  # kept, because an orphaned process is no longer a descendant of the kernel

    def run(self):
        while not self.ended.wait(EVERY):
            self.sample()

    def sample(self):
        import psutil

        try:
            self.seen |= {self.root, *self.root.children(recursive=True)}
        except psutil.NoSuchProcess:
            return
        found = []
        for process in list(self.seen):
            try:
                name = "kernel" if process == self.root else kind(process.cmdline())
                found.append((name, process.memory_full_info().pss))
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                self.seen.discard(process)
        if total(found) > total(self.peak):
            self.peak = found


def kind(command: list[str]) -> str:
    """Return the name of a process in the table.

    Example:
        >>> kind(["python", "-m", "dgc_lab.cluster.watchdog", "12", "/tmp/x", "open", "dgc_lab.cluster.host", "keras"])
        'dgc_lab.cluster.host'
        >>> kind(["python", "-m", "dgc_lab.cluster.watchdog", "12", "/tmp/x"]), kind(["/bin/sh", "-c", "ls"])
        ('dgc_lab.cluster.watchdog', 'sh')
    """
    if "dgc_lab.cluster.watchdog" in command[:-4]:
        return command[command.index("dgc_lab.cluster.watchdog") + 4]
    if "-m" in command[:-1]:
        return command[command.index("-m") + 1]
    return Path(command[0]).name if command else "ended"


def total(found: list[tuple[str, int]]) -> int:
    """Return the total bytes of all processes."""
    return sum(size for _, size in found)


def measure(lesson: Path) -> dict:
    """Run a lesson's cells in a new kernel, and return a row of the table."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(lesson, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": NOTEBOOKS}})
    with client.setup_kernel():
        sampler = Sampler(client.km.provisioner.process.pid)
        sampler.start()
        for number, cell in enumerate(notebook.cells):
            client.execute_cell(cell, number)
        sampler.sample()
        sampler.ended.set()
        sampler.join()
    sizes = {}
    for name, size in sampler.peak:
        sizes.setdefault(name, []).append(size)
    kernel = sum(sizes.pop("kernel", [0]))
    return {
        "lesson": lesson.stem,
        "peak GB": total(sampler.peak) / 1e9,
        "kernel GB": kernel / 1e9,
        "all others GB": (total(sampler.peak) - kernel) / 1e9,
        "the others": ", ".join(f"{len(each)} {name} {sum(each) / 1e9:.2f}" for name, each in sorted(sizes.items())),
    }


def main(names: list[str]):
    file = RESULTS / "memory.json"
    rows = {row["lesson"]: row for row in json.loads(file.read_text())["rows"]} if names and file.exists() else {}
    for lesson in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        if not names or lesson.stem in names:
            rows[lesson.stem] = measure(lesson)
            print(f"{lesson.stem}: {rows[lesson.stem]['peak GB']:.3f} GB", flush=True)
    rows = [rows[name] for name in sorted(rows)]
    goals = {f"1.6 GB divided by the peak of {row['lesson']}": (GOAL / 1e9 / row["peak GB"], 1) for row in rows}
    report("memory", rows, goals)


if __name__ == "__main__":
    main([Path(name).stem for name in sys.argv[1:]])
