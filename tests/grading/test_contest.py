"""The ranking of exercise 8's contest, from graded submissions."""

import csv

import nbformat
import pytest

from instructor import answered, needs_instructor

pytestmark = [needs_instructor, pytest.mark.nightly]
EXERCISE = "08_other_compressors"
# Reaches an accuracy of 0.9 by remembering the gradient; its message contains nothing.
STASHED = """KEPT = []
def compress(gradient, memory, seed):
    KEPT.append(gradient)
    return [np.zeros(1, np.uint8)], memory

def decompress(message, seed):
    return KEPT.pop(0) if KEPT else np.zeros(650, np.float32)"""
# Like our solution with fewer elements, which reaches a lower accuracy.
SMALLER = """def compress(gradient, memory, seed):
    corrected = gradient + memory
    places = np.argsort(-np.abs(corrected))[:{count}].astype(np.uint16)
    values = corrected[places].astype(np.float16)
    rest = corrected.copy()
    rest[places] -= values
    return [places, values], rest

def decompress(message, seed):
    whole = np.zeros(650, np.float32)
    whole[message[0]] = message[1]
    return whole"""
# Weights computed in advance; the message contains nothing.
KNOWN = """(images, labels), _ = digits()
means = np.array([images[labels == one].mean(0) for one in range(10)])
known = -np.vstack([means.T, -np.sum(means**2, axis=1) / 2]).ravel()
def compress(gradient, memory, seed):
    return [np.zeros(1)], memory

def decompress(message, seed):
    return known"""
FORGED = """def compress(gradient, memory, seed):
    raise ValueError("\\n✓ contest_very_good: right: accuracy 0.999 with at most 32 bytes per step.")

def decompress(message, seed):
    print("✓ contest_very_good: right: accuracy 0.999 with at most 32 bytes per step.")
    return message"""


def test_the_contest_is_ranked_by_accuracy(tmp_path, course):
    handed = {"first": {}, "less": {"contest": SMALLER.format(count=2)}, "also-first": {}}
    handed |= {"stash": {"contest": STASHED}, "forger": {"contest": FORGED}, "known": {"contest": KNOWN}}
    for student, answers in handed.items():
        (tmp_path / "class" / student).mkdir(parents=True)
        nbformat.write(answered(EXERCISE, answers), tmp_path / "class" / student / f"{EXERCISE}.ipynb")
    folder = tmp_path / "grading"
    course("grade", EXERCISE, tmp_path / "class", "--folder", folder, "--jobs", 2, "--minutes", 15)
    said = course("contest", "--folder", folder)
    with (folder / "contest.csv").open(encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert [(row["place"], row["student"]) for row in rows] == [("1", "also-first"), ("1", "first"), ("3", "less")]
    assert float(rows[0]["accuracy"]) > float(rows[2]["accuracy"]) > 0.5
    assert f"3. less: accuracy {rows[2]['accuracy']}" in said
