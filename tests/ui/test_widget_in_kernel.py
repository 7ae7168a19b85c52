"""What a widget's thread shows in the moment in which a real kernel ends: JupyterLab must be able to read it."""

import threading

import zmq
from jupyter_client.session import Session

# Python ends with the handlers that came last. The first large message brings pyzmq's own; the one before it is ours,
# which lets the thread draw on.
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
        panel._show_image(bytes(100_000 + drawn), "a picture")
        panel._say(f"picture {drawn}")
        time.sleep(0.01)

atexit.register(go_on)
threading.Thread(target=draw, daemon=True).start()
"""


def test_every_message_is_whole_to_the_kernels_end(kernel, tmp_path_factory):
    """pyzmq ends before the kernel does, and breaks off what it would not copy: the next message seemed its rest."""
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
    whole = [session.deserialize(session.feed_identities(message)[1]) for message in said]  # raises where it is not
    assert f"picture {file.read_text()}<" in str([message["content"] for message in whole]), "it drew to the end"
