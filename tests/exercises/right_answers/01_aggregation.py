# ruff: noqa
# %% pairwise-sum an array of one element is a number
def pairwise_sum(values):
    if len(values) == 1:
        return values
    middle = len(values) // 2
    return pairwise_sum(values[:middle]) + pairwise_sum(values[middle:])


# %% half-training the step is rounded only when it is added
def half_training(weights, images, labels, rate, steps, kept_in):
    weights = weights.astype(kept_in)
    for _ in range(steps):
        gradient = softmax_gradient(weights.astype(np.float16), images, labels)
        weights = (weights - rate * gradient).astype(kept_in)
    return weights
