"""Horovod's source: fetched by its hash, and changed where it has to be.

Horovod 0.28.1, its last release, does not compile against TensorFlow 2.19 or newer as it is. One file of it,
optional XLA operations that are off by default, includes TensorFlow headers that are no longer shipped: it is left out.
The allgather of its Gloo can use the two directions of a link one after the other: there two lines change places.
And ranks give up after 1.5 s where they cannot reach the server at which they meet: they try for half a minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

from dgc_lab.common import LabError

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
XLA_SOURCE = "xla_mpi_ops.cc"
ALLGATHER_SOURCE = "third_party/gloo/gloo/allgatherv.cc"
RENDEZVOUS_SOURCE = "horovod/common/gloo/http_store.h"
TRIES = 60  # of a rank to reach the rendezvous, half a second apart
CHANGES = 3  # of the source, by now: a wheel in the cache with fewer is not taken for one with all


class BuildError(LabError):
    """The build cannot go on; the message says why and what to do."""


def fetch(folder: Path) -> Path:
    """Download the pinned source into ``folder`` through pip, and return its path.

    pip looks at its SHA-256 before it runs the source's setup.py, which it does to find out what else is needed.
    """
    wanted = folder / "wanted.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    command += ["--no-build-isolation", "--dest", str(folder), "--require-hashes", "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True)
    source = folder / f"horovod-{VERSION}.tar.gz"
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise BuildError(f"{source.name} has another SHA-256 than {SHA256}: not built\n{done.stderr.strip()}")
    if done.returncode or not source.exists():
        raise BuildError(f"pip could not download horovod=={VERSION}. Is there a network?\n{done.stderr.strip()}")
    return source


def unpack_without_xla(source: Path, folder: Path) -> Path:
    """Unpack the source and take the XLA file off the list of what TensorFlow's part is compiled from."""
    with tarfile.open(source) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python has it from 3.11.4 on
        archive.extractall(folder)
    tree = folder / f"horovod-{VERSION}"
    cmake_lists = tree / "horovod" / "tensorflow" / "CMakeLists.txt"
    lines = cmake_lists.read_text().splitlines(keepends=True)
    kept = [line for line in lines if XLA_SOURCE not in line]
    if len(kept) != len(lines) - 1:
        raise BuildError(f"{cmake_lists} names {XLA_SOURCE} {len(lines) - len(kept)} times, expected once")
    cmake_lists.write_text("".join(kept))
    return tree


def receive_first(tree: Path) -> None:
    """Let Gloo's allgather ask for what it is to receive before it sends.

    A rank sends when the other one has asked. What it asks itself would else come behind all that it sends, and its
    bytes be waited for that long: on a slow link, and with ranks that do not start at once, an allgather took up to
    twice as long as its bytes.
    """
    source = tree / ALLGATHER_SOURCE
    both = r"( *out->send\(sendRank,[^;]*;\n)( *out->recv\(recvRank,[^;]*;\n)"
    text, found = re.subn(both, r"\2\1", source.read_text())
    if found != 2:
        raise BuildError(f"{source} sends and then receives {found} times, expected twice")
    source.write_text(text)


def keep_trying(tree: Path) -> None:
    """Let ranks try to reach the rendezvous for half a minute: a link may be lost for a while as they start."""
    source = tree / RENDEZVOUS_SOURCE
    text, found = re.subn(r"(#define MAX_RETRY_TIMES) 3\n", rf"\1 {TRIES}\n", source.read_text())
    if found != 1:
        raise BuildError(f"{source} says {found} times that ranks try 3 times, expected once")
    source.write_text(text)
