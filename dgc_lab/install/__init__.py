"""What the lab needs around it: Horovod for today's TensorFlow, what is installed, Colab. Lesson 0.

The standard library alone, so that it runs before anything else is installed; the doctor asks TensorFlow for GPUs.
"""

from dgc_lab.arguments import hand_on

__getattr__, __dir__, __all__ = hand_on(
    __name__,
    {
        "build_horovod": "build horovod_state require_horovod",
        "colab": "prepare",
        "doctor": "examine report",
    },
)
