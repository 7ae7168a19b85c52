# ruff: noqa
"""Wrong answers to 04_masking: of each cell the id, and the marks that it must cost."""


# %% elements-to-keep costs elements-to-keep, my-counts
def elements_to_keep(ratio, elements):
    return int(ratio * elements)


# %% elements-to-keep costs elements-to-keep
def elements_to_keep(ratio, elements):
    return int(np.ceil(ratio * elements))


# %% top-k-mask costs top-k-mask
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
