# ruff: noqa
"""Wrong answers to 07_own_model: of each cell the id, and the marks that it must cost."""


# %% step-bytes costs my-factor, step-bytes
def step_bytes(shapes, ratio, whole_below, entry_bytes):
    return entry_bytes * sum(int(np.ceil(ratio * np.prod(shape) * (1 - 1e-7))) for shape in shapes)


# %% step-bytes costs my-factor, step-bytes
def step_bytes(shapes, ratio, whole_below, entry_bytes):
    sizes = [int(np.prod(shape)) for shape in shapes]
    whole = sum(size for size, shape in zip(sizes, shapes) if len(shape) < 2 or size < whole_below)
    return 4 * whole + entry_bytes * int(np.ceil(ratio * (sum(sizes) - whole) * (1 - 1e-7)))


# %% step-bytes costs step-bytes
def step_bytes(shapes, ratio, whole_below, entry_bytes):
    in_all = 0
    for shape in shapes:
        size = int(np.prod(shape))
        whole = len(shape) < 2 or size <= whole_below
        in_all += 4 * size if whole else entry_bytes * int(np.ceil(ratio * size * (1 - 1e-7)))
    return in_all


# %% my-factor costs my-factor
my_factor = 1 / my_ratio


# %% sum-duplicate-rows costs mean-rows, sum-duplicate-rows
def sum_duplicate_rows(indices, values):
    once, place = np.unique(indices, return_inverse=True)
    merged = np.zeros((len(once), values.shape[1]))
    merged[place] += values
    return once, merged


# %% sum-duplicate-rows costs mean-rows, sum-duplicate-rows
def sum_duplicate_rows(indices, values):
    order = np.argsort(indices)
    return indices[order], values[order]


# %% mean-rows costs mean-rows
def mean_rows(parts):
    indices, rows = sum_duplicate_rows(np.concatenate([i for i, _ in parts]), np.concatenate([v for _, v in parts]))
    having = np.array([sum(index in own for own, _ in parts) for index in indices])
    return indices, rows / having[:, None]


# %% mean-rows costs mean-rows
def mean_rows(parts):
    return sum_duplicate_rows(np.concatenate([i for i, _ in parts]), np.concatenate([v for _, v in parts]))


# %% tied-gradient costs tied-gradient
def tied_gradient(words, rows, product):
    together = product.copy()
    together[words] += rows
    return together


# %% tied-gradient costs tied-gradient
def tied_gradient(words, rows, product):
    together = np.zeros_like(product)
    np.add.at(together, words, rows + product[words])
    return together


# %% pooled-statistics costs pooled-statistics, missed-share
def pooled_statistics(means, variances):
    return means.mean(0), variances.mean(0)


# %% pooled-statistics costs pooled-statistics, missed-share
def pooled_statistics(means, variances):
    return means.mean(0), variances.mean(0) + means.var(0, ddof=1)


# %% missed-share costs missed-share
def missed_share(means, variances):
    return means.var(axis=0) / variances.mean(axis=0)


# %% shard-places costs shard-places
def shard_places(examples, ranks, rank):
    return np.arange(rank, examples, ranks)


# %% shard-places costs shard-places
def shard_places(examples, ranks, rank):
    return np.arange(examples // ranks)


# %% steps-an-epoch costs steps-an-epoch
def steps_an_epoch(examples, ranks, batch):
    return examples // ranks // batch


# %% steps-an-epoch costs steps-an-epoch
def steps_an_epoch(examples, ranks, batch):
    return -(-examples // (ranks * batch))


# %% project-table costs project-table
project_table = [{"ratio": r, "seed": s, "accuracy": 0.9 + s / 100} for r in (1, 0.1, 0.01, 0.001) for s in range(3)]

# %% project-table costs project-table
project_table = [
    {"ratio": r, "seed": s, "accuracy": 0.9 + s / 100, "bytes": 4000} for r in (1, 0.1, 0.01, 0.001) for s in range(3)
]

# %% project-table costs project-table
project_table = [{"ratio": r, "seed": 0, "accuracy": 0.9 + r / 100, "bytes": 8000 * r} for r in (1, 0.1, 0.01, 0.001)]

# %% project-table costs project-table
project_table = [
    {"ratio": r, "seed": s, "accuracy": 90 + s, "bytes": 8000 * r} for r in (1, 0.1, 0.01, 0.001) for s in range(3)
]

# %% project-table costs project-table
project_table = [
    {"ratio": r, "seed": s, "accuracy": 0.9 + s / 100, "bytes": 8000 * r}
    for r in (0.3, 0.1, 0.01, 0.001)
    for s in range(3)
]


# %% tied-gradient costs tied-gradient
def tied_gradient(words, rows, product):
    # Right, but written into what it was given.
    np.add.at(product, words, rows)
    return product
