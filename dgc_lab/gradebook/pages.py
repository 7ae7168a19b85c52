"""Feedback for many students in one zip, which a learning platform hands out by the names in it.

Moodle, Canvas and Brightspace know a student by what they had called the hand-in when it was downloaded. So each page
has the very name of what it is about, and ends in ``.html``. Sources: ``mod/assign/feedback/file/importziplib.php`` in
moodle/moodle; ``infer_comment_context_from_filename`` in instructure/canvas-lms;
https://carleton.ca/brightspace/instructors/grading-assignments-and-providing-feedback/
"""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from dgc_lab.common import LabError
from dgc_lab.course.report import graded_rows


def pack(folder: Path, exercise: str | None = None) -> list[Path]:
    """Pack the pages of feedback, one zip for each exercise: ``feedback-NN_name.zip`` in the grading folder.

    Raises:
        LabError: a page is not there yet (`dgc_lab.course.feedback.feedback`), or the folder was graded before names of
            files were kept.
    """
    folder, written = Path(folder).resolve(), []
    for name, rows in sorted(graded_rows(folder, exercise).items()):
        target = folder / f"feedback-{name}.zip"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
            for student, row in sorted(rows.items()):
                page = folder / "feedback" / student / name / f"{name}.html"
                if not page.exists() or not row.get("handed_in"):
                    raise LabError(f"no page or no file name of {student}, {name}: grade it again, then write feedback")
                packed.write(page, str(PurePosixPath(row["handed_in"]).with_suffix(".html")))
        written.append(target)
    return written
