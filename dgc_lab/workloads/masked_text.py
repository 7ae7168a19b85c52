"""A text with masked words as a data set: BERT's training task for the trainers and studies of the lab. Lesson 7."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgc_lab.workloads.batches import make_evaluator
from dgc_lab.workloads.dataset import Dataset
from dgc_lab.workloads.masked_words import mask_words, masked_batches
from dgc_lab.workloads.text import Vocabulary, corpus

TEST_MASKS = 6  # masks of each test sequence


@dataclass(frozen=True)
class MaskedText(Dataset):
    """Sequences of words with masked words to predict: ``x_train`` and ``x_test`` are int32 (sequences, length).

    Attributes:
        vocabulary: the words of the text.
    """

    vocabulary: Vocabulary

    def batches(self, batch: int, seed: int):
        return masked_batches(self.x_train, self.vocabulary, batch, seed)

    def evaluator(self):
        return make_evaluator(*self.test_examples())

    def test_examples(self):
        """Return ``((words, places), targets)`` of the test set, each sequence with several masks.

        A single mask would test only 15 % of the words.
        """
        several = np.tile(self.x_test, (TEST_MASKS, 1))
        return mask_words(several, len(self.vocabulary), seed=(0, 1)).example


def python_reference() -> MaskedText:
    """Load Python's language reference (`dgc_lab.workloads.corpus`) for masked language modelling."""
    words = corpus()
    return MaskedText("python_reference", words.train, words.train, words.test, words.test, words.vocabulary)
