# ruff: noqa
"""Wrong answers to 02_replicas: of each cell the id, and the marks that it must cost."""


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


# %% merge-moments costs merge-moments, my-moments
def merge_moments(means, variances, sizes):
    return np.average(means, weights=sizes), np.average(variances, weights=sizes)


# %% merge-moments costs merge-moments, my-moments
def merge_moments(means, variances, sizes):
    return np.mean(means), np.mean(variances) + np.var(means)


# %% my-moments costs my-moments
my_moments = np.average(my_means, weights=my_sizes), np.average(my_variances, weights=my_sizes)


# %% local-training costs local-training
# The last mean is missing where the steps do not divide: one replica's weights.
def local_training(images, labels, rate, every, steps):
    own = [zero_weights() for _ in images]
    for step in range(1, steps + 1):
        own = [w - rate * softmax_gradient(w, i, c) for w, i, c in zip(own, images, labels)]
        if step % every == 0:
            own = [np.mean(own, axis=0)] * len(own)
    return own[0]


# %% local-training costs local-training
# Gradients are averaged in every step, so `every` has no effect.
def local_training(images, labels, rate, every, steps):
    weights = zero_weights()
    for _ in range(steps):
        weights = weights - rate * np.mean([softmax_gradient(weights, i, c) for i, c in zip(images, labels)], axis=0)
    return weights


# %% local-training costs local-training
# The sum of the moves.
def local_training(images, labels, rate, every, steps):
    weights, own = zero_weights(), [zero_weights() for _ in images]
    for step in range(1, steps + 1):
        own = [w - rate * softmax_gradient(w, i, c) for w, i, c in zip(own, images, labels)]
        if step % every == 0 or step == steps:
            weights = weights + sum(w - weights for w in own)
            own = [weights] * len(own)
    return weights
