"""The process that the engines are forked from: it has imported TensorFlow and Horovod, and never runs them.

    python -m dgc_lab.cluster.watchdog PARENT FOLDER dgc_lab.cluster.engine_host PARENT FOLDER SIZE ARGUMENTS...

The notebook's side is `dgc_lab.cluster.engines.LocalEngines`. What was imported is imported once, and the engines share its
memory; forks are sound as long as no thread of TensorFlow runs here.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading

from dgc_lab.cluster import watchdog as guard

WAIT = "import sys; from dgc_lab.cluster.watchdog import watch; watch(int(sys.argv[1]), sys.argv[2])"


def main() -> None:
    """Import, fork the engines, and wait to be ended."""
    module, parent, folder, size, *arguments = sys.argv
    sys.argv = [module, *arguments]  # ipyparallel reads its own
    import horovod.tensorflow  # noqa: F401
    import keras  # noqa: F401
    from ipyparallel.engine.app import main as run_engine

    gc.collect()
    gc.freeze()  # else the collector of each fork writes to all that they share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # dead engines vanish, and are then known to be dead
    host = os.getpid()
    for _ in range(int(size)):
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # Without the folder: the controller writes there that the engines are gone.
            threading.Thread(target=guard.watch, args=(host, None), name="guard", daemon=True).start()
            run_engine()
            return
    # The engines keep what was imported; here a program that only waits takes its place.
    os.execv(sys.executable, [sys.executable, "-c", WAIT, parent, folder])


if __name__ == "__main__":
    main()
