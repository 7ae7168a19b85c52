"""The task that BERT learns from: guess the words that were masked. What is masked, and how good the guesses are.

Source: Devlin, Chang, Lee, Toutanova, arXiv:1810.04805, section 3.1, task 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import Seed, check_some, check_whole
from dgc_lab.workloads.text import MASK, SPECIAL, UNKNOWN, Vocabulary

SHARE = 0.15  # of the words are to be guessed; of these
MASKED, REPLACED = 0.8, 0.1  # so many become [MASK], so many a random word, and the rest stays as it is
NUMBER_OF = {word: number for number, word in enumerate(SPECIAL)}


class Masked(NamedTuple):
    """Sequences with words to guess, all int32."""

    words: tf.Tensor  # (sequences, length), as the model sees them
    places: tf.Tensor  # (sequences, guesses), rising: where the words to guess stand
    targets: tf.Tensor  # (sequences, guesses): which they are

    @property
    def example(self):
        """``((words, places), targets)``: what a Keras model's ``fit`` takes as x and y."""
        return (self.words, self.places), self.targets


def guesses(length: int) -> int:
    """How many words of a sequence are to be guessed: 15 %, rounded, at least 1.

    Example:
        >>> guesses(32), guesses(3)
        (5, 1)
    """
    return max(1, round(SHARE * length))


def mask_words(words: ArrayLike, vocabulary_size: int, seed: Seed) -> Masked:
    """Choose 15 % of the words of each sequence, unknown ones only where there are too few others.

    Of these, 80 % become [MASK], 10 % a random word, 10 % stay.
    A ValueError for no rows of numbers, or too small a vocabulary.

    Args:
        words: int (sequences, length), word numbers; numpy or tensor.
        vocabulary_size: random words are drawn from the numbers below it, the special ones left out.
        seed: two integers, or an int tensor (2,): the same seed masks the same words.

    Example:
        >>> masked = mask_words(tf.range(2, 34)[None], vocabulary_size=40, seed=(0, 0))
        >>> masked.targets.shape, bool(tf.reduce_all(masked.targets == masked.places + 2))
        (TensorShape([1, 5]), True)
    """
    check_whole("vocabulary_size", vocabulary_size, len(SPECIAL) + 1, 2**31 - 1)
    words = tf.convert_to_tensor(words)
    if not words.dtype.is_integer or words.shape.rank != 2:
        raise ValueError(f"words must be rows of whole numbers, got {words.dtype.name} of {words.shape}")
    words = tf.cast(words, tf.int32)
    sequences, length = tf.shape(words)[0], words.shape[1]
    number = guesses(length)
    seeds = tf.unstack(tf.random.experimental.stateless_split(tf.cast(seed, tf.int32), 3))
    lot = tf.random.stateless_uniform([sequences, length], seeds[0]) - tf.cast(words == NUMBER_OF[UNKNOWN], tf.float32)
    places = tf.sort(tf.math.top_k(lot, number).indices, axis=1)
    targets = tf.gather(words, places, batch_dims=1)
    fate = tf.random.stateless_uniform([sequences, number], seeds[1])
    random = tf.random.stateless_uniform([sequences, number], seeds[2], len(SPECIAL), vocabulary_size, tf.int32)
    shown = tf.where(fate < MASKED, NUMBER_OF[MASK], tf.where(fate < MASKED + REPLACED, random, targets))
    rows = tf.broadcast_to(tf.range(sequences)[:, None], [sequences, number])
    return Masked(tf.tensor_scatter_nd_update(words, tf.stack([rows, places], 2), shown), places, targets)


def masked_batches(sequences: ArrayLike, vocabulary: Vocabulary, batch: int, seed: int = 0):
    """A function from the number of a batch to its examples, for `dgc_lab.training.model_trainer.ModelTrainer`.

    Every epoch walks the ``sequences``, int32 (n, length), in a new order, with new words masked; both are drawn from
    ``seed``, 0 to 2 147 483 647. A ValueError for no rows of numbers, or fewer than one in a batch.

    Example:
        >>> vocabulary = Vocabulary(("[UNK]", "[MASK]", "the", "a", "of"))
        >>> batches = masked_batches(np.full((10, 20), 3), vocabulary, batch=4)
        >>> (shown, places), targets = batches(tf.constant(0))
        >>> shown.shape, places.shape, targets.numpy()[0].tolist()
        (TensorShape([4, 20]), TensorShape([4, 3]), [3, 3, 3])
    """
    from dgc_lab.workloads.batches import pick_batch

    check_whole("batch", batch, 1)
    check_whole("seed", seed, 0, 2**31 - 1)
    sequences = tf.constant(sequences)
    if sequences.shape.rank != 2 or not sequences.dtype.is_integer or not sequences.shape[0]:
        raise ValueError(f"sequences must be rows of words' numbers, got {sequences.dtype.name} of {sequences.shape}")

    def examples(turn):
        words, _ = pick_batch(sequences, tf.range(len(sequences)), turn, batch, tf.constant(seed))
        return mask_words(words, len(vocabulary), tf.stack([tf.constant(seed), turn])).example

    return examples


def most_frequent(targets: ArrayLike, vocabulary: Vocabulary) -> tuple[str, float]:
    """The most frequent word among the targets, and the accuracy of always guessing it.

    ``targets`` are numbers of words in the ``vocabulary``, int, of any shape.
    A ValueError for numbers that are no words.

    Example:
        >>> most_frequent([2, 3, 2, 4], Vocabulary(("[UNK]", "[MASK]", "the", "a", "of")))
        ('the', 0.5)
    """
    places = check_some("targets", np.ravel(targets))
    if places.dtype.kind not in "iu" or not 0 <= places.min() <= places.max() < len(vocabulary):
        raise ValueError(f"targets must be words' numbers, from 0 to {len(vocabulary) - 1}, got {targets!r}")
    counts = np.bincount(np.ravel(targets), minlength=len(vocabulary))
    return vocabulary.words[int(counts.argmax())], float(counts.max() / counts.sum())
