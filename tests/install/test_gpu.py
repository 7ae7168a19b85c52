"""`make lab` and the doctor on machines with an NVIDIA GPU; a script stands in for the driver."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from dgc_lab.install import doctor

ROOT = Path(__file__).resolve().parents[2]
LINUX = sys.platform == "linux" and subprocess.run(["uname", "-m"], capture_output=True, text=True).stdout == "x86_64\n"


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Put a fake nvidia-smi that reports a GPU on the PATH."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\ncase "$1" in -L) echo "GPU 0: NVIDIA T4 (UUID: x)" ;; *) echo "NVIDIA T4" ;; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    return tool


@pytest.fixture
def steps(tmp_path):
    """Function that returns the commands of make in a new checkout with given arguments and stamps."""

    def said(*arguments, stamps=()):
        folder = tmp_path / "lab"
        (folder / ".venv").mkdir(parents=True)
        for name in ("Makefile", "requirements.txt", "requirements-gpu.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, folder)
        horovod = ("dgc_lab/install/build_horovod.py", "dgc_lab/install/horovod_source.py")
        for name in ("binder/overrides.json", *horovod, "dgc_lab/compression/native.cc"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        for stamp in stamps:
            (folder / ".venv" / stamp).touch()
        done = subprocess.run(["make", "-n", "lab", *arguments], cwd=folder, capture_output=True, text=True)
        return done.stdout + done.stderr

    return said


def installs_cuda(said: str) -> bool:
    """Return whether pip installs the CUDA requirements."""
    given = re.findall(r"pip install --quiet --no-compile --requirement (.*)", said)
    assert len(given) == 1, said
    return given == [".venv/requirements.txt --constraint requirements-gpu.txt"]


@pytest.mark.skipif(not LINUX, reason="TensorFlow with CUDA is for Linux on x86_64")
def test_tensorflow_comes_with_cuda_if_there_is_a_gpu(driver, steps):
    assert installs_cuda(steps())


@pytest.mark.parametrize(("stamps", "said", "expected"), [((), "GPU=0", False), ((".installed",), "GPU=1", True)])
def test_gpu_option_overrides_detection(driver, steps, stamps, said, expected):
    assert installs_cuda(steps(said, stamps=stamps)) is expected


@pytest.mark.parametrize("stamp", [".installed", ".installed-gpu"])
def test_installed_build_is_kept_by_default(driver, steps, stamp):
    assert "pip install" not in steps(stamps=[stamp])


def test_invalid_gpu_option_is_rejected(steps):
    assert "GPU must be 0 or 1, got yes" in steps("GPU=yes")


def test_cuda_pins_match_the_tensorflow_version():
    pins = (ROOT / "requirements-gpu.txt").read_text()
    (version,) = re.findall(r"^tensorflow-cpu==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert f"\ntensorflow=={version}\n" in pins
    assert len(re.findall(r"^nvidia-\S+==\d", pins, re.MULTILINE)) >= 10


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="TensorFlow sees a GPU here")
def test_doctor_reports_the_build_and_the_remedy(driver, monkeypatch):
    found = doctor.gpu_finding()
    assert found.found == "NVIDIA T4; TensorFlow for the CPU, the lessons run on the CPU"
    assert found.remedy == "make lab GPU=1"
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"is_cuda_build": True})
    assert doctor.gpu_finding().remedy == "install NVIDIA driver 525.60 or newer (nvidia-smi shows the current version)"
    driver.write_text("#!/bin/sh\nexit 9\n")
    found = doctor.gpu_finding()
    assert (found.found, found.remedy) == ("none; TensorFlow with CUDA, the lessons run on the CPU", "")
    driver.write_text("#!/bin/sh\nexec sleep 60\n")  # a driver that hangs
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *given, **named: run(*given, **named | {"timeout": 0.5}))
    found = doctor.gpu_finding()
    assert found.found.startswith("nvidia-smi does not answer; TensorFlow with CUDA")
    assert found.remedy.startswith("install NVIDIA driver 525.60 or newer")
