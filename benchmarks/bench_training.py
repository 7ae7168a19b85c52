"""Cost of masking and sweeping in training throughput: steps per second with and without, in interleaved runs.

DGC_LAB_DATA=/path/to/mnist.npz python benchmarks/bench_training.py
"""

import time

from bench import report


def masking(settings, data, block, rounds):
    """Return the steps per second with each rule; the runs take turns in blocks of steps."""
    import dataclasses

    from dgc_lab.training.events import Step
    from dgc_lab.training.masking_trainer import Trainer

    rules = ("off", "sampled", "hierarchical", "exact")
    runs = {
        rule: Trainer(dataclasses.replace(settings, rule=rule), data).run(1 if rule == "off" else 0.001)
        for rule in rules
    }
    before, taken = {}, dict.fromkeys(rules, 0.0)
    for number in range(rounds + 1):
        for rule, events in runs.items():
            for _ in range(block):
                event = next(events)
                while not isinstance(event, Step):
                    event = next(events)
            if number:  # the first block traces and warms up
                taken[rule] += event.seconds - before[rule]
            before[rule] = event.seconds
    return {rule: block * rounds / taken[rule] for rule in rules}


def calling(settings, data, rounds):
    """Return the steps per second with one step per TensorFlow call and with several; the runs take turns."""
    from dgc_lab.training import steps_at_once
    from dgc_lab.training.masking_trainer import Trainer

    trainer, usual = Trainer(settings, data), steps_at_once.SECONDS
    list(trainer.run(0.001))
    taken = {"one step per call": 0.0, "several": 0.0}
    for _ in range(rounds):
        for name, seconds in zip(taken, (0.0, usual), strict=True):
            steps_at_once.SECONDS = seconds
            start = time.perf_counter()
            list(trainer.run(0.001))
            taken[name] += time.perf_counter() - start
    steps_at_once.SECONDS = usual
    return {name: rounds * settings.steps / seconds for name, seconds in taken.items()}


def sweeping(settings, data, ratios):
    """Return the steps per second of a sweep, and of a run with equally many steps and evaluations; without loading."""
    import dataclasses

    from dgc_lab.training.masking_trainer import Trainer
    from dgc_lab.training.sweeps import sweep

    single = dataclasses.replace(settings, steps=len(ratios) * settings.steps, evaluations=len(ratios))
    total = len(ratios) * settings.steps
    speeds = {"one run": [], "sweep": []}
    for _ in range(3):
        for name, one, shares in (("one run", single, [0.01]), ("sweep", settings, ratios)):
            trainer = Trainer(one, data)
            start = time.perf_counter()
            for _ in sweep(one, shares, trainer=trainer):
                pass
            speeds[name].append(total / (time.perf_counter() - start))
    return {name: sorted(found)[1] for name, found in speeds.items()}


def main():
    from dgc_lab.training.masking_trainer import MaskingConfig
    from dgc_lab.training.published_tables import SINGLE_NODE
    from dgc_lab.workloads.data import load

    rows, goals = [], {}
    digits, mnist = load("digits"), load("mnist")
    long = {"steps": 10_000, "evaluations": 1}
    for settings, data, block, rounds in (
        (MaskingConfig(**long), digits, 100, 20),
        (MaskingConfig(dataset="mnist", batch=100, learning_rate=0.01, **long), mnist, 20, 12),
    ):
        speeds = masking(settings, data, block, rounds)
        for rule, speed in speeds.items():
            what = "training, no mask" if rule == "off" else f"training, masked at 0.1 %, {rule}"
            rows.append({"what": what, "model": settings.model, "steps/s": speed, "ratio": speed / speeds["off"]})
        if settings.dataset == "mnist":
            goals["throughput with masking (sampled) divided by that without"] = speeds["sampled"] / speeds["off"], 0.9
    speeds = calling(MaskingConfig(steps=1000, evaluations=1), digits, 5)
    for what, speed in speeds.items():
        row = {"what": f"training, masked at 0.1 %, sampled, {what}", "model": "digits_cnn", "steps/s": speed}
        rows.append(row | {"ratio": speed / speeds["one step per call"]})
    goals["steps per second with several steps per call divided by one step per call"] = (
        speeds["several"] / speeds["one step per call"],
        1.35,
    )
    speeds = sweeping(MaskingConfig(steps=300, evaluations=1), digits, list(SINGLE_NODE))
    for what, speed in speeds.items():
        name = f"{what}, {12 * 300} steps"
        rows.append({"what": name, "model": "digits_cnn", "steps/s": speed, "ratio": speed / speeds["one run"]})
    goals["throughput of a 12-ratio sweep divided by that of one run"] = speeds["sweep"] / speeds["one run"], 0.9
    report("training", rows, goals)


if __name__ == "__main__":
    main()
