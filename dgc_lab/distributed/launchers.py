"""Launchers such as srun and mpirun: how many tasks one has started, and an error if Horovod does not know of them."""

from __future__ import annotations

import os

from dgc_lab.common import LabError

# The variable that tells a task how many tasks there are. If two are equal, the first counts: srun also sets PMI_SIZE.
LAUNCHERS = {
    "SLURM_STEP_NUM_TASKS": "srun",
    "OMPI_COMM_WORLD_SIZE": "mpirun (Open MPI)",
    "MV2_COMM_WORLD_SIZE": "mpirun (MVAPICH)",
    "JSM_NAMESPACE_SIZE": "jsrun",
    "FLUX_JOB_SIZE": "flux run",
    "PMI_SIZE": "mpiexec (Intel MPI or MPICH)",
}


def launched() -> tuple[str, int]:
    """Return the launcher that started this process, and its number of tasks; an empty name and 1 without a launcher.

    Example:
        >>> launched()
        ('', 1)
    """
    environment = {name: int(value) for name, value in os.environ.items() if value.isdecimal()}
    if "HOROVOD_SIZE" in environment:  # horovodrun may itself run in a task of srun
        return "horovodrun", environment["HOROVOD_SIZE"]
    if "SLURM_PTY_PORT" in environment and environment.get("SLURM_PROCID") == 0:
        environment.pop("SLURM_STEP_NUM_TASKS", None)  # srun --pty bash: only the first task has a shell
    tasks = {launcher: environment.get(variable, 1) for variable, launcher in LAUNCHERS.items()}
    tasks["a PMIx launcher"] = environment.get("PMIX_RANK", 0) + 1  # PMIx does not provide the number of tasks
    launcher = max(tasks, key=tasks.get)
    return (launcher, tasks[launcher]) if tasks[launcher] > 1 else ("", 1)


def check_launched(ranks: int | None) -> None:
    """Check that Horovod knows the tasks that a launcher has started; otherwise, each would train alone.

    Args:
        ranks: Horovod's number of ranks; None if Horovod is not initialized.

    Raises:
        LabError: a launcher started several tasks, but there is only one rank.

    Example:
        >>> check_launched(None)
    """
    launcher, tasks = launched()
    if tasks == 1 or (ranks or 1) > 1:
        return
    if launcher == "horovodrun":
        found = f"this process is one of {tasks} ranks, but Horovod is not initialized"
        raise LabError(f"{found}: call horovod.tensorflow.init() first")
    first = "call horovod.tensorflow.init() first if Horovod is built with MPI; otherwise, " if ranks is None else ""
    raise LabError(
        f"{launcher} started {tasks} tasks that Horovod does not know of, so each would train alone: {first}start "
        "the ranks with horovodrun inside the allocation (docs/clusters.md has batch scripts). If each task should "
        "train alone, set HOROVOD_SIZE=1"
    )
