"""The networks of the lessons: Keras 3 models that return logits; one seed determines all of their randomness."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgc_lab.common import check_keras, check_whole

if TYPE_CHECKING:
    from dgc_lab.workloads.dataset import Dataset


def mnist_cnn(seed: int = 0):
    """Build the convolutional network of the published MNIST experiments: 3 274 634 parameters.

    Convolution 5x5x32, pool, convolution 5x5x64, pool, dense 1024, dropout 0.4, dense 10. Initial weights and dropout
    depend on ``seed``.

    Returns:
        ``keras.Model``: float32 (batch, 28, 28, 1) in, logits float32 (batch, 10) out.

    Example:
        >>> mnist_cnn().count_params()
        3274634
    """
    return cnn("mnist_cnn", (28, 28, 1), [(32, 5, True), (64, 5, True)], 1024, seed, dropout=0.4)


def digits_cnn(seed: int = 0):
    """Build a small convolutional network for digits, (batch, 8, 8, 1), similar to `mnist_cnn`: 38 282 parameters.

    Convolution 3x3x16, pool, convolution 3x3x32, dense 64, dense 10. The initial weights depend on ``seed``.

    Example:
        >>> digits_cnn().output_shape
        (None, 10)
    """
    return cnn("digits_cnn", (8, 8, 1), [(16, 3, True), (32, 3, False)], 64, seed)


def mnist1d_cnn(seed: int = 0):
    """Build a small convolutional network for MNIST-1D's signals, (batch, 40, 1): 24 490 parameters.

    Convolution 5x32, pool, convolution 3x32, pool, dense 64, dense 10. The initial weights depend on ``seed``.

    Example:
        >>> mnist1d_cnn().count_params()
        24490
    """
    return cnn("mnist1d_cnn", (40, 1), [(32, 5, True), (32, 3, True)], 64, seed)


def wide_digits_cnn(seed: int = 0):
    """Build a larger `digits_cnn`, whose gradient takes longer to compute than to schedule: 85 066 parameters.

    Convolution 3x3x32, convolution 3x3x64, pool, dense 64, dense 10. On parameter servers, the coordinator needs about
    10 ms to schedule a batch on a worker. With batches of 128, a gradient of this network takes at least as long on one
    core. The initial weights depend on ``seed``.

    Example:
        >>> wide_digits_cnn().count_params()
        85066
    """
    return cnn("wide_digits_cnn", (8, 8, 1), [(32, 3, False), (64, 3, True)], 64, seed)


def cifar10_cnn(seed: int = 0):
    """Build a network like `mnist_cnn` for CIFAR-10's colour photographs, (batch, 32, 32, 3): 1 070 794 parameters.

    Convolution 3x3x32, pool, convolution 3x3x64, pool, dense 256, dropout 0.4, dense 10. Lesson 7 has ResNet-20, which
    is more accurate on them. Initial weights and dropout depend on ``seed``.

    Example:
        >>> cifar10_cnn().count_params()
        1070794
    """
    return cnn("cifar10_cnn", (32, 32, 3), [(32, 3, True), (64, 3, True)], 256, seed, dropout=0.4)


def cnn(name: str, shape: tuple, convolutions, width: int, seed: int, dropout: float = 0.0):
    """Build a classifier of images or signals into ten classes.

    It has ReLU and Glorot uniform initial weights, as published. Each convolution is (filters, size, True if a pool
    follows). A dense layer of ``width`` and the logits follow.
    """
    check_keras()
    import keras

    check_whole("seed", seed, 0, 2**31 - 1)
    layers = keras.layers
    one_dimension = len(shape) == 2
    convolution = layers.Conv1D if one_dimension else layers.Conv2D
    pooling = layers.MaxPooling1D if one_dimension else layers.MaxPooling2D
    seeds = iter(range(1000 * seed, 1000 * seed + 10))

    def options(activation):
        return {"activation": activation, "kernel_initializer": keras.initializers.GlorotUniform(seed=next(seeds))}

    stack = [keras.Input(shape)]
    for number, (filters, size, pool) in enumerate(convolutions, start=1):
        stack.append(convolution(filters, size, padding="same", name=f"conv{number}", **options("relu")))
        stack += [pooling(name=f"pool{number}")] * pool
    stack += [layers.Flatten(name="flatten"), layers.Dense(width, name="dense", **options("relu"))]
    if dropout:
        stack.append(layers.Dropout(dropout, seed=next(seeds), name="dropout"))
    return keras.Sequential([*stack, layers.Dense(10, name="logits", **options(None))], name=name)


def reference_bert(seed: int = 0):
    """Build `dgc_lab.workloads.small_bert` for Python's language reference, whose words make up the vocabulary."""
    from dgc_lab.workloads.bert import small_bert
    from dgc_lab.workloads.text import corpus

    return small_bert(len(corpus().vocabulary), seed=seed)


MODELS = {
    "digits": digits_cnn,
    "mnist1d": mnist1d_cnn,
    "python_reference": reference_bert,
    "mnist": mnist_cnn,
    "fashion_mnist": mnist_cnn,
    "cifar10": cifar10_cnn,
}


def network_for(dataset: str, seed: int, name: str, data: Dataset):
    """Build the network that the lab trains on a data set (``"default"``), or ``"resnet20"``, which suits all images.

    Raises ValueError if ``data`` is a different data set, whose network may have other shapes.
    """
    if data.name != dataset:
        raise ValueError(f"data must be the data set of the settings, {dataset!r}, got {data.name!r}")
    if name == "default":
        return MODELS[dataset](seed)
    from dgc_lab.workloads.resnet import resnet20

    return resnet20(data.x_train.shape[1:], seed=seed)
