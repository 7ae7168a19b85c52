"""Compile and load ``native.cc``, the step of Deep Gradient Compression on a CPU.

It is compiled for the installed TensorFlow when it is first needed, or by ``python -m dgc_lab build-native``. Without
it, TensorFlow's own operations give bit-identical results.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tensorflow as tf

from dgc_lab.common import LabError, cache_folder, cpp_compiler

SOURCE = Path(__file__).with_name("native.cc")
# No contraction: a product and a sum in one instruction would be rounded once, and differ from TensorFlow's bits.
FLAGS = ("-O3", "-ffp-contract=off", "-shared", "-fPIC", "-w")
SECONDS_BEFORE_NOTICE = 10

enabled = True  # False runs TensorFlow's own operations, as on a machine without a compiler


def operations():
    """Return the operations of ``native.cc``, or None on GPUs or without a compiler, where TensorFlow's own run.

    Example:
        >>> found = operations()
        >>> found is None or hasattr(found, "dgc_accumulate_and_select")
        True
    """
    return _library() if enabled and not tf.config.list_logical_devices("GPU") else None


@functools.cache
def _library():
    try:
        return tf.load_op_library(str(build()))
    except (LabError, OSError, tf.errors.OpError) as error:
        if os.environ.get("HOROVOD_RANK", "0") == "0":
            print(f"Compression runs on TensorFlow's own operations, which is slower: {error}", flush=True)
        return None


def build() -> Path:
    """Return the path of the compiled library; if it is not in the cache, compile it in about ten seconds.

    The cache is in ``DGC_LAB_CACHE``, or else in ``~/.cache/dgc_lab``. Its key consists of TensorFlow's version, the
    compiler, the flags and the source.

    Raises:
        LabError: there is no C++ compiler, it fails, or other users could change the cached files.
    """
    compiler = cpp_compiler()
    if compiler is None:
        raise LabError("there is no C++ compiler (Debian, Ubuntu: apt-get install g++; macOS: xcode-select --install).")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    # A Mac's linker otherwise looks for TensorFlow's functions at once.
    late = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    command = [compiler, *FLAGS, *tf.sysconfig.get_compile_flags(), str(SOURCE), *tf.sysconfig.get_link_flags(), *late]
    key = hashlib.sha256("\0".join([version, *command, SOURCE.read_text(encoding="utf-8")]).encode()).hexdigest()[:16]
    folder = private_folder()
    kept = folder / f"tf{tf.__version__}-{key}.so"
    with open(folder / "lock", "w") as lock:
        lock_file(lock)  # ranks start together, and one of them compiles
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                print("Compiling the native step of Deep Gradient Compression, once.", flush=True)
                made = Path(scratch, kept.name)
                done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
                if done.returncode:
                    raise LabError(f"{compiler} could not compile {SOURCE}:\n{done.stderr[-2000:]}")
                made.replace(kept)
    return kept


def lock_file(file) -> None:
    """Wait until no other process holds a lock on this open file; closing the file releases the lock."""
    import fcntl

    notice = time.monotonic() + SECONDS_BEFORE_NOTICE
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= notice:
                print(f"Waiting for another process, which compiles the native step and holds {file.name}.", flush=True)
                notice = math.inf
            time.sleep(0.1)


def private_folder() -> Path:
    """Return the cache folder that only this user can write to, because its files are executed."""
    folder = cache_folder() / "native"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LabError(f"{folder} must belong to you alone (chmod 700 {folder}).")
    return folder
