"""Word numbers for a language model, from a text that needs no download: CPython's own language reference.

Its topics repeat paragraphs of each other, so the text contains each paragraph once. Whole paragraphs are held out.

Lesson 7.
"""

from __future__ import annotations

import collections
import functools
import re
from dataclasses import dataclass

import numpy as np

from dgc_lab.common import check_list, check_text, check_whole
from dgc_lab.workloads.dataset import DataError

HELD_OUT = 0.1  # share of the paragraphs for testing
LENGTH = 16  # words in a sequence
UNKNOWN, MASK = "[UNK]", "[MASK]"
SPECIAL = (UNKNOWN, MASK)  # numbers 0 and 1
# A word, a number, or a sign with its repetitions (a line of dashes is one token).
TOKEN = re.compile(r"[^\W\d_]+|\d+|([\W_])\1*")


def tokens(text: str) -> list[str]:
    """Return the words, numbers and signs of a text in order, a repeated sign as one, without white space."""
    return [match.group() for match in TOKEN.finditer(text) if not match.group().isspace()]


@dataclass(frozen=True)
class Vocabulary:
    """Words and their numbers: ``[UNK]``, number 0, stands for unknown words, and ``[MASK]`` is number 1.

    Attributes:
        words: distinct words in the order of their numbers, the two special ones first.

    Raises:
        ValueError: ``words`` does not begin with the special words, or has a word twice.

    Example:
        >>> vocabulary = Vocabulary.of("the cat and the dog and the bird", least=2)
        >>> vocabulary.words
        ('[UNK]', '[MASK]', 'the', 'and')
        >>> vocabulary.encode("the cat").tolist(), vocabulary.decode([3, 2, 0])
        ([2, 0], 'and the [UNK]')
    """

    words: tuple[str, ...]

    def __post_init__(self):
        words = tuple(check_text("words", word) for word in check_list("words", self.words))
        object.__setattr__(self, "words", words)
        if words[: len(SPECIAL)] != SPECIAL or len(set(words)) < len(words):
            raise ValueError(f"words must begin with {', '.join(SPECIAL)} and be distinct, got {self.words[:5]}...")

    @classmethod
    def of(cls, text: str, least: int = 5) -> Vocabulary:
        """Make a vocabulary of the words that occur at least ``least`` times, by frequency, then alphabetically."""
        check_whole("least", least, 1)
        counts = collections.Counter(tokens(text))
        frequent = sorted((word for word in counts if counts[word] >= least), key=lambda word: (-counts[word], word))
        return cls((*SPECIAL, *frequent))

    def __len__(self):
        return len(self.words)

    @functools.cached_property
    def numbers(self) -> dict[str, int]:
        """Numbers by word."""
        return {word: number for number, word in enumerate(self.words)}

    def encode(self, text: str) -> np.ndarray:
        """Return the number of each token of the text, int32 (tokens,)."""
        return np.array([self.numbers.get(token, 0) for token in tokens(text)], np.int32)

    def decode(self, numbers) -> str:
        """Return the words with these numbers, separated by spaces; raise ValueError if a number has no word."""
        numbers = [int(number) for number in np.asarray(numbers).ravel()]
        wrong = [number for number in numbers if not 0 <= number < len(self)]
        if wrong:
            raise ValueError(f"numbers must be from 0 to {len(self) - 1}, got {wrong[0]}")
        return " ".join(self.words[number] for number in numbers)


@dataclass(frozen=True)
class Corpus:
    """Text as int32 sequences of word numbers, (sequences, length), with the vocabulary of the training part."""

    vocabulary: Vocabulary
    train: np.ndarray
    test: np.ndarray


def reference_text() -> str:
    """Return Python's language reference as ``help()`` shows it, each paragraph once.

    Raises DataError if this Python does not include it.

    References:
        `pydoc_data.topics`, generated from https://docs.python.org/3/reference (PSF License)
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataError("this Python has no pydoc_data.topics: use another Python, or another data set") from error
    return "\n\n".join(dict.fromkeys(paragraph for topic in sorted(topics) for paragraph in paragraphs(topics[topic])))


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, with all white space in them replaced by single spaces."""
    stripped = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return [paragraph for paragraph in stripped if paragraph]


def hold_out(every: list[str]) -> tuple[list[str], list[str]]:
    """Return the paragraphs to train on, and a tenth of them, chosen at random, to test on."""
    out = np.random.default_rng(0).random(len(every)) < HELD_OUT
    train, test = ([p for p, is_out in zip(every, out, strict=True) if is_out == wanted] for wanted in (False, True))
    return train, test


def corpus() -> Corpus:
    """Return Python's language reference as sequences of 16 words, with a tenth of its paragraphs held out.

    Words that occur less than five times in the training part become ``[UNK]``.

    Raises:
        DataError: this Python does not include its reference.

    Example:
        >>> words = corpus()
        >>> words.train.shape[1], len(words.train) > 5 * len(words.test)
        (16, True)
    """
    parts = ["\n\n".join(part) for part in hold_out(paragraphs(reference_text()))]
    vocabulary = Vocabulary.of(parts[0])
    numbers = [vocabulary.encode(part) for part in parts]
    return Corpus(vocabulary, *(part[: len(part) // LENGTH * LENGTH].reshape(-1, LENGTH) for part in numbers))
