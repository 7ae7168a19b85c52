"""What is trained: data sets, networks, text, batches. All lessons.

`data` has digits and MNIST, `models` their networks; `resnet` (for `cifar10`, where the user has it), `bert` with `text`
and `masked_words`, and `gan` with `ring` are for lessons 3 and 7. A new network is a function that returns a Keras model.
"""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "batches": "cross_entropy pick_batch",
        "bert": "small_bert",
        "data": "DataError Dataset load",
        "gan": "RingGAN",
        "masked_words": "mask_words masked_batches most_frequent",
        "models": "digits_cnn mnist_cnn wide_digits_cnn",
        "resnet": "resnet20",
        "ring": "quality ring_points",
        "text": "Vocabulary corpus",
    },
)
