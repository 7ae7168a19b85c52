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


# %% typical-staleness costs typical-staleness
def typical_staleness(workers):
    return workers


# %% my-largest-staleness costs my-largest-staleness
my_largest_staleness = 0


# %% may-start costs may-start
def may_start(own, steps, bound):
    return own - min(steps) < bound


# %% may-start costs may-start
def may_start(own, steps, bound):
    return max(steps) - own <= bound


# %% synchronous-seconds costs synchronous-seconds, my-waiting
def synchronous_seconds(seconds):
    return seconds.max(axis=0).sum()


# %% synchronous-seconds costs synchronous-seconds, my-waiting
def synchronous_seconds(seconds):
    return seconds.sum(axis=0).max()


# %% asynchronous-updates costs asynchronous-updates
def asynchronous_updates(seconds, duration):
    return np.sum(duration / seconds)


# %% backup-seconds costs backup-seconds, my-waiting
def backup_seconds(seconds, needed):
    return np.sort(seconds, axis=1)[:, :needed].sum()


# %% my-waiting costs my-waiting
my_waiting = my_seconds.max(axis=1).sum(), my_seconds[:, :-1].max(axis=1).sum()
