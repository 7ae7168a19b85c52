"""Builds ``fused.cc`` for the TensorFlow that is installed, at first need or by ``python -m dgc_lab build-fused``."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tensorflow as tf

from dgc_lab.common import LabError, cache_folder, cpp_compiler

SOURCE = Path(__file__).with_name("fused.cc")
# No contraction: a product and a sum in one instruction would be rounded once, and differ from TensorFlow's bits.
FLAGS = ("-O3", "-ffp-contract=off", "-shared", "-fPIC", "-w")


@functools.cache
def library():
    """The operations of ``fused.cc``; None where they cannot be had, which is said once.

    Example:
        >>> operations = library()
        >>> operations is None or hasattr(operations, "dgc_accumulate")
        True
    """
    try:
        return tf.load_op_library(str(build()))
    except (LabError, OSError, tf.errors.OpError) as error:
        if os.environ.get("HOROVOD_RANK", "0") == "0":
            print(f"Compression runs on TensorFlow's own operations, more slowly: {error}", flush=True)
        return None


def build() -> Path:
    """The compiled library, from the cache or made now, which takes some ten seconds and is said in a line.

    It is kept in ``DGC_LAB_CACHE``, else in ``~/.cache/dgc_lab``, by TensorFlow, compiler, flags and source.

    Raises:
        LabError: there is no C++ compiler, it fails, or others could change what is in the cache.
    """
    compiler = cpp_compiler()
    if compiler is None:
        raise LabError("there is no C++ compiler (Debian, Ubuntu: apt-get install g++; macOS: xcode-select --install).")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout
    # A Mac's linker otherwise wants to know at once where TensorFlow's functions are.
    late = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
    command = [compiler, *FLAGS, *tf.sysconfig.get_compile_flags(), str(SOURCE), *tf.sysconfig.get_link_flags(), *late]
    key = hashlib.sha256("\0".join([version, *command, SOURCE.read_text(encoding="utf-8")]).encode()).hexdigest()[:16]
    folder = private_folder()
    kept = folder / f"tf{tf.__version__}-{key}.so"
    with open(folder / "lock", "w") as lock:
        lock_file(lock)  # ranks start together, and one compiler will do
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                print("Compiling the fused step of Deep Gradient Compression, once.", flush=True)
                made = Path(scratch, kept.name)
                done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
                if done.returncode:
                    raise LabError(f"{compiler} could not compile {SOURCE}:\n{done.stderr[-2000:]}")
                made.replace(kept)
    return kept


def lock_file(file) -> None:
    """Wait until no other process holds this open file; it is let go when the file is closed."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_EX)


def private_folder() -> Path:
    """The folder of the cache that nobody else can write to: what lies in it is run."""
    folder = cache_folder() / "fused"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not folder.is_dir() or folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise LabError(f"{folder} must be a folder of yours alone (chmod 700 {folder}).")
    return folder
