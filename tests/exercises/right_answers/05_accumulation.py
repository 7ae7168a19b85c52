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
            sent[i], velocity[i], residual[i] = residual[i], 0, 0
    return sent, velocity, residual
