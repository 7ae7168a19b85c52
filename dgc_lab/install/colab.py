"""Setup of a lesson on Google Colab, in addition to the package."""

from __future__ import annotations

import os

from dgc_lab.common import check_flag
from dgc_lab.install.build_horovod import build

NO_GPU = """\
Colab assigned no GPU, but this lesson is faster with one: Runtime > Change runtime type > T4 GPU, then start again."""


def prepare(horovod: bool = False, gpu: bool = False) -> None:
    """Install Horovod and suggest a GPU on Colab; do nothing elsewhere.

    Args:
        horovod: whether the lesson starts ranks. Installing Horovod takes seconds if the lab has a wheel for this
            Colab. Otherwise, it is built in about two minutes. The output shows which, and the progress.
        gpu: whether the lesson benefits from a GPU.

    Raises:
        BuildError: Horovod could not be built; the message says why.

    Example:
        >>> prepare(gpu=True)
    """
    check_flag("horovod", horovod)
    check_flag("gpu", gpu)
    if "COLAB_RELEASE_TAG" not in os.environ:  # set by Colab to the date of its image
        return
    if horovod:
        build()
    if gpu:
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            print(NO_GPU)
