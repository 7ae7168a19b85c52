"""What a worker's compression costs on one thread: accumulate, select, pack and unpack, in passes of `tf.add`.

python benchmarks/bench_step.py

One pass adds two tensors of as many elements as the model has, into a third. The step is all that
`dgc_lab.compressor.Compressor` does for one worker, from the gradients to the update, with the paper's recipe at 0.1 %.
"""

import math

from bench import report, side_by_side

FORMATS = {"float32, int32": ("float32", "int32"), "float16, run lengths": ("float16", "run_lengths")}
BATCH = 100  # of mnist_cnn's training step, as published


def resnet_50():
    """Shapes of ResNet-50's 25 557 032 parameters: convolutions without bias, batch norm, a dense layer."""
    shapes, inputs = [(7, 7, 3, 64), (64,), (64,)], 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolutions = [(1, inputs, width), (3, width, width), (1, width, 4 * width)]
            if not block:  # its shortcut
                convolutions.append((1, inputs, 4 * width))
            inputs = 4 * width
            for size, one, other in convolutions:
                shapes += [(size, size, one, other), (other,), (other,)]
    return [*shapes, (inputs, 1000), (1000,)]


def bert_base():
    """Shapes of BERT-base's 109 482 240 parameters (uncased, with its pooler)."""
    width, inner = 768, 3072

    def dense(inputs, outputs):
        return [(inputs, outputs), (outputs,)]

    norm = [(width,), (width,)]
    layer = [*(4 * dense(width, width)), *norm, *dense(width, inner), *dense(inner, width), *norm]
    embeddings = [(30_522, width), (512, width), (2, width), *norm]
    return [*embeddings, *(12 * layer), *dense(width, width)]


def mnist_cnn():
    from dgc_lab.models import mnist_cnn

    return [tuple(weight.shape) for weight in mnist_cnn().trainable_variables]


SHAPES = {
    "mnist_cnn": mnist_cnn,
    "one tensor of 25 M": lambda: [(25_000_000,)],
    "ResNet-50": resnet_50,
    "BERT-base": bert_base,
}


def compression(shapes, values, indices):
    """A traced step of one worker's compressor, as a function without arguments."""
    import tensorflow as tf

    from dgc_lab.compressor import Compressor
    from dgc_lab.dgc import Recipe
    from dgc_lab.exchange import OneWorker

    recipe = Recipe(ratio=0.001, values=values, indices=indices, dense_vectors=len(shapes) > 1)
    variables = [tf.Variable(tf.zeros(shape)) for shape in shapes]
    gradients = [tf.random.stateless_normal(shape, (1, i)) for i, shape in enumerate(shapes)]
    step = tf.function(Compressor(recipe, variables, OneWorker()), autograph=False)
    return lambda: step([gradients])[1].kept


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

    from dgc_lab.models import mnist_cnn

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
    for model, shapes_of in SHAPES.items():
        shapes = shapes_of()
        elements = sum(map(math.prod, shapes))
        functions = {"add": addition(elements)}
        functions |= {name: compression(shapes, *types) for name, types in FORMATS.items()}
        if model == "mnist_cnn":
            functions["training"] = training()
        times = side_by_side(functions, rounds=9 if elements > 5e7 else 21)
        for name in FORMATS:
            row = {"model": model, "elements": elements, "sent as": name, "step ms": 1e3 * times[name]}
            row |= {"tf.add ms": 1e3 * times["add"], "passes": times[name] / times["add"]}
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
