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
        for word in check_list("words", self.words):
            check_text("words", word)
        if tuple(self.words[: len(SPECIAL)]) != SPECIAL or len(set(self.words)) < len(self.words):
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


def python_reference() -> str:
    """Return Python's language reference as ``help()`` shows it, each paragraph once.

    Raises DataError if this Python does not include it.

    References:
        `pydoc_data.topics`, generated from https://docs.python.org/3/reference (PSF License)
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise DataError("this Python has no pydoc_data.topics: pass your own text, as in corpus(text)") from error
    return "\n\n".join(dict.fromkeys(paragraph for topic in sorted(topics) for paragraph in paragraphs(topics[topic])))


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a text, with all white space in them replaced by single spaces."""
    stripped = (" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", text))
    return [paragraph for paragraph in stripped if paragraph]


def corpus(text: str | None = None, length: int = 16, least: int = 5, seed: int = 0) -> Corpus:
    """Split a text into sequences, with a tenth of its paragraphs held out for testing.

    Args:
        text: paragraphs separated by empty lines; `python_reference` if None.
        length: number of words in a sequence, at least 2; an incomplete last sequence is dropped.
        least: words that occur less often in the training part become ``[UNK]``.
        seed: random seed of the choice of held-out paragraphs, an integer.

    Raises:
        ValueError: an argument is not in its range, or the text is too short for one sequence in each part.
        DataError: ``text`` is None, and this Python does not include its reference.

    Example:
        >>> words = corpus()
        >>> words.train.shape[1], len(words.train) > 5 * len(words.test)
        (16, True)
    """
    if text is not None:
        check_text("text", text)
    check_whole("length", length, 2, 10_000)
    check_whole("least", least, 1)
    check_whole("seed", seed, 0)
    every = list(dict.fromkeys(paragraphs(python_reference() if text is None else text)))
    out = np.random.default_rng(seed).random(len(every)) < HELD_OUT
    parts = ["\n\n".join(p for p, is_out in zip(every, out, strict=True) if is_out == wanted) for wanted in (0, 1)]
    vocabulary = Vocabulary.of(parts[0], least)
    numbers = [vocabulary.encode(part) for part in parts]
    sequences = [part[: len(part) // length * length].reshape(-1, length) for part in numbers]
    if not all(map(len, sequences)):
        counts = " and ".join(str(len(part)) for part in numbers)
        raise ValueError(f"text must have {length} words to train on and as many held out, got {counts}")
    return Corpus(vocabulary, *sequences)
