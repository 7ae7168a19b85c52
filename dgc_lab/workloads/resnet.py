"""ResNet-20, the residual network for small images: each block adds a learned residual to its input.

Source: He, Zhang, Ren, Sun, arXiv:1512.03385, section 4.2 (CIFAR-10): 3 stages of 3 blocks of two 3x3 convolutions
with 16, 32 and 64 filters, and a shortcut without parameters around each block. Initial weights: arXiv:1502.01852.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
from keras.initializers import HeNormal

from dgc_lab.common import check_keras, check_list, check_whole

STAGES = (16, 32, 64)  # filters
BLOCKS = 3  # in each stage


def resnet20(shape: Sequence[int] = (32, 32, 3), classes: int = 10, seed: int = 0) -> keras.Model:
    """Build the residual network of 20 layers, for images whose size can be halved twice.

    Args:
        shape: height, width and channels of an image, ``(32, 32, 3)`` for CIFAR-10; height and width at least 4.
        classes: number of classes, at least 2.
        seed: random seed of the initial weights, an integer.

    Returns:
        ``keras.Model``: float32 ``(batch, *shape)`` in, logits float32 (batch, classes) out.

    Raises:
        ValueError: an argument is not in its range.

    Example:
        >>> model = resnet20()
        >>> sum(int(keras.ops.size(weight)) for weight in model.trainable_weights)  # published: 0.27 M
        269722
    """
    check_keras()
    shape = tuple(check_whole("shape", side, 1) for side in check_list("shape", shape))
    if len(shape) != 3 or min(shape[:2]) < 4:
        raise ValueError(f"shape must be (height, width, channels) with sides of at least 4, got {shape}")
    check_whole("classes", classes, 2, 10**6)
    check_whole("seed", seed, 0, 2**31 // 1000)
    seeds = iter(range(1000 * seed, 1000 * seed + 999))
    images = keras.Input(shape, name="images")
    x = keras.layers.ReLU()(convolution(images, STAGES[0], 1, "first", seeds))
    for stage, filters in enumerate(STAGES):
        for block in range(BLOCKS):
            x = residual_block(x, filters, 2 if stage > 0 and block == 0 else 1, f"stage{stage}_block{block}", seeds)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    logits = keras.layers.Dense(classes, kernel_initializer=HeNormal(next(seeds)), name="logits")(x)
    return keras.Model(images, logits, name="resnet20")


def residual_block(x, filters: int, stride: int, name: str, seeds):
    """Compute ``relu(x + F(x))``; F is convolution, normalization, relu, convolution, normalization."""
    residual = keras.layers.ReLU()(convolution(x, filters, stride, f"{name}_a", seeds))
    residual = convolution(residual, filters, 1, f"{name}_b", seeds)
    return keras.layers.ReLU()(shortcut(x, filters, stride) + residual)


def convolution(x, filters: int, stride: int, name: str, seeds):
    """Apply a 3x3 convolution and batch normalization; the convolution has no bias, because the latter has one."""
    x = keras.layers.Conv2D(
        filters, 3, stride, padding="same", use_bias=False, kernel_initializer=HeNormal(next(seeds)), name=name
    )(x)
    return keras.layers.BatchNormalization(momentum=0.9, name=f"{name}_norm")(x)


def shortcut(x, filters: int, stride: int):
    """Return the input; if the block halves the image, return every second pixel and add zeros for the new channels."""
    if stride > 1:
        x = keras.layers.MaxPooling2D(1, stride)(x)
    added = filters - x.shape[-1]
    return keras.ops.pad(x, [(0, 0), (0, 0), (0, 0), (0, added)]) if added else x
