"""What a worker's compression costs on one thread: accumulate, select, pack and unpack, in passes of `tf.add`.

python benchmarks/bench_step.py

One pass adds two tensors of as many elements as the model has, into a third. The step is all that
`dgc_lab.dgc.Compressor` does for one worker, from the gradients to the update, with the paper's config at 0.1 %.

What helped: opening only the blocks of 64 elements whose largest magnitude passes, in place of a mask of all;
clearing what was sent in the tensor's own memory; asking the blocks' maxima, which are there already, whether all is
finite; taking the mean of the entries that came, before they stand among zeros. Changing the weights by the entries, in
place of an update as long as the model, takes 12 ms in place of 18 at 25 M elements (2.2 in place of 3.3 for
mnist_cnn); two columns have the whole step with the one and with the other.

What did not, of 25 M elements on one thread (one `tf.add`: 9 to 12 ms):

- XLA (`jit_compile`) on momentum and accumulation: 24 ms with the blocks' maxima in place of 28 to 31, but nothing
  gained at mnist_cnn's 3.3 M (3.5 in place of 3.4), where the arrays nearly fit in the cache. With the maxima inside
  XLA it is slower than without XLA (39 to 46 ms). It would compile anew for every model, and its sums differ in the
  last bit. Left out.
- One flat buffer for all tensors: a step of one tensor as long as mnist_cnn takes 9.8 ms in place of 10.5, of one as
  long as ResNet-50 58.4 in place of 58.5; putting the gradients together takes 2.5 and 9.9 ms by itself.
- Momentum, accumulation and maxima block by block in a `tf.while_loop`, so that the data stay in the cache: 59, 35 and
  32 ms in blocks of 2**16, 2**18 and 2**20 elements, in place of 28 to 31.
- A sum over segments in place of `tf.scatter_nd` (49 ms in place of 8), other allocators and huge pages (no
  difference), other sizes of blocks, one tensor after another in place of all at once, gathering the sample in place of
  a strided slice, other ways to clear (a dense mask, resource scatter).
- Sparse operations on the variables themselves (`ResourceScatterNdSub`) were not built: from the first one on
  TensorFlow copies the variable at every read, which costs the copy that they spare.
- Momentum and accumulation in place (`ResourceApplyKerasMomentum`) would spare two of the passes; but then a gradient
  with NaN on one worker would leave the others' state changed.

On a CPU the step is fused since (`dgc_lab.dgc.fused`): one pass in C++ that writes the new state to spare variables,
which are swapped with the old once all workers have found their gradients finite. In processor time beside the
algorithm as it is written, on one thread: 6.1 in place of 11.9 ms for mnist_cnn, 33 in place of 266 at 25 M, where half
of the latter are page faults of new buffers. Stores past the cache made no difference there (21.1 in place of 21.0 ms
for the pass over 25 M). In the algorithm opening blocks and clearing in place are still worth it: a plain `tf.where` of
all magnitudes takes 1.25 to 1.3 times as long in all, a plain update that copies 1.2 (mnist_cnn) to 1.5 times.

Where the time of the algorithm as it is written goes at 25 M: momentum and accumulation 2.3 passes, maxima 0.4 to 0.7,
clearing 25 000 elements in residual and velocity 1.2 (their places are all over the memory), the update 0.9, threshold
and search 0.5.
"""

import math

from bench import report, side_by_side

FORMATS = {"float32, int32": ("float32", "int32"), "float16, run lengths": ("float16", "run_lengths")}
BATCH = 100  # of mnist_cnn's training step, as published


def shapes_by_model():
    """Shapes of the parameters of the networks that the sources name, and of one large tensor."""
    from dgc_lab.scaling.named_shapes import SHAPES

    return {**{model: shapes() for model, shapes in SHAPES.items()}, "one tensor of 25 M": [(25_000_000,)]}


def compression(shapes, values, indices, weights=None, fused=True):
    """A traced step of one worker's compressor, as a function without arguments.

    ``weights`` says how they change: None, not at all; ``"update"``, the update is taken off them, as optimizers do it;
    ``"entries"``, the entries that came are, as this lab's own loops do (`Compressor.train`). Not ``fused``, the
    algorithm runs as it is written.
    """
    import tensorflow as tf

    from dgc_lab.dgc.compressor import Compressor
    from dgc_lab.dgc.config import DGCConfig
    from dgc_lab.distributed.communicators import OneWorker

    config = DGCConfig(ratio=0.001, values=values, indices=indices, dense_vectors=len(shapes) > 1)
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    gradients = [tf.random.stateless_normal(shape, (1, i)) for i, shape in enumerate(shapes)]
    compressor = Compressor(config, variables, OneWorker())
    if not fused:
        compressor.fused = ()

    @tf.function(autograph=False)
    def step(gradients):
        if weights == "entries":
            return compressor.train([gradients], 0.1).kept
        updates, report = compressor([gradients])
        if weights == "update":
            for variable, update in zip(variables, updates, strict=True):
                variable.assign_sub(0.1 * update)
            return report.kept
        return report.kept, updates

    return lambda: step(gradients) if weights else step(gradients)[0]


def addition(elements):
    """One pass of `tf.add`, as a function without arguments."""
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
