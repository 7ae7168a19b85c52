"""Exercise 8's contest: a gradient that is not in the message gets no marks, wherever it is hidden."""

import types

import pytest
from test_judge import judged, passed

from dgc_lab_grading.marking.worker import exercise
from instructor import EXERCISES

pytestmark = pytest.mark.nightly
NAMES = ("setup", "variant", "digits", "contest", "marks-contest-good", "marks-contest-very-good")
ONCE_MORE = "in a second call of decompress"
HIDDEN = {  # where a scheme hides the gradient: its code, and words of the check's feedback
    "a global, and its number in the message": (
        """kept = []
def compress(gradient, memory, seed):
    kept.append(gradient)
    return [np.array([len(kept) - 1])], memory
def decompress(message, seed):
    return kept[int(message[0][0])]""",
        ONCE_MORE,
    ),
    "a closure": (
        """def scheme():
    last = np.zeros(650, np.float32)
    def compress(gradient, memory, seed):
        nonlocal last
        last = gradient
        return [np.zeros(1)], memory
    def decompress(message, seed):
        return last
    return compress, decompress
compress, decompress = scheme()""",
        ONCE_MORE,
    ),
    "a default, beside an honest message": (
        """def compress(gradient, memory, seed, kept={}):
    largest = np.argsort(-np.abs(gradient))[:5].astype(np.uint16)
    kept[largest.tobytes()] = gradient
    return [largest, gradient[largest]], memory
def decompress(message, seed, kept=compress.__defaults__[0]):
    whole = np.zeros(650, np.float32)
    whole[message[0]] = message[1]
    return kept.get(message[0].tobytes(), whole)""",
        ONCE_MORE,
    ),
    "the shapes of empty arrays": (
        """def compress(gradient, memory, seed):
    return [np.zeros((0, 10**6 + int(10**6 * one))) for one in gradient], memory
def decompress(message, seed):
    return np.array([one.shape[1] / 10**6 - 1 for one in message])""",
        "none of them empty",
    ),
    "the code: weights computed in advance": (
        """(images, labels), _ = digits()
means = np.array([images[labels == one].mean(0) for one in range(10)])
known = -np.vstack([means.T, -np.sum(means**2, axis=1) / 2]).ravel()
def compress(gradient, memory, seed):
    return [np.zeros(1)], memory
def decompress(message, seed):
    return known""",
        "contest_very_good: right",  # only the hidden test detects it
    ),
}


def contest(answer=None):
    """Return the marks for an answer to the contest, by default the solution, and the output of its checks."""
    cells = exercise(types.SimpleNamespace(folder=EXERCISES, assignment="08_other_compressors", number=0))
    numbered = [cell | {"place": place} for place, cell in enumerate(cells) if cell["name"] in NAMES]
    solution = next(cell["source"] for cell in cells if cell["name"] == "contest")
    results, _ = judged({"contest": answer or solution}, cells=numbered, seconds=60)
    return passed(results), " ".join(result["printed"] for result in results.values())


def test_an_honest_scheme_gets_full_marks():
    assert contest()[0] == {"contest-good", "contest-very-good"}


@pytest.mark.parametrize(("answer", "words"), HIDDEN.values(), ids=HIDDEN)
def test_a_gradient_hidden_outside_the_message_gets_no_marks(answer, words):
    marks, printed = contest(answer)
    assert marks == set()
    assert words in printed
