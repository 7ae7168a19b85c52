"""Individual numbers for each student, derived from a variant number.

The notebook holds the variant number, which `dgc_lab_grading.course.roster` derives from the course's secret and the
student. The same number gives the same exercise everywhere.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Variant:
    """Source of one student's numbers.

    Attributes:
        number: the variant number; 0 is the exercise that everybody gets by default.
        attempt: the number of draws that were rejected before this one; see `first`.

    Example:
        >>> one, other = Variant(1), Variant(2)
        >>> one.whole("workers", 2, 64) == Variant(1).whole("workers", 2, 64)
        True
        >>> one.gradient("mine", 5).shape, bool((one.gradient("mine", 5) == other.gradient("mine", 5)).any())
        ((5,), False)
    """

    number: int = 0
    attempt: int = 0

    def seed(self, name: str) -> int:
        """Return a seed below 2**32 that depends on ``name``."""
        key = f"{self.number}/{name}" + (f"/{self.attempt}" if self.attempt else "")
        return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")

    def first(self, draw: Callable[[Variant], object], is_suitable: Callable[[object], bool]):
        """Return the first suitable draw, in which a wrong method gives a wrong number.

        Example:
            >>> Variant(3).first(lambda variant: variant.whole("dice", 1, 6), lambda eyes: eyes == 6)
            6
        """
        drawn = (draw(replace(self, attempt=attempt)) for attempt in itertools.count())
        return next(filter(is_suitable, drawn))

    def whole(self, name: str, least: int, most: int) -> int:
        """Return a whole number from ``least`` to ``most``, both included."""
        return least + self.seed(name) % (most - least + 1)

    def choice(self, name: str, options: Sequence):
        """Return one of the options."""
        return options[self.seed(name) % len(options)]

    def gradient(self, name: str, elements: int) -> np.ndarray:
        """Return float32 (elements,) over a few powers of ten, like a layer's gradient."""
        rng = np.random.default_rng(self.seed(name))
        return (rng.normal(size=elements) * 10 ** rng.uniform(-3, 0, size=elements)).astype(np.float32)
