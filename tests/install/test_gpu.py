"""`make lab` where there is an NVIDIA GPU, and what the doctor says of it. The driver's answer is a script's here."""

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
    """A machine whose driver knows a GPU, whatever this one has."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\ncase "$1" in -L) echo "GPU 0: NVIDIA T4 (UUID: x)" ;; *) echo "NVIDIA T4" ;; esac\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    return tool


@pytest.fixture
def steps(tmp_path):
    """A function: what make would do in a new checkout, with more arguments and with stamps that are there already."""

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
    """Whether pip is given the requirements with CUDA, and not the others."""
    given = re.findall(r"pip install --quiet --no-compile --requirement (.*)", said)
    assert len(given) == 1, said
    return given == [".venv/requirements.txt --constraint requirements-gpu.txt"]


@pytest.mark.skipif(not LINUX, reason="TensorFlow with CUDA is for Linux on x86_64")
def test_where_there_is_a_gpu_tensorflow_comes_with_cuda(driver, steps):
    assert installs_cuda(steps())


@pytest.mark.parametrize(("stamps", "said", "expected"), [((), "GPU=0", False), ((".installed",), "GPU=1", True)])
def test_the_user_overrules(driver, steps, stamps, said, expected):
    assert installs_cuda(steps(said, stamps=stamps)) is expected


@pytest.mark.parametrize("stamp", [".installed", ".installed-gpu"])
def test_what_is_installed_stays_until_the_user_says_otherwise(driver, steps, stamp):
    assert "pip install" not in steps(stamps=[stamp])


def test_another_word_is_refused(steps):
    assert "GPU must be 0 or 1, got yes" in steps("GPU=yes")


def test_the_pins_of_cuda_are_those_of_the_same_tensorflow():
    pins = (ROOT / "requirements-gpu.txt").read_text()
    (version,) = re.findall(r"^tensorflow-cpu==(\S+)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert f"\ntensorflow=={version}\n" in pins
    assert len(re.findall(r"^nvidia-\S+==\d", pins, re.MULTILINE)) >= 10


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="TensorFlow sees a GPU here")
def test_the_doctor_tells_which_build_there_is_and_what_to_do(driver, monkeypatch):
    found = doctor.gpu_finding()
    assert found.found == "NVIDIA T4; TensorFlow for the CPU, the lessons run on the CPU"
    assert found.remedy == "make lab GPU=1"
    monkeypatch.setattr(tf.sysconfig, "get_build_info", lambda: {"is_cuda_build": True})
    assert doctor.gpu_finding().remedy == "install a newer NVIDIA driver (nvidia-smi shows it; 525.60 or newer)"
    driver.write_text("#!/bin/sh\nexit 9\n")
    found = doctor.gpu_finding()
    assert (found.found, found.remedy) == ("none; TensorFlow with CUDA, the lessons run on the CPU", "")
    driver.write_text("#!/bin/sh\nexec sleep 60\n")  # a driver that hangs
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *given, **named: run(*given, **named | {"timeout": 0.5}))
    found = doctor.gpu_finding()
    assert found.found.startswith("nvidia-smi does not answer; TensorFlow with CUDA")
    assert found.remedy.startswith("install a newer NVIDIA driver")
