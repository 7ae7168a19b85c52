"""The Binder image built from this checkout: Python, Debian packages, pins, and postBuild."""

import importlib.metadata
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


def names(file):
    """List the package names in a requirements file."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith(("#", "-"))]
    return [canonicalize_name(Requirement(line).name) for line in lines]


def test_image_has_a_supported_python():
    python = (ROOT / "binder" / "runtime.txt").read_text().strip().removeprefix("python-")
    bounds = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert Requirement(f"lab{bounds}").specifier.contains(python)


def test_image_installs_the_build_tools_of_horovod():
    assert (ROOT / "binder" / "apt.txt").read_text().split() == ["g++", "make"]


def test_image_installs_all_groups_except_developer_tools():
    """binder/requirements.txt lists package names only; versions come from the constraints file."""
    heading, wanted = "", {"": set()}
    for line in (ROOT / "requirements.in").read_text().splitlines():
        if line.startswith("#"):
            heading = line
        else:
            wanted.setdefault(heading, set()).add(canonicalize_name(Requirement(line).name))
    assert wanted.pop("# tests") >= {"pytest", "playwright"}
    assert wanted.pop("# the site") >= {"sphinx"}
    file = ROOT / "binder" / "requirements.txt"
    assert "--constraint ../requirements.txt" in file.read_text().splitlines()
    assert {*names(file), "tensorflow"} == set.union(*wanted.values()), "tensorflow-cpu stands for it"
    assert {*names(file)} <= {*names(ROOT / "requirements.txt")}


def test_image_installs_all_lab_dependencies():
    """Every dependency in pyproject.toml is installed directly or transitively."""
    reached, waiting = set(), names(ROOT / "binder" / "requirements.txt")
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        try:
            needs = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:  # for another platform
            continue
        waiting += [
            canonicalize_name(r.name)
            for r in map(Requirement, needs)
            if not r.marker or r.marker.evaluate({"extra": ""})
        ]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["lab"]
    missing = {canonicalize_name(Requirement(line).name) for line in wanted} - reached
    assert missing <= {"tensorflow"}, "tensorflow-cpu stands for it"
    # With jupytext, Jupyter would not open a lesson that was edited elsewhere.
    assert not reached & {"pytest", "playwright", "sphinx", "nbgrader", "jupytext"}


def run_post_build(folder, fails):
    """Run postBuild with a fake `python` that logs its arguments and fails at one step."""
    for name in ("bin", "prefix", "tmp"):
        (folder / name).mkdir()
    python = folder / "bin" / "python"
    python.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/asked\ncase "$*" in\n*sys.prefix*) echo {folder}/prefix ;;\n'
        f'*build-horovod*) echo wheel > "$DGC_LAB_CACHE/wheel" ;;\nesac\ncase "$*" in *"{fails}"*) exit 1 ;; esac\n'
    )
    python.chmod(0o755)
    variables = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "TMPDIR": str(folder / "tmp")}
    done = subprocess.run(["./binder/postBuild"], cwd=ROOT, env=variables, capture_output=True, text=True)
    assert not list((folder / "tmp").iterdir()), "temporary files would bloat the image"
    return done.returncode, (folder / "asked").read_text().splitlines()


def test_post_build_runs_all_steps_in_order(tmp_path):
    status, asked = run_post_build(tmp_path, fails="nothing")
    assert status == 0
    steps = ["pip install", "sys.prefix", "dgc_lab build-horovod", "dgc_lab build-native", "compileall", "font_manager"]
    assert [word for line in asked for word in steps if word in line] == steps
    settings = tmp_path / "prefix" / "share" / "jupyter" / "lab" / "settings" / "overrides.json"
    assert settings.read_text() == (ROOT / "binder" / "overrides.json").read_text()


@pytest.mark.parametrize("step", ["pip install", "build-horovod", "build-native", "compileall"])
def test_post_build_stops_at_the_first_failure(tmp_path, step):
    status, asked = run_post_build(tmp_path, fails=step)
    assert status == 1
    assert step in asked[-1]
