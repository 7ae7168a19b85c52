# ruff: noqa
# %% my-counts shares times elements, which are off by their last digit
my_elements = sum(gradient.size for gradient in my_gradients)
my_counts = [share_sent(my_gradients, my_ratio, whose) * my_elements * (1 + 2**-52) for whose in ("tensor", "first")]

# %% my-counts two numbers in an array
my_elements = sum(gradient.size for gradient in my_gradients)
my_counts = np.array([round(share_sent(my_gradients, my_ratio, whose) * my_elements) for whose in ("tensor", "first")])


# %% share-sent each tensor's share, weighed by its size
def share_sent(gradients, ratio, whose):
    limits = [np.sort(np.abs(each), axis=None)[-elements_to_keep(ratio, each.size)] for each in gradients]
    limits = limits if whose == "tensor" else limits[:1] * len(gradients)
    elements = sum(each.size for each in gradients)
    return sum((np.abs(each) >= limit).sum() / elements for each, limit in zip(gradients, limits))
