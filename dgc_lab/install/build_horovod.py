"""Build Horovod for the installed TensorFlow: ``python -m dgc_lab build-horovod``.

Uses only the standard library, so that it runs before other requirements of the lab are installed.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dgc_lab.common import COMPILERS, LabError, cache_folder, check_flag
from dgc_lab.install.horovod_source import (
    CHANGES,
    VERSION,
    BuildError,
    fetch,
    keep_trying,
    receive_first,
    report_stalls,
    unpack_without_xla,
)
from dgc_lab.install.horovod_wheels import environment, fetch_wheel
from dgc_lab.install.launch_env import cores, gloo_variables, rank_variables, rendezvous, rendezvous_variables

BUILD_PACKAGES = ("setuptools", "wheel", "cffi", "cloudpickle", "psutil", "pyyaml", "packaging")
PIP_FOLDERS = ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT")  # variables that make pip install elsewhere
BUILD_OPTIONS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    # CMake 4 rejects the bundled Gloo unless policy version 3.5 is allowed.
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
}
SECONDS_TO_VERIFY = 120
RANK_PROGRAM = """
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
total = hvd.allreduce(tf.constant([float(hvd.rank() + 1)]), op=hvd.Sum)
assert total.numpy().tolist() == [3.0], total
"""


def tensorflow_version() -> str:
    """Return the version of the installed TensorFlow without importing it; raise BuildError if there is none."""
    version = installed(tensorflow_package())
    if version is None:
        raise BuildError("TensorFlow is not installed, but Horovod is built against it. Run: pip install tensorflow")
    return version


def tensorflow_package() -> str:
    """Return the name under which TensorFlow is installed, or ``"tensorflow"`` if it is not."""
    return next(filter(installed, ("tensorflow", "tensorflow-cpu")), "tensorflow")


def installed(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def horovod_state() -> tuple[str | None, str | None]:
    """Return the versions of the installed Horovod and of the TensorFlow it was built for, each None if missing.

    Example:
        >>> horovod_state()  # doctest: +SKIP
        ('0.28.1', '2.21.0')
    """
    try:
        files = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None, None
    metadata = Path(str(files.locate_file("horovod/metadata.json")))
    # Horovod's build appends lines to this file and leaves a trailing comma, so the file is not always valid JSON.
    found = re.search(r'"tensorflow":\s*"([^"]+)"', metadata.read_text() if metadata.exists() else "")
    return files.version, found.group(1) if found else None


def require_horovod() -> None:
    """Check that Horovod is installed and built for the installed TensorFlow.

    Raises:
        LabError: it is not; the message has the command to run.

    Example:
        If Horovod is not installed:

        >>> require_horovod()  # doctest: +SKIP
        Traceback (most recent call last):
        dgc_lab.common.LabError: Horovod is not installed. Run: python -m dgc_lab build-horovod
    """
    version, built_for = horovod_state()
    if version is None:
        raise LabError("Horovod is not installed. Run: python -m dgc_lab build-horovod")
    if built_for != tensorflow_version():
        raise LabError(
            f"Horovod was built for TensorFlow {built_for}, but {tensorflow_version()} is installed. "
            "Run: python -m dgc_lab build-horovod"
        )


def wheel_folder() -> Path:
    """Return the folder in `dgc_lab.common.cache_folder` for the wheel for this Python, TensorFlow and platform.

    pip's own cache only uses the name of the source, so it would install a wheel built for another TensorFlow.
    """
    here = environment(tensorflow_version())
    name = f"{VERSION}.{CHANGES}-{here['python']}-tf{here['tensorflow']}-{here['platform']}"
    return cache_folder() / "horovod" / name


def tool_path() -> str:
    """Return PATH with this Python's own programs first, such as cmake from PyPI."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def check_tools() -> None:
    """Raise a BuildError that lists everything missing for the build, with the commands to install it."""
    compiler = "a C++ compiler (Debian, Ubuntu: apt-get install g++; macOS: xcode-select --install)"
    remedies = {
        COMPILERS: compiler,
        ("make",): "make (Debian, Ubuntu: apt-get install make)",
        ("cmake",): f"cmake ({sys.executable} -m pip install 'cmake<4')",
    }
    if sys.platform == "darwin":
        remedies["pkg-config",] = "pkg-config, and the library libuv, which Gloo needs (brew install pkg-config libuv)"
    path = tool_path()
    missing = [what for names, what in remedies.items() if not any(shutil.which(name, path=path) for name in names)]
    if packages := [package for package in BUILD_PACKAGES if installed(package) is None]:
        missing.append(f"Python packages ({sys.executable} -m pip install {' '.join(packages)})")
    if missing:
        raise BuildError("Horovod cannot be built because these are missing:\n  - " + "\n  - ".join(missing))


def compile_wheel(tree: Path, folder: Path, log: Path) -> Path:
    """Build the wheel in ``folder``, print the build's percentage, and write the full output to ``log``."""
    command = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--no-build-isolation"]
    command += ["--no-cache-dir", "--wheel-dir", str(folder), str(tree)]
    environment = {**os.environ, **BUILD_OPTIONS, "PATH": tool_path()}
    # Under make, MAKEFLAGS is set but empty. Horovod then starts 8 compilers, each of which can use a gigabyte.
    if not environment.get("MAKEFLAGS"):
        environment["MAKEFLAGS"] = f"-j{min(cores(), 4)}"
    shown = -10
    with log.open("w") as out:
        pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **pipe)
        try:
            for line in process.stdout:
                out.write(line)
                percent = re.match(r"\s*\[\s*(\d+)%\]", line)
                if percent and int(percent.group(1)) >= shown + 10:
                    shown = int(percent.group(1))
                    say(f"      {shown:3d} % compiled")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # pip and its compilers
            process.wait()
            raise
    wheels = list(folder.glob("horovod-*.whl"))
    if process.wait() or not wheels:
        tail = "".join(log.read_text().splitlines(keepends=True)[-60:])
        raise BuildError(f"The build failed. The full output is in {log}, and its last lines are:\n{tail}")
    return wheels[0]


