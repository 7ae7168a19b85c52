"""Time of a worker's compression on one thread (accumulate, select, pack and unpack), in passes of `tf.add`.

python benchmarks/bench_step.py

One pass adds two tensors as large as the model and writes a third. The step is everything that
`dgc_lab.compression.Compressor` does for one worker, from the gradients to the update, with the paper's config at
0.1 %. Two columns include the weight update: with an update as long as the model, as in optimizers, or with the
received entries only, as in this lab's own training loops (`Compressor.train`).

The following measurements date from version 1, which compressed tensor by tensor, with 25 M elements on one thread (one
`tf.add`: 9 to 12 ms). They explain the design of `dgc_lab.compression.selection` and `native.cc`.

What helped: searching only the blocks of 64 elements whose largest magnitude exceeds the threshold, instead of masking
all elements; clearing the sent elements in place; dividing the received entries before scattering them into a dense
tensor; updating the weights with the entries only (12 ms instead of 18).

What did not help:

- XLA (`jit_compile`) for momentum and accumulation: 24 ms instead of 28 to 31 together with the blocks' maxima, but no
  gain for the 3.3 M elements of mnist_cnn (3.5 ms instead of 3.4), whose arrays nearly fit in the cache. With the
  maxima inside XLA, it was slower than without XLA (39 to 46 ms). XLA also compiles again for every model, and its sums
  differ in the last bit.
- Momentum, accumulation and maxima block by block in a `tf.while_loop`, to keep the data in the cache: 59, 35 and 32 ms
  with blocks of 2**16, 2**18 and 2**20 elements, instead of 28 to 31.
- A segment sum instead of `tf.scatter_nd` (49 ms instead of 8); other allocators and huge pages (no difference); other
  block sizes; gathering the sample instead of a strided slice; other ways to clear (a dense mask, a resource scatter).
- Sparse operations on the variables (`ResourceScatterNdSub`): after the first one, TensorFlow copies the variable at
  every read, which costs as much as the copy that they avoid.

On a CPU, one native operation accumulates and selects for all tensors, and reads the gradients without copying them.
"""

import math

from bench import report, side_by_side

FORMATS = {"float32, int32": ("float32", "int32"), "float16, run lengths": ("float16", "run_lengths")}
BATCH = 100  # of mnist_cnn's training step, as published


def shapes_by_model():
    """Return the parameter shapes of the networks in the literature, and of one large tensor."""
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

    ``weights`` is the way to update them: None for no update, ``"update"`` for an update as long as the model, or
    ``"entries"`` for the received entries (`Compressor.train`). If not ``native``, TensorFlow's own operations run.
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
    """Return mnist_cnn's plain training step, as a function without arguments."""
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
                goals[f"6 % of mnist_cnn's training step divided by its compression ({name})"] = (
                    0.06 / row["share of training"],
                    1,
                )
            elif elements < 5e7:
                goals[f"4 passes of tf.add divided by the compression of {model} ({name})"] = 4 / row["passes"], 1
            rows.append(row)
    report("step", rows, goals)


if __name__ == "__main__":
    main()
