"""``python -m dgc_lab doctor``: report the environment, with remedies for missing requirements. Lesson 0."""

from __future__ import annotations

import itertools
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from dgc_lab import __version__
from dgc_lab.common import KERAS, LabError, check_keras, cpp_compiler, folder_from_env
from dgc_lab.install.build_horovod import VERSION as HOROVOD_VERSION
from dgc_lab.install.build_horovod import horovod_state, installed, tensorflow_package
from dgc_lab.install.launch_env import cores

# by name on PyPI: oldest supported version, and whether every lesson needs the package
PACKAGES = {
    "keras": ("3.13", True),
    "numpy": ("2.0", True),
    "scipy": ("1.14.1", True),
    "pandas": ("2.2", True),
    "matplotlib": ("3.10", True),
    "pillow": ("11", True),
    "psutil": ("5.9", True),
    "tqdm": ("4.66", True),
    "ipython": ("7.34", True),
    "cloudpickle": ("3.0", True),
    "simpy": ("4.1", True),
    "lazy-loader": ("0.4", True),
    "mnist1d": ("0.0.2", True),
    "scikit-learn": ("1.6", True),
    "ipywidgets": ("7.7", True),
    "ipykernel": ("6.17", True),
    "jupyterlab": ("4.4", False),
}
OLDEST_TENSORFLOW = "2.20"
DRIVER = "install NVIDIA driver 525.60 or newer (nvidia-smi shows the current version)"


@dataclass(frozen=True)
class Finding:
    """One line of the report: the item, its state, a remedy if needed, and whether lessons fail without it."""

    name: str
    found: str
    remedy: str = ""
    needed: bool = True


def examine() -> list[Finding]:
    """Check Python, packages, Keras, Horovod, compiler, GPUs, cores, memory and data. Starts TensorFlow.

    Example:
        >>> examine()[0].name
        'dgc_lab'
    """
    allowed, every = cores(), os.cpu_count()
    processor = Finding("processor cores", f"{allowed} of {every}" if allowed != every else f"{every}", needed=False)
    packages = [package_finding(name, *wanted) for name, wanted in PACKAGES.items()]
    findings = [Finding("dgc_lab", __version__), python_finding(), tensorflow_finding(), *packages]
    findings += [keras_finding(), horovod_finding(), compiler_finding(), gpu_finding()]
    return [*findings, processor, memory_finding(), mnist_finding()]


def report(findings: list[Finding]) -> str:
    """Format the findings as a table of text. An exclamation mark shows that a requirement of lessons is missing.

    Example:
        >>> report([Finding("pandas", "not installed", "pip install pandas")]).splitlines()[1]
        '!  pandas  not installed  pip install pandas'
    """
    lines = [("", "what", "found", "remedy")]
    for finding in findings:
        mark = "!" if finding.remedy and finding.needed else "-" if finding.remedy else "ok"
        lines.append((mark, finding.name, finding.found, finding.remedy))
    # No pandas here, because the doctor must work without it.
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)) for line in lines)


def older(version: str, least: str) -> bool:
    """Return whether a version is older than another, ignoring suffixes such as rc1.

    Example:
        >>> older("2.9.1", "2.20"), older("2.20rc1", "2.20"), older("0.0.1", "0.0.2")
        (True, False, True)
    """
    numbers = (map(int, re.findall(r"\d+", re.match(r"[\d.]*", text)[0])) for text in (version, least))
    return next((one < other for one, other in itertools.zip_longest(*numbers, fillvalue=0) if one != other), False)


def python_finding() -> Finding:
    """Report Python's version; the lab runs on 3.11 to 3.13."""
    fine = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Finding("python", platform.python_version(), "" if fine else "use Python 3.11, 3.12 or 3.13")


def package_finding(name: str, least: str, needed: bool) -> Finding:
    """Report the version of a package, with a remedy if it is missing or too old."""
    version = installed(name)
    remedy = f"pip install '{name}>={least}'" if version is None or older(version, least) else ""
    return Finding(name, version or "not installed", remedy, needed)