def verify() -> None:
    """Add 1 and 2 with an allreduce of two ranks on the loopback interface; raise BuildError if that fails."""
    ranks = []
    with rendezvous() as port:
        try:
            for variables in rank_variables(["127.0.0.1"] * 2):
                environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
                environment |= variables | rendezvous_variables(port) | gloo_variables(SECONDS_TO_VERIFY)
                command = [sys.executable, "-c", RANK_PROGRAM]
                pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
                ranks.append(subprocess.Popen(command, env=environment, text=True, **pipes))
            running, end = dict(enumerate(ranks)), time.monotonic() + SECONDS_TO_VERIFY
            while running:
                for number, rank in list(running.items()):  # in turns, because one that fails makes the other wait
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        printed, _ = rank.communicate(timeout=0.1)
                        if rank.returncode:
                            raise BuildError(f"rank {number} failed:\n{printed[-2000:]}")
                        del running[number]
                if running and time.monotonic() > end:
                    raise BuildError(f"rank {min(running)} did not finish its allreduce in {SECONDS_TO_VERIFY} s")
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def say(text: str) -> None:
    """Print and flush, so that notebooks and logs show the progress immediately."""
    print(text, flush=True)


def build(force: bool = False) -> None:
    """Install a Horovod that works with the installed TensorFlow: a prebuilt wheel, or one built on this machine.

    Uses, in this order, a matching installed Horovod, a wheel in the cache, or a wheel of the lab with a known hash
    (`dgc_lab.install.horovod_wheels`). Otherwise, downloads and builds Horovod, which needs g++, make and cmake, and
    two minutes on two cores. Prints its choice.

    Args:
        force: build Horovod in any case.

    Raises:
        BuildError: something is missing or failed; the message says what to do.

    Example:
        >>> build()  # doctest: +SKIP
        Horovod 0.28.1 for TensorFlow 2.21.0 is installed already.
    """
    check_flag("force", force)
    tensorflow, wheels, start = tensorflow_version(), wheel_folder(), time.monotonic()
    if not force and horovod_state() == (VERSION, tensorflow):
        say(f"Horovod {VERSION} for TensorFlow {tensorflow} is installed already.")
        return
    wheel = None if force else next(iter(wheels.glob("horovod-*.whl")), None)
    if wheel:
        say(f"[1/3] found a wheel for TensorFlow {tensorflow}: {wheel}")
        install_and_verify(wheel)
    else:
        wheels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            wheel = (not force and take_known_wheel(tensorflow, Path(scratch))) or build_here(tensorflow, Path(scratch))
            partly = Path(shutil.move(wheel, wheels / "partly"))
            partly.replace(wheels / wheel.name)  # so the cache contains only complete wheels that work
    say(f"Horovod {VERSION} for TensorFlow {tensorflow} works ({time.monotonic() - start:.0f} s).")


def take_known_wheel(tensorflow: str, scratch: Path) -> Path | None:
    """Download and install the lab's wheel for this Python and TensorFlow; if none works, print why and return None."""
    wheel, said = fetch_wheel(tensorflow, scratch)
    if wheel is None:
        say(f"Building Horovod here: {said}.")
        return None
    say(f"[1/3] {said}")
    try:
        install_and_verify(wheel)
    except BuildError as error:
        say(f"Building Horovod here: the wheel does not work on this machine.\n{error}")
        return None
    return wheel


def build_here(tensorflow: str, scratch: Path) -> Path:
    """Download, build, install and verify Horovod, and return its wheel in ``scratch``."""
    check_tools()
    say(f"[1/3] download Horovod {VERSION} and build it for TensorFlow {tensorflow} (about 2 minutes on 2 cores)")
    tree = unpack_without_xla(fetch(scratch), scratch)
    receive_first(tree)
    keep_trying(tree)
    report_stalls(tree)
    wheel = compile_wheel(tree, scratch / "wheel", wheel_folder() / "build.log")
    install_and_verify(wheel)
    return wheel


def install_and_verify(wheel: Path) -> None:
    """Install a wheel and verify it with two ranks; if that fails or is interrupted, uninstall it."""
    say(f"[2/3] install {wheel.name}")
    pip = [sys.executable, "-m", "pip"]
    command = [*pip, "install", "--quiet", "--no-deps", "--force-reinstall", str(wheel)]
    # Settings such as PIP_USER=1, common on clusters, would install into a folder that this Python does not search.
    environment = {name: value for name, value in os.environ.items() if name not in PIP_FOLDERS}
    if sys.prefix != sys.base_prefix:  # in a virtual environment
        environment["PIP_USER"] = "0"
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        rebuild = "To rebuild it: python -m dgc_lab build-horovod --force"
        raise BuildError(f"pip could not install {wheel}:\n{done.stderr.strip()}\n{rebuild}")
    say("[3/3] verify with an allreduce over two ranks")
    importlib.invalidate_caches()
    try:
        verify()
    except BaseException as error:  # an interrupt too: a later build would not verify an installed Horovod
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", "horovod"], capture_output=True)
        if not isinstance(error, BuildError):
            raise
        rebuild = "python -m dgc_lab build-horovod --force"
        raise BuildError(f"{error}\nHorovod was uninstalled again. To rebuild it: {rebuild}") from error
