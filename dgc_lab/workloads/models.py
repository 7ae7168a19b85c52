"""The networks of the lessons, as plain Keras 3 models that return logits.

Every random choice (first weights, dropout) comes from one seed, so that two calls with it give the same model.
"""

from __future__ import annotations


def mnist_cnn(seed: int = 0):
    """The convolutional network of the published MNIST experiments: 3 274 634 parameters.

    Convolution 5x5x32, pool, convolution 5x5x64, pool, dense 1024, dropout 0.4, dense 10.

    Args:
        seed: integer from which first weights and dropout masks are drawn.

    Returns:
        ``keras.Model``: float32 (batch, 28, 28, 1) in, logits float32 (batch, 10) out.

    Example:
        >>> mnist_cnn().count_params()
        3274634
    """
    import keras

    seeds = iter(range(1000 * seed, 1000 * seed + 10))
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 5, padding="same", activation="relu", name="conv1", **glorot(seeds)),
            keras.layers.MaxPooling2D(name="pool1"),
            keras.layers.Conv2D(64, 5, padding="same", activation="relu", name="conv2", **glorot(seeds)),
            keras.layers.MaxPooling2D(name="pool2"),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(1024, activation="relu", name="dense", **glorot(seeds)),
            keras.layers.Dropout(0.4, seed=next(seeds), name="dropout"),
            keras.layers.Dense(10, name="logits", **glorot(seeds)),
        ],
        name="mnist_cnn",
    )


def digits_cnn(seed: int = 0):
    """A small convolutional network for 8x8 digits: the same build, 38 282 parameters.

    Args:
        seed: integer from which first weights are drawn.

    Returns:
        ``keras.Model``: float32 (batch, 8, 8, 1) in, logits float32 (batch, 10) out.

    Example:
        >>> digits_cnn().output_shape
        (None, 10)
    """
    import keras

    seeds = iter(range(1000 * seed, 1000 * seed + 10))
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu", name="conv1", **glorot(seeds)),
            keras.layers.MaxPooling2D(name="pool1"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="conv2", **glorot(seeds)),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(64, activation="relu", name="dense", **glorot(seeds)),
            keras.layers.Dense(10, name="logits", **glorot(seeds)),
        ],
        name="digits_cnn",
    )


def wide_digits_cnn(seed: int = 0):
    """A network for 8x8 digits whose gradient takes longer than to ask a worker for it: 85 066 parameters.

    Convolution 3x3x32, convolution 3x3x64, pool, dense 64, dense 10. On parameter servers the coordinator needs about
    10 ms to hand out a batch; with batches of 128, a gradient of this network takes as long or longer on one core.

    Args:
        seed: integer from which first weights are drawn.

    Returns:
        ``keras.Model``: float32 (batch, 8, 8, 1) in, logits float32 (batch, 10) out.

    Example:
        >>> wide_digits_cnn().count_params()
        85066
    """
    import keras

    seeds = iter(range(1000 * seed, 1000 * seed + 10))
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu", name="conv1", **glorot(seeds)),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu", name="conv2", **glorot(seeds)),
            keras.layers.MaxPooling2D(name="pool2"),
            keras.layers.Flatten(name="flatten"),
            keras.layers.Dense(64, activation="relu", name="dense", **glorot(seeds)),
            keras.layers.Dense(10, name="logits", **glorot(seeds)),
        ],
        name="wide_digits_cnn",
    )


def glorot(seeds) -> dict:
    """Keyword argument of a layer: Glorot's uniform first weights from the next seed, as the published code had."""
    import keras

    return {"kernel_initializer": keras.initializers.GlorotUniform(seed=next(seeds))}


MODELS = {"mnist": mnist_cnn, "digits": digits_cnn}
