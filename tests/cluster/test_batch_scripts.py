"""The batch scripts in docs/clusters.md, with real ranks and stand-ins for Slurm and PBS, in a private network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dgc_lab.cluster import private_network

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clusters.md"
SCRIPTS = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", PAGE.read_text(), re.DOTALL)
BATCH_SYSTEMS = ("SBATCH", "PBS")

IN_PRIVATE_NETWORK = """
import os, socket, sys
from dgc_lab.cluster.private_network import raise_loopback
raise_loopback()
socket.sethostname("localhost")
os.execvp("bash", ["bash", sys.argv[1]])
"""

SCONTROL = """#!/bin/sh
[ "$1 $2 $3" = "show hostnames nodes[1-2]" ] && echo localhost
"""


def test_the_page_has_one_script_per_batch_system():
    assert [re.findall(r"^#(SBATCH|PBS) ", script, re.MULTILINE)[0] for script in SCRIPTS] == list(BATCH_SYSTEMS)


@pytest.mark.nightly_except("SBATCH")
@pytest.mark.parametrize("system", BATCH_SYSTEMS)
def test_batch_script_trains_on_all_ranks(horovod, tmp_path, system):
    if reason := private_network.unavailable_reason():
        pytest.skip(reason)
    script = SCRIPTS[BATCH_SYSTEMS.index(system)]
    assert "--steps 300" in script
    (tmp_path / "train.sh").write_text(script.replace("--steps 300", "--steps 4 --evaluations 1"))
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "nodes").write_text("localhost\nlocalhost\n")
    variables = {
        "SBATCH": {"SLURM_JOB_NODELIST": "nodes[1-2]", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2"},
        "PBS": {"PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_O_WORKDIR": str(tmp_path)},
    }[system]
    environment = (
        os.environ
        | variables
        | {
            "HOME": str(tmp_path),
            "PATH": os.pathsep.join([str(tmp_path), os.path.dirname(sys.executable), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "200",  # a rank's imports may take longer than Horovod waits
        }
    )
    done = subprocess.run(
        [*private_network.command_prefix(), sys.executable, "-c", IN_PRIVATE_NETWORK, str(tmp_path / "train.sh")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    files = {file.name for file in (tmp_path / "state").iterdir()}
    assert files == {"rank_0_step_4.npz", "rank_1_step_4.npz"}, "two ranks, not two trainings"
