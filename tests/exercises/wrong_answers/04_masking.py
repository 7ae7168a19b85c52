# ruff: noqa
"""Wrong answers to 04_masking: of each cell the id, and the marks that it must cost."""


# %% fewest-elements costs fewest-elements
def fewest_elements(gradient, share):
    # Of the squares in place of the norm.
    squares = np.cumsum(np.sort(gradient**2, axis=None)[::-1])
    return int(np.searchsorted(squares, share * squares[-1])) + 1


# %% fewest-elements costs fewest-elements
def fewest_elements(gradient, share):
    # Absolute values, which no L2 norm is made of.
    sums = np.cumsum(np.sort(np.abs(gradient), axis=None)[::-1])
    return int(np.searchsorted(sums, share * sums[-1])) + 1


# %% fewest-elements costs fewest-elements
def fewest_elements(gradient, share):
    # The last one that is not enough.
    squares = np.cumsum(np.sort(gradient**2, axis=None)[::-1])
    return int(np.searchsorted(squares, share**2 * squares[-1]))


# %% fewest-elements costs fewest-elements
def fewest_elements(gradient, share):
    # As many at random, as the lesson's table has them.
    return int(np.ceil(share**2 * gradient.size))


# %% top-k-mask costs top-k-mask, masked-training
def top_k_mask(gradient, k):
    return gradient >= np.sort(gradient, axis=None)[-k]


# %% top-k-mask costs top-k-mask
def top_k_mask(gradient, k):
    mask = np.zeros(gradient.size, bool)
    mask[np.argsort(-np.abs(gradient), axis=None)[:k]] = True
    return mask.reshape(gradient.shape)


# %% split costs split
def split(gradient, mask):
    return gradient, gradient * ~mask


# %% split costs split
def split(gradient, mask):
    return gradient[mask], gradient[~mask]


# %% my-threshold costs my-threshold
my_threshold = np.sort(my_gradient)[-my_k]


# %% sampled-threshold costs sampled-threshold
def sampled_threshold(gradient, ratio, stride, start):
    return np.sort(np.abs(gradient), axis=None)[-elements_to_keep(ratio, gradient.size)]


# %% guaranteed-threshold costs guaranteed-threshold
def guaranteed_threshold(gradient, ratio, stride):
    return sampled_threshold(gradient, ratio, stride, 0)


# %% share-sent costs share-sent, my-counts
def share_sent(gradients, ratio, whose):
    return ratio


# %% my-counts costs my-counts
my_counts = [int(np.ceil(my_ratio * sum(gradient.size for gradient in my_gradients)))] * 2


# %% masked-training costs masked-training
# Always the elements of the first gradient.
def masked_training(images, labels, k, rate, steps):
    weights = zero_weights()
    mask = top_k_mask(softmax_gradient(weights, images, labels), k)
    for _ in range(steps):
        weights = weights - rate * softmax_gradient(weights, images, labels) * mask
    return weights


# %% masked-training costs masked-training
# Nothing is dropped: that is the next exercise.
def masked_training(images, labels, k, rate, steps):
    weights, residual = zero_weights(), zero_weights()
    for _ in range(steps):
        residual = residual + softmax_gradient(weights, images, labels)
        mask = top_k_mask(residual, k)
        weights, residual = weights - rate * residual * mask, residual * ~mask
    return weights
