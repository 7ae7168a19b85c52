"""Checks for exercise 07, your own model: bytes, rows, statistics, shards."""

from __future__ import annotations

import itertools
import math

import numpy as np

from dgc_lab.exercises.checking import NotYet, array_like, asked, asked_arrays, asked_number, expect, number, parts
from dgc_lab.exercises.variants import Variant

COLUMNS = ("ratio", "seed", "accuracy", "bytes")  # of the project's table
MIN_RATIOS, MIN_SEEDS = 3, 3  # ratios below 1, and seeds per ratio


def step_bytes(answer, variant: Variant) -> str:
    for shapes, ratio, below, entry, right, words in (
        ([(100, 100)], 0.01, 1000, 8, 800, "a table of 10 000 elements (100 entries of 8 bytes)"),
        ([(100, 100), (5000,)], 0.01, 1000, 8, 20_800, "a table of 10 000, and a vector of 5000 (uncompressed)"),
        (
            [(100, 100), (9, 100)],
            0.01,
            1000,
            8,
            4400,
            "a table of 10 000, and one of 900 (fewer than 1000, so uncompressed)",
        ),
        ([(10, 100)], 0.01, 1000, 8, 80, "a table of exactly 1000 elements (which is not below 1000)"),
        ([(3, 7, 50)] * 2, 0.01, 0, 6, 132, "two tensors of 1050 (1 % is 10.5, so 11 entries of 6 bytes each)"),
        ([()], 0.01, 0, 8, 4, "a single number (which has no dimension)"),
        ([(100, 100)] * 2, 0.07, 1000, 8, 11_200, "two tables of 10 000 (exactly 700 entries each)"),
    ):
        about = f"for {words}"
        found = asked_number(answer, list(shapes), ratio, below, entry, about=about)
        expect(found == right, f"{about}, a worker does not send {found:g} bytes.")
    return "right: including uncompressed tensors and rounding."


def my_factor(answer, variant: Variant) -> str:
    shapes, ratio = my_network(variant)
    found, right = number(answer, "for your factor"), _factor(shapes, ratio, 1024)
    expect(not np.isclose(found, 1 / right, rtol=1e-3), "that is the share that remains. How many times fewer is it?")
    expect(
        not np.isclose(found, _factor(shapes, ratio, 0, False), rtol=1e-3), "this factor compresses the vectors, too."
    )
    expect(
        np.isclose(found, right, rtol=1e-3),
        f"for your network, it is not {found:.4g}. An uncompressed element takes 4 bytes.",
    )
    return f"right: a ratio of {ratio} does not mean {1 / ratio:.0f} times fewer bytes."


