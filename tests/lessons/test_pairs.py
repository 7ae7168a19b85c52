"""Jupyter keeps each notebook in sync with its text file, which is in another folder.

So students see each lesson once in the file browser. This is for contributors, who start Jupyter themselves:
`make lab`, Binder and the hub ignore the text files.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

from browser import TOKEN, free_port

ROOT = Path(__file__).resolve().parents[2]
LESSON, EXERCISE = "00_start_here", "04_masking"
PAIRS = {
    f"{LESSON}.ipynb": f"text/{LESSON}.md",
    f"exercises/source/{EXERCISE}/{EXERCISE}.ipynb": f"exercises/source/{EXERCISE}/text/{EXERCISE}.md",
}
if not (ROOT / "notebooks" / "exercises" / "source").exists():  # student copies have no sources
    del PAIRS[f"exercises/source/{EXERCISE}/{EXERCISE}.ipynb"]


def copy_pairs(copy):
    """Copy the pairs to a folder like this repository."""
    for file in [file for pair in PAIRS.items() for file in pair]:
        (copy / "notebooks" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "notebooks" / file, copy / "notebooks" / file)


@contextlib.contextmanager
def served(copy, root, *command):
    """Run a Jupyter server on a copy; yield the lessons' folder and a function for its contents API."""
    copy_pairs(copy)
    port, before = free_port(), "" if root == "notebooks" else "notebooks/"

    def ask(file, **content):
        address = f"http://127.0.0.1:{port}/api/contents/{before}{file}?token={TOKEN}&content=1"
        body = json.dumps(content).encode() if content else None
        asked = urllib.request.Request(address, body, method="PUT" if content else "GET")
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)

    command = [sys.executable, "-m", *command, "--allow-root", "--no-browser", f"--ServerApp.port={port}"]
    command += [f"--ServerApp.root_dir={copy / root}"]
    environment = {**os.environ, "JUPYTER_CONFIG_DIR": str(copy / "config"), "JUPYTER_TOKEN": TOKEN}
    with (copy / "server.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        end = time.monotonic() + 300
        while True:
            try:
                ask("")
                break
            except OSError:
                assert process.poll() is None, (copy / "server.log").read_text()
                assert time.monotonic() < end, "the Jupyter server did not start"
                time.sleep(0.2)
        yield copy / "notebooks", ask
    finally:
        process.terminate()
        process.wait(120)


@pytest.fixture(scope="module", params=["notebooks", "."])
def server(request, tmp_path_factory):
    with served(tmp_path_factory.mktemp("copy"), request.param, "jupyter_server", "--ServerApp.ip=127.0.0.1") as server:
        yield server


@pytest.mark.nightly_except("notebooks-00_start_here")
@pytest.mark.parametrize(("notebook", "text"), PAIRS.items(), ids=[LESSON, EXERCISE][: len(PAIRS)])
def test_saving_one_file_of_a_pair_updates_the_other(server, notebook, text):
    folder, ask = server
    before = (folder / text).read_text()
    model = ask(notebook)
    cells = model["content"]["cells"]
    place = next(number for number, cell in enumerate(cells) if cell["source"].startswith("## "))
    _, *rest = cells[place]["source"].split("\n")
    cells[place]["source"] = "\n".join(["## Written in the notebook", *rest])
    ask(notebook, type="notebook", format="json", content=model["content"])
    lines = (folder / text).read_text().splitlines()
    assert "## Written in the notebook" in lines
    assert len(set(before.splitlines()) - set(lines)) <= 2, "only the edited line and jupytext's version may change"

    written = (folder / text).read_text().replace("## Written in the notebook", "## Written in the text")
    (folder / text).write_text(written)
    later = time.time() + 60  # newer than the notebook, beyond the file system's time resolution
    os.utime(folder / text, (later, later))
    assert ask(notebook)["content"]["cells"][place]["source"].split("\n") == ["## Written in the text", *rest]


def test_students_see_each_lesson_once(server):
    _, ask = server
    assert [entry["name"] for entry in ask("")["content"] if re.match(r"\d", entry["name"])] == [f"{LESSON}.ipynb"]
    files = {file.name for file in (ROOT / "notebooks").iterdir() if file.is_file()}
    assert all(name.endswith(".ipynb") for name in files)
    assert {Path(name).stem for name in files} == {file.stem for file in (ROOT / "notebooks" / "text").glob("*.md")}


def test_make_lab_opens_lessons_that_were_edited_elsewhere(tmp_path):
    """In VS Code, for example. jupytext would refuse them, or show the text in place of the edit."""
    said = subprocess.run(["make", "-n", "lab"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    *options, notebooks = shlex.split(said.replace("\\\n", "").rpartition("jupyter lab")[2])
    assert notebooks == "notebooks"
    with served(tmp_path, "notebooks", "jupyterlab", *options) as (folder, ask):
        file, text = folder / f"{LESSON}.ipynb", (folder / "text" / f"{LESSON}.md").read_text()
        notebook = nbformat.read(file, as_version=4)
        notebook.cells[1].source = "# Edited elsewhere"
        nbformat.write(notebook, file)
        later = time.time() + 60
        os.utime(file, (later, later))
        content = ask(file.name)["content"]
        assert content["cells"][1]["source"] == "# Edited elsewhere"
        content["cells"][1]["source"] = "# Edited in JupyterLab"
        ask(file.name, type="notebook", format="json", content=content)
        assert ask(file.name)["content"]["cells"][1]["source"] == "# Edited in JupyterLab"
        assert nbformat.read(file, as_version=4).cells[1].source == "# Edited in JupyterLab"
        assert (folder / "text" / f"{LESSON}.md").read_text() == text
