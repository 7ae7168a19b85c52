"""What is struck, where the lab has no command of its own for it: ``python -m faults.programs NAME FILE ...``.

Each does with the lab's public names what a lesson does, in a process of its own, and ends as the lab's commands do.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RATIOS = (1.0, 0.1, 0.01)
READY = "ready"  # the file that says that SIGUSR1 is understood
STEPS, SAVES = 150, 3
CELL = "import sys; sys.path[:0] = {path}\nfrom faults.programs import {name}\nassert {name}(*{arguments}) == 0"
HOSTS_STEPS, GRADIENTS = 1500, 180  # the first: seconds in which the link can be struck
WIDGET = """\
from dgc_lab.training import CompressionSweep

lab = CompressionSweep(ratios="1, 0.1, 0.01")
lab"""


def train_command(*more: str, steps: int = STEPS) -> list[str]:
    """The lab's own command, short enough to be struck often."""
    short = ["--steps", str(steps), "--save-every", str(steps // SAVES), "--batch", "16", "--evaluations", "3"]
    return [sys.executable, "-m", "dgc_lab", "train", *short, "--ratio", "0.05", "--warm-up", "none", *more]


def sweep(out: str) -> int:
    """A sweep on one worker, in this process."""
    from dgc_lab.terminal import run_rows
    from dgc_lab.training import MaskingConfig, table

    settings = MaskingConfig(steps=150, batch=32, evaluations=1)
    return run_rows(settings, list(RATIOS), argparse.Namespace(out=out, data=None), table)


def ranks(out: str, size: str, scheme: str) -> int:
    """A sweep on Horovod ranks, as the widget and the two-node table make it."""
    from dgc_lab.cluster import HorovodRanks
    from dgc_lab.terminal import run_rows
    from dgc_lab.training import DistributedConfig, TrainerOnRanks, table

    settings = DistributedConfig(workers=int(size), steps=100, batch=16, evaluations=1, scheme=scheme)
    with HorovodRanks(int(size), progress=None) as ranks:
        options = argparse.Namespace(out=out, data=None)
        return run_rows(settings, list(RATIOS), options, table, TrainerOnRanks(settings, ranks))


def launched(folder: str, size: str, scheme: str) -> int:
    """``dgc_lab train`` under horovodrun, as the lab starts it."""
    from dgc_lab.cluster import horovodrun

    for line in horovodrun(int(size), *train_command("--scheme", scheme, "--checkpoint", folder)):
        print(line)
    return 0


def servers(folder: str, mode: str) -> int:
    """A training on two workers and a parameter server, with a checkpoint."""
    from dgc_lab.cluster import ParameterServers
    from dgc_lab.parameter_server import AsyncConfig, Classifier, Finished, Schedule, Score, Straggler, train
    from dgc_lab.workloads.data import load
    from dgc_lab.workloads.models import digits_cnn

    slow = tuple(Straggler(worker, delay=0.01) for worker in range(2))
    config = AsyncConfig(
        Schedule(mode, stragglers=slow), gradients=GRADIENTS, batch=16, learning_rate=0.01, score_every=60
    )
    with ParameterServers(2, 1, progress=None) as servers:
        for event in servers.stream(train, Classifier(digits_cnn, load("digits")), config, f"{folder}/saved.npz"):
            if isinstance(event, Score):
                print(f"{event.gradients} gradients after {event.seconds:.3f} s", flush=True)
            elif isinstance(event, Finished):
                print(f"finished with {event.gradients} gradients", flush=True)
    return 0


def hosts(folder: str) -> int:
    """``dgc_lab train`` on two ranks as if on two hosts, joined by a link that can be cut."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from dgc_lab.install.launch_env import rank_variables, thread_variables
    from two_hosts import NAMES, TwoHosts

    places = [thread_variables(2) | place for place in rank_variables(NAMES)]
    with TwoHosts([[sys.executable, "-m", "faults.programs", "host", folder]] * 2, places) as two:
        port = json.loads(two.programs[0].stdout.readline())["port"]
        two.programs[1].stdout.readline()
        return max(answer["status"] for answer in two.ask({"port": port}, {"port": port}))


def host(folder: str) -> int:
    """One of the two: tells its port, waits for the other's, trains, and tells how that ended."""
    from dgc_lab.__main__ import main as lab
    from dgc_lab.install.launch_env import rendezvous, rendezvous_variables
    from two_hosts import ADDRESSES, DEVICE

    answers, sys.stdout = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        first = os.environ["HOROVOD_RANK"] == "0"
        hello = {"port": stack.enter_context(rendezvous(ADDRESSES[0]))} if first else {}
        print(json.dumps(hello), file=answers, flush=True)
        os.environ.update(rendezvous_variables(json.loads(sys.stdin.readline())["port"], ADDRESSES[0], DEVICE))
        status = lab(train_command("--checkpoint", folder, steps=HOSTS_STEPS)[3:])
        print(json.dumps({"status": status}), file=answers, flush=True)
        sys.stdin.read()  # until the other has ended too: its rendezvous is here
    return status


def asked() -> threading.Event:
    """What is set when SIGUSR1 comes; the file says from when on it may come."""
    event = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: event.set())
    atexit.register(signal.signal, signal.SIGUSR1, signal.SIG_IGN)  # Python gives handlers up before it has ended
    Path(READY).touch()
    return event


def kernel(out: str, name: str, *arguments: str) -> int:
    """A program as a cell in a Jupyter kernel; when asked, the kernel is restarted and the cell run again."""
    from queue import Empty

    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel()
    cell, restart = CELL.format(path=sys.path, name=name, arguments=[out, *arguments]), asked()
    try:
        sent = client.execute(cell)
        while True:
            if restart.is_set():
                restart.clear()
                manager.restart_kernel(now=True)
                client.wait_for_ready(timeout=120)
                sent = client.execute(cell)
            with contextlib.suppress(Empty):
                reply = client.get_shell_msg(timeout=0.2)
                if reply["parent_header"].get("msg_id") == sent:
                    print(f"cell ended: {reply['content'].get('evalue', reply['content']['status'])}")
                    return int(reply["content"]["status"] != "ok")
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def browser(out: str) -> int:
    """A widget that trains, in JupyterLab in a browser; when asked, its tab is closed and opened again."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import jupyterlab_on, one_cell_notebook, opened_notebook, run_all
    from controls import fill, press, rows, wait_for_message

    again, folder = asked(), Path("lab")
    folder.mkdir(exist_ok=True)
    with jupyterlab_on([one_cell_notebook(Path(), "widget.ipynb", WIDGET)], folder, {}) as address:
        with opened_notebook(address, "widget.ipynb") as page:
            run_all(page)
            fill(page, {"Steps": "600"})
            page.evaluate(
                "() => window.jupyterapp.commands.execute('docmanager:save')"
            )  # what a closed tab shows again
            press(page, "Run")
            while not again.is_set() and rows(page).count() < len(RATIOS):
                time.sleep(0.05)
                Path(out).write_text(table_of(page))
        with opened_notebook(address, "widget.ipynb") as page:
            wait_for_message(page, f"Done: {len(RATIOS)} rows", seconds=300)
            Path(out).write_text(table_of(page))
    return 0


def table_of(page) -> str:
    """The rows of the widget's table, cells between tabs; what the browser has not laid out yet is read as well."""
    from controls import rows

    cells = "rows => rows.map(row => [...row.cells].map(cell => cell.textContent.trim()).join('\\t') + '\\n').join('')"
    return rows(page).evaluate_all(cells)


def main() -> int:
    """Run one of them as the lab's commands run: an error is one line, and Ctrl-C a status."""
    from dgc_lab.__main__ import status_of, treat_sigterm_as_ctrl_c

    treat_sigterm_as_ctrl_c()
    return status_of(lambda: globals()[sys.argv[1]](*sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
