"""Parameter shapes of well-known networks, in the order of their layers: for counting, not for training.

References:
    arXiv:1512.03385, table 1 (ResNet-50)
    arXiv:1810.04805, section 3 (BERT-base)
"""

from __future__ import annotations


def mnist_cnn() -> list[tuple[int, ...]]:
    """Return the shapes of `dgc_lab.workloads.models.mnist_cnn`, with 3 274 634 parameters."""
    return [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 1024), (1024,), (1024, 10), (10,)]


def resnet_50() -> list[tuple[int, ...]]:
    """Return the shapes of ResNet-50, with 25 557 032 parameters.

    Each convolution has no bias and is followed by the scale and offset of a batch norm. A dense layer comes last.

    Example:
        >>> sum(shape[0] for shape in resnet_50() if len(shape) == 1)
        54120
    """
    shapes, inputs = convolution(7, 3, 64), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(1, inputs, width) + convolution(3, width, width) + convolution(1, width, 4 * width)
            if block == 0:  # the shortcut is projected to the same width
                shapes += convolution(1, inputs, 4 * width)
            inputs = 4 * width
    return [*shapes, (inputs, 1000), (1000,)]


def convolution(size: int, inputs: int, outputs: int) -> list[tuple[int, ...]]:
    """Return the shapes of a convolution without bias and of the batch norm after it."""
    return [(size, size, inputs, outputs), (outputs,), (outputs,)]


def bert_base() -> list[tuple[int, ...]]:
    """Return the shapes of BERT-base, with 109 482 240 parameters.

    It has three embeddings, 12 layers of width 768 with 4 x 768 hidden units, and the pooler.

    Example:
        >>> len(bert_base()), bert_base()[0]
        (199, (30522, 768))
    """
    wide, norm = 768, [(768,), (768,)]
    shapes = [(30522, wide), (512, wide), (2, wide), *norm]
    for _ in range(12):
        shapes += [*[(wide, wide), (wide,)] * 4, *norm]  # query, key, value, output
        shapes += [(wide, 4 * wide), (4 * wide,), (4 * wide, wide), (wide,), *norm]
    return [*shapes, (wide, wide), (wide,)]


#: Functions that return a network's parameter shapes, by the network's name.
SHAPES = {"mnist_cnn": mnist_cnn, "ResNet-50": resnet_50, "BERT-base": bert_base}
