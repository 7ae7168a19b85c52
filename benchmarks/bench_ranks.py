"""Cost of Horovod ranks alongside a notebook: their start, a call once they are warm, and their load while idle.

python benchmarks/bench_ranks.py

Their memory is part of the lessons' memory: benchmarks/bench_memory.py.

The cycle time of the ranks is 1 ms, Horovod's default. A longer one would save idle ranks little and slow down small
models a lot. In interleaved runs on one machine with cycle times of 1, 2.5 and 5 ms (means of two runs), idle ranks
used 0.12, 0.07 and 0.08 cores. Training on digits ran at 183, 149 and 118 steps per second with whole gradients, and
at 245, 228 and 151 at 0.1 %. `mnist_cnn` at 0.1 % ran at 16.3, 16.6 and 17.0 steps per second, a difference within the
variation between runs.
"""

import json

from bench import report

# Runs in a real Jupyter kernel, with the imports of a lesson.
CELL = """
import json, statistics, time
import psutil
import tensorflow as tf
import dgc_lab.training.masking_widget
from dgc_lab.cluster import HorovodRanks, stop_requested

def train(steps):
    import horovod.tensorflow as hvd
    import tensorflow as tf
    from dgc_lab.workloads.data import load
    from dgc_lab.training.masking_trainer import MaskingConfig, Trainer
    from dgc_lab.workloads.batches import cross_entropy

    trainer = Trainer(MaskingConfig(batch=64), load("digits"))

    @tf.function
    def step(number):
        images, labels = trainer.batches(hvd.size() * number + hvd.rank())
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(cross_entropy(labels, trainer.model(images, training=True)))
        gradients = tape.gradient(loss, trainer.weights)
        for weight, gradient in zip(trainer.weights, gradients):
            weight.assign_sub(0.05 * hvd.allreduce(gradient))
        return loss

    for number in range(steps):
        yield number, float(step(tf.constant(number)))

def empty():
    pass

def timed(function, *arguments):
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result

ranks = HorovodRanks(2, progress=None)
starts = []
for _ in range(3):
    starts.append(timed(ranks.start)[0])
    first = timed(ranks.run, empty)[0]
    if len(starts) < 3:
        ranks.stop()
calls = [timed(ranks.run, empty)[0] for _ in range(50)]
begun = time.perf_counter()
steps = ranks.stream(train, 1000)
live = timed(next, steps)[0]
losses = [loss for _, loss in steps]
again = timed(next, ranks.stream(train, 50))[0]
found = {"starts": starts, "first call": first, "calls": calls, "first item": live, "again": again}
found["idle"] = sum(p.cpu_percent(2) for p in psutil.Process().children(recursive=True)) / 100
found["stop"] = timed(ranks.stop)[0]
assert losses[-1] < 0.5 < losses[0], (losses[0], losses[-1])
print(json.dumps(found))
"""


def main():
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    printed = "".join(output.text for output in notebook.cells[0].outputs if output.get("name") == "stdout")
    found = json.loads(printed.splitlines()[-1])
    starts, calls = sorted(found["starts"]), sorted(found["calls"])
    rows = [
        {"what": "start of 2 ranks, median of 3", "value": starts[1], "unit": "s"},
        {"what": "first call", "value": found["first call"], "unit": "s"},
        {"what": "warm call, median of 50", "value": calls[25], "unit": "s"},
        {"what": "warm call, slowest of 50", "value": calls[-1], "unit": "s"},
        {"what": "first item of the first training run (traces, loads)", "value": found["first item"], "unit": "s"},
        {"what": "first item of the second run", "value": found["again"], "unit": "s"},
        {"what": "stop", "value": found["stop"], "unit": "s"},
        {"what": "cores that idle ranks and controllers keep busy", "value": found["idle"], "unit": "cores"},
    ]
    report("ranks", rows, {"0.5 s divided by the time of the slowest warm call": (0.5 / calls[-1], 1)})


if __name__ == "__main__":
    main()
