"""The networks of the lessons, as plain Keras 3 models that return logits; all chance in them comes from one seed."""

from __future__ import annotations

from dgc_lab.common import check_whole


def mnist_cnn(seed: int = 0):
    """The convolutional network of the published MNIST experiments: 3 274 634 parameters.

    Convolution 5x5x32, pool, convolution 5x5x64, pool, dense 1024, dropout 0.4, dense 10. First weights and dropout
    come from ``seed``.

    Returns:
        ``keras.Model``: float32 (batch, 28, 28, 1) in, logits float32 (batch, 10) out.

    Example:
        >>> mnist_cnn().count_params()
        3274634
    """
    return cnn("mnist_cnn", (28, 28, 1), [(32, 5, True), (64, 5, True)], 1024, seed, dropout=0.4)


def digits_cnn(seed: int = 0):
    """A small convolutional network for digits, (batch, 8, 8, 1): the same build, 38 282 parameters.

    Convolution 3x3x16, pool, convolution 3x3x32, dense 64, dense 10. The first weights come from ``seed``.

    Example:
        >>> digits_cnn().output_shape
        (None, 10)
    """
    return cnn("digits_cnn", (8, 8, 1), [(16, 3, True), (32, 3, False)], 64, seed)


def wide_digits_cnn(seed: int = 0):
    """As `digits_cnn`, and its gradient takes longer than to ask a worker for it: 85 066 parameters.

    Convolution 3x3x32, convolution 3x3x64, pool, dense 64, dense 10. On parameter servers the coordinator needs about
    10 ms to hand out a batch; with batches of 128, a gradient of this network takes as long or longer on one core. The
    first weights come from ``seed``.

    Example:
        >>> wide_digits_cnn().count_params()
        85066
    """
    return cnn("wide_digits_cnn", (8, 8, 1), [(32, 3, False), (64, 3, True)], 64, seed)


def cifar10_cnn(seed: int = 0):
    """The build of `mnist_cnn` for CIFAR-10's colour photographs, (batch, 32, 32, 3): 1 070 794 parameters.

    Convolution 3x3x32, pool, convolution 3x3x64, pool, dense 256, dropout 0.4, dense 10. Lesson 7 has ResNet-20, which
    learns more of them. First weights and dropout come from ``seed``.

    Example:
        >>> cifar10_cnn().count_params()
        1070794
    """
    return cnn("cifar10_cnn", (32, 32, 3), [(32, 3, True), (64, 3, True)], 256, seed, dropout=0.4)


def cnn(name: str, shape: tuple, convolutions, width: int, seed: int, dropout: float = 0.0):
    """Images of a shape into ten classes, ReLU between the layers, Glorot's uniform first weights as published.

    Each convolution is (filters, size, whether a pool follows); then a dense layer of some width, and the logits.
    """
    import keras

    check_whole("seed", seed, 0, 2**31 - 1)
    layers = keras.layers
    seeds = iter(range(1000 * seed, 1000 * seed + 10))

    def first(activation):
        return {"activation": activation, "kernel_initializer": keras.initializers.GlorotUniform(seed=next(seeds))}

    stack = [keras.Input(shape)]
    for number, (filters, size, pool) in enumerate(convolutions, start=1):
        stack.append(layers.Conv2D(filters, size, padding="same", name=f"conv{number}", **first("relu")))
        stack += [layers.MaxPooling2D(name=f"pool{number}")] * pool
    stack += [layers.Flatten(name="flatten"), layers.Dense(width, name="dense", **first("relu"))]
    if dropout:
        stack.append(layers.Dropout(dropout, seed=next(seeds), name="dropout"))
    return keras.Sequential([*stack, layers.Dense(10, name="logits", **first(None))], name=name)


MODELS = {"digits": digits_cnn, "mnist": mnist_cnn, "fashion_mnist": mnist_cnn, "cifar10": cifar10_cnn}
