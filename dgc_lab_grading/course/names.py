"""Students' names as names of folders: as people write them, safe in paths, and unique."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable

from dgc_lab.common import LabError

MOST_BYTES = 80  # of a name in UTF-8


def plain(name: str) -> str:
    """Return a name for a folder: letters and digits of all scripts, and ``. _ -``.

    Example:
        >>> plain("José  O'Neill"), plain("../x"), plain("李 雷"), plain("?")
        ('José-O-Neill', 'x', '李-雷', 'unknown')
    """
    name = unicodedata.normalize("NFC", name)
    name = "".join(each if each in "._" or unicodedata.category(each)[0] in "LMN" else "-" for each in name)
    name = re.sub("-+", "-", name).strip("-._")
    return name.encode()[:MOST_BYTES].decode(errors="ignore") or "unknown"


def ascii_form(name: str) -> str:
    """Return a name in ASCII, to compare it with the spelling of a platform or an old zip program.

    Example:
        >>> ascii_form("José  O'Neill"), ascii_form("Jose-O-Neill"), ascii_form("李")
        ('Jose-O-Neill', 'Jose-O-Neill', 'u674e')
    """
    name = unicodedata.normalize("NFKD", name)
    name = "".join(each for each in name if not unicodedata.combining(each))
    name = "".join(each if ord(each) < 128 else f"u{ord(each):x}" for each in name)
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-._")[:80] or "unknown"


def spelled_like(name: str, others: Collection[str]) -> str:
    """Return the only one of ``others`` with the same ASCII form; else the name itself.

    Example:
        >>> spelled_like("Jorg", ["Jörg", "Ann"]), spelled_like("Jorg", ["Jörg", "Jórg"])
        ('Jörg', 'Jorg')
    """
    alike = [other for other in others if ascii_form(other) == ascii_form(name)]
    return name if name in others or len(alike) != 1 else alike[0]


def distinct(people: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Give each person (a plain name and a suffix) a unique name: namesakes get their suffixes.

    Names also differ if upper and lower case are the same, as on some disks.

    Example:
        >>> distinct([("Ann", "1"), ("ann", "2"), ("Ann-1", "3")])
        {('Ann-1', '3'): 'Ann-1', ('Ann', '1'): 'Ann-1-1', ('ann', '2'): 'ann-2'}
    """
    people = sorted(set(people))
    count = Counter(name.casefold() for name, _ in people)
    named = {person: person[0] for person in people if count[person[0].casefold()] == 1}
    taken = {name.casefold() for name in named.values()}
    for name, suffix in people:
        if (name, suffix) in named:
            continue
        made = f"{name}-{suffix}"
        while made.casefold() in taken:
            made += f"-{suffix}"
        taken.add(made.casefold())
        named[name, suffix] = made
    return named


def meant(name: str, students: Collection[str], what: str) -> str:
    """Return the student that a typed name refers to, ignoring case and accents.

    Raises:
        LabError: no student matches, or several; the message says that the name has no ``what``, and lists similar
            names that have one.

    Example:
        >>> meant("jorg doe", ["Jörg-Doe", "John-Roe"], "submission")
        'Jörg-Doe'
    """
    lower, typed = plain(name).lower(), ascii_form(name).lower()
    matches = (
        [each for each in students if name == each]
        or [each for each in students if lower == each.lower()]
        or [each for each in students if typed == ascii_form(each).lower()]
    )
    if len(matches) == 1:
        return matches[0]
    close = difflib.get_close_matches(lower, [each.lower() for each in students], n=5)
    near = matches or [each for each in students if each.lower() in close] or sorted(students)[:5]
    raise LabError(f"{name!r} has no {what}; these have: {', '.join(near)}")
