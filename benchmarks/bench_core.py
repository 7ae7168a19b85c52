"""Size of the compression step's graph, time to trace it, and time of a step.

python benchmarks/bench_core.py

A step is `dgc_lab.compression.Compressor.train` with the paper's config at 0.1 %: compression for all simulated
workers, the exchange, and the weight update, without the network itself. *nodes* counts the nodes of the graph and of
the functions that it calls. *first result, s* is the time from the call to the first update, including tracing.
ResNet-50 has 161 tensors, 54 of which are compressed.
"""

import time

from bench import finish, report, side_by_side

RATIO, ROUNDS = 0.001, 15
SETUPS = (("ResNet-50", 1), ("ResNet-50", 4), ("digits_cnn", 4))


def shapes_of(model):
    """Return the shapes of a model's parameters."""
    from dgc_lab.scaling.named_shapes import SHAPES
    from dgc_lab.workloads.models import digits_cnn

    return SHAPES[model]() if model in SHAPES else [tuple(one.shape) for one in digits_cnn().trainable_variables]


def measure(model, shapes, workers):
    """Return a row of the table: size of the graph, and seconds."""
    import tensorflow as tf

    from dgc_lab.compression import Compressor, DGCConfig
    from dgc_lab.distributed import SimulatedWorkers

    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    compressor = Compressor(DGCConfig(RATIO), variables, SimulatedWorkers(workers))
    gradients = [
        [tf.random.stateless_normal(shape, (worker, i)) for i, shape in enumerate(shapes)] for worker in range(workers)
    ]

    @tf.function(autograph=False)
    def step(gradients):
        return compressor.train(gradients, 0.1).num_sent

    start = time.perf_counter()
    graph = step.get_concrete_function(gradients).graph.as_graph_def()
    traced = time.perf_counter() - start
    finish(step(gradients))
    row = {"model": model, "workers": workers, "tensors": len(shapes)}
    row["nodes"] = len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
    row |= {"trace, s": traced, "first result, s": time.perf_counter() - start}
    return row | {"ms per step": 1e3 * side_by_side({"step": lambda: step(gradients)}, ROUNDS)["step"]}


def main():
    measure("two tensors", [(64, 64), (8,)], 2)  # loads the native step, which would count as tracing
    report("core", [measure(model, shapes_of(model), workers) for model, workers in SETUPS], {})


if __name__ == "__main__":
    main()