def my_network(variant: Variant) -> tuple[list[tuple[int, ...]], float]:
    """Return the student's own network: the shapes of its tensors, and a ratio.

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
    about = "for rows 7, 3 and 7"
    values = np.array([[1.0, 2.0], [10.0, 20.0], [0.5, -2.0]])
    indices, rows = _sparse_rows(asked(answer, np.array([7, 3, 7]), values, about=about), 2, about)
    expect(len(indices) == 2, f"{about}, the result must have two rows, got {len(indices)}.")
    expect(indices.tolist() == [3, 7], f"{about}, the indices must be 3 and 7, ascending, got {indices.tolist()}.")
    expect(
        np.allclose(rows, [[10, 20], [1.5, 0]]),
        f"{about}, row 7 occurs twice, so its values [1, 2] and [0.5, -2] are added up; got {rows.tolist()}.",
    )
    rng = np.random.default_rng(variant.seed("sum_duplicate_rows"))
    indices, values = rng.integers(0, 20, size=60), rng.normal(size=(60, 3))
    about = "for 60 rows of a table of 20"
    found, rows = _sparse_rows(asked(answer, indices, values, about=about), 3, about)
    expect(np.array_equal(found, np.unique(indices)), f"{about}, each index must occur once, in ascending order.")
    expect(np.allclose(rows, _dense_table(indices, values, 20)[found]), f"{about}, some sums are wrong.")
    return "right: every row occurs once, with the sum of its values."


def mean_rows(answer, variant: Variant) -> str:
    first, second = (np.array([2, 5]), np.array([[2.0], [8.0]])), (np.array([5, 5]), np.array([[1.0], [3.0]]))
    about = "for a worker with rows 2 and 5, and one with row 5 twice"
    indices, rows = _sparse_rows(asked(answer, [first, second], about=about), 1, about)
    expect(indices.tolist() == [2, 5], f"{about}, the mean has rows 2 and 5, got {indices.tolist()}.")
    expect(rows[0] != 2, f"{about}, a worker that did not read row 2 has a gradient of 0 for it and counts, too.")
    expect(
        np.allclose(rows, [[1], [6]]),
        f"{about}, row 2 has the mean 2 / 2 over the 2 workers, row 5 has (8 + 1 + 3) / 2; got {rows.tolist()}.",
    )
    return "right: the mean is over all workers, not only over those that have the row."


def tied_gradient(answer, variant: Variant) -> str:
    about = "for words 1, 0 and 1 of a table of 3"
    product, rows = np.full((3, 2), 0.5), np.array([[1.0, 1.0], [4.0, 4.0], [2.0, 0.0]])
    product.flags.writeable = False  # another use of the table may need it unchanged
    found = array_like(asked(answer, np.array([1, 0, 1]), rows, product, about=about), product, about)
    expect(np.allclose(found[2], 0.5), f"{about}, word 2 was not read but was a possible output; got {found[2]}.")
    expect(
        np.allclose(found[0], 4.5),
        f"{about}, word 0 gets [4, 4] from a lookup and 0.5 from the output; got {found[0]}.",
    )
    expect(
        np.allclose(found[1], [3.5, 1.5]),
        f"{about}, word 1 gets [1, 1] and [2, 0] from lookups and 0.5 from the output; got {found[1].tolist()}.",
    )
    return "right: a dense gradient, in which the rows that were read stand out."


def pooled_statistics(answer, variant: Variant) -> str:
    rng = np.random.default_rng(variant.seed("pooled_statistics"))
    batches = rng.normal(np.arange(4)[:, None, None] / 2, 1, size=(4, 50, 3))  # workers, examples, channels
    means, variances, pooled = batches.mean(1), batches.var(1), batches.reshape(200, 3)
    about = "for 4 workers and 3 channels"
    wanted = {"names": ("mean", "variance"), "pattern": means[0]}
    mean, variance = asked_arrays(answer, means, variances, about=about, **wanted)
    expect(np.allclose(mean, pooled.mean(0)), f"{about}, the mean of all examples is different.")
    expect(not np.allclose(variance, means.var(0)), f"{about}, that is only the variance between the workers' means.")
    expect(
        not np.allclose(variance, variances.mean(0)),
        f"{about}, the mean of the variances misses the differences between the workers' means.",
    )
    expect(
        np.allclose(variance, pooled.var(0)),
        f"{about}, the variance of all examples is {np.round(pooled.var(0), 3)}, got {np.round(variance, 3)}.",
    )
    return "right: in every channel."


def missed_share(answer, variant: Variant) -> str:
    means, variances = np.array([[0.0, 5.0], [2.0, 5.0]]), np.array([[3.0, 1.0], [3.0, 2.0]])
    about = "for two workers, channel 0 with means 0 and 2 and variance 3, channel 1 with means 5 and 5"
    found = array_like(asked(answer, means, variances, about=about), means[0], about)
    expect(np.isclose(found[1], 0), f"{about}: where the means agree, nothing is missed; got {found[1]:.4g}.")
    expect(
        np.isclose(found[0], 0.25),
        f"{about}: in channel 0, the variance of all is 4 and the mean of the variances is 3; got {found[0]:.4g}.",
    )
    return "right: workers with similar batches miss almost nothing."


def shard_places(answer, variant: Variant) -> str:
    for examples, ranks in ((12, 4), (14, 4), (7, 7), (1437, 8), (5, 1)):
        shards = []
        for rank in range(ranks):
            about = f"for rank {rank} of {ranks} and {examples} examples"
            found = np.asarray(asked(answer, examples, ranks, rank, about=about))
            expect(found.ndim == 1 and found.dtype.kind in "iu", f"{about}, expected an array of whole numbers.")
            expect(found.size == examples // ranks, f"{about}, the size must be {examples // ranks}, got {found.size}.")
            shards.append(found)
        positions = np.concatenate(shards)
        about = f"for {ranks} ranks and {examples} examples"
        expect(
            positions.min() >= 0 and positions.max() < examples,
            f"{about}, positions must be from 0 to {examples - 1}.",
        )
        expect(
            np.unique(positions).size == positions.size, f"{about}, an example belongs to two ranks, or twice to one."
        )
    return "right: equal shards without duplicates, and fewer examples left out than there are ranks."


def steps_an_epoch(answer, variant: Variant) -> str:
    for examples, ranks, batch, right in ((1000, 2, 50, 10), (1001, 2, 50, 10), (1010, 2, 50, 11), (96, 4, 32, 1)):
        about = f"for {examples} examples, {ranks} ranks and batches of {batch}"
        found = asked_number(answer, examples, ranks, batch, about=about)
        expect(found == right, f"{about}, a rank has {examples // ranks} examples, but not {found:g} batches.")
    return "right: the last batch may be smaller."


def project_table(answer, variant: Variant) -> str:
    table = _columns(answer)
    ratios = np.unique(table["ratio"])[::-1]
    expect(np.all((ratios > 0) & (ratios <= 1)), f"a ratio must be above 0 and at most 1, got {ratios.tolist()}.")
    expect(ratios[0] == 1, "there are no rows with a ratio of 1 to compare the others with.")
    expect(ratios.size > MIN_RATIOS, f"at least {MIN_RATIOS} ratios below 1 are required, got {ratios.size - 1}.")
    for ratio in ratios:
        seeds = np.unique(table["seed"][table["ratio"] == ratio]).size
        expect(seeds >= MIN_SEEDS, f"a ratio of {ratio:g} has {seeds} seeds; at least {MIN_SEEDS} are required.")
    rows = list(zip(table["ratio"], table["seed"], strict=True))
    expect(len(set(rows)) == len(rows), "two rows have the same ratio and seed.")
    accuracy = table["accuracy"]
    expect(np.all((accuracy >= 0) & (accuracy <= 1)), "an accuracy must be from 0 to 1; divide percentages by 100.")
    expect(np.unique(accuracy).size > 1, "every row has the same accuracy. Was anything trained?")
    expect(np.all(table["bytes"] > 0), "bytes must be above 0 in every row.")
    means = np.array([table["bytes"][table["ratio"] == ratio].mean() for ratio in ratios])
    for index in np.flatnonzero(np.diff(means) >= 0):
        raise NotYet(
            f"a ratio of {ratios[index + 1]:g} sends {means[index + 1]:,.0f} bytes per step and {ratios[index]:g} "
            f"sends {means[index]:,.0f}: bytes must decrease with the ratio. (Leave out a ratio whose payload is "
            "larger than the uncompressed gradient.)"
        )
    shares = means / means[0]
    expect(
        np.all(shares >= ratios / 2 - 1e-9),
        "some rows have fewer bytes than their values would take at 2 bytes each. Does every row give bytes per step, "
        "and do the dense rows count 4 bytes per element?",
    )
    return f"right: {len(rows)} rows. A person marks the rest."


def _columns(answer) -> dict[str, np.ndarray]:
    """Return the columns of the project's table, a DataFrame or a list of rows."""
    rows = answer.to_dict("records") if getattr(answer, "ndim", 0) == 2 and hasattr(answer, "to_dict") else answer
    expect(
        isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows),
        "expected a table: a pandas DataFrame, or a list with a dict for each row.",
    )
    missing = [name for name in COLUMNS if any(name not in row for row in rows)]
    expect(not missing, f"the table needs columns {', '.join(COLUMNS)}; {', '.join(missing)} is missing in some rows.")
    try:
        table = {name: np.array([float(row[name]) for row in rows]) for name in COLUMNS}
    except (TypeError, ValueError):
        raise NotYet(f"{', '.join(COLUMNS)} must be numbers in every row.") from None
    for name, column in table.items():
        expect(np.all(np.isfinite(column)), f"{name} must be a finite number in every row.")
    return table


def _sparse_rows(result, width, about):
    """Return the indices and rows of a sparse gradient."""
    indices, rows = parts(result, ("indices", "values"), about)
    indices = np.array(indices, object)  # accepts anything; the elements are checked next
    integers = all(isinstance(index, int | np.integer) for index in indices.ravel())
    expect(indices.ndim == 1 and integers, f"{about}, the indices must be an array of whole numbers.")
    indices = indices.astype(int)
    return indices, array_like(rows, np.zeros((indices.size, width)), about)


def _dense_table(indices, values, rows):
    table = np.zeros((rows, values.shape[1]))
    np.add.at(table, indices, values)
    return table


def _factor(shapes, ratio, below, dense_vectors=True):
    sizes = [math.prod(shape) for shape in shapes]
    dense = [size < below or (dense_vectors and len(shape) < 2) for size, shape in zip(sizes, shapes, strict=True)]
    sent = [4 * n if d else 8 * math.ceil(ratio * n * (1 - 1e-7)) for n, d in zip(sizes, dense, strict=True)]
    return 4 * sum(sizes) / sum(sent)
