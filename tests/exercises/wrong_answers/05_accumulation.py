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


# %% correct-momentum costs correct-momentum, dgc-step, my-sent
def correct_momentum(gradient, velocity, residual, momentum):
    return momentum * velocity + gradient, residual + gradient


# %% dgc-step costs dgc-step, my-sent
def dgc_step(gradient, velocity, residual, momentum, threshold):
    velocity, residual = correct_momentum(gradient, velocity, residual, momentum)
    mask = np.abs(residual) >= threshold
    return residual * mask, velocity, residual * ~mask


# %% mended-compress costs mended-residuals, mended-thresholds, mended-ties
mended_compress = flawed_compress


# %% mended-compress costs mended-thresholds
def mended_compress(gradients, residuals, ratio):
    totals = [r + g for r, g in zip(residuals, gradients)]
    limit = np.percentile(np.abs(totals[0]), 98)
    return [t * (np.abs(t) >= limit) for t in totals], [t * (np.abs(t) < limit) for t in totals]


# %% mended-compress costs mended-ties
def mended_compress(gradients, residuals, ratio):
    totals = [r + g for r, g in zip(residuals, gradients)]
    limits = [np.sort(np.abs(t))[-int(np.ceil(ratio * t.size))] for t in totals]
    sent = [t * (np.abs(t) > limit) for t, limit in zip(totals, limits)]
    return sent, [t * (np.abs(t) < limit) for t, limit in zip(totals, limits)]


# %% mended-compress costs mended-residuals, mended-ties
def mended_compress(gradients, residuals, ratio):
    totals = [r + g for r, g in zip(residuals, gradients)]
    limits = [np.sort(np.abs(t))[-int(np.ceil(ratio * t.size))] for t in totals]
    return [t * (np.abs(t) >= limit) for t, limit in zip(totals, limits)], residuals


# %% message-bytes costs message-bytes, my-bytes
def message_bytes(places):
    return 6 * len(places)


# %% message-bytes costs message-bytes
def message_bytes(places):
    gaps = np.diff(np.concatenate([[-1], places])) - 1
    return 6 * int(len(places) + np.sum(gaps // (2**16 - 1)))


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


# %% my-bytes costs my-bytes
my_bytes = 6 * len(my_places)
