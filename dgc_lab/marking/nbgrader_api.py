"""nbgrader without its servers, its exchange and its configuration files: one grading folder, and nothing outside."""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path

from dgc_lab.common import LabError

STUB, TEXT_STUB = "...  # your answer", "*Your answer*"


def course_api(folder: Path, **more):
    """nbgrader's API for a grading folder, with further sections of nbgrader's configuration, each a dict."""
    try:
        from nbgrader.apps import NbGraderAPI
    except ImportError as error:
        raise LabError(
            "nbgrader is not installed in this environment. Instructors: `make course`, then "
            ".venv-course/bin/python -m dgc_lab.course"
        ) from error
    import nbconvert

    warnings.filterwarnings("ignore", module="nbgrader")  # SQLAlchemy's advice to nbgrader's authors
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config

    # For a new gradebook nbgrader calls the command alembic, which is beside this Python.
    beside = str(Path(sys.executable).parent)
    if beside not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([beside, os.environ.get("PATH", "")])
    # Its pages are made from nbconvert's templates, which are in the share folder of the environment that has them.
    share = str(Path(nbconvert.__file__).parents[4] / "share" / "jupyter")
    if share not in os.environ.get("JUPYTER_PATH", "").split(os.pathsep):
        os.environ["JUPYTER_PATH"] = os.pathsep.join([*filter(None, [os.environ.get("JUPYTER_PATH")]), share])
    folder = Path(folder).resolve()
    config = Config(
        {
            # Those that grade at once wait for one another, and a disk can take its time.
            "CourseDirectory": {"root": str(folder), "db_url": f"sqlite:///{folder / 'gradebook.db'}?timeout=60"},
            "ClearSolutions": {"code_stub": {"python": STUB}, "text_stub": TEXT_STUB},
            "Exchange": {"root": str(folder / "exchange")},
            **more,
        }
    )
    return NbGraderAPI(CourseDirectory(config=config), config=config)


def reason(result: dict) -> str:
    """Why a call failed: the last error in nbgrader's log, in one line."""
    log = re.sub(r"\x1b\[[0-9;]*m", "", result.get("log") or result.get("error") or "")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|InvalidNotebook)\b", line)]
    return (errors or lines or ["no reason given"])[-1]


def waiting(submission) -> list[str]:
    """Answers of nbgrader's submission that still wait for a person.

    Of an answer that a person marks there is a comment of the same name. nbgrader has all others wait, too, once
    somebody has decided on their points.
    """
    return sorted(
        grade.name
        for notebook in submission.notebooks
        for grade in notebook.grades
        if grade.needs_manual_grade and grade.name in {comment.name for comment in notebook.comments}
    )
