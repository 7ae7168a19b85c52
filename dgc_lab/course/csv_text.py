"""A CSV file of somebody else's: single fields change, and every other byte stays as it was.

The csv module reads such a file, but writes it anew: quotes, line ends and what stands before the first line would be
its own, and a learning platform may stumble over that.
"""

from __future__ import annotations

import codecs
import csv
import re
from pathlib import Path

from dgc_lab.common import LabError

MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
DELIMITERS = (",", ";", "\t")


class CsvText:
    r"""The rows of a file, as they are written in it.

    Encoding (UTF-8, UTF-16 with its mark, else Windows-1252) and delimiter (comma, semicolon, tab) are found out.

    Args:
        data: the whole file.

    Raises:
        LabError: a quote is opened and never closed, or there is no row.

    Example:
        >>> table = CsvText(b'\xef\xbb\xbfID;"Name";Grade\r\n7;"Doe; Jane";\r\n')
        >>> table.rows[1], table.delimiter
        (['7', 'Doe; Jane', ''], ';')
        >>> table.put(1, 2, "1,5")
        >>> table.data()
        b'\xef\xbb\xbfID;"Name";Grade\r\n7;"Doe; Jane";1,5\r\n'
    """

    def __init__(self, data: bytes):
        self._mark = next((mark for mark in MARKS if data.startswith(mark)), b"")
        text, self._encoding = _decoded(data[len(self._mark) :], MARKS.get(self._mark))
        head = re.sub(r'"[^"]*"', "", text.split("\n", 1)[0])
        self.delimiter = max(DELIMITERS, key=head.count)
        self._raw, self._ends = _parts(text, self.delimiter)
        if not self._raw:
            raise LabError("the file is empty")
        self.rows = [[_value(field) for field in row] for row in self._raw]

    def put(self, row: int, column: int, value: str) -> None:
        """Another value for one field, in quotes where the old one was, or where it needs them."""
        needs = any(each in value for each in (self.delimiter, '"', "\n", "\r"))
        quoted = '"' + value.replace('"', '""') + '"'
        self._raw[row][column] = quoted if needs or self._raw[row][column].startswith('"') else value
        self.rows[row][column] = value

    def data(self) -> bytes:
        """The whole file."""
        rows = (self.delimiter.join(row) + end for row, end in zip(self._raw, self._ends, strict=True))
        return self._mark + "".join(rows).encode(self._encoding)


def _decoded(data: bytes, encoding: str | None) -> tuple[str, str]:
    for each in (encoding,) if encoding else ("utf-8", "cp1252"):
        try:
            return data.decode(each), each
        except UnicodeDecodeError:
            continue
    raise LabError("the file is neither UTF-8 nor UTF-16 nor Windows-1252")


def _parts(text: str, delimiter: str) -> tuple[list[list[str]], list[str]]:
    """The fields of each row with their quotes, and what ends each row."""
    field = re.compile(rf'((?:"(?:[^"]|"")*")?[^{delimiter}\r\n]*)({delimiter}|\r\n|\r|\n|\Z)')
    rows, ends, row, place = [], [], [], 0
    while place < len(text) or row:
        found = field.match(text, place)
        if found is None or (found[1].startswith('"') and found[1].count('"') % 2):
            raise LabError(f"row {len(rows) + 1} opens a quote that is never closed")
        row.append(found[1])
        place = found.end()
        if found[2] != delimiter:
            rows.append(row)
            ends.append(found[2])
            row = []
    return rows, ends


def _value(raw: str) -> str:
    """What a field says, without its quotes."""
    if not raw.startswith('"'):
        return raw
    inner = re.match(r'"((?:[^"]|"")*)"', raw)
    return inner[1].replace('""', '"') + raw[inner.end() :]


def read_table(path: Path) -> CsvText:
    """A table as a spreadsheet or a platform has written it; a LabError with the file's name where it is none."""
    try:
        return CsvText(Path(path).read_bytes())
    except LabError as error:
        raise LabError(f"{path}: {error}") from None


def read_rows(path: Path, columns) -> tuple[list[dict], str]:
    """The rows of a table of ours as dicts, and what parts its columns; a LabError where a column is missing."""
    table = read_table(path)
    heads, *rows = table.rows
    missing = [name for name in columns if name not in heads]
    if missing:
        raise LabError(f"{path} needs the columns {', '.join(columns)}; {', '.join(missing)} is not there")
    nothing = dict.fromkeys(heads, "")
    return [nothing | dict(zip(heads, row, strict=False)) for row in rows if any(row)], table.delimiter


def write_rows(path: Path, columns, rows, **form) -> None:
    """Write a table of ours as a CSV file: a line of headings, and one for each dict; ``form`` is ``csv``'s.

    Columns that only the rows have come last. By the mark before the text a spreadsheet knows that it is UTF-8.
    """
    columns = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, columns, **form)
        writer.writeheader()
        writer.writerows(rows)
