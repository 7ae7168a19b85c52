# ruff: noqa
"""Wrong answers to 01_aggregation: of each cell the id, and the marks that it must cost."""


# %% running-sum costs running-sum
def running_sum(values):
    return values.sum()


# %% running-sum costs running-sum
def running_sum(values):
    total = 0.0
    for value in values.tolist():
        total = total + value
    return total


# %% pairwise-sum costs pairwise-sum
def pairwise_sum(values):
    return running_sum(values)


# %% pairwise-sum costs pairwise-sum
def pairwise_sum(values):
    return values.sum()


# %% pairwise-sum costs pairwise-sum
def pairwise_sum(values):
    return values.astype(np.float64).sum()


# %% pairwise-sum costs pairwise-sum
def pairwise_sum(values):
    middle = len(values) // 2
    return running_sum(values[:middle]) + running_sum(values[middle:])


# %% my-end costs my-end
my_end = 4096 * my_value(Variant(VARIANT))


# %% telling-addends costs telling-addends
telling_addends = np.ones(32, np.float16)

# %% telling-addends costs telling-addends
# Lesson 1's: in blocks it ends where it ends in pairs, and there are too many of them.
telling_addends = np.ones(4096, np.float16)

# %% telling-addends costs telling-addends
telling_addends = np.array([2048] + [1] * 7, np.float16)

# %% telling-addends costs telling-addends
telling_addends = np.array([2048] + [1] * 15)

# %% telling-addends costs telling-addends
telling_addends = np.array([60000, -60000] * 8 + [np.inf], np.float16)


# %% ring-bytes costs ring-bytes, exchange-seconds
def ring_bytes(workers, size):
    return 2 * (workers - 1) * size


# %% exchange-seconds costs exchange-seconds
def exchange_seconds(how, workers, size, bandwidth, latency):
    return 2 * latency + ring_bytes(workers, size) / bandwidth


# %% my-crossing costs my-crossing
my_crossing = my_latency * my_bandwidth


# %% half-training costs half-training
# Everything in 16 bits, whatever the type of the weights.
def half_training(weights, images, labels, rate, steps, kept_in):
    weights = weights.astype(np.float16)
    for _ in range(steps):
        weights = weights - (rate * softmax_gradient(weights, images, labels)).astype(np.float16)
    return weights.astype(kept_in)


# %% half-training costs half-training
# Rounded once, at the end.
def half_training(weights, images, labels, rate, steps, kept_in):
    for _ in range(steps):
        weights = weights - rate * softmax_gradient(weights, images, labels)
    return weights.astype(kept_in)
