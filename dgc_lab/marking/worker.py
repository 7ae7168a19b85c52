"""Grade one submission: ``python -m dgc_lab.marking.worker PARENT TASK``, with the task as JSON, and an answer as JSON.

It is a process of its own so that `dgc_lab.course.grading` can end it, whatever became of it. The student's code runs
one process further on, in the kernel, and the tests in another (`dgc_lab.marking.judge`), each behind a
`dgc_lab.marking.sandbox` of its own.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from dgc_lab.marking.repair import is_variant
from dgc_lab.marking.sandbox import Plan, end_with, python_folders


@dataclass(frozen=True)
class Task:
    """What to grade, and what it may use; memory, disk and entrance as `dgc_lab.marking.sandbox.Plan`."""

    folder: str  # the grading folder; nbgrader finds the notebook in "submitted" by the next two
    assignment: str
    student: str
    number: int  # of the student's variant
    home: str  # an empty folder with a short name; a socket's name may have 107 characters
    seconds: int  # of all cells together
    test_seconds: int  # of all tests together
    cell_seconds: int
    memory: int
    disk: int
    entrance: tuple[str, ...]


def kernel_folder(task: Task) -> str:
    """All that the kernel may write to outside of memory. What decides how a kernel starts is not in there."""
    return str(Path(task.home) / "k")


def fenced(task: Task, folder: str, command: list[str]) -> list[str]:
    """A command as it runs behind a fence, with a folder of its own."""
    plan = Plan(folder, python_folders(), task.memory, task.disk, tuple(task.entrance))
    place = "/tmp" if task.entrance else folder  # behind the fence /tmp is the submission's own
    clean = ["env", "-i", *(f"{name}={value}" for name, value in environment(place, kernel_folder(task)).items())]
    return [*clean, sys.executable, "-m", "dgc_lab.marking.sandbox", str(os.getpid()), plan.text(), *command]


def environment(place: str, runtime: str) -> dict[str, str]:
    """Variables of a student's kernel: what it needs to run, and none of the instructor's."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH") if name in os.environ}
    return kept | {
        "HOME": place,
        "TMPDIR": place,
        "JUPYTER_RUNTIME_DIR": runtime,
        "IPYTHONDIR": f"{place}/ipython",
        "MPLCONFIGDIR": f"{place}/matplotlib",
        "MPLBACKEND": "agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",  # what TensorFlow says at its start is no error of the student's
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "TF_NUM_INTRAOP_THREADS": "1",  # a copy of the process has none of its threads, and would wait for them
        "TF_NUM_INTEROP_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "-1",
        "NBGRADER_EXECUTION": "autograde",
    }


def install_kernel(task: Task) -> None:
    """A kernel ``python3`` that runs behind the fence, found before all others."""
    kernel = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {
        "argv": fenced(task, kernel_folder(task), kernel),
        "display_name": "Python 3",
        "language": "python",
        "interrupt_mode": "message",
    }
    place = Path(task.home) / "jupyter" / "kernels" / "python3"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(spec))
    os.environ["JUPYTER_PATH"] = str(Path(task.home) / "jupyter")
    os.environ["JUPYTER_RUNTIME_DIR"] = kernel_folder(task)


def judge_command(task: Task) -> list[str]:
    """The command that runs the tests, in a process that no student's code is in."""
    home = Path(task.home) / "t"
    home.mkdir()
    return fenced(task, str(home), [sys.executable, "-m", "dgc_lab.marking.judge"])


def exercise(task: Task) -> list[dict]:
    """The exercise's source with the student's number, as `dgc_lab.marking.judge` reads it."""
    import nbformat

    path = Path(task.folder) / "source" / task.assignment / f"{task.assignment}.ipynb"
    found = []
    for cell in nbformat.read(path, as_version=4).cells:
        kind = cell.metadata.get("nbgrader", {})
        if is_variant(cell):
            found.append({"kind": "given", "name": "variant", "source": f"VARIANT = {task.number}"})
        elif cell.cell_type == "code" and kind:
            what = "answer" if kind["solution"] else "marks" if kind["grade"] else "given"
            found.append({"kind": what, "name": kind["grade_id"], "source": cell.source})
    return found


def main() -> None:
    """Grade, and write what came of it to standard output."""
    end_with(int(sys.argv[1]))
    task = Task(**json.loads(sys.argv[2]))
    # The kernel inherits 1 and 2, and what it writes there must be neither the answer nor fill the log.
    answer, sys.stderr = os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(2), "w")
    sys.stdout = sys.stderr
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    install_kernel(task)
    print(json.dumps(grade(task)), file=answer, flush=True)


def grade(task: Task) -> dict:
    """Autograde a submission by nbgrader: success, reason, remarks, score, most, and the cells to be marked by hand."""
    from nbconvert.preprocessors import ClearMetadataPreprocessor
    from nbgrader.preprocessors import CheckCellMetadata, IgnorePattern, LimitOutput, SaveAutoGrades

    from dgc_lab.marking.execution import CarefulExecute
    from dgc_lab.marking.nbgrader_api import course_api, reason, waiting

    remarks = []

    class Execute(CarefulExecute):
        """The same, which leaves its remarks here when it is done."""

        def preprocess(self, nb, resources=None, km=None):
            try:
                return super().preprocess(nb, resources, km)
            finally:
                remarks.extend(self.remarks)

    steps = [Execute, IgnorePattern, ClearMetadataPreprocessor, LimitOutput, SaveAutoGrades, CheckCellMetadata]
    api = course_api(
        Path(task.folder),
        Autograde={"autograde_preprocessors": steps},
        Execute={
            "timeout": task.cell_seconds,
            "startup_timeout": 120,
            "store_widget_state": False,
            "most_seconds": task.seconds,
            "most_test_seconds": task.test_seconds,
            "kernel_folder": kernel_folder(task),
            "judge": judge_command(task),
            "exercise": exercise(task),
        },
        ClearMetadataPreprocessor={"enabled": False},
        # Unix sockets: a network of its own cannot be reached by any other.
        KernelManager={"transport": "ipc", "connection_file": f"{kernel_folder(task)}/kernel.json"},
    )
    result = api.autograde(task.assignment, task.student)
    answer = {"success": result["success"], "reason": None, "remarks": list(dict.fromkeys(remarks))}
    if not result["success"]:
        print(result.get("log"), result.get("error"), file=sys.stderr)
        return answer | {"reason": reason(result)}
    with api.gradebook as gradebook:
        submission = gradebook.find_submission(task.assignment, task.student)
        return answer | {"score": submission.score, "most": submission.max_score, "by_hand": waiting(submission)}


if __name__ == "__main__":
    main()
