"""The lab's version bounds compared with Colab's package list."""

import importlib.metadata
from pathlib import Path

import pytest

from check_colab import check_colab, main, pins, requirements
from dgc_lab.common import LabError
from dgc_lab.install.build_horovod import installed

IMAGE = (Path(__file__).parents[2] / "colab" / "freeze.txt").read_text()


def test_colab_image_meets_every_bound(tmp_path):
    (tmp_path / "freeze.txt").write_text(IMAGE)
    findings = {finding.name: finding for finding in check_colab(tmp_path / "freeze.txt")}
    assert set(findings) == {requirement.name for requirement in requirements()}
    assert len(set(findings) & set(pins(IMAGE))) >= 8, "most dependencies must be in the package list"
    assert not [finding for finding in findings.values() if finding.needed and finding.remedy]
    assert "install it with the lab" in findings["simpy"].remedy


def test_outdated_packages_are_reported(tmp_path, capsys):
    (tmp_path / "freeze.txt").write_text(IMAGE.replace("2.1.3", "1.26.4"))
    assert main([str(tmp_path / "freeze.txt")]) == 1
    [line] = [line for line in capsys.readouterr().out.splitlines() if "numpy" in line]
    assert line.startswith("!")
    assert "would replace Colab's" in line


def test_installed_versions_meet_every_bound(tmp_path):
    names = [requirement.name for requirement in requirements()]
    here = {name: installed(name) or installed(f"{name}-cpu") for name in names}
    (tmp_path / "freeze.txt").write_text("".join(f"{name}=={version}\n" for name, version in here.items()))
    assert not [finding for finding in check_colab(tmp_path / "freeze.txt") if finding.remedy]
    assert importlib.metadata.requires("dgc_lab")


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"numpy\n"])
def test_invalid_package_lists_are_rejected(tmp_path, content):
    if content is not None:
        (tmp_path / "freeze.txt").write_bytes(content)
    with pytest.raises(LabError, match=r"freeze\.txt"):
        check_colab(tmp_path / "freeze.txt")
