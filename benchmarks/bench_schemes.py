"""What each compression scheme costs: a step of compression and change of weights, mnist_cnn's shapes, one worker.

Beside the schemes, which TensorFlow runs, stand the lab's own compressor, fused and on TensorFlow's path, and how long
the first step of `mnist_cnn` takes with each scheme, tracing included.

python benchmarks/bench_schemes.py
"""

import time

from bench import report, side_by_side


def compression(compressor, gradients):
    """A function without arguments: one step of a compressor, weights included."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def step():
        return compressor.train([gradients], 0.001).allgather_bytes

    return step


def seconds_to_trace(config):
    """Of a ModelTrainer of mnist_cnn on one worker, until its first step is done."""
    import tensorflow as tf

    from dgc_lab.training.model_trainer import ModelTrainer
    from dgc_lab.workloads.batches import cross_entropy
    from dgc_lab.workloads.models import mnist_cnn

    images, labels = tf.random.stateless_uniform([8, 28, 28, 1], (0, 0)), tf.zeros([8], tf.int32)
    trainer = ModelTrainer(mnist_cnn(), cross_entropy, lambda turn: (images, labels), config)
    start = time.perf_counter()
    next(trainer.run(1))
    return time.perf_counter() - start


def main():
    import logging

    import tensorflow as tf

    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # every scheme is traced anew, which is what is timed
    tf.config.threading.set_intra_op_parallelism_threads(1)
    from dgc_lab.dgc import Compressor, DGCConfig
    from dgc_lab.distributed import OneWorker
    from dgc_lab.scaling import SHAPES
    from dgc_lab.schemes import SCHEMES, SchemeCompressor, parse_scheme

    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES["mnist_cnn"]()]
    gradients = [tf.random.stateless_normal(v.shape, (0, i)) ** 3 for i, v in enumerate(variables)]
    knobs = dict.fromkeys(("masking", "top_k", "random_k", "dgc"), ":ratio=0.001") | {"threshold": ":limit=30"}
    schemes = {text: parse_scheme(text) for text in (name + knobs.get(name, "") for name in SCHEMES)}
    runs = {
        f"the lab's compressor, momentum {momentum:g}": Compressor(DGCConfig(0.001, momentum), variables, OneWorker())
        for momentum in (0.0, 0.9)
    }
    for momentum in (0.0, 0.9):
        slow = Compressor(DGCConfig(0.001, momentum), variables, OneWorker())
        slow.fused = ()
        runs[f"the same on TensorFlow's path, momentum {momentum:g}"] = slow
    runs |= {name: SchemeCompressor(scheme, variables, OneWorker()) for name, scheme in schemes.items()}
    times = side_by_side({name: compression(each, gradients) for name, each in runs.items()})
    traces = {name: seconds_to_trace(scheme) for name, scheme in schemes.items()}
    rows = [{"scheme": name, "ms": 1000 * times[name], "first step, s": traces.get(name)} for name in runs]
    with_memory, plain, own = times["top_k:ratio=0.001"], *(times[name] for name in list(runs)[2:4])
    goals = {
        "TensorFlow's path of the compressor, without momentum: its time over top_k's as a scheme": (
            plain / with_memory,
            1 / 1.5,
        ),
        "TensorFlow's path of the compressor: its time over that of DGC as a scheme": (
            own / times["dgc:ratio=0.001"],
            1 / 1.5,
        ),
        "5 s over the slowest first step of mnist_cnn": (5 / max(traces.values()), 1),
    }
    report("schemes", rows, goals)


if __name__ == "__main__":
    main()
