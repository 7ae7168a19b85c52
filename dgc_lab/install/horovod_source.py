"""Horovod's source: downloaded by its hash, and patched.

Horovod 0.28.1, the last release, does not compile unchanged against TensorFlow 2.19 or newer: a file with optional XLA
operations, which are off by default, includes headers that TensorFlow no longer ships. This file is omitted.
The allgather of its Gloo can use the two directions of a link one after the other. Two lines are swapped to avoid this.
Ranks give up after 1.5 s if they cannot reach the rendezvous server. With the patch, they try for half a minute.
Horovod never reports ranks that wait for others, because it looks for the missing ones in an empty list. It is filled.
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
CONTROLLER_SOURCE = "horovod/common/gloo/gloo_controller.cc"
TRIES = 60  # a rank's attempts to reach the rendezvous server, half a second apart
CHANGES = 4  # number of patches, part of the cache key: wheels built with fewer are not used


class BuildError(LabError):
    """Error that stops the build; the message says why and what to do."""


def fetch(folder: Path) -> Path:
    """Download the pinned source into ``folder`` through pip, and return its path.

    pip checks the SHA-256 before it runs the source's setup.py to find the requirements.
    """
    wanted = folder / "wanted.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:"]
    command += ["--no-build-isolation", "--dest", str(folder), "--require-hashes", "--requirement", str(wanted)]
    done = subprocess.run(command, capture_output=True, text=True)
    source = folder / f"horovod-{VERSION}.tar.gz"
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise BuildError(f"{source.name} must have SHA-256 {SHA256}, got another: not built\n{done.stderr.strip()}")
    if done.returncode or not source.exists():
        raise BuildError(f"pip could not download horovod=={VERSION}. Is there a network?\n{done.stderr.strip()}")
    return source


def unpack_without_xla(source: Path, folder: Path) -> Path:
    """Unpack the source and remove the XLA file from the sources of the TensorFlow extension."""
    with tarfile.open(source) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # available since Python 3.11.4
        archive.extractall(folder)
    tree = folder / f"horovod-{VERSION}"
    cmake_lists = tree / "horovod" / "tensorflow" / "CMakeLists.txt"
    lines = cmake_lists.read_text().splitlines(keepends=True)
    kept = [line for line in lines if XLA_SOURCE not in line]
    if len(kept) != len(lines) - 1:
        raise BuildError(f"{cmake_lists} must name {XLA_SOURCE} once, found {len(lines) - len(kept)} times")
    cmake_lists.write_text("".join(kept))
    return tree


def receive_first(tree: Path) -> None:
    """Patch Gloo's allgather to post each receive before the send.

    A rank sends when its neighbour has requested the data. Without the patch, a rank's own request is queued behind all
    the data that it sends, which delays the reply. On a slow link, if ranks do not start at the same time, an allgather
    took up to twice as long as its bytes need.
    """
    source = tree / ALLGATHER_SOURCE
    both = r"( *out->send\(sendRank,[^;]*;\n)( *out->recv\(recvRank,[^;]*;\n)"
    text, found = re.subn(both, r"\2\1", source.read_text())
    if found != 2:
        raise BuildError(f"{source} sends and then receives {found} times, expected twice")
    source.write_text(text)


def keep_trying(tree: Path) -> None:
    """Patch ranks to try for half a minute to reach the rendezvous server, as a link may fail while they start."""
    source = tree / RENDEZVOUS_SOURCE
    text, found = re.subn(r"(#define MAX_RETRY_TIMES) 3\n", rf"\1 {TRIES}\n", source.read_text())
    if found != 1:
        raise BuildError(f"{source} must define MAX_RETRY_TIMES as 3 once, found {found} times")
    source.write_text(text)


def report_stalls(tree: Path) -> None:
    """Patch the Gloo controller to know its ranks, so that ``HOROVOD_STALL_CHECK_TIME_SECONDS`` has an effect.

    It reserves memory for their numbers and writes there, but the vector keeps its size of 0. The search for stalled
    collectives therefore finds no missing rank.
    """
    source = tree / CONTROLLER_SOURCE
    text, found = re.subn(r"global_ranks_\.reserve\(size_\);", "global_ranks_.resize(size_);", source.read_text())
    if found != 1:
        raise BuildError(f"{source} must reserve memory for global_ranks_ once, found {found} times")
    source.write_text(text)
