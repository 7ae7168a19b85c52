"""How long a worker's compression takes on one thread: accumulate, select, pack and unpack, in passes of `tf.add`.

python benchmarks/bench_step.py

One pass adds two tensors of as many elements as the model has and writes a third. The step is all that
`dgc_lab.compression.Compressor` does for one worker, from the gradients to the update, with the paper's config at
0.1 %. Two columns add the change of the weights: from an update as long as the model, as optimizers do it, or from the
entries received, as this lab's own training loops do it (`Compressor.train`).

The notes below were measured when version 1 compressed tensor by tensor, with 25 M elements on one thread (one
`tf.add`: 9 to 12 ms). They explain the design of `dgc_lab.compression.selection` and `native.cc`.

What helped: opening only the blocks of 64 elements whose largest magnitude passes, instead of a mask over all elements;
clearing the elements that were sent in the tensor's own memory; dividing the entries received, before they are placed
among zeros; changing the weights by the entries (12 ms instead of 18).

What did not help:

- XLA (`jit_compile`) for momentum and accumulation: 24 ms instead of 28 to 31 with the blocks' maxima, but no gain for
  mnist_cnn's 3.3 M (3.5 instead of 3.4), whose arrays nearly fit in the cache. With the maxima inside XLA it was slower
  than without (39 to 46 ms). XLA also compiles anew for every model, and its sums differ in the last bit.
- Momentum, accumulation and maxima block by block in a `tf.while_loop`, to keep the data in the cache: 59, 35 and 32 ms
  with blocks of 2**16, 2**18 and 2**20 elements, instead of 28 to 31.
- A sum over segments instead of `tf.scatter_nd` (49 ms instead of 8); other allocators and huge pages (no difference);
  other block sizes; gathering the sample instead of a strided slice; other ways to clear (a dense mask, a resource
  scatter).
- Sparse operations on the variables (`ResourceScatterNdSub`): after the first one, TensorFlow copies the variable at
  every read, which costs the copy that they save.

On a CPU one native operation accumulates and selects for all tensors, and reads the gradients where they are.
"""

import math

from bench import report, side_by_side

FORMATS = {"float32, int32": ("float32", "int32"), "float16, run lengths": ("float16", "run_lengths")}
BATCH = 100  # of mnist_cnn's training step, as published


def shapes_by_model():
    """Shapes of the parameters of the networks that the sources name, and of one large tensor."""
    from dgc_lab.scaling.named_shapes import SHAPES

    return {**{model: shapes() for model, shapes in SHAPES.items()}, "one tensor of 25 M": [(25_000_000,)]}


def traced(step, gradients, native):
    """Return a traced step, with the native operations or with TensorFlow's own, as a function without arguments."""
    from dgc_lab.compression import native as switch

    switch.enabled = native
    try:
        step.get_concrete_function(gradients)
    finally:
        switch.enabled = True
    return lambda: step(gradients)


def compression(shapes, values, indices, weights=None, native=True):
    """Return a traced step of one worker's compressor, as a function without arguments.

    ``weights`` says how they change: not at all (None), by an update as long as the model (``"update"``), or by the
    entries received (``"entries"``, `Compressor.train`). If not ``native``, TensorFlow's own operations run.
    """
    import tensorflow as tf

    from dgc_lab.compression import Compressor, DGCConfig
    from dgc_lab.distributed.communicators import OneWorker

    config = DGCConfig(ratio=0.001, values=values, indices=indices, dense_vectors=len(shapes) > 1)
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    gradients = [tf.random.stateless_normal(shape, (1, i)) for i, shape in enumerate(shapes)]
    compressor = Compressor(config, variables, OneWorker())

    @tf.function(autograph=False)
    def step(gradients):
        if weights == "entries":
            return compressor.train([gradients], 0.1).num_sent
        updates, report = compressor([gradients])
        if weights == "update":
            for variable, update in zip(variables, updates, strict=True):
                variable.assign_sub(0.1 * update)
            return report.num_sent
        return report.num_sent, updates

    run = traced(step, gradients, native)
    return run if weights else lambda: run()[0]


def addition(elements):
    """Return one pass of `tf.add`, as a function without arguments."""
    import tensorflow as tf

    one, other = tf.random.stateless_normal([2, elements], (3, 4))
    add = tf.function(lambda: tf.add(one, other))
    return lambda: add()[0]


def training():
    """mnist_cnn's plain training step, as a function without arguments."""
    import keras
    import tensorflow as tf

    from dgc_lab.workloads.models import mnist_cnn

    model, optimizer = mnist_cnn(), keras.optimizers.SGD(0.01, momentum=0.9)
    optimizer.build(model.trainable_variables)
    images = tf.random.stateless_uniform([BATCH, 28, 28, 1], (5, 6))
    labels = tf.random.stateless_uniform([BATCH], (7, 8), maxval=10, dtype=tf.int32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        variables = model.trainable_variables
        optimizer.apply(tape.gradient(loss, [variable.value for variable in variables]), variables)
        return loss

    return step


def main():
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows, goals = [], {}
    for model, shapes in shapes_by_model().items():
        elements = sum(map(math.prod, shapes))
        functions = {"add": addition(elements)}
        functions |= {name: compression(shapes, *types) for name, types in FORMATS.items()}
        plain = next(iter(FORMATS))
        functions |= {how: compression(shapes, *FORMATS[plain], how) for how in ("update", "entries")}
        if model == "mnist_cnn":
            functions["training"] = training()
        times = side_by_side(functions, rounds=9 if elements > 5e7 else 21)
        for name in FORMATS:
            row = {"model": model, "elements": elements, "sent as": name, "step ms": 1e3 * times[name]}
            row |= {"tf.add ms": 1e3 * times["add"], "passes": times[name] / times["add"]}
            if name == plain:
                row |= {"and weights by the update ms": 1e3 * times["update"]}
                row |= {"and weights by the entries ms": 1e3 * times["entries"]}
            if model == "mnist_cnn":
                row |= {"training ms": 1e3 * times["training"], "share of training": times[name] / times["training"]}
                goals[f"6 % of mnist_cnn's training step, times its compression ({name})"] = (
                    0.06 / row["share of training"],
                    1,
                )
            elif elements < 5e7:
                goals[f"4 passes of tf.add, times the compression of {model} ({name})"] = 4 / row["passes"], 1
            rows.append(row)
    report("step", rows, goals)


if __name__ == "__main__":
    main()
