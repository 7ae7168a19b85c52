"""Stamping writes a copy's address to all badges and setup cells, repeatably, and nowhere else."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import dgc_lab
from badges import main, repo_of, stamp, stamp_all
from dgc_lab.common import LabError

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("README.md", "index.md", "dgc_lab/install/horovod_wheels.json")


@pytest.fixture
def copy(tmp_path):
    """A repository with the lessons and the other stamped files."""
    for file in BESIDE:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    skipped = shutil.ignore_patterns(".ipynb_checkpoints")
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=skipped)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def texts(copy):
    files = [*map(copy.joinpath, BESIDE), *(copy / "notebooks").rglob("*.*")]
    return {file: file.read_text() for file in files if file.is_file()}


def test_stamping_updates_all_files_and_is_reversible(copy):
    before = texts(copy)
    assert set(stamp_all(copy, "ada/gradients", "term/2027")) == {
        f for f, text in before.items() if "mybinder.org" in text or "/releases/download/" in text
    }
    for file in sorted((copy / "notebooks").glob("*.ipynb")):
        first = "".join(json.loads(file.read_text())["cells"][0]["source"])
        assert f"colab.research.google.com/github/ada/gradients/blob/term/2027/notebooks/{file.name})" in first
        assert f"mybinder.org/v2/gh/ada/gradients/term%2F2027?urlpath=lab/tree/notebooks/{file.name})" in first
        installs = re.findall(r"git\+https://[^\s\"\\]+", file.read_text())
        assert set(installs) == {"git+https://github.com/ada/gradients@term/2027"}
    wheels = json.loads((copy / "dgc_lab" / "install" / "horovod_wheels.json").read_text())
    assert wheels["address"].startswith("https://github.com/ada/gradients/releases/download/")
    assert stamp_all(copy, "ada/gradients", "term/2027") == []
    stamp_all(copy, "YOUR_NAME/YOUR_COPY")
    assert texts(copy) == before


def test_first_push_to_a_copy_writes_its_address(copy, tmp_path_factory):
    """The workflow's own commands, in a checkout of a bare repository, as after a push to a copy of the template."""

    def git(*command, folder=copy):
        own = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org", *command)
        return subprocess.run(own, cwd=folder, check=True, capture_output=True, text=True).stdout

    tool, origin = copy / "tools" / "badges.py", tmp_path_factory.mktemp("origin")
    tool.parent.mkdir()
    for source in (ROOT / "tools" / "badges.py", ROOT / "dgc_lab" / "__init__.py", ROOT / "dgc_lab" / "common.py"):
        shutil.copy(source, copy / source.relative_to(ROOT))
    git("init", "--quiet", "--bare", origin)
    git("add", "."), git("commit", "--quiet", "--message", "Copy"), git("remote", "add", "origin", origin)
    git("push", "--quiet", "origin", "HEAD:main")
    git("--git-dir", origin, "symbolic-ref", "HEAD", "refs/heads/main")

    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "copy.yml").read_text())["jobs"]["address"]["steps"]
    for run in (1, 2):  # the second push changes nothing
        checkout = tmp_path_factory.mktemp(f"checkout{run}")
        git("clone", "--quiet", origin, checkout)
        for step in steps:
            if "run" in step:
                environment = {**os.environ, "GITHUB_REPOSITORY": "ada/gradients", "HOME": str(checkout)}
                subprocess.run(
                    ["bash", "-eo", "pipefail", "-c", step["run"]], cwd=checkout, env=environment, check=True
                )
        assert git("--git-dir", origin, "rev-list", "--count", "main").strip() == "2"
    readme = git("--git-dir", origin, "show", "main:README.md")
    assert "colab.research.google.com/github/ada/gradients/blob/main" in readme
    assert "/YOUR_NAME/" not in readme
    assert git("--git-dir", origin, "rev-parse", f"v{dgc_lab.__version__}") == git(
        "--git-dir", origin, "rev-parse", "main"
    )


def test_setup_cells_install_a_pinned_release(copy):
    stamp_all(copy, "ada/gradients")
    for file in (copy / "notebooks").rglob("*.ipynb"):
        installs = re.findall(r"git\+https://[^\s\"\\]+", file.read_text())
        assert set(installs) == {f"git+https://github.com/ada/gradients@v{dgc_lab.__version__}"}, file


def test_address_defaults_to_the_git_remote(copy, capsys, monkeypatch):
    with pytest.raises(LabError, match=r"origin must be on GitHub, got none: .* --repo OWNER/NAME"):
        stamp_all(copy)
    for address in ["https://github.com/ada/lab.git", "git@github.com:ada/lab.git", "https://github.com/ada/lab"]:
        subprocess.run(["git", "-C", copy, "remote", "remove", "origin"], capture_output=True)
        subprocess.run(["git", "-C", copy, "remote", "add", "origin", address], check=True)
        assert repo_of(copy) == "ada/lab"
    monkeypatch.chdir(copy)
    assert main(["--ref", "v2"]) == 0
    assert "ada/lab" in capsys.readouterr().out
    assert "github.com/ada/lab@v2" in (copy / "notebooks" / "text" / "04_dgc_masking.md").read_text()


@pytest.mark.parametrize(
    ("repo", "ref"), [("ada", "main"), ("ada/lab/x", "main"), ("a b/c", "main"), ("ada/lab", "a b")]
)
def test_invalid_repository_names_are_rejected(repo, ref):
    with pytest.raises(ValueError, match="must be"):
        stamp("", repo, ref)


def test_folder_without_lessons_is_rejected(tmp_path, capsys, monkeypatch):
    with pytest.raises(LabError, match="has no lessons"):
        stamp_all(tmp_path, "ada/lab")
    monkeypatch.chdir(tmp_path)
    assert main(["--repo", "ada/lab"]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_other_addresses_are_unchanged(copy):
    text = "https://github.com/horovod/horovod https://arxiv.org/abs/1712.01887 https://mybinder.org/badge_logo.svg"
    assert stamp(text, "ada/lab") == text
