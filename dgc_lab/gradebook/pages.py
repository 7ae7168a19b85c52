"""Feedback for many students in one zip, which a learning platform hands out by the names in it.

Moodle, Canvas and Brightspace know a student by what they had called the hand-in when it was downloaded. So each page
has the very name of what it is about, and ends in ``.html``. Sources: ``mod/assign/feedback/file/importziplib.php`` in
moodle/moodle; ``infer_comment_context_from_filename`` in instructure/canvas-lms;
https://carleton.ca/brightspace/instructors/grading-assignments-and-providing-feedback/
"""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from dgc_lab.course.report import graded_rows


def pack(folder: Path, exercise: str | None = None) -> tuple[list[Path], list[str]]:
    """Pack the pages of feedback, one zip for each exercise: ``feedback-NN_name.zip`` in the grading folder.

    Returns the zips, and in words who is in none: there is no page of theirs (`dgc_lab.course.feedback.feedback`), or
    they were graded before names of files were kept.
    """
    folder, written, missing = Path(folder).resolve(), [], []
    for name, rows in sorted(graded_rows(folder, exercise).items()):
        target = folder / f"feedback-{name}.zip"
        with zipfile.ZipFile(target.with_suffix(".new"), "w", zipfile.ZIP_DEFLATED) as packed:
            for student, row in sorted(rows.items()):
                page = folder / "feedback" / student / name / f"{name}.html"
                if page.exists() and row.get("handed_in"):
                    packed.write(page, str(PurePosixPath(row["handed_in"]).with_suffix(".html")))
                else:
                    missing.append(f"{student}, {name}: not in the zip; grade it again, then write feedback")
        target.with_suffix(".new").replace(target)
        written.append(target)
    return written, missing
