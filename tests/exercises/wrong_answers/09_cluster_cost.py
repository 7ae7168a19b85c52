# ruff: noqa
"""Wrong answers to 09_cluster_cost: of each cell the id, and the marks that it must cost."""


# %% collective-seconds costs collective-seconds
# The tree has a fraction of a level.
def collective_seconds(how, workers, size, alpha, beta):
    if how == "ring":
        return 2 * (workers - 1) * (alpha + beta * size / workers)
    return 2 * np.log2(workers) * (alpha + beta * size)


# %% collective-seconds costs collective-seconds
# Whole gradients in every message of the ring.
def collective_seconds(how, workers, size, alpha, beta):
    hops = workers - 1 if how == "ring" else (workers - 1).bit_length()
    return 2 * hops * (alpha + beta * size)


# %% collective-seconds costs collective-seconds
# The way back is missing.
def collective_seconds(how, workers, size, alpha, beta):
    if how == "ring":
        return (workers - 1) * (alpha + beta * size / workers)
    return (workers - 1).bit_length() * (alpha + beta * size)


# %% my-crossover costs my-crossover
# Where messages and bytes cost the same.
my_crossover = my_alpha / my_beta


# %% bucket-ends costs bucket-ends, my-bucket
# Exchanges overlap each other.
def bucket_ends(ready, sizes, bucket, alpha, beta):
    ends, size = [], 0
    for i in range(len(sizes)):
        size += sizes[i]
        if size >= bucket or i + 1 == len(sizes):
            ends.append(ready[i] + alpha + beta * size)
            size = 0
    return ends


# %% bucket-ends costs bucket-ends, my-bucket
# All tensors are exchanged after the backward pass.
def bucket_ends(ready, sizes, bucket, alpha, beta):
    ends, size, free = [], 0, ready[-1]
    for i in range(len(sizes)):
        size += sizes[i]
        if size >= bucket or i + 1 == len(sizes):
            free = free + alpha + beta * size
            ends.append(free)
            size = 0
    return ends


# %% bucket-ends costs bucket-ends, my-bucket
# A bucket is sent before it exceeds its size, as if it were a limit.
def bucket_ends(ready, sizes, bucket, alpha, beta):
    ends, size, free = [], 0, 0.0
    for i in range(len(sizes)):
        size += sizes[i]
        if i + 1 == len(sizes) or size + sizes[i + 1] > bucket:
            free = max(ready[i], free) + alpha + beta * size
            ends.append(free)
            size = 0
    return ends


# %% my-bucket costs my-bucket
# The largest bucket has the fewest messages.
my_bucket = BUCKETS[-1], bucket_ends(my_ready, my_sizes, BUCKETS[-1], my_alpha, my_beta)[-1]


# %% zero-step costs zero-step
# Each worker uses its own gradient of its part.
def zero_step(weights, gradients, velocities, rate, momentum):
    shards = [np.array_split(own, len(gradients))[worker] for worker, own in enumerate(gradients)]
    updated = [momentum * own + shard for own, shard in zip(velocities, shards, strict=True)]
    return weights - rate * np.concatenate(updated), updated


# %% zero-step costs zero-step
# The sum of the gradients.
def zero_step(weights, gradients, velocities, rate, momentum):
    shards = np.array_split(gradients.sum(axis=0), len(gradients))
    updated = [momentum * own + shard for own, shard in zip(velocities, shards, strict=True)]
    return weights - rate * np.concatenate(updated), updated


# %% zero-step costs zero-step
# Parts of one size: the remainder is lost.
def zero_step(weights, gradients, velocities, rate, momentum):
    size = len(weights) // len(gradients)
    mean, moved, updated = gradients.mean(axis=0), weights.copy(), []
    for worker, own in enumerate(velocities):
        part = slice(worker * size, (worker + 1) * size)
        updated.append(momentum * own[:size] + mean[part])
        moved[part] -= rate * updated[-1]
    return moved, updated


# %% worker-bytes costs worker-bytes, my-fewest
# Stage 1 divides everything but the weights.
def worker_bytes(parameters, workers, stage):
    whole = {0: 16, 1: 2, 2: 2, 3: 0}[stage]
    return parameters * (whole + (16 - whole) / workers)


# %% worker-bytes costs worker-bytes, my-fewest
# Only what is divided.
def worker_bytes(parameters, workers, stage):
    return parameters * {0: 16 * workers, 1: 12, 2: 14, 3: 16}[stage] / workers


# %% my-fewest costs my-fewest
my_fewest = [int(np.ceil(16 * my_model / 80e9))] * 3


# %% outer-training costs outer-training
# Workers go on from their own weights.
def outer_training(images, labels, rounds, inner_steps, inner_rate, outer_rate, momentum):
    weights, velocity = zero_weights(), zero_weights()
    own = [weights] * len(images)
    for _ in range(rounds):
        for worker in range(len(images)):
            for _ in range(inner_steps):
                gradient = softmax_gradient(own[worker], images[worker], labels[worker])
                own[worker] = own[worker] - inner_rate * gradient
        outer = weights - np.mean(own, axis=0)
        velocity = momentum * velocity + outer
        weights = weights - outer_rate * (outer + momentum * velocity)
    return weights


# %% outer-training costs outer-training
# Momentum without Nesterov's look ahead.
def outer_training(images, labels, rounds, inner_steps, inner_rate, outer_rate, momentum):
    weights, velocity = zero_weights(), zero_weights()
    for _ in range(rounds):
        own = []
        for worker in range(len(images)):
            local = weights
            for _ in range(inner_steps):
                local = local - inner_rate * softmax_gradient(local, images[worker], labels[worker])
            own.append(local)
        velocity = momentum * velocity + weights - np.mean(own, axis=0)
        weights = weights - outer_rate * velocity
    return weights


# %% outer-training costs outer-training
# Synchronous training: one step with the mean gradient, inner_steps times.
def outer_training(images, labels, rounds, inner_steps, inner_rate, outer_rate, momentum):
    weights = zero_weights()
    for _ in range(rounds * inner_steps):
        gradients = [softmax_gradient(weights, i, c) for i, c in zip(images, labels)]
        weights = weights - inner_rate * np.mean(gradients, axis=0)
    return weights
