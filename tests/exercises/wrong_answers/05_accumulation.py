# ruff: noqa
"""Wrong answers to 05_accumulation: of each cell the id, and the marks that it must cost."""


# %% accumulate costs accumulate
def accumulate(gradient, residual, threshold):
    mask = np.abs(gradient) >= threshold
    total = gradient + residual
    return total * mask, total * ~mask


# %% accumulate costs accumulate
def accumulate(gradient, residual, threshold):
    total = gradient + residual
    mask = np.abs(total) > threshold
    return total * mask, total * ~mask


# %% correct-momentum costs correct-momentum, dgc-step, my-sent, dgc-training
def correct_momentum(gradient, velocity, residual, momentum):
    return momentum * velocity + gradient, residual + gradient


# %% dgc-step costs dgc-step, my-sent, dgc-training
def dgc_step(gradient, velocity, residual, momentum, threshold):
    velocity, residual = correct_momentum(gradient, velocity, residual, momentum)
    mask = np.abs(residual) >= threshold
    return residual * mask, velocity, residual * ~mask


# %% dgc-step costs dgc-step, dgc-training
def dgc_step(gradient, velocity, residual, momentum, threshold):
    # At threshold 0, clearing the velocity leaves plain SGD.
    velocity, residual = correct_momentum(gradient, velocity, residual, momentum)
    mask = np.abs(residual) >= threshold
    return residual * mask, velocity * ~mask, residual * ~mask


# %% mended-step costs mended-clipping, mended-residuals, mended-update
mended_step = flawed_step


# %% mended-step costs mended-residuals, mended-update
def mended_step(weights, gradients, residuals, count, rate, clip_norm):
    # One bug of three is mended, here and in the next two: its marks do not wait for the others.
    update, totals = np.zeros_like(weights), []
    for gradient, residual in zip(gradients, residuals, strict=True):
        total = residual + gradient * min(1, clip_norm / np.linalg.norm(gradient))
        largest = np.argsort(-np.abs(total))[:count]
        update[largest] += total[largest]
        totals.append(total)
    return weights - rate * update, np.where(update == 0, totals, 0)


# %% mended-step costs mended-clipping, mended-residuals
def mended_step(weights, gradients, residuals, count, rate, clip_norm):
    moved, kept = flawed_step(np.zeros_like(weights), gradients, residuals, count, rate, clip_norm)
    return weights + moved / len(gradients), kept


# %% mended-step costs mended-clipping, mended-update
def mended_step(weights, gradients, residuals, count, rate, clip_norm):
    one_by_one = [
        flawed_step(np.zeros_like(weights), gradients[i : i + 1], residuals[i : i + 1], count, rate, clip_norm)
        for i in range(len(gradients))
    ]
    return weights + sum(moved for moved, _ in one_by_one), np.concatenate([kept for _, kept in one_by_one])


# %% mended-step costs mended-clipping, mended-residuals, mended-update
def mended_step(weights, gradients, residuals, count, rate, clip_norm):
    # No clipping; a mean over the workers that sent an element; and what cancels is kept.
    totals = residuals + gradients
    masks = np.abs(totals) >= np.sort(np.abs(totals))[:, -count, None]
    update = np.sum(totals * masks, axis=0)
    return weights - rate * update / np.maximum(masks.sum(axis=0), 1), np.where(update == 0, totals, 0)


# %% times-fewer costs times-fewer, my-times-fewer
def times_fewer(sent, elements, whole):
    # A mean of each step's quotient.
    return np.mean(4 * (elements + whole) / (4 * whole + np.minimum(8 * sent, 4 * elements)))


# %% times-fewer costs times-fewer, my-times-fewer
def times_fewer(sent, elements, whole):
    # What goes whole is forgotten.
    return 4 * elements / np.mean(np.minimum(8 * sent, 4 * elements))


# %% times-fewer costs times-fewer, my-times-fewer
def times_fewer(sent, elements, whole):
    # In the first steps places and values are more bytes than all values.
    return 4 * (elements + whole) / np.mean(4 * whole + 8 * sent)


# %% times-fewer costs times-fewer, my-times-fewer
def times_fewer(sent, elements, whole):
    # Elements in place of bytes.
    return (elements + whole) / np.mean(whole + sent)


# %% break-even-workers costs break-even-workers, my-workers
def break_even_workers(ratio, entry_bytes):
    return int(8 / (ratio * entry_bytes)) + 1


# %% my-workers costs my-workers
my_workers = 1


# %% my-sent costs my-sent
my_sent = sum(
    np.count_nonzero(dgc_step(gradient, 0 * gradient, 0 * gradient, my_momentum, my_threshold)[0])
    for gradient in my_gradients
)


# %% my-times-fewer costs my-times-fewer
my_times_fewer = 1 / 0.001


# %% dgc-training costs dgc-training
# All workers share one velocity and one residual.
def dgc_training(images, labels, rate, momentum, threshold, steps):
    weights, velocity, residual, count = zero_weights(), np.zeros(640), np.zeros(640), 0
    for _ in range(steps):
        update = np.zeros(640)
        for worker in range(len(images)):
            gradient = softmax_gradient(weights, images[worker], labels[worker]).ravel()
            sent, velocity, residual = dgc_step(gradient, velocity, residual, momentum, threshold)
            update += sent / len(images)
            count += np.count_nonzero(sent)
        weights = weights - rate * update.reshape(64, 10)
    return weights, count


# %% dgc-training costs dgc-training
# Momentum a second time, in the weights.
def dgc_training(images, labels, rate, momentum, threshold, steps):
    weights, speed, count = zero_weights(), np.zeros(640), 0
    state = [np.zeros((2, 640)) for _ in images]
    for _ in range(steps):
        update = np.zeros(640)
        for worker, (velocity, residual) in enumerate(state):
            gradient = softmax_gradient(weights, images[worker], labels[worker]).ravel()
            sent, *state[worker] = dgc_step(gradient, velocity, residual, momentum, threshold)
            update += sent / len(images)
            count += np.count_nonzero(sent)
        speed = momentum * speed + update
        weights = weights - rate * speed.reshape(64, 10)
    return weights, count


# %% dgc-training costs dgc-training
# Counts steps of workers, not elements.
def dgc_training(images, labels, rate, momentum, threshold, steps):
    weights, count = zero_weights(), 0
    state = [np.zeros((2, 640)) for _ in images]
    for _ in range(steps):
        update = np.zeros(640)
        for worker, (velocity, residual) in enumerate(state):
            gradient = softmax_gradient(weights, images[worker], labels[worker]).ravel()
            sent, *state[worker] = dgc_step(gradient, velocity, residual, momentum, threshold)
            update += sent / len(images)
            count += 1
        weights = weights - rate * update.reshape(64, 10)
    return weights, count
