"""Time of each compression scheme: a step of compression and weight update, mnist_cnn's shapes, one worker.

For comparison, the table includes Deep Gradient Compression with a `DGCConfig`, with the native step and with
TensorFlow's own operations. *first step* is the time of the first step of `mnist_cnn` with each scheme, including
tracing.

python benchmarks/bench_schemes.py
"""

import inspect
import time

from bench import report, side_by_side
from bench_step import traced


def compression(compressor, gradients, native):
    """Return one traced step of a compressor, including the weight update, as a function without arguments."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def step(gradients):
        return compressor.train([gradients], 0.001).allgather_bytes

    return traced(step, gradients, native)


def seconds_to_trace(config):
    """Return the seconds until a ModelTrainer of mnist_cnn on one worker has finished its first step."""
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

    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # hides warnings that every scheme is traced again
    tf.config.threading.set_intra_op_parallelism_threads(1)
    from dgc_lab.compression import SCHEMES, Compressor, DGCConfig, parse_scheme
    from dgc_lab.distributed import OneWorker
    from dgc_lab.scaling import SHAPES

    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES["mnist_cnn"]()]
    gradients = [tf.random.stateless_normal(v.shape, (0, i)) ** 3 for i, v in enumerate(variables)]
    with_ratio = [name for name, make in SCHEMES.items() if "ratio" in inspect.signature(make).parameters]
    parameters = dict.fromkeys(with_ratio, ":ratio=0.001") | {"threshold": ":limit=30"}
    schemes = {text: parse_scheme(text) for text in (name + parameters.get(name, "") for name in SCHEMES)}
    schemes = {text: scheme for text, scheme in schemes.items() if scheme.every == 1}  # the others need a trainer
    runs = {
        f"DGCConfig, momentum {momentum:g}{'' if native else ', in TensorFlow'}": (DGCConfig(0.001, momentum), native)
        for native in (True, False)
        for momentum in (0.0, 0.9)
    }
    runs |= {name: (scheme, True) for name, scheme in schemes.items()}
    steps = {
        name: compression(Compressor(scheme, variables, OneWorker()), gradients, native)
        for name, (scheme, native) in runs.items()
    }
    times = side_by_side(steps)
    traces = {name: seconds_to_trace(scheme) for name, scheme in schemes.items()}
    rows = [{"scheme": name, "ms": 1000 * times[name], "first step, s": traces.get(name)} for name in runs]
    alike = {"DGCConfig, momentum 0": "top_k:ratio=0.001", "DGCConfig, momentum 0.9": "dgc:ratio=0.001"}
    goals = {
        f"{config}: time divided by that of {name}": (times[config] / times[name], 1 / 1.5)
        for config, name in alike.items()
    }
    goals |= {
        "5 s divided by the slowest first step of mnist_cnn": (5 / max(traces.values()), 1),
    }
    report("schemes", rows, goals)


if __name__ == "__main__":
    main()
