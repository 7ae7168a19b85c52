"""Progress of grading, on the screen and in a log: a class of two hundred is graded overnight."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

FILE = "grading.log"


class Journal:
    """Logger that prints a line, and appends it with the time to ``grading.log`` in the grading folder."""

    def __init__(self, folder: Path):
        self.path = Path(folder) / FILE

    def __call__(self, line: str) -> None:
        """Log one line."""
        print(line, flush=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{dt.datetime.now().isoformat(sep=' ', timespec='seconds')}  {line}\n")
