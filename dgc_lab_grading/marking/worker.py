"""Grade one submission: ``python -m dgc_lab_grading.marking.worker PARENT JOB``.

The job and the result are JSON. This is a separate process so that `course.grading` can always end it. The student's
code runs one process further, in the kernel, and the tests in another (`judge`), each in its own `sandbox`.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from dgc_lab_grading.marking.repair import is_variant
from dgc_lab_grading.marking.sandbox import FIRST_USER, USERS, Plan, end_with, python_folders

STUBS = str(Path(__file__).parent / "stubs")  # modules that Colab has


@dataclass(frozen=True)
class GradingJob:
    """A submission to grade, and its limits; memory, disk and entrance are as in `sandbox.Plan`."""

    folder: str  # the grading folder; the notebook is in submitted/STUDENT/ASSIGNMENT
    assignment: str
    student: str
    number: int  # the student's variant
    home: str  # an empty folder with a short path; a socket's path has at most 107 characters
    seconds: int  # of all cells together
    test_seconds: int  # of all tests together
    cell_seconds: int
    memory: int
    disk: int
    entrance: tuple[str, ...]


def kernel_folder(job: GradingJob) -> str:
    """Return the folder of the kernel's sockets; none of its start-up files are there."""
    return str(Path(job.home) / "k")


def fenced(job: GradingJob, folder: str, command: list[str]) -> list[str]:
    """Return the command that runs another command in a sandbox, with its own folder."""
    user = FIRST_USER + (2 * os.getpid() + (folder == kernel_folder(job))) % USERS  # the tests have another
    plan = Plan(folder, python_folders(), job.memory, job.disk, tuple(job.entrance), user)
    place = "/tmp" if job.entrance else folder  # in the sandbox, /tmp is private
    clean = ["env", "-i", *(f"{name}={value}" for name, value in environment(place, kernel_folder(job)).items())]
    return [*clean, sys.executable, "-m", "dgc_lab_grading.marking.sandbox", str(os.getpid()), plan.text(), *command]


def environment(place: str, runtime: str) -> dict[str, str]:
    """Return the variables of a student's kernel: those it needs, and none of the instructor's."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
    return kept | {
        "PYTHONPATH": os.pathsep.join(filter(None, [STUBS, os.environ.get("PYTHONPATH")])),
        "HOME": place,
        "TMPDIR": place,
        "JUPYTER_RUNTIME_DIR": runtime,
        "IPYTHONDIR": f"{place}/ipython",
        "MPLCONFIGDIR": f"{place}/matplotlib",
        "MPLBACKEND": "agg",
        "PIP_RETRIES": "0",  # there is no network
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",  # TensorFlow's messages at its start are not the student's errors
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_NUM_INTRAOP_THREADS": "1",  # a fork has none of these threads, and would wait for them
        "TF_NUM_INTEROP_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "NBGRADER_EXECUTION": "autograde",
    }


def install_kernel(job: GradingJob) -> None:
    """Install a kernel ``python3`` that runs in the sandbox, and is found before all others."""
    kernel = [sys.executable, "-m", "dgc_lab_grading.marking.kernel", "{connection_file}"]
    spec = {
        "argv": fenced(job, kernel_folder(job), kernel),
        "display_name": "Python 3",
        "language": "python",
        "interrupt_mode": "message",
    }
    place = Path(job.home) / "jupyter" / "kernels" / "python3"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))
    os.environ["JUPYTER_PATH"] = str(Path(job.home) / "jupyter")
    os.environ["JUPYTER_RUNTIME_DIR"] = kernel_folder(job)


def judge_command(job: GradingJob) -> list[str]:
    """Return the command that runs the tests, in a process without the student's code."""
    home = Path(job.home) / "t"
    home.mkdir()
    return fenced(job, str(home), [sys.executable, "-m", "dgc_lab_grading.marking.judge"])


def exercise(job: GradingJob) -> list[dict]:
    """Return the exercise's source with the student's number, in the format of `judge`."""
    import nbformat

    path = Path(job.folder) / "source" / job.assignment / f"{job.assignment}.ipynb"
    found = []
    for cell in nbformat.read(path, as_version=4).cells:
        kind = cell.metadata.get("nbgrader", {})
        if is_variant(cell):
            found.append({"kind": "given", "name": "variant", "source": f"VARIANT = {job.number}"})
        elif cell.cell_type == "code" and kind:
            what = "answer" if kind["solution"] else "marks" if kind["grade"] else "given"
            found.append({"kind": what, "name": kind["grade_id"], "source": cell.source})
    return found


def main() -> None:
    """Grade, and write the result to standard output."""
    end_with(int(sys.argv[1]))
    job = GradingJob(**json.loads(sys.argv[2]))
    # The kernel inherits 1 and 2; its output must not mix with the result, nor fill the log.
    answer, sys.stderr = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(2), "w")
    sys.stdout = sys.stderr
    devnull = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(devnull, number)
    install_kernel(job)
    print(json.dumps(grade(job)), file=answer, flush=True)


def grade(job: GradingJob) -> dict:
    """Autograde with nbgrader; return success, reason, remarks, score, most, and answers to mark by hand."""
    from nbconvert.preprocessors import ClearMetadataPreprocessor
    from nbgrader.preprocessors import CheckCellMetadata, IgnorePattern, LimitOutput, SaveAutoGrades

    from dgc_lab_grading.marking.execution import CarefulExecute
    from dgc_lab_grading.marking.nbgrader_api import course_api, reason, waiting

    remarks = []

    class Execute(CarefulExecute):
        """CarefulExecute that copies its remarks here when it is done."""

        def preprocess(self, nb, resources=None, km=None):
            try:
                return super().preprocess(nb, resources, km)
            finally:
                remarks.extend(self.remarks)

    steps = [Execute, IgnorePattern, ClearMetadataPreprocessor, LimitOutput, SaveAutoGrades, CheckCellMetadata]
    api = course_api(
        Path(job.folder),
        Autograde={"autograde_preprocessors": steps},
        Execute={
            "timeout": job.cell_seconds,
            "startup_timeout": 120,
            "store_widget_state": False,
            "most_seconds": job.seconds,
            "most_test_seconds": job.test_seconds,
            "kernel_folder": kernel_folder(job),
            "judge": judge_command(job),
            "exercise": exercise(job),
        },
        ClearMetadataPreprocessor={"enabled": False},
        # Unix sockets: nothing can connect to the sandbox's network.
        KernelManager={"transport": "ipc", "connection_file": f"{kernel_folder(job)}/kernel.json"},
    )
    result = api.autograde(job.assignment, job.student)
    answer = {"success": result["success"], "reason": None, "remarks": list(dict.fromkeys(remarks))}
    if not result["success"]:
        print(result.get("log"), result.get("error"), file=sys.stderr)
        return answer | {"reason": reason(result)}
    with api.gradebook as gradebook:
        submission = gradebook.find_submission(job.assignment, job.student)
        return answer | {"score": submission.score, "most": submission.max_score, "by_hand": waiting(submission)}


if __name__ == "__main__":
    main()
