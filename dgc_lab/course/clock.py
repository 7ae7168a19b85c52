"""When something was handed in, by the clock on the platform's wall."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from pathlib import Path, PurePosixPath


def handed_in_at(path: PurePosixPath | Path, modified: float | None, canvas: bool) -> str | None:
    """When a file was handed in, by the platform's clock, in ISO's form: from its name, else from its own time.

    Args:
        path: below the folder of all hand-ins, as the platform has called it.
        modified: the file's own time, in seconds since 1970; None where it is another one, as in Moodle's zips: they
            have the time of downloading.
        canvas: whether Canvas has named it, which writes the time of downloading into its zips; of its files it is only
            known whether they are ``"late"``.

    Example:
        >>> from pathlib import PurePosixPath as P
        >>> handed_in_at(P("Masking_jdoe_attempt_2026-11-21-10-05-00_x.ipynb"), 0, False)
        '2026-11-21T10:05:00'
        >>> handed_in_at(P("12-34 - Jane Doe - Nov 21, 2026 105 PM/x.ipynb"), 0, False)
        '2026-11-21T13:05:00'
        >>> [handed_in_at(P(f"doejane{late}_123_456_x.ipynb"), 0, True) for late in ("_LATE", "")]
        ['late', None]
    """
    if found := re.search(r"_attempt_(\d{4}-\d\d-\d\d)-(\d\d)-(\d\d)-(\d\d)", path.name):
        return f"{found[1]}T{found[2]}:{found[3]}:{found[4]}"
    if canvas:
        return "late" if re.search("(^|_)LATE_", path.stem) else None
    told = path.parts[0].rpartition(" - ")[2].replace(":", "")  # Brightspace's folders end in it
    told = re.sub(r"\b(\d\d\d) (?=[AP]M$)", r"0\1 ", told)
    for form in ("%b %d, %Y %I%M %p", "%B %d, %Y %I%M %p", "%d %B, %Y %I%M %p"):
        with contextlib.suppress(ValueError):
            return dt.datetime.strptime(told, form).isoformat()
    return modified and dt.datetime.fromtimestamp(modified).isoformat(timespec="seconds")
