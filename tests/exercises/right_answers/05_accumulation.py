# ruff: noqa
# %% accumulate two lists
def accumulate(gradient, residual, threshold):
    together = [float(a) + float(b) for a, b in zip(gradient, residual)]
    sent = [each if abs(each) >= threshold else 0.0 for each in together]
    return sent, [0.0 if abs(each) >= threshold else each for each in together]


# %% dgc-step element by element
def dgc_step(gradient, velocity, residual, momentum, threshold):
    sent, velocity, residual = np.zeros(len(gradient)), np.array(velocity, float), np.array(residual, float)
    for i in range(len(gradient)):
        velocity[i] = momentum * velocity[i] + gradient[i]
        residual[i] += velocity[i]
        if abs(residual[i]) >= threshold:
            sent[i], residual[i] = residual[i], 0
            velocity[i] *= threshold == 0
    return sent, velocity, residual


# %% dgc-step by the number of sent elements
def dgc_step(gradient, velocity, residual, momentum, threshold):
    velocity, residual = correct_momentum(gradient, velocity, residual, momentum)
    mask = np.abs(residual) >= threshold
    return residual * mask, velocity if mask.all() else velocity * ~mask, residual * ~mask
