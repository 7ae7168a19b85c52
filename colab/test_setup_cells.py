"""Setup cells, run with Colab's versions, install the requirements of their lesson and change no other package."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from browser import ROOT
from check_colab import canonical, pins
from dgc_lab.install.colab import NO_GPU

ADDRESS = re.compile(r"git\+https://[\w./@-]+")
OURS = {"dgc-lab", "simpy", "horovod"}


def setup_cells():
    """Return every setup cell, with the names of its notebooks.

    Those that install Horovod come last, because the following tests use their installation.
    """
    found = {}
    folder = ROOT / "notebooks"
    for file in sorted([*folder.glob("0*.ipynb"), *folder.glob("exercises/source/*/*.ipynb")]):
        cells = nbformat.read(file, as_version=4).cells
        first = next(cell.source for cell in cells if cell.cell_type == "code")
        found.setdefault(first, []).append(file.stem)
    return sorted(found.items(), key=lambda each: "horovod=True" in each[0])


def pip(*words):
    command = [sys.executable, "-m", "pip", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def versions():
    """Return the versions of the installed packages, by name."""
    return {canonical(found["name"]): found["version"] for found in json.loads(pip("list", "--format=json"))}


def test_environment_matches_colab():
    wanted = pins((Path(__file__).parent / "freeze.txt").read_text())
    here = versions()
    assert {name: here.get(name) for name in wanted} == wanted
    assert sys.version_info[:2] == (3, 13)


@pytest.mark.parametrize(
    "source", [pytest.param(source, id=f"{of[0]} and {len(of) - 1} more") for source, of in setup_cells()]
)
def test_setup_cell_installs_only_the_lab(source, tmp_path, monkeypatch):
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab_test")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pip("uninstall", "--yes", *OURS)
    before = versions()
    assert not OURS & set(before)
    cell, replaced = ADDRESS.subn(ROOT.as_uri(), source)
    assert replaced == 1, "a setup cell must install from exactly one address"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=500, kernel_name="python3", resources=where).execute()
    after = versions()
    assert {name: after.get(name) for name in before} == before, "no existing package may be changed or removed"
    horovod = "horovod=True" in source
    assert set(after) - set(before) == (OURS if horovod else OURS - {"horovod"})
    said = "".join(output.get("text", "") for output in notebook.cells[0].outputs)
    assert ("verify with an allreduce over two ranks" in said) == horovod, said
    if not shutil.which("nvidia-smi"):
        assert (NO_GPU in said) == ("gpu=True" in source), said
