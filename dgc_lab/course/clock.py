"""When something was handed in, by the clock on the platform's wall."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from pathlib import Path, PurePosixPath

# A folder or a file as Brightspace calls it; the number is not the one that its gradebook has.
BRIGHTSPACE = re.compile(
    r"^(?P<number>\d+)-\d+ ?- ?(?P<name>.+?) ?- ?(?P<day>[^-]*\b\d{4})\b,? (?P<time>\d[\d.:]* ?(?:[AP]M)?)(?: ?- .*)?$"
)


def handed_in_at(path: PurePosixPath | Path, modified: float | None, canvas: bool) -> str | None:
    """When a file was handed in, by the platform's clock, in ISO's form: from its name, else from its own time.

    None where neither is known, as where Brightspace's name for it has a month in another language.

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
    """ISO's form of ``Nov 21, 2026`` and ``105 PM``, or of ``21 November, 2026`` and ``14.05``; None for others."""
    digits, half = re.sub(r"\D", "", time), time[-2:] if time.endswith("M") else ""
    told = f"{day.replace(',', '').strip()} {digits.zfill(len(digits) + len(digits) % 2)[:4]}{half}"
    for form in ("%b %d %Y ", "%B %d %Y ", "%d %b %Y ", "%d %B %Y "):
        with contextlib.suppress(ValueError):
            return dt.datetime.strptime(told, form + ("%I%M%p" if half else "%H%M")).isoformat()
    return None
