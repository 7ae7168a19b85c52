"""Sweeps, selection and compression on a GPU, compared with the same machine's CPU: under eight minutes.

python benchmarks/bench_gpu.py

`make bench-gpu` runs it and updates this page; `make bench` skips it. The sweep trains on MNIST if `DGC_LAB_DATA` is
set, else on digits, whose steps are too small to keep a GPU busy. The GPU runs TensorFlow's own operations. On the CPU,
the native step is measured, too, in a process without access to the GPU.
"""

import json
import math
import os
import subprocess
import sys
import time

from bench import report, side_by_side
from bench_selection import compiled, largest, masked
from bench_step import addition, compression

SIZES = (1_000_000, 3_211_264, 25_000_000)  # 3 211 264: mnist_cnn's dense layer
RATIO, ROUNDS, SWEEP_STEPS = 0.001, 9, 200


def selecting(size):
    """Return the thresholds by each rule, the search for elements above one, `tf.math.top_k` and `tf.where`."""
    import tensorflow as tf

    from dgc_lab.compression import RULES, elements_above, exact_threshold, thresholds
    from dgc_lab.compression.segment_search import elements_to_keep

    x, share = tf.random.stateless_normal([size], (1, 2)), tf.constant(RATIO, tf.float64)
    limit = exact_threshold(x, RATIO)
    functions = {"tf.math.top_k": compiled(largest, x, int(elements_to_keep(RATIO, size)))}
    functions |= {f"{rule} threshold": compiled(thresholds, [x], share, rule) for rule in RULES}
    functions |= {"tf.where": compiled(masked, x, limit), "passing": compiled(elements_above, x, limit[None], (size,))}
    return functions | {"tf.add": addition(size)}


def stepping(shapes, native):
    """Return a worker's whole step, compression and weight update; if ``native``, also the native one."""
    functions = {"step": compression(shapes, "float32", "int32", "entries", native=False)}
    if native:
        functions["step, native"] = compression(shapes, "float32", "int32", "entries")
    return functions | {"tf.add": addition(sum(map(math.prod, shapes)))}


def timed(device, make):
    """Return the milliseconds of each function that ``make`` returns, with its tensors and operations on a device."""
    import tensorflow as tf

    with tf.device(device):
        return {name: 1e3 * seconds for name, seconds in side_by_side(make(), ROUNDS).items()}


def sweeping(device, data, rule):
    """Return steps per second of a sweep over four ratios, or of a run without masks; tracing is not counted."""
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


def figures_on(device, sizes, models, data, native):
    """Yield groups of figures on one device: part, what was measured, unit, and the figures by name."""
    for size in sizes:
        yield "selection", f"{size:,} elements", "ms", timed(device, lambda size=size: selecting(size))
    for model, shapes in models.items():
        yield "step", model, "ms", timed(device, lambda shapes=shapes: stepping(shapes, native))
    for rule in ("off", "sampled", "exact"):
        yield "sweep", data.name, "steps/s", {f"rule {rule}": sweeping(device, data, rule)}


def figures_without_gpu():
    """Yield the figures of the CPU from a process without access to the GPU, which would disable native operations."""
    environment, command = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}, [sys.executable, __file__, "cpu"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as child:
        print(file=child.stdin, flush=True)  # each line asks for a group, so that the two devices take turns
        for line in child.stdout:
            if line.startswith("["):
                yield json.loads(line)
                print(file=child.stdin, flush=True)


def measure(gpu, sizes, models, data, cpu=None):
    """Yield rows, a group at a time: each figure on the ``gpu`` and on the CPU, one after the other."""
    cpu = cpu or figures_on("/CPU:0", sizes, models, data, native=True)
    for (part, of, unit, there), (*_, here) in zip(
        figures_on(gpu, sizes, models, data, native=False), cpu, strict=False
    ):
        yield [row_of(part, of, name, unit, there.get(name), here[name]) for name in here]


def row_of(part, of, what, unit, gpu, cpu):
    """Return a row of the table, with how many times as fast the GPU is."""
    times = None if gpu is None else cpu / gpu if unit == "ms" else gpu / cpu
    return {"part": part, "of": of, "what": what, "unit": unit, "GPU": gpu, "CPU": cpu, "GPU, times as fast": times}


def main():
    import tensorflow as tf

    from dgc_lab.scaling.named_shapes import SHAPES
    from dgc_lab.workloads.data import load

    models = {model: SHAPES[model]() for model in ("mnist_cnn", "ResNet-50")} | {"one tensor of 25 M": [(25_000_000,)]}
    data = load("mnist" if "DGC_LAB_DATA" in os.environ else "digits")
    if sys.argv[1:] == ["cpu"]:
        figures = figures_on("/CPU:0", SIZES, models, data, native=True)
        for _, group in zip(sys.stdin, figures, strict=False):
            print(json.dumps(group), flush=True)
        return
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        sys.exit("TensorFlow sees no GPU here: nothing was measured. To find out why, run: python -m dgc_lab doctor")
    name = tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
    rows = []
    for group in measure("/GPU:0", SIZES, models, data, figures_without_gpu()):
        rows += [{**row, "GPU's name": name} for row in group]
        report("gpu", rows, {})  # after each group, as a borrowed machine may be withdrawn before the end


if __name__ == "__main__":
    main()
