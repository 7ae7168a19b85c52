"""When a submission was handed in, in the learning platform's local time."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from pathlib import Path, PurePosixPath

# A folder or file name made by Brightspace; its number differs from the one in the gradebook.
BRIGHTSPACE = re.compile(
    r"^(?P<number>\d+)-\d+ ?- ?(?P<name>.+?) ?- ?(?P<day>[^-]*\b\d{4})\b,? (?P<time>\d[\d.:]* ?(?:[AP]M)?)(?: ?- .*)?$"
)


def handed_in_at(path: PurePosixPath | Path, modified: float | None, canvas: bool) -> str | None:
    """Return when a file was handed in, as ISO time: from its name, or else its modification time.

    Returns None if neither is known, for example if a Brightspace name has its month in another language.

    Args:
        path: path below the folder of all submissions, as named by the platform.
        modified: modification time in seconds since 1970. None if it means something else: Moodle's zips have the time
            of the download.
        canvas: whether Canvas named the file. Its zips have the time of the download, too; all that the name tells is
            whether the file is ``"late"``.

    Example:
        >>> from pathlib import PurePosixPath as P
        >>> handed_in_at(P("Masking_jdoe_attempt_2026-11-21-10-05-00_x.ipynb"), 0, False)
        '2026-11-21T10:05:00'
        >>> handed_in_at(P("12-34 - Jane Doe - Nov 21, 2026 105 PM/x.ipynb"), 0, False)
        '2026-11-21T13:05:00'
        >>> handed_in_at(P("12-34 - Jane Doe - 21 November, 2026 14.05 - x.ipynb"), 0, False)
        '2026-11-21T14:05:00'
        >>> [handed_in_at(P(f"doejane{late}_123_456_x.ipynb"), 0, True) for late in ("_LATE", "")]
        ['late', None]
    """
    if found := re.search(r"_attempt_(\d{4}-\d\d-\d\d)-(\d\d)-(\d\d)-(\d\d)", path.name):
        return f"{found[1]}T{found[2]}:{found[3]}:{found[4]}"
    if canvas:
        return "late" if re.search("(^|_)LATE_", path.stem) else None
    if found := BRIGHTSPACE.match(path.parts[0] if len(path.parts) > 1 else path.stem):
        return _brightspace_time(found["day"], found["time"])
    return None if modified is None else dt.datetime.fromtimestamp(modified).isoformat(timespec="seconds")


def _brightspace_time(day: str, time: str) -> str | None:
    """Return the ISO form of ``Nov 21, 2026`` and ``105 PM``, or ``21 November, 2026`` and ``14.05``; else None."""
    digits, am_pm = re.sub(r"\D", "", time), time[-2:] if time.endswith("M") else ""
    text = f"{day.replace(',', '').strip()} {digits.zfill(len(digits) + len(digits) % 2)[:4]}{am_pm}"
    for date_format in ("%b %d %Y ", "%B %d %Y ", "%d %b %Y ", "%d %B %Y "):
        with contextlib.suppress(ValueError):
            return dt.datetime.strptime(text, date_format + ("%I%M%p" if am_pm else "%H%M")).isoformat()
    return None
