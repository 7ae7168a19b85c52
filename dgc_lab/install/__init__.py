"""Installation: Horovod for the installed TensorFlow, a report on the environment, and setup on Colab. Lesson 0.

Uses only the standard library, so that it runs before anything else is installed. The doctor uses TensorFlow to find
GPUs.
"""

from dgc_lab.install.build_horovod import build, horovod_state, require_horovod
from dgc_lab.install.colab import prepare
from dgc_lab.install.doctor import examine, report

__all__ = ["build", "examine", "horovod_state", "prepare", "report", "require_horovod"]
