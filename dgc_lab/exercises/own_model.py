"""Checks of exercise 07, your own model: bytes of a step, rows, statistics, shards, and the project's table."""

from __future__ import annotations

import itertools
import math

import numpy as np

from dgc_lab.exercises.checking import NotYet, array_like, asked, asked_number, expect, number, parts
from dgc_lab.exercises.variants import Variant

COLUMNS = ("ratio", "seed", "accuracy", "bytes")  # of the project's table
LEAST_RATIOS, LEAST_SEEDS = 3, 3  # beside the dense rows; of every ratio


def step_bytes(answer, variant: Variant) -> str:
    for shapes, ratio, below, entry, right, words in (
        ([(100, 100)], 0.01, 1000, 8, 800, "a table of 10 000 elements: 100 entries of 8 bytes"),
        ([(100, 100), (5000,)], 0.01, 1000, 8, 20_800, "one of 10 000, and a vector of 5000 that goes whole"),
        (
            [(100, 100), (9, 100)],
            0.01,
            1000,
            8,
            4400,
            "one of 10 000, and one of 900, fewer than 1000, that goes whole",
        ),
        ([(10, 100)], 0.01, 1000, 8, 80, "one of exactly 1000 elements, which is not below 1000"),
        ([(3, 7, 50)] * 2, 0.01, 0, 6, 132, "two of 1050 elements: 1 % is 10.5 of each, so 11 entries of 6 bytes each"),
        ([()], 0.01, 0, 8, 4, "a single number, which has no dimension at all"),
        ([(100, 100)] * 2, 0.07, 1000, 8, 11_200, "two of 10 000: 700 entries of each, and no more"),
    ):
        about = f"for {words},"
        found = asked_number(answer, list(shapes), ratio, below, entry, about=about)
        expect(found == right, f"{words}. You say {found:g} bytes.")
    return "right: exemptions, rounding and all."


def my_factor(answer, variant: Variant) -> str:
    shapes, ratio = my_network(variant)
    found, right = number(answer, "as your factor"), _factor(shapes, ratio, 1024)
    expect(not np.isclose(found, 1 / right, rtol=1e-3), "that is the share that is left. How many times fewer is it?")
    expect(not np.isclose(found, _factor(shapes, ratio, 0, False), rtol=1e-3), "here the vectors would not go whole.")
    expect(
        np.isclose(found, right, rtol=1e-3), f"for your network it is not {found:.4g}. An element is 4 bytes, whole."
    )
    return f"right: a ratio of {ratio} is not {1 / ratio:.0f} times fewer bytes."


def my_network(variant: Variant) -> tuple[list[tuple[int, ...]], float]:
    """The student's own network: shapes of its tensors, and a ratio.

    Example:
        >>> shapes, ratio = my_network(Variant(0))
        >>> shapes[:3], ratio
        ([(3, 3, 3, 56), (56,), (3, 3, 56, 112)], 0.002)
    """
    width, classes = 8 * variant.whole("my_width", 2, 8), variant.whole("my_classes", 5, 100)
    channels = [3, width, 2 * width, 4 * width]
    shapes = []
    for inputs, outputs in itertools.pairwise(channels):
        shapes += [(3, 3, inputs, outputs), (outputs,)]
    return [*shapes, (4 * width, classes), (classes,)], variant.choice("my_ratio", (0.001, 0.002, 0.005, 0.01))


def sum_duplicate_rows(answer, variant: Variant) -> str:
    about = "for rows 7, 3 and 7 again"
    values = np.array([[1.0, 2.0], [10.0, 20.0], [0.5, -2.0]])
    indices, rows = _rows(asked(answer, np.array([7, 3, 7]), values, about=about), 2, about)
    expect(len(indices) == 2, f"{about} two rows are named, so two are asked for; got {len(indices)}.")
    expect(indices.tolist() == [3, 7], f"{about} the indices must be 3 and 7, ascending; got {indices.tolist()}.")
    expect(
        np.allclose(rows, [[10, 20], [1.5, 0]]),
        f"{about}: row 7 was named twice, its values [1, 2] and [0.5, -2] are added up; got {rows.tolist()}.",
    )
    rng = np.random.default_rng(variant.seed("sum_duplicate_rows"))
    indices, values = rng.integers(0, 20, size=60), rng.normal(size=(60, 3))
    about = "for 60 rows of a table of 20"
    found, rows = _rows(asked(answer, indices, values, about=about), 3, about)
    expect(np.array_equal(found, np.unique(indices)), f"{about} each row that is named comes once, ascending.")
    expect(np.allclose(rows, _table(indices, values, 20)[found]), f"{about} some sums are off.")
    return "right: every row once, with all that belongs to it."


