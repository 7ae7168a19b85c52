# ruff: noqa
"""Wrong answers to 06_scale: of each cell the id, and the marks that it must cost."""


# %% allreduce-seconds costs allreduce-seconds, my-gbit
def allreduce_seconds(workers, size, bandwidth, latency):
    return 2 * (workers - 1) * (latency + size / bandwidth)


# %% allreduce-seconds costs allreduce-seconds
def allreduce_seconds(workers, size, bandwidth, latency):
    return 2 * latency + 2 * (workers - 1) / workers * size / bandwidth


# %% allgather-seconds costs allgather-seconds, my-gbit, my-fastest
def allgather_seconds(workers, size, bandwidth, latency):
    return (workers - 1) * (latency + size / workers / bandwidth)


# %% allgather-seconds costs allgather-seconds, my-fastest
def allgather_seconds(workers, size, bandwidth, latency):
    return latency + (workers - 1) * size / bandwidth


# %% break-even-ratio costs break-even-ratio
def break_even_ratio(workers, entry_bytes, whole_bytes):
    return min(1.0, whole_bytes / (workers * entry_bytes))


# %% break-even-ratio costs break-even-ratio
def break_even_ratio(workers, entry_bytes, whole_bytes):
    return 2 * whole_bytes / (workers * entry_bytes)


# %% break-even-bandwidth costs break-even-bandwidth
def break_even_bandwidth(spared, selection):
    return spared / selection if selection else np.inf


# %% break-even-bandwidth costs break-even-bandwidth, my-gbit
def break_even_bandwidth(spared, selection):
    return max(0, spared) * selection


# %% my-gbit costs my-gbit
my_gbit = (8 * my_elements - 8 * my_ratio * my_elements * (my_workers - 1)) / my_selection * 8 / 1e9

# %% my-gbit costs my-gbit
my_spared = allreduce_seconds(my_workers, 4 * my_elements, 1, 0)
my_spared -= allgather_seconds(my_workers, 8 * my_ratio * my_elements, 1, 0)
my_gbit = my_spared / my_selection / 1e9


# %% relative-deviation costs relative-deviation
def relative_deviation(ratio, sample):
    return 1 / np.sqrt(sample)


# %% relative-deviation costs relative-deviation
def relative_deviation(ratio, sample):
    return 1 / np.sqrt(ratio * sample)


# %% sample-needed costs sample-needed
def sample_needed(ratio, deviation):
    return int(np.ceil((1 - ratio) / (ratio * deviation)))


# %% sample-needed costs sample-needed
def sample_needed(ratio, deviation):
    return int((1 - ratio) / (ratio * deviation**2)) + 5


# %% ages-sent costs ages-sent, my-age
def ages_sent(log):
    last, ages = {}, []
    for step, element in log:
        ages.append(step - last.get(element, -1))
        last[element] = step
    return ages


# %% ages-sent costs ages-sent, my-age
def ages_sent(log):
    return [step for step, element in log]


# %% my-age costs my-age
my_age = np.median(ages_sent(my_sends))

# %% my-age costs my-age
my_age = np.mean(ages_sent(my_sends)) + 1


# %% steps-to-loss costs steps-to-loss, my-fastest
# What is not sent is dropped.
def steps_to_loss(images, labels, count, rate, goal):
    weights = zero_weights()
    for step in range(1, 301):
        update = zero_weights()
        for worker in range(len(images)):
            total = softmax_gradient(weights, images[worker], labels[worker])
            least = np.sort(np.abs(total), axis=None)[-count]
            update += np.where(np.abs(total) < least, 0, total) / len(images)
        weights = weights - rate * update
        if softmax_loss(weights, np.concatenate(images), np.concatenate(labels)) <= goal:
            return step
    return 300


# %% steps-to-loss costs steps-to-loss, my-fastest
# The sum of the workers' messages.
def steps_to_loss(images, labels, count, rate, goal):
    weights, residuals = zero_weights(), [zero_weights() for _ in images]
    for step in range(1, 301):
        update = zero_weights()
        for worker in range(len(images)):
            total = residuals[worker] + softmax_gradient(weights, images[worker], labels[worker])
            least = np.sort(np.abs(total), axis=None)[-count]
            residuals[worker] = np.where(np.abs(total) < least, total, 0)
            update += total - residuals[worker]
        weights = weights - rate * update
        if softmax_loss(weights, np.concatenate(images), np.concatenate(labels)) <= goal:
            return step
    return 300


# %% my-fastest costs my-fastest
# The fewest bytes per step.
my_fastest = COUNTS[0], steps_to_loss(my_images, my_labels, COUNTS[0], 0.5, 0.5) * (0.005 + 3 * my_latency)


# %% my-fastest costs my-fastest
# The fewest steps.
my_fastest = 640, steps_to_loss(my_images, my_labels, 640, 0.5, 0.5) * (0.005 + 6 * (my_latency + 640 / my_bandwidth))
