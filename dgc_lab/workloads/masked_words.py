"""Masked language modelling, the training task of BERT: the choice of masked words, batches, and a baseline.

Source: Devlin, Chang, Lee, Toutanova, arXiv:1810.04805, section 3.1, task 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike

from dgc_lab.common import Seed, check_some, check_whole
from dgc_lab.workloads.batches import Batches, pick_batch
from dgc_lab.workloads.text import MASK, SPECIAL, UNKNOWN, Vocabulary

SHARE = 0.15  # share of the words to predict
MASKED, REPLACED = 0.8, 0.1  # shares of these that become [MASK] or a random word; the others are unchanged
NUMBER_OF = {word: number for number, word in enumerate(SPECIAL)}


class Masked(NamedTuple):
    """Sequences with masked words, all int32."""

    words: tf.Tensor  # (sequences, length), the input of the model
    places: tf.Tensor  # (sequences, guesses), the ascending positions of the words to predict
    targets: tf.Tensor  # (sequences, guesses), the words to predict

    @property
    def example(self):
        """``((words, places), targets)``, the x and y of a Keras model's ``fit``."""
        return (self.words, self.places), self.targets


def guesses(length: int) -> int:
    """Return the number of words to predict in a sequence: 15 %, rounded, at least 1.

    Example:
        >>> guesses(32), guesses(3)
        (5, 1)
    """
    return max(1, round(SHARE * length))


def mask_words(words: ArrayLike, vocabulary_size: int, seed: Seed) -> Masked:
    """Choose 15 % of the words of each sequence to predict; of these, mask 80 % and replace 10 % by a random word.

    The other 10 % are unchanged. Unknown words are chosen only if there are too few others.

    Args:
        words: int (sequences, length), word numbers; numpy or tensor.
        vocabulary_size: random words are drawn from the numbers below it, except those of the special words.
        seed: two integers, or an int tensor (2,); the same seed masks the same words.

    Raises:
        ValueError: ``words`` are not rows of whole numbers, or the vocabulary is too small.

    Example:
        >>> masked = mask_words(tf.range(2, 34)[None], vocabulary_size=40, seed=(0, 0))
        >>> masked.targets.shape, bool(tf.reduce_all(masked.targets == masked.places + 2))
        (TensorShape([1, 5]), True)
    """
    check_whole("vocabulary_size", vocabulary_size, len(SPECIAL) + 1, 2**31 - 1)
    words = tf.convert_to_tensor(words)
    if not words.dtype.is_integer or words.shape.rank != 2:
        raise ValueError(f"words must be rows of whole numbers, got {words.dtype.name} of shape {words.shape}")
    words = tf.cast(words, tf.int32)
    sequences, length = tf.shape(words)[0], words.shape[1]
    number = guesses(length)
    seeds = tf.unstack(tf.random.experimental.stateless_split(tf.cast(seed, tf.int32), 3))
    is_unknown = tf.cast(words == NUMBER_OF[UNKNOWN], tf.float32)
    priorities = tf.random.stateless_uniform([sequences, length], seeds[0]) - is_unknown
    places = tf.sort(tf.math.top_k(priorities, number).indices, axis=1)
    targets = tf.gather(words, places, batch_dims=1)
    draw = tf.random.stateless_uniform([sequences, number], seeds[1])
    random = tf.random.stateless_uniform([sequences, number], seeds[2], len(SPECIAL), vocabulary_size, tf.int32)
    shown = tf.where(draw < MASKED, NUMBER_OF[MASK], tf.where(draw < MASKED + REPLACED, random, targets))
    rows = tf.broadcast_to(tf.range(sequences)[:, None], [sequences, number])
    return Masked(tf.tensor_scatter_nd_update(words, tf.stack([rows, places], 2), shown), places, targets)


def masked_batches(sequences: ArrayLike, vocabulary: Vocabulary, batch: int, seed: int = 0) -> Batches:
    """Return a function that maps a step to its batch, for `dgc_lab.training.model_trainer.ModelTrainer`.

    Each epoch visits the ``sequences``, int32 (n, length), in a new order and masks different words. Both depend on
    ``seed``, from 0 to 2 147 483 647, and random words are from ``vocabulary``. Raises ValueError if ``sequences``
    are not rows of whole numbers, ``batch`` is below 1, or ``seed`` is not in its range.

    Example:
        >>> vocabulary = Vocabulary(("[UNK]", "[MASK]", "the", "a", "of"))
        >>> batches = masked_batches(np.full((10, 20), 3), vocabulary, batch=4)
        >>> (shown, places), targets = batches(tf.constant(0))
        >>> shown.shape, places.shape, targets.numpy()[0].tolist()
        (TensorShape([4, 20]), TensorShape([4, 3]), [3, 3, 3])
    """
    check_whole("batch", batch, 1)
    check_whole("seed", seed, 0, 2**31 - 1)
    sequences = tf.constant(sequences)
    if sequences.shape.rank != 2 or not sequences.dtype.is_integer or not sequences.shape[0]:
        found = f"{sequences.dtype.name} of shape {sequences.shape}"
        raise ValueError(f"sequences must be rows of word numbers, at least one, got {found}")

    def draw(step, seed):
        words, _ = pick_batch(sequences, tf.range(len(sequences)), step, batch, seed)
        return mask_words(words, len(vocabulary), tf.stack([seed, step])).example

    return Batches(draw, tf.Variable(seed))


def most_frequent(targets: ArrayLike, vocabulary: Vocabulary) -> tuple[str, float]:
    """Return the most frequent word among the targets, and the accuracy of always predicting it.

    ``targets`` are word numbers of the ``vocabulary``, int, of any shape. Raises ValueError if a number is not in
    the vocabulary.

    Example:
        >>> most_frequent([2, 3, 2, 4], Vocabulary(("[UNK]", "[MASK]", "the", "a", "of")))
        ('the', 0.5)
    """
    numbers = check_some("targets", np.ravel(targets))
    if numbers.dtype.kind not in "iu" or not 0 <= numbers.min() <= numbers.max() < len(vocabulary):
        raise ValueError(f"targets must be word numbers from 0 to {len(vocabulary) - 1}, got {targets!r}")
    counts = np.bincount(numbers, minlength=len(vocabulary))
    return vocabulary.words[int(counts.argmax())], float(counts.max() / counts.sum())
