"""Zip feedback for many students, under the file names by which a learning platform distributes it.

Moodle, Canvas and Brightspace identify students by the names of their files in the download. So each page has the name
of the submission, but ends in ``.html``. Sources: ``mod/assign/feedback/file/importziplib.php`` in moodle/moodle;
``infer_comment_context_from_filename`` in instructure/canvas-lms;
https://carleton.ca/brightspace/instructors/grading-assignments-and-providing-feedback/
"""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from dgc_lab_grading.course.files import replacing
from dgc_lab_grading.course.report import graded_rows, without_control


def pack(folder: Path, exercise: str | None = None) -> tuple[list[Path], list[str]]:
    """Zip the feedback pages of each exercise: ``feedback-NN_name.zip`` in the grading folder.

    Returns the zips, and a message for each student who is missing: there is no page from `course.feedback`, or file
    names were not recorded when the submission was graded.
    """
    folder, written, missing = Path(folder).resolve(), [], []
    for name, rows in sorted(graded_rows(folder, exercise).items()):
        target = folder / f"feedback-{name}.zip"
        with replacing(target) as new, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as packed:
            for student, row in sorted(rows.items()):
                page = folder / "feedback" / student / name / f"{name}.html"
                if page.exists() and row.get("handed_in"):
                    name_in_zip = without_control(str(PurePosixPath(row["handed_in"]).with_suffix(".html")))
                    packed.write(page, name_in_zip)
                else:
                    missing.append(f"{student}, {name}: not in the zip; grade it again, then run feedback")
        written.append(target)
    return written, missing
