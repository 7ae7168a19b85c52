"""What is trained: data sets, networks, text, batches. All lessons.

`data` has digits and MNIST, `given_data` Fashion-MNIST and CIFAR-10 where the user has them, `models` their networks.
Lesson 3 has the `gan` and its `ring`, lesson 7 `resnet` and `bert` with its `text` and `masked_words`. A network is a
function that returns a Keras model, the same for the same seed.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "batches": "cross_entropy make_evaluator pick_batch",
        "bert": "small_bert",
        "data": "load",
        "dataset": "DataError Dataset",
        "gan": "RingGAN",
        "masked_words": "mask_words masked_batches most_frequent",
        "models": "cifar10_cnn digits_cnn mnist_cnn wide_digits_cnn",
        "resnet": "resnet20",
        "ring": "quality ring_points",
        "text": "Vocabulary corpus",
    },
)
