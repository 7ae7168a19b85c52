# ruff: noqa
"""Wrong answers to 02_replicas: of each cell the id, and the marks that it must cost."""


# %% aggregate costs aggregate
def aggregate(values, how):
    return np.full(len(values), np.mean(values) if how == "MEAN" else np.sum(values))


# %% global-accuracy costs global-accuracy
def global_accuracy(correct, seen):
    return np.mean(correct / np.maximum(seen, 1))


# %% replica-loss costs replica-loss
replica_loss = flawed_loss


# %% replica-loss costs replica-loss
def replica_loss(losses, global_batch):
    return np.mean(losses) / 2


# %% combine-gradients costs combine-gradients
def combine_gradients(means, sizes):
    return np.mean(means, axis=0)


# %% combine-gradients costs combine-gradients
def combine_gradients(means, sizes):
    return np.sum(means, axis=0)


# %% my-variable costs my-variable
my_variable = replicas * start - replicas, start


# %% merge-moments costs merge-moments, my-moments
def merge_moments(means, variances, sizes):
    return np.average(means, weights=sizes), np.average(variances, weights=sizes)


# %% merge-moments costs merge-moments, my-moments
def merge_moments(means, variances, sizes):
    return np.mean(means), np.mean(variances) + np.var(means)


# %% my-moments costs my-moments
my_moments = np.average(my_means, weights=my_sizes), np.average(my_variances, weights=my_sizes)
