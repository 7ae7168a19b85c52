"""What is trained: data sets, networks, text, batches. All lessons."""

from dgc_lab.common import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "batches": "cross_entropy make_evaluator pick_batch",
        "data": "Dataset load",
        "models": "digits_cnn mnist_cnn wide_digits_cnn",
        "resnet": "resnet20",
        "bert": "small_bert",
        "gan": "RingGAN",
    },
)
