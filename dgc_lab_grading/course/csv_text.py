"""Edit single fields of a CSV file from another program; every other byte stays the same.

The csv module would rewrite quotes, line ends and the byte order mark, which a learning platform may reject.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import re
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab_grading.course.files import replacing

MARKS = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
DELIMITERS = (",", ";", "\t")
LINE_BREAK = re.compile(r"\r\n|\r|\n")


class Row(dict):
    """A row of one of our tables: its fields by column, and the line of the file that it begins on."""

    def __init__(self, fields, line: int):
        super().__init__(fields)
        self.line = line


class CsvText:
    r"""Rows of a CSV file whose fields can be replaced.

    The encoding (UTF-8, UTF-16 with a byte order mark, else Windows-1252) and the delimiter (comma, semicolon, tab) are
    detected.

    Args:
        data: content of the file.

    Raises:
        LabError: a quote is never closed, or the file is empty.

    Example:
        >>> table = CsvText(b'\xef\xbb\xbfID;"Name";Grade\r\n7;"Doe; Jane";\r\n')
        >>> table.rows[1], table.delimiter
        (['7', 'Doe; Jane', ''], ';')
        >>> table.put(1, 2, "1,5")
        >>> table.data()
        b'\xef\xbb\xbfID;"Name";Grade\r\n7;"Doe; Jane";1,5\r\n'
    """

    def __init__(self, data: bytes):
        self._bom = next((bom for bom in MARKS if data.startswith(bom)), b"")
        text, self._encoding = _decoded(data[len(self._bom) :], MARKS.get(self._bom))
        head = re.sub(r'"[^"]*"', "", text.split("\n", 1)[0])
        self.delimiter = max(DELIMITERS, key=head.count)
        self._raw, self._ends = _parts(text, self.delimiter)
        if not self._raw:
            raise LabError("the file is empty")
        self.rows = [[_value(field) for field in row] for row in self._raw]

    def put(self, row: int, column: int, value: str) -> None:
        """Replace one field; quote it if the old value was quoted or the new one needs it."""
        needs_quotes = any(each in value for each in (self.delimiter, '"', "\n", "\r"))
        quoted = '"' + value.replace('"', '""') + '"'
        self._raw[row][column] = quoted if needs_quotes or self._raw[row][column].startswith('"') else value
        self.rows[row][column] = value

    def lines(self) -> list[int]:
        """Return the number of each row's first line in the file, from 1; a quoted field may span several lines."""
        breaks = (1 + sum(len(LINE_BREAK.findall(field)) for field in row) for row in self._raw)
        return list(itertools.accumulate(breaks, initial=1))[:-1]

    def data(self) -> bytes:
        """Return the content of the whole file."""
        rows = (self.delimiter.join(row) + end for row, end in zip(self._raw, self._ends, strict=True))
        return self._bom + "".join(rows).encode(self._encoding)


def _decoded(data: bytes, encoding: str | None) -> tuple[str, str]:
    for candidate in (encoding,) if encoding else ("utf-8", "cp1252"):
        try:
            return data.decode(candidate), candidate
        except UnicodeDecodeError:
            continue
    raise LabError("the file is neither UTF-8 nor UTF-16 nor Windows-1252")


def _parts(text: str, delimiter: str) -> tuple[list[list[str]], list[str]]:
    """Split a text into rows of raw fields, and return the line end of each row, too."""
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
    """Return a field's value without quotes."""
    if not raw.startswith('"'):
        return raw
    inner = re.match(r'"((?:[^"]|"")*)"', raw)
    return inner[1].replace('""', '"') + raw[inner.end() :]


def read_table(path: Path) -> CsvText:
    """Read a table written by a spreadsheet or platform; errors name the file."""
    try:
        return CsvText(Path(path).read_bytes())
    except LabError as error:
        raise LabError(f"{path}: {error}") from None


def read_rows(path: Path, columns) -> tuple[list[Row], str]:
    """Return the rows of one of our tables, without blank ones, and its delimiter; LabError if columns are missing."""
    table = read_table(path)
    heads = table.rows[0]
    missing = [name for name in columns if name not in heads]
    if missing:
        raise LabError(f"{path} must have the columns {', '.join(columns)}; missing: {', '.join(missing)}")
    blank, numbered = dict.fromkeys(heads, ""), zip(table.rows, table.lines(), strict=True)
    rows = [Row(blank | dict(zip(heads, row, strict=False)), line) for row, line in numbered if any(row)]
    return rows[1:], table.delimiter


def write_rows(path: Path, columns, rows, **form) -> None:
    """Replace one of our tables, as CSV: a header, then a row for each dict; ``form`` goes to the csv writer.

    Columns that occur only in rows come last. The byte order mark tells spreadsheets that the file is UTF-8.
    """
    columns = list(dict.fromkeys([*columns, *(name for row in rows for name in row)]))
    with replacing(path) as new, new.open("w", newline="", encoding="utf-8-sig") as file:
        writer = csv.DictWriter(file, columns, **form)
        writer.writeheader()
        writer.writerows(rows)
