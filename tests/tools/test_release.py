"""Releases have one version everywhere, come from a clean tree, and use pinned CI actions."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import dgc_lab
import release

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A repository with the files that name the version, all committed."""
    for file in release.NAMED:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "all")
    monkeypatch.setattr(release, "ROOT", tmp_path)
    return tmp_path


def git(folder, *words):
    subprocess.run(["git", "-C", folder, *words], check=True)


def test_each_version_is_released_only_once(copy):
    assert release.problems() == []
    git(copy, "tag", f"v{dgc_lab.__version__}")
    assert release.problems() == [
        f"the tag v{dgc_lab.__version__} exists already: increase the version in dgc_lab/__init__.py"
    ]


def test_uncommitted_files_block_a_release(copy):
    (copy / "more.txt").touch()
    assert release.problems() == ["not committed: ?? more.txt"]


def test_version_mismatches_are_reported_for_each_file(copy, monkeypatch):
    monkeypatch.setattr(dgc_lab, "__version__", "9.9.9")
    assert release.problems() == [f"{file} does not name version 9.9.9" for file in release.NAMED]


def test_workflows_pin_actions_and_default_to_read_only():
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    for file in workflows:
        unpinned = [
            line
            for line in re.findall(r"uses:\s*(.+)", file.read_text())
            if not re.match(r"\S+@[0-9a-f]{40} # v", line)
        ]
        assert unpinned == [], file.name
        assert yaml.safe_load(file.read_text())["permissions"] == {"contents": "read"}, file.name