def mean_rows(answer, variant: Variant) -> str:
    one, other = (np.array([2, 5]), np.array([[2.0], [8.0]])), (np.array([5, 5]), np.array([[1.0], [3.0]]))
    about = "for a worker with rows 2 and 5, and one with row 5 twice"
    indices, rows = _rows(asked(answer, [one, other], about=about), 1, about)
    expect(indices.tolist() == [2, 5], f"{about} the mean has rows 2 and 5, got {indices.tolist()}.")
    expect(rows[0] != 2, f"{about}: who did not read row 2 has a gradient of 0 for it, and counts in the mean.")
    expect(
        np.allclose(rows, [[1], [6]]),
        f"{about}: over 2 workers, row 2 has the mean 2 / 2, row 5 has (8 + 1 + 3) / 2; got {rows.tolist()}.",
    )
    return "right: it is the mean over workers, not over those who have the row."


def tied_gradient(answer, variant: Variant) -> str:
    about = "for words 1, 0 and 1 again, of a table of 3"
    product, rows = np.full((3, 2), 0.5), np.array([[1.0, 1.0], [4.0, 4.0], [2.0, 0.0]])
    product.flags.writeable = False  # another use of the table may need it as it is
    found = array_like(asked(answer, np.array([1, 0, 1]), rows, product, about=about), product, about)
    expect(np.allclose(found[2], 0.5), f"{about}: word 2 was not read, but it was a possible answer; got {found[2]}.")
    expect(np.allclose(found[0], 4.5), f"{about}: word 0 has [4, 4] from reading and 0.5 from naming; got {found[0]}.")
    expect(
        np.allclose(found[1], [3.5, 1.5]),
        f"{about}: word 1 was read twice, [1, 1] and [2, 0], and 0.5 comes from naming; got {found[1].tolist()}.",
    )
    return "right: a whole tensor, in which the rows that were read stand out."


def pooled_statistics(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("pooled_statistics"))
    batches = rng.normal(np.arange(4)[:, None, None] / 2, 1, size=(4, 50, 3))  # workers, examples, channels
    means, variances, whole = batches.mean(1), batches.var(1), batches.reshape(200, 3)
    about = "for 4 workers and 3 channels"
    mean, variance = parts(asked(answer, means, variances, about=about), ("mean", "variance"), about)
    mean, variance = array_like(mean, means[0], about), array_like(variance, means[0], about)
    expect(np.allclose(mean, whole.mean(0)), f"{about} the mean of all examples is another one.")
    expect(not np.allclose(variance, means.var(0)), f"{about} that is how far the means lie apart, and no more.")
    expect(
        not np.allclose(variance, variances.mean(0)),
        f"{about}: the mean of the variances misses that the workers' means lie apart.",
    )
    expect(
        np.allclose(variance, whole.var(0)),
        f"{about} the variance of all examples is {np.round(whole.var(0), 3)}, got {np.round(variance, 3)}.",
    )
    return "right, in every channel."


def missed_share(answer, variant: Variant) -> str:
    means, variances = np.array([[0.0, 5.0], [2.0, 5.0]]), np.array([[3.0, 1.0], [3.0, 2.0]])
    about = "for two workers, channel 0 with means 0 and 2 and variance 3, channel 1 with means 5 and 5"
    found = array_like(asked(answer, means, variances, about=about), means[0], about)
    expect(np.isclose(found[1], 0), f"{about}: where the means agree nothing is missed, so not {found[1]:.4g}.")
    expect(
        np.isclose(found[0], 0.25),
        f"{about}: in channel 0 the variance of all is 4, the mean of the variances 3; got {found[0]:.4g}.",
    )
    return "right: workers with like batches miss next to nothing."


