"""Variant numbers for each student, from the course's secret, so that nobody can compute another's.

A variant number is the start of HMAC-SHA-256 (RFC 2104) of the student's name under the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from pathlib import Path

from dgc_lab.common import LabError, read_text
from dgc_lab_grading.course.csv_text import read_table
from dgc_lab_grading.course.names import ascii_form, plain

LEAST_SECRET = 16  # characters
HEADING = re.compile(
    r"((student|user|sis|login|full|first|last|family|given|e-?mail|matriculation)[ _-]*)*"
    r"(student|name|surname|user|username|login|id|identifier|number|no\.?|e-?mail|address)s?"
    r"|(vollständiger |voll|vor|nach|familien|benutzer|anmelde)?name[n]?|studierende[nr]?|teilnehmer(/in|:in|in)?"
    r"|matrikel-?(nummer|nr\.?)|id-nummer|e-mail-adresse"
    r"|nom( complet| de famille| d['’]utilisateur)?|prénom|étudiante?s?|adresse de courriel|identifiant"
    r"|nombre( completo| de usuario)?|apellidos?(\(s\))?|alumn[oa]s?|estudiantes?|correo( electrónico)?",
    re.IGNORECASE,
)


def variant_number(secret: str, student: str) -> int:
    """Return the student's number, from 1 to 2**31 - 1; names with the same `ascii_form` share it.

    Example:
        >>> variant_number("a secret of the course", "Jane Doe") == variant_number("a secret of the course", "Jane-Doe")
        True
        >>> variant_number("a secret of the course", "jane") == variant_number("another secret of it", "jane")
        False
    """
    digest = hmac.new(secret.encode(), ascii_form(student).encode(), hashlib.sha256).digest()
    return 1 + int.from_bytes(digest[:4], "big") % (2**31 - 1)


def read_secret(path: Path | None, make: bool = False) -> str | None:
    """Read the course's secret from its file, or create it if ``make`` is true; None without a file."""
    if path is None:
        return None
    path = Path(path)
    if not path.exists():
        if not make:
            raise LabError(f"no secret at {path}: grading needs the secret file of the release")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(24) + "\n")
    secret = read_text(path).strip()
    if len(secret) < LEAST_SECRET:
        raise LabError(f"the secret in {path} must have at least {LEAST_SECRET} characters, got {len(secret)}")
    return secret


def read_roster(path: Path) -> dict[str, str]:
    """Map students' `plain` names to the names as written: one per line, or the first column of a CSV.

    A first line that is a heading (``Student``, ``Email address``, ...) is skipped. Names must differ in their ASCII
    form, from which `variant_number` is made. Lines like ``Doe, Jane``, without quotes and without headings for two
    columns, are rejected: their first column would be the last name.
    """
    path = Path(path)
    if not path.exists():
        raise LabError(f"no roster at {path}")
    table = read_table(path)
    rows = [row for row in table.rows if row[0].strip()]
    heading = rows.pop(0) if rows and HEADING.fullmatch(rows[0][0].strip()) else []
    split = [row for row in rows if len(row) > 1 and row[1].startswith(" ")] if table.delimiter == "," else []
    if split and len(heading) < 2:
        first = ",".join(split[0])
        raise LabError(
            f"{path}: {first!r} may be one name or two columns. Put names with a comma in quotes, "
            "or add a line of headings, such as name,email"
        )
    names = [row[0].strip() for row in rows]
    by_form: dict[str, str] = {}
    for name in names:
        if ascii_form(name) in by_form:
            raise LabError(f"{path}: {name!r} and {by_form[ascii_form(name)]!r} cannot be told apart in file names")
        by_form[ascii_form(name)] = name
    if not names:
        raise LabError(f"{path} contains no students")
    return {plain(name): name for name in by_form.values()}
