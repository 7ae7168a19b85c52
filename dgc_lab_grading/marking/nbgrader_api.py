"""nbgrader without its servers, its exchange and its configuration files, for one grading folder."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

from dgc_lab.common import LabError

STUB, TEXT_STUB = "...  # your answer", "*Your answer*"


def course_api(folder: Path, **more):
    """Return nbgrader's API for a grading folder; ``more`` adds sections to its configuration."""
    try:
        from nbgrader.apps import NbGraderAPI
    except ImportError as error:
        raise LabError(
            "nbgrader is not installed in this environment. Instructors: run `make course`, then "
            ".venv-course/bin/python -m dgc_lab_grading"
        ) from error
    import nbconvert

    warnings.filterwarnings("ignore", module="nbgrader")  # SQLAlchemy's warnings for nbgrader's authors
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config

    # nbgrader creates a gradebook with the command alembic, which is next to this Python.
    programs = str(Path(sys.executable).parent)
    if programs not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([programs, os.environ.get("PATH", "")])
    # nbgrader's pages need nbconvert's templates, which are in the share folder of its environment.
    share = str(Path(nbconvert.__file__).parents[4] / "share" / "jupyter")
    if share not in os.environ.get("JUPYTER_PATH", "").split(os.pathsep):
        os.environ["JUPYTER_PATH"] = os.pathsep.join([*filter(None, [os.environ.get("JUPYTER_PATH")]), share])
    folder = Path(folder).resolve()
    config = Config(
        {
            # Processes that grade in parallel wait for each other, and a disk can be slow.
            "CourseDirectory": {"root": str(folder), "db_url": f"sqlite:///{folder / 'gradebook.db'}?timeout=60"},
            "ClearSolutions": {"code_stub": {"python": STUB}, "text_stub": TEXT_STUB},
            "Exchange": {"root": str(folder / "exchange")},
            **more,
        }
    )
    return NbGraderAPI(CourseDirectory(config=config), config=config)


def reason(result: dict) -> str:
    """Return why a call failed: the last error in nbgrader's log, as one line."""
    log = re.sub(r"\x1b\[[0-9;]*m", "", result.get("log") or result.get("error") or "")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|InvalidNotebook)\b", line)]
    return (errors or lines or ["no reason given"])[-1]


def waiting(submission) -> list[str]:
    """Return the answers in nbgrader's submission that still have to be marked by hand.

    Such an answer has a comment of the same name. nbgrader also flags other answers, once someone has set their points.
    """
    return sorted(
        grade.name
        for notebook in submission.notebooks
        for grade in notebook.grades
        if grade.needs_manual_grade and grade.name in {comment.name for comment in notebook.comments}
    )