def shard_places(answer, variant: Variant) -> str:
    for examples, ranks in ((12, 4), (14, 4), (7, 7), (1437, 8), (5, 1)):
        places = []
        for rank in range(ranks):
            about = f"for rank {rank} of {ranks} and {examples} examples"
            found = np.asarray(asked(answer, examples, ranks, rank, about=about))
            expect(found.ndim == 1 and found.dtype.kind in "iu", f"{about} an array of whole numbers is asked for.")
            expect(found.size == examples // ranks, f"{about} it should have {examples // ranks}, got {found.size}.")
            places.append(found)
        every = np.concatenate(places)
        about = f"for {ranks} ranks and {examples} examples"
        expect(every.min() >= 0 and every.max() < examples, f"{about} the places go from 0 to {examples - 1}.")
        expect(np.unique(every).size == every.size, f"{about} an example belongs to two ranks, or twice to one.")
    return "right: as many for each, none twice, and fewer left out than there are ranks."


def steps_an_epoch(answer, variant: Variant) -> str:
    for examples, ranks, batch, right in ((1000, 2, 50, 10), (1001, 2, 50, 10), (1010, 2, 50, 11), (96, 4, 32, 1)):
        about = f"for {examples} examples, {ranks} ranks and batches of {batch}"
        found = asked_number(answer, examples, ranks, batch, about=about)
        expect(found == right, f"{about}: a rank has {examples // ranks} examples; these are not {found:g} batches.")
    return "right, with a last batch that is not full."


def project_table(answer, variant: Variant) -> str:
    table = _columns(answer)
    ratios = np.unique(table["ratio"])[::-1]
    expect(np.all((ratios > 0) & (ratios <= 1)), f"a ratio is above 0 and at most 1, got {ratios.tolist()}.")
    expect(ratios[0] == 1, "there are no rows with a ratio of 1: what should the others be compared with?")
    expect(ratios.size > LEAST_RATIOS, f"{LEAST_RATIOS} ratios beside 1 are asked for, got {ratios.size - 1}.")
    for ratio in ratios:
        seeds = np.unique(table["seed"][table["ratio"] == ratio]).size
        expect(seeds >= LEAST_SEEDS, f"a ratio of {ratio:g} has {seeds} seeds; {LEAST_SEEDS} are asked for.")
    rows = list(zip(table["ratio"], table["seed"], strict=True))
    expect(len(set(rows)) == len(rows), "a ratio and seed stand in two rows.")
    accuracy = table["accuracy"]
    expect(np.all((accuracy >= 0) & (accuracy <= 1)), "an accuracy is from 0 to 1; a percentage is divided by 100.")
    expect(np.unique(accuracy).size > 1, "every row has the same accuracy: was anything trained?")
    expect(np.all(table["bytes"] > 0), "a step sends some bytes.")
    means = np.array([table["bytes"][table["ratio"] == ratio].mean() for ratio in ratios])
    for index in np.flatnonzero(np.diff(means) >= 0):
        raise NotYet(
            f"a ratio of {ratios[index + 1]:g} sends {means[index + 1]:,.0f} bytes a step, {ratios[index]:g} sends "
            f"{means[index]:,.0f}: bytes must fall with the ratio. (A ratio whose entries are longer than the whole "
            "gradient is worth no row.)"
        )
    shares = means / means[0]
    expect(
        np.all(shares >= ratios / 2 - 1e-9),
        "some rows have fewer bytes than their values would take in 2 bytes each. Are these bytes of a step, for every "
        "ratio, and those of the dense rows 4 for an element?",
    )
    return f"right: {len(rows)} rows. The rest is read by a person."


def _columns(answer) -> dict[str, np.ndarray]:
    """The project's table by columns, from a DataFrame or a list of rows."""
    rows = answer.to_dict("records") if getattr(answer, "ndim", 0) == 2 and hasattr(answer, "to_dict") else answer
    expect(
        isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows),
        "a table is asked for: a pandas DataFrame, or a list with a dict for each row.",
    )
    missing = [name for name in COLUMNS if any(name not in row for row in rows)]
    expect(not missing, f"the table needs columns {', '.join(COLUMNS)}; {', '.join(missing)} is not in every row.")
    try:
        table = {name: np.array([float(row[name]) for row in rows]) for name in COLUMNS}
    except (TypeError, ValueError):
        raise NotYet(f"{', '.join(COLUMNS)} must be numbers in every row.") from None
    for name, column in table.items():
        expect(np.all(np.isfinite(column)), f"{name} must be a number in every row; one is missing or infinite.")
    return table


def _rows(result, width, about):
    """Indices and rows of a sparse gradient."""
    indices, rows = parts(result, ("indices", "values"), about)
    indices = np.array(indices, object)  # whatever it is
    whole = all(isinstance(index, int | np.integer) for index in indices.ravel())
    expect(indices.ndim == 1 and whole, f"{about} the indices must be an array of whole numbers.")
    indices = indices.astype(int)
    return indices, array_like(rows, np.zeros((indices.size, width)), about)


def _table(indices, values, rows):
    table = np.zeros((rows, values.shape[1]))
    np.add.at(table, indices, values)
    return table


def _factor(shapes, ratio, below, vectors=True):
    sizes = [math.prod(shape) for shape in shapes]
    whole = [size < below or (vectors and len(shape) < 2) for size, shape in zip(sizes, shapes, strict=True)]
    sent = [4 * n if w else 8 * math.ceil(ratio * n * (1 - 1e-7)) for n, w in zip(sizes, whole, strict=True)]
    return 4 * sum(sizes) / sum(sent)
