"""Cost of complete DGC on one worker, and time until a run on two ranks shows its first point.

DGC_LAB_DATA=/path/to/mnist.npz python benchmarks/bench_dgc.py
"""

import time

from bench import report

BLOCK, ROUNDS = 20, 15  # steps in a turn, and turns


def step_times(settings, data):
    """Return the seconds per step of momentum SGD, masking and complete DGC at 0.1 %; the runs take turns."""
    from dgc_lab.training.distributed_trainer import DistributedConfig, DistributedTrainer
    from dgc_lab.training.events import Step
    from dgc_lab.training.masking_trainer import MaskingConfig, Trainer

    runs = {
        "momentum SGD": Trainer(MaskingConfig(rule="off", **settings), data).run(1),
        "masking": Trainer(MaskingConfig(**settings), data).run(0.001),
        "complete DGC": DistributedTrainer(DistributedConfig(workers=1, **settings), data=data).run(0.001),
    }
    before, taken = {}, {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        for name, events in runs.items():
            for _ in range(BLOCK):
                event = next(events)
                while not isinstance(event, Step):
                    event = next(events)
            if number:  # the first block traces and warms up
                taken[name].append((event.seconds - before[name]) / BLOCK)
            before[name] = event.seconds
    return {name: sorted(found)[len(found) // 2] for name, found in taken.items()}


def first_points(widget):
    """Return the seconds from Run to the first live point: in the first run, with a new ratio, with a new switch."""
    found = {}
    for name, control, value in (
        ("first run, ranks started", "ratios", "0.01"),
        ("second run, another ratio", "ratios", "0.1"),
        ("third run, a switch off", "accumulate", False),
    ):
        widget.controls[control].value = value
        runs, start = len(widget.curves.runs), time.perf_counter()
        widget.start()
        while not (len(widget.curves.runs) > runs and widget.curves.runs[-1]["loss"][0]):
            time.sleep(0.005)
        found[name] = time.perf_counter() - start
        widget.wait()
    return found


def main():
    from dgc_lab.training.distributed_widget import DistributedSweep
    from dgc_lab.workloads.data import load

    rows, goals = [], {}
    settings = {"dataset": "mnist", "batch": 100, "learning_rate": 0.01, "steps": 10_000, "evaluations": 1}
    times = step_times(settings, load("mnist"))
    for name, seconds in times.items():
        rows.append({"what": f"one worker, mnist_cnn, {name}", "value": 1000 * seconds, "unit": "ms per step"})
    goals["throughput with complete DGC on one worker divided by that of momentum SGD"] = (
        times["momentum SGD"] / times["complete DGC"],
        1 / 1.1,
    )
    widget = DistributedSweep(steps=100)
    for name, seconds in first_points(widget).items():
        rows.append({"what": f"first live point, {name}", "value": seconds, "unit": "s"})
        if not name.startswith("first"):
            goals[f"2 s divided by the time to the first live point, {name}"] = (2 / seconds, 1)
    widget.close()
    report("dgc", rows, goals)


if __name__ == "__main__":
    main()
