# ruff: noqa
# %% pairwise-sum an array of one element is a number
def pairwise_sum(values):
    if len(values) == 1:
        return values
    middle = len(values) // 2
    return pairwise_sum(values[:middle]) + pairwise_sum(values[middle:])
