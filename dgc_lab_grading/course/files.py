"""Replace a file in one step, so that an interruption or a full disk leaves the old content or the new one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of a new file, which replaces the old one at the end; after an error the old one stays.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "marks.csv"
        >>> with replacing(path) as new:
        ...     new.write_text("student"), path.exists()
        (7, False)
        >>> path.read_text()
        'student'
    """
    path = Path(path).resolve()  # a link stays one
    new = path.with_name(f"{path.name}.new")
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
