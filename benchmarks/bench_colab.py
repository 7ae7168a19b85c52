"""Time of lesson 5 with Colab's packages, from its setup cell until its two ranks are ready.

python benchmarks/bench_colab.py

It runs in the environment that `make test-colab` creates, without the lab and Horovod, like a new Colab runtime. The
lab is installed from a clone of the last commit, and the wheel of Horovod from a server on this machine instead of the
internet; its hash is in the clone's table, like that of a released wheel. The benchmark is skipped if there is no such
environment or it has not built Horovod yet.
"""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from bench import report
from dgc_lab.install.build_horovod import wheel_folder

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tools"))
from build_wheels import released_name  # noqa: E402

PYTHON = ROOT / ".venv-colab" / "bin" / "python"
LESSON, RANKS = "notebooks/05_dgc_on_horovod.ipynb", "HorovodRanks(2)"


def clone_that_knows(wheel: Path, folder: Path) -> Path:
    """Clone the lab, copy the wheel to ``folder/wheels``, and add its hash to the clone's table."""
    clone, place = folder / "lab", folder / "wheels"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    place.mkdir()
    tensorflow = re.search(r"-tf([\d.]+)", wheel.parent.name)[1]  # the platform follows
    shutil.copy(wheel, place / released_name(wheel, tensorflow))
    tool = [sys.executable, "tools/build_wheels.py", "--table", str(place)]
    subprocess.run(tool, cwd=clone, env={**os.environ, "PYTHONPATH": str(clone)}, check=True)
    author = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    subprocess.run(["git", *author, "commit", "--quiet", "--all", "--message", "A wheel"], cwd=clone, check=True)
    return clone


def first_cells(clone: Path):
    """Return lesson 5 up to the start of its ranks; its setup cell installs the lab from the clone."""
    lesson = nbformat.read(clone / LESSON, 4)
    last = next(number for number, cell in enumerate(lesson.cells) if RANKS in cell.source)
    lesson.cells = lesson.cells[: last + 1]
    for cell in lesson.cells:
        cell.source = re.sub(r"git\+https://[\w./@-]+", f"git+{clone.as_uri()}", cell.source)
    return lesson


def main():
    wheels = sorted(wheel_folder().parent.glob("*-cp313-*/horovod-*.whl"))
    if not PYTHON.exists() or not wheels:
        print("colab: skipped, there is no .venv-colab that has built Horovod. make test-colab creates it.")
        return
    gone = ["uninstall", "-qq", "--yes", "dgc_lab", "simpy", "horovod"]
    subprocess.run([str(PYTHON), "-m", "pip", *gone], check=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clone = clone_that_knows(wheels[-1], folder)
        serve = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder / "wheels")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        os.environ |= {
            "COLAB_RELEASE_TAG": "release-colab_bench",
            "DGC_LAB_CACHE": str(folder / "cache"),
            "DGC_LAB_WHEELS": f"http://127.0.0.1:{server.server_port}",
            "JUPYTER_PATH": str(folder),
        }
        os.environ.pop("PYTHONPATH", None)
        kernel = folder / "kernels" / "colab" / "kernel.json"
        kernel.parent.mkdir(parents=True)
        started = [str(PYTHON), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        kernel.write_text(json.dumps({"argv": started, "display_name": "Colab", "language": "python"}))
        lesson, rows = first_cells(clone), []
        where = {"metadata": {"path": name}}
        client = NotebookClient(lesson, timeout=600, kernel_name=kernel.parent.name, resources=where)
        with client.setup_kernel():
            for number, cell in enumerate(lesson.cells):
                if cell.cell_type == "code":
                    start = time.perf_counter()
                    client.execute_cell(cell, number)
                    rows.append({"cell": cell.source.split("\n")[0], "seconds": time.perf_counter() - start})
        server.shutdown()
    said = "".join(output.get("text", "") for cell in lesson.cells for output in cell.get("outputs", ()))
    assert "which has the expected SHA-256" in said, said
    taken = sum(row["seconds"] for row in rows)
    report("colab", rows, {"30 s divided by the time from the setup cell until the ranks are ready": (30 / taken, 1)})


if __name__ == "__main__":
    main()
