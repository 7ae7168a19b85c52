"""Shapes of the parameters of networks that the sources name, in the order of their layers: for counting, no training.

Sources: arXiv:1512.03385, table 1 (ResNet-50); arXiv:1810.04805, section 3 (BERT-base).
"""

from __future__ import annotations


def mnist_cnn() -> list[tuple[int, ...]]:
    """Those of `dgc_lab.workloads.models.mnist_cnn`, 3 274 634 parameters."""
    return [(5, 5, 1, 32), (32,), (5, 5, 32, 64), (64,), (3136, 1024), (1024,), (1024, 10), (10,)]


def resnet_50() -> list[tuple[int, ...]]:
    """Convolutions without bias, scale and offset of a batch norm behind each, a dense layer: 25 557 032 parameters.

    Example:
        >>> sum(shape[0] for shape in resnet_50() if len(shape) == 1)
        54120
    """
    shapes, inputs = convolution(7, 3, 64), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            shapes += convolution(1, inputs, width) + convolution(3, width, width) + convolution(1, width, 4 * width)
            if block == 0:  # the way around it must become as wide
                shapes += convolution(1, inputs, 4 * width)
            inputs = 4 * width
    return [*shapes, (inputs, 1000), (1000,)]


def convolution(size: int, inputs: int, outputs: int) -> list[tuple[int, ...]]:
    """A convolution without bias, and the batch norm behind it."""
    return [(size, size, inputs, outputs), (outputs,), (outputs,)]


def bert_base() -> list[tuple[int, ...]]:
    """Three embeddings, 12 layers of 768 with 4 x 768 inside, and the pooler: 109 482 240 parameters.

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


#: Functions that list the shapes of a network's parameters, by the network's name.
SHAPES = {"mnist_cnn": mnist_cnn, "ResNet-50": resnet_50, "BERT-base": bert_base}
