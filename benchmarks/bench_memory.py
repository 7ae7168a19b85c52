"""How much memory each lesson takes from its first cell to its last: kernel, ranks, servers and all else it starts.

python benchmarks/bench_memory.py

The sum of PSS (each process's own pages, and its share of those that several hold) over the kernel and everything
under it, taken twice a second while all cells run: its peak, and what it was made of at that moment. Pages of
TensorFlow's files are shared with whatever else runs from the same environment, which is thus to be idle meanwhile.
Binder kills what takes more than 2 GB, JupyterLab's own 0.1 GB included. With names of lessons on the command line,
those are measured anew and the others' figures stay.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from bench import RESULTS, report

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
EVERY = 0.5  # seconds
GOAL = 1.6e9  # bytes


class Sampler(threading.Thread):
    """Follows a process and all that it starts; `peak` is the largest sum of PSS so far, by process, in bytes."""

    def __init__(self, pid: int):
        import psutil

        super().__init__(daemon=True)
        self.root, self.ended = psutil.Process(pid), threading.Event()
        self.peak: list[tuple[str, int]] = []
        self.seen: set = set()  # one whose parent has died is no child of the kernel any more

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
    """What a process under the kernel is called in the table.

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
    """Bytes of all processes together."""
    return sum(size for _, size in found)


def measure(lesson: Path) -> dict:
    """Run a lesson's cells in a kernel of its own; a row of the table."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(lesson, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": NOTEBOOKS}})
    start = time.perf_counter()
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
        "seconds": round(time.perf_counter() - start),
    }


def main(names: list[str]):
    file = RESULTS / "memory.json"
    rows = {row["lesson"]: row for row in json.loads(file.read_text())["rows"]} if names and file.exists() else {}
    for lesson in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        if not names or lesson.stem in names:
            rows[lesson.stem] = measure(lesson)
            print(f"{lesson.stem}: {rows[lesson.stem]['peak GB']:.3f} GB", flush=True)
    rows = [rows[name] for name in sorted(rows)]
    goals = {f"1.6 GB over the peak of {row['lesson']}": (GOAL / 1e9 / row["peak GB"], 1) for row in rows}
    report("memory", rows, goals)


if __name__ == "__main__":
    main([Path(name).stem for name in sys.argv[1:]])
