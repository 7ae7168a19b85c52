"""What sweep, selection and compression cost on a GPU, each beside the same machine's CPU: under eight minutes.

python benchmarks/bench_gpu.py

`make bench-gpu` runs it and writes this page anew; it is no part of `make bench`. The sweep
trains on MNIST where `DGC_LAB_DATA` names it, else on digits, where a step is too small to keep a GPU busy. On a GPU
the algorithm runs as it is written; on the CPU the fused step stands beside it. One large tensor is compressed faster
on the GPU, and a model of many small ones (ResNet-50 has 161) more slowly: the search in a million elements takes
nearly as long there as in 25 million.
"""

import math
import sys
import time

from bench import report, side_by_side
from bench_selection import compiled, largest, masked
from bench_step import addition, compression

SIZES = (1_000_000, 3_211_264, 25_000_000)  # 3 211 264: mnist_cnn's dense layer
RATIO, ROUNDS, SWEEP_STEPS = 0.001, 9, 200


def selecting(size):
    """The thresholds by each rule, the search for what passes, `tf.math.top_k` and `tf.where`, as functions."""
    import tensorflow as tf

    from dgc_lab.dgc.selection import elements_above
    from dgc_lab.dgc.thresholding import RULES, elements_to_keep, exact_threshold

    x, share = tf.random.stateless_normal([size], (1, 2)), tf.constant(RATIO, tf.float64)
    limit = exact_threshold(x, RATIO)
    functions = {"tf.math.top_k": compiled(largest, x, int(elements_to_keep(RATIO, x)))}
    functions |= {f"{rule} threshold": compiled(find, x, share) for rule, find in RULES.items()}
    functions |= {"tf.where": compiled(masked, x, limit), "passing": compiled(elements_above, x, limit)}
    return functions | {"tf.add": addition(size)}


def stepping(shapes, fused):
    """A worker's whole step of compression and the change of the weights; with a fused one where there is one."""
    functions = {"step": compression(shapes, "float32", "int32", "entries", fused=False)}
    if fused:
        functions["step, fused"] = compression(shapes, "float32", "int32", "entries")
    return functions | {"tf.add": addition(sum(map(math.prod, shapes)))}


def timed(device, make):
    """Milliseconds of each function that ``make`` returns, with its tensors and its work on a device."""
    import tensorflow as tf

    with tf.device(device):
        return {name: 1e3 * seconds for name, seconds in side_by_side(make(), ROUNDS).items()}


def sweeping(device, data, rule):
    """Steps a second of a sweep over four ratios, or of a run without masks; loading and tracing are left out."""
    import tensorflow as tf

    from dgc_lab.training.masking_trainer import MaskingConfig, Trainer
    from dgc_lab.training.sweeps import sweep

    settings = MaskingConfig(dataset=data.name, steps=SWEEP_STEPS, batch=100, rule=rule, evaluations=1)
    ratios = [1] if rule == "off" else [0.1, 0.01, 0.001, 0.0001]
    with tf.device(device):
        trainer = Trainer(settings, data)
        list(trainer.run(ratios[0]))
        start = time.perf_counter()
        for _ in sweep(settings, ratios, trainer=trainer):
            pass
        return len(ratios) * SWEEP_STEPS / (time.perf_counter() - start)


def measure(gpu, sizes, models, data):
    """Yield rows, a group at a time: each figure on the ``gpu`` and on the CPU, taken one after the other."""
    for size in sizes:
        there, here = (timed(device, lambda size=size: selecting(size)) for device in (gpu, "/CPU:0"))
        yield [row_of("selection", f"{size:,} elements", name, "ms", there[name], here[name]) for name in there]
    for model, shapes in models.items():
        there = timed(gpu, lambda shapes=shapes: stepping(shapes, fused=False))
        here = timed("/CPU:0", lambda shapes=shapes: stepping(shapes, fused=True))
        yield [row_of("step", model, name, "ms", there.get(name), here[name]) for name in here]
    for rule in ("off", "sampled", "exact"):
        there, here = sweeping(gpu, data, rule), sweeping("/CPU:0", data, rule)
        yield [row_of("sweep", data.name, f"rule {rule}", "steps/s", there, here)]


def row_of(part, of, what, unit, gpu, cpu):
    """A line of the table, with the times as fast that the GPU is."""
    times = None if gpu is None else cpu / gpu if unit == "ms" else gpu / cpu
    return {"part": part, "of": of, "what": what, "unit": unit, "GPU": gpu, "CPU": cpu, "GPU, times as fast": times}


def main():
    import os

    import tensorflow as tf

    from dgc_lab.scaling.named_shapes import SHAPES
    from dgc_lab.workloads.data import load

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        sys.exit("TensorFlow sees no GPU here: nothing was measured. python -m dgc_lab doctor says why.")
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
    models = {model: SHAPES[model]() for model in ("mnist_cnn", "ResNet-50")} | {"one tensor of 25 M": [(25_000_000,)]}
    rows = []
    for group in measure("/GPU:0", SIZES, models, load("mnist" if "DGC_LAB_DATA" in os.environ else "digits")):
        rows += [{**row, "GPU's name": name} for row in group]
        report("gpu", rows, {})  # a lent machine may go before the end


if __name__ == "__main__":
    main()