def tensorflow_finding() -> Finding:
    """Report TensorFlow, installed under either of its names."""
    return package_finding(tensorflow_package(), OLDEST_TENSORFLOW, True)


def keras_finding() -> Finding:
    """Report Keras's backend, float type and data format, from keras.json and KERAS_BACKEND."""
    try:
        check_keras()
    except LabError as error:
        return Finding("Keras's settings", "not those of the lab", str(error))
    return Finding("Keras's settings", ", ".join(KERAS.values()))


def horovod_finding() -> Finding:
    """Report whether Horovod is built for the installed TensorFlow."""
    version, built_for = horovod_state()
    tensorflow = installed(tensorflow_package())
    remedy = "python -m dgc_lab build-horovod (for lessons with several workers)"
    if version is None:
        return Finding("horovod", "not built", remedy, needed=False)
    found = f"{version} for TensorFlow {built_for or 'unknown'}"
    return Finding("horovod", found, "" if (version, built_for) == (HOROVOD_VERSION, tensorflow) else remedy, False)


def compiler_finding() -> Finding:
    """Report the compiler for Horovod and the native step."""
    compiler = cpp_compiler()
    remedy = "" if compiler else "apt-get install g++ (to build Horovod, and to compress in half the time)"
    return Finding("C++ compiler", compiler or "none", remedy, needed=False)


def gpu_finding() -> Finding:
    """Report TensorFlow's GPUs and whether they work, or why TensorFlow cannot use those of the machine."""
    try:
        import tensorflow as tf
    except ImportError as error:
        return Finding("GPUs", f"unknown, TensorFlow does not start: {error}", needed=False)
    cuda = tf.sysconfig.get_build_info()["is_cuda_build"]
    build = "TensorFlow with CUDA" if cuda else "TensorFlow for the CPU"
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        there = driver_gpus()
        found = f"{there or 'none'}; {build}, the lessons run on the CPU"
        return Finding("GPUs", found, "" if not there else DRIVER if cuda else "make lab GPU=1", needed=False)
    names = ", ".join(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus)
    try:
        for number in range(len(gpus)):
            with tf.device(f"/GPU:{number}"):
                tf.reduce_sum(tf.ones([8])).numpy()
    except (tf.errors.OpError, RuntimeError) as error:
        reason = str(error).splitlines()[0][:80]
        return Finding("GPUs", f"{names}; {build}, no answer: {reason}", f"{DRIVER}, or make lab GPU=0", needed=False)
    return Finding("GPUs", f"{names}; {build}, answers", needed=False)


def driver_gpus() -> str:
    """Return the GPUs that the NVIDIA driver reports, even if TensorFlow cannot use them; empty without a driver."""
    if not shutil.which("nvidia-smi"):
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):  # for example, the driver hangs
        return "nvidia-smi does not answer"
    return "" if done.returncode else ", ".join(done.stdout.splitlines())


def memory_finding() -> Finding:
    """Report free and total memory."""
    try:
        import psutil
    except ImportError:
        return Finding("memory", "unknown, psutil is not installed", needed=False)
    memory = psutil.virtual_memory()
    return Finding("memory", f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free", needed=False)


def mnist_finding() -> Finding:
    """Report the source of MNIST."""
    given = os.environ.get("DGC_LAB_DATA")
    try:
        file = Path(given).expanduser() if given else folder_from_env("KERAS_HOME", ".keras") / "datasets/mnist.npz"
        file = file / "mnist.npz" if file.is_dir() else file
        exists = file.is_file()
    except (LabError, RuntimeError, OSError) as error:  # there is no home folder, or the folder cannot be read
        setting = f"DGC_LAB_DATA is {given!r}: " if given else ""
        return Finding("MNIST", "unknown", f"{setting}{error}", needed=False)
    if given:
        remedy = "" if exists else f"DGC_LAB_DATA is {given!r}, but there is no file {file}"
        return Finding("MNIST", f"{file} (DGC_LAB_DATA)", remedy, needed=False)
    found = f"{file}" if exists else "not downloaded yet; lessons download it when needed (11 MB)"
    return Finding("MNIST", found, needed=False)
