"""Numbers of one's own: from a student's variant number follow all numbers of the exercises.

The notebook holds the variant number; `dgc_lab.course.roster` makes it from the course's secret and the student. The
same number gives the same exercise everywhere.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Variant:
    """One student's numbers.

    Attributes:
        number: the variant number, 0 for the exercise that everybody has.
        attempt: how many draws came before this one, see `first`.

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
        """A seed for a thing of this name, below 2**32."""
        told = f"{self.number}/{name}" + (f"/{self.attempt}" if self.attempt else "")
        return int.from_bytes(hashlib.sha256(told.encode()).digest()[:4], "big")

    def first(self, draw: Callable[[Variant], object], suits: Callable[[object], bool]):
        """The first of its draws that suits: one in which a wrong way does not lead to the right number.

        Example:
            >>> Variant(3).first(lambda variant: variant.whole("dice", 1, 6), lambda eyes: eyes == 6)
            6
        """
        drawn = (draw(replace(self, attempt=attempt)) for attempt in itertools.count())
        return next(filter(suits, drawn))

    def whole(self, name: str, least: int, most: int) -> int:
        """A whole number from least to most."""
        return least + self.seed(name) % (most - least + 1)

    def choice(self, name: str, options: Sequence):
        """One of the options."""
        return options[self.seed(name) % len(options)]

    def gradient(self, name: str, elements: int) -> np.ndarray:
        """float32 (elements,), normally distributed, of a few powers of ten, like a layer's gradient."""
        rng = np.random.default_rng(self.seed(name))
        return (rng.normal(size=elements) * 10 ** rng.uniform(-3, 0, size=elements)).astype(np.float32)
