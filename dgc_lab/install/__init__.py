"""What the lab needs around it: Horovod for today's TensorFlow, what is installed, Colab. Lesson 0.

The standard library alone, so that it runs before anything else is installed; the doctor asks TensorFlow for GPUs.
"""

from dgc_lab.install.build_horovod import build, horovod_state, require_horovod
from dgc_lab.install.colab import prepare
from dgc_lab.install.doctor import examine, report

__all__ = ["build", "examine", "horovod_state", "prepare", "report", "require_horovod"]
