"""Messages that a widget's thread sends while its kernel shuts down must stay readable for JupyterLab."""

import threading

import zmq
from jupyter_client.session import Session

# Python runs the latest exit handlers first. The first large message registers pyzmq's handler; ours is registered
# earlier and lets the thread keep drawing.
DRAW_TO_THE_END = """
import atexit, threading, time
from pathlib import Path
from dgc_lab.ui.widget import Panel

panel, drawn = Panel({}, [], {}), 0

def go_on():
    begun = drawn
    while drawn < begun + 5:
        time.sleep(0.01)
    Path(FILE).write_text(str(begun + 3))

def draw():
    global drawn
    while True:
        drawn += 1
        panel._show_panels([bytes(100_000 + drawn)], "a picture")
        panel._say(f"picture {drawn}")
        time.sleep(0.01)

atexit.register(go_on)
threading.Thread(target=draw, daemon=True).start()
"""


def test_messages_stay_complete_until_the_kernel_exits(kernel, tmp_path_factory):
    """pyzmq stops before the kernel and truncated uncopied frames, so the next message looked like the rest."""
    session, said = Session(key=kernel.manager.session.key), []
    file = tmp_path_factory.mktemp("told") / "number"
    with zmq.Context() as context, context.socket(zmq.SUB) as iopub:
        iopub.subscribe(b"")
        iopub.rcvhwm = 0
        iopub.connect(f"tcp://127.0.0.1:{kernel.manager.iopub_port}")
        kernel.ok(DRAW_TO_THE_END.replace("FILE", repr(str(file))))
        kernel.manager.shutdown_wait_time = 120  # a kernel that takes longer is killed
        ending = threading.Thread(target=kernel.manager.shutdown_kernel)
        ending.start()
        while ending.is_alive() or iopub.poll(1000):
            if iopub.poll(100):
                said.append(iopub.recv_multipart())
        ending.join()
    complete = [session.deserialize(session.feed_identities(message)[1]) for message in said]  # raises if truncated
    assert f"picture {file.read_text()}<" in str([message["content"] for message in complete]), "drawing ended early"
