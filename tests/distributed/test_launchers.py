"""Launchers that start tasks which Horovod does not know of; stand-ins for them start local processes."""

import os
import subprocess
import sys

import pytest

from dgc_lab.__main__ import main
from dgc_lab.common import LabError
from dgc_lab.distributed import HorovodWorkers, default_communicator, on_first_rank
from dgc_lab.distributed.launchers import LAUNCHERS, check_launched, launched
from dgc_lab.training.distributed_trainer import DistributedConfig, DistributedTrainer

VARIABLES = (*LAUNCHERS, "HOROVOD_SIZE", "PMIX_RANK", "SLURM_PROCID", "SLURM_PTY_PORT", "SLURM_NTASKS", "SLURM_JOB_ID")


@pytest.fixture
def launch(monkeypatch):
    """Return a function that sets a launcher's variables; all others are unset."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def set_variables(text):
        for one in text.split():
            monkeypatch.setenv(*one.split("="))

    return set_variables


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 PMI_SIZE=2", "srun started 2 tasks"),
        ("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0", "srun started 4 tasks"),
        ("SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1 SLURM_PTY_PORT=34889", "srun started 2 tasks"),
        ("SLURM_STEP_NUM_TASKS=2 PMI_SIZE=8", r"mpiexec \(Intel MPI or MPICH\) started 8 tasks"),
        ("OMPI_COMM_WORLD_SIZE=3", r"mpirun \(Open MPI\) started 3 tasks"),
        ("MV2_COMM_WORLD_SIZE=2", r"mpirun \(MVAPICH\) started 2 tasks"),
        ("JSM_NAMESPACE_SIZE=2", "jsrun started 2 tasks"),
        ("FLUX_JOB_SIZE=2", "flux run started 2 tasks"),
        ("PMIX_RANK=1", "a PMIx launcher started 2 tasks"),
    ],
)
def test_tasks_unknown_to_horovod_are_an_error(launch, variables, message):
    launch(variables)
    for ask in (default_communicator, on_first_rank):
        with pytest.raises(LabError, match=message) as error:
            ask()
        assert "that Horovod does not know of, so each would train alone: " in str(error.value)
        assert "start the ranks with horovodrun inside the allocation" in str(error.value)
    with pytest.raises(LabError, match=r"alone: start the ranks with horovodrun"):
        check_launched(ranks=1)  # Horovod is initialized, but without MPI
    check_launched(ranks=2)


@pytest.mark.parametrize(
    "variables",
    [
        "",
        "SLURM_JOB_ID=7 SLURM_NTASKS=4",
        "SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 PMI_SIZE=1 PMIX_RANK=0",
        "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 SLURM_PTY_PORT=34889",
        "SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=1 HOROVOD_SIZE=1",
        "PMI_SIZE=unknown",
    ],
    ids=["none", "salloc", "one task", "srun --pty", "separate trainings", "no number"],
)
def test_single_processes_on_clusters_train_alone(launch, variables):
    launch(variables)
    assert launched()[1] == 1
    assert default_communicator().size == 1
    assert on_first_rank("callback") == ["callback"]


def test_horovodrun_inside_a_task_counts(launch):
    launch("SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 HOROVOD_SIZE=2")
    assert launched() == ("horovodrun", 2)
    with pytest.raises(LabError, match=r"one of 2 ranks, but Horovod is not initialized: call .*init\(\) first"):
        default_communicator()


LAUNCHER = """#!/bin/sh
# Stands in for a launcher: starts two local processes with its variables.
shift 2
for task in 0 1; do
    SLURM_STEP_NUM_TASKS=$SLURM PMI_SIZE=2 SLURM_PROCID=$task PMI_RANK=$task "$@" &
done
wait
"""


@pytest.mark.nightly_except("srun")
@pytest.mark.parametrize(
    ("launcher", "slurm", "name"),
    [("srun", "2", "srun"), ("mpiexec", "", "mpiexec (Intel MPI")],
    ids=["srun", "mpiexec"],
)
def test_train_under_other_launchers_fails_and_writes_nothing(horovod, launch, tmp_path, launcher, slurm, name):
    (tmp_path / launcher).write_text(LAUNCHER)
    (tmp_path / launcher).chmod(0o755)
    command = [sys.executable, "-m", "dgc_lab", "train", "--steps", "1", "--checkpoint", str(tmp_path / "state")]
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SLURM": slurm}
    done = subprocess.run([launcher, "-n", "2", *command], env=environment, capture_output=True, text=True, timeout=300)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2, done.stderr
    assert all(line.startswith(f"error: {name}") for line in errors)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("variables", "launcher"), [("SLURM_STEP_NUM_TASKS=2", "srun"), ("HOROVOD_SIZE=2", "horovodrun")]
)
def test_sweep_in_several_tasks_fails_and_writes_nothing(launch, tmp_path, capsys, variables, launcher):
    """Each task would train all ratios and write the same rows."""
    launch(variables)
    rows = tmp_path / "rows.jsonl"
    assert main(["sweep", "--steps", "1", "--ratios", "1", "--out", str(rows)]) == 1
    assert capsys.readouterr().err.startswith(f"error: sweep trains in one task, but {launcher} started 2: ")
    assert not rows.exists()


def workers_without_a_communicator():
    from dgc_lab.training.model_trainer import ModelTrainer

    settings = DistributedConfig(steps=2, evaluations=1)
    trainer = DistributedTrainer(settings)
    other = ModelTrainer(trainer.model, trainer.loss, trainer.batches, settings.config(0.1))
    return [type(one.communicator).__name__ for one in (trainer, other)]


def test_trainers_on_ranks_use_all_ranks_by_default(two_ranks):
    assert two_ranks.run(workers_without_a_communicator) == [[HorovodWorkers.__name__] * 2] * 2
