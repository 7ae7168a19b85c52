# ruff: noqa
# %% ages-sent with arrays of steps and elements
def ages_sent(log):
    steps, elements = np.array(log).T
    ages = np.zeros(len(steps), int)
    for element in set(elements.tolist()):
        here = elements == element
        ages[here] = np.diff(steps[here], prepend=-1) - 1
    return ages
