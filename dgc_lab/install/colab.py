"""The lab on Google Colab: what a lesson needs there beside the package."""

from __future__ import annotations

import os

from dgc_lab.common import check_flag
from dgc_lab.install.build_horovod import build, horovod_state

NO_GPU = """\
Colab gave you no GPU, and this lesson is quicker with one: Runtime > Change runtime type > T4 GPU; then start again."""


def prepare(horovod: bool = False, gpu: bool = False) -> None:
    """On Colab, bring Horovod if it is missing and ask for a GPU if there is none; elsewhere do nothing.

    Args:
        horovod: whether the lesson starts ranks. It takes seconds where the lab has a wheel for this Colab, else it is
            built in about two minutes; what it prints says which, and how far it is.
        gpu: whether the lesson gains from a GPU.

    Raises:
        BuildError: Horovod could not be built; says why.

    Example:
        >>> prepare(gpu=True)
    """
    check_flag("horovod", horovod)
    check_flag("gpu", gpu)
    if "COLAB_RELEASE_TAG" not in os.environ:  # Colab's own variable: the date of its image
        return
    if horovod and horovod_state()[0] is None:
        build()
    if gpu:
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            print(NO_GPU)
