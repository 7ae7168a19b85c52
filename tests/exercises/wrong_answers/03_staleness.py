# ruff: noqa
"""Wrong answers to 03_staleness: of each cell the id, and the marks that it must cost."""


# %% staleness costs staleness, my-largest-staleness
def staleness(events):
    # All events in between, not the updates alone.
    last, found = {}, []
    for place, (what, worker) in enumerate(events):
        if what == "reads":
            last[worker] = place
        else:
            found.append(place - last[worker] - 1)
    return np.array(found)


# %% staleness costs staleness
def staleness(events):
    # Since the first read after an update, not the last one. (The largest in the log is the same.)
    version, read, found = 0, {}, []
    for what, worker in events:
        if what == "reads":
            read.setdefault(worker, version)
        else:
            found.append(version - read.pop(worker))
            version += 1
    return np.array(found)


# %% my-largest-staleness costs my-largest-staleness
my_largest_staleness = 0


# %% may-start costs may-start
def may_start(own, steps, bound):
    return own - min(steps) < bound


# %% may-start costs may-start
def may_start(own, steps, bound):
    return max(steps) - own <= bound


# %% asynchronous-updates costs asynchronous-updates
def asynchronous_updates(seconds, duration):
    return np.sum(duration / seconds)


# %% backup-seconds costs backup-seconds, my-waiting
def backup_seconds(seconds, needed):
    return np.sort(seconds, axis=1)[:, :needed].sum()


# %% my-waiting costs my-waiting
my_waiting = my_seconds.max(axis=1).sum(), my_seconds[:, :-1].max(axis=1).sum()


# %% stale-training costs stale-training
# One step too old.
def stale_training(images, labels, rate, delay, steps):
    past = [zero_weights()]
    for step in range(steps):
        past.append(past[-1] - rate * softmax_gradient(past[max(0, step - delay - 1)], images, labels))
    return past[-1]


# %% stale-training costs stale-training
# Waits until the first gradient arrives.
def stale_training(images, labels, rate, delay, steps):
    past = [zero_weights()]
    for step in range(steps):
        move = rate * softmax_gradient(past[step - delay], images, labels) if step >= delay else 0
        past.append(past[-1] - move)
    return past[-1]


# %% stale-training costs stale-training
# Takes the step from the old weights as well.
def stale_training(images, labels, rate, delay, steps):
    past = [zero_weights()]
    for step in range(steps):
        old = past[max(0, step - delay)]
        past.append(old - rate * softmax_gradient(old, images, labels))
    return past[-1]
