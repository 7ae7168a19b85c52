# ruff: noqa
"""Wrong answers to 08_other_compressors: of each cell the id, and the marks that it must cost."""


# %% quantise costs quantise
def quantise(gradient, levels, chances):
    norm = np.linalg.norm(gradient)
    return np.sign(gradient) * np.round(np.abs(gradient) * levels / norm) * norm / levels


# %% quantise costs quantise
def quantise(gradient, levels, chances):
    norm = np.linalg.norm(gradient)
    return np.floor(gradient * levels / norm + chances) * norm / levels


# %% my-variance costs my-variance
my_variance = 0.25 * len(gradient) * (np.linalg.norm(gradient) / levels) ** 2


# %% with-feedback costs with-feedback, my-memory
def with_feedback(gradient, memory, compress):
    sent = compress(gradient)
    return sent, gradient + memory - sent


# %% with-feedback costs with-feedback, my-memory
def with_feedback(gradient, memory, compress):
    corrected = gradient + memory
    return compress(corrected), corrected


# %% my-memory costs my-memory
my_memory = np.linalg.norm(gradients[-1] - scaled_signs(gradients[-1]))


# %% packed-bytes costs packed-bytes
def packed_bytes(sizes, values):
    bits = next(bits for bits in (1, 2, 4, 8) if 2**bits >= values)
    return -(-sum(sizes) * bits // 8) + 4


# %% packed-bytes costs packed-bytes
def packed_bytes(sizes, values):
    bits = max(2, next(bits for bits in (1, 2, 4, 8) if 2**bits >= values))
    return sum(-(-size * bits // 8) + 4 for size in sizes)


# %% powersgd-step costs powersgd-step
def powersgd_step(gradients, right):
    mean = np.mean(gradients, axis=0)
    left, _ = np.linalg.qr(mean @ right)
    return left @ (mean.T @ left).T, left


# %% powersgd-step costs powersgd-step, my-share
def powersgd_step(gradients, right):
    left = np.mean([gradient @ right for gradient in gradients], axis=0)
    right = np.mean([gradient.T @ left for gradient in gradients], axis=0)
    return left @ right.T, right


# %% my-share costs my-share
my_share = np.linalg.norm(powersgd_step([matrix], np.eye(12)[:, :2])[0]) / np.linalg.norm(matrix)


# %% mended-mean costs mended-mean
def mended_mean(messages, size):
    return flawed_mean(messages, size)


# %% mended-memory costs mended-memory
def mended_memory(gradient, memory, count):
    return flawed_memory(gradient, memory, count)


# %% mended-draw costs mended-draw
def mended_draw(size, count, seed, worker):
    return flawed_draw(size, count, seed, worker)


# %% mended-draw costs mended-draw
def mended_draw(size, count, seed, worker):
    return np.arange(count)


# %% contest costs contest-good, contest-very-good
def compress(gradient, memory, seed):
    return [gradient], memory


def decompress(message, seed):
    return message[0]


# %% contest costs contest-good, contest-very-good
def compress(gradient, memory, seed):
    places = np.argsort(-np.abs(gradient))[:5].astype(np.uint16)
    return [places, gradient[places]], memory


def decompress(message, seed):
    whole = np.zeros(650, np.float32)
    whole[message[0]] = message[1]
    return whole


# %% contest costs contest-very-good
def compress(gradient, memory, seed):
    corrected = gradient + memory
    places = np.argsort(-np.abs(corrected))[:2].astype(np.uint16)
    values = corrected[places]
    corrected[places] = 0
    return [places, values], corrected


def decompress(message, seed):
    whole = np.zeros(650, np.float32)
    whole[message[0]] = message[1]
    return whole
