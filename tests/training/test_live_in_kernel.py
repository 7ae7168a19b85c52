"""A blocking sweep in a real Jupyter kernel: the cell's output during and after the run."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.nightly


def test_run_shows_a_live_plot_in_the_cell_output(kernel):
    kernel.ok("from dgc_lab.training import CompressionSweep; lab = CompressionSweep(ratios='1', steps=2000)")
    said = []
    kernel.client.execute_interactive("lab.run()", output_hook=said.append, timeout=300)
    assert not [message for message in said if message["msg_type"] == "error"]
    shown = [m["content"] for m in said if m["msg_type"] in ("display_data", "update_display_data")]
    first, *live, last, table = shown
    [name] = {content["transient"]["display_id"] for content in (first, *live, last)}
    assert name
    assert "No run yet" not in live[1]["data"]["text/html"]
    assert len({content["data"]["text/html"] for content in live}) >= 3, "the plot does not change"
    assert "image/png" in last["data"], "the final output must be a static figure"
    assert "accuracy" in table["data"]["text/html"]


def test_interrupt_keeps_the_last_frame_and_a_working_widget(kernel):
    kernel.ok("from dgc_lab.training import CompressionSweep; lab = CompressionSweep(ratios='1, 0.1', steps=100_000)")
    frames = []

    def hook(message):
        if message["msg_type"] == "update_display_data":
            frames.append(message)
            if len(frames) % 10 == 3:  # retry like an impatient user
                kernel.manager.interrupt_kernel()

    said = kernel.client.execute_interactive("lab.run()", output_hook=hook, timeout=300, stop_on_error=False)
    assert said["content"]["ename"] == "KeyboardInterrupt"
    assert "base64," in frames[-1]["content"]["data"]["text/html"]
    kernel.ok("lab.steps.value = 20; lab.run()")
    assert kernel.ok("print(len(lab.rows))") == "2\n"


def test_rerunning_a_cell_stops_its_previous_widget(kernel):
    """Its plot and Stop button vanish with the output; widgets of other cells keep training."""
    made = "from dgc_lab.training import CompressionSweep; lab = CompressionSweep(steps=100_000); lab.start()"
    for cell, name in (("a", "first"), ("b", "other"), ("a", "second")):
        message = kernel.client.session.msg("execute_request", kernel_request(f"{made}; {name} = lab"))
        message["metadata"]["cellId"] = cell
        kernel.client.shell_channel.send(message)
        assert kernel.client.get_shell_msg(timeout=300)["content"]["status"] == "ok"
    assert kernel.ok("print(first.wait(100), other.wait(0), second.wait(0))") == "True False False\n"
    kernel.ok("other.stop(); second.stop(); other.wait(), second.wait()")


def kernel_request(code):
    return {"code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": False}


def test_script_can_exit_while_a_widget_trains():
    """TensorFlow used to abort two of three programs that exited while a thread was training."""
    code = """
from dgc_lab.training import CompressionSweep
lab = CompressionSweep(steps=100_000)
lab.start()
while not lab.progress.value:
    lab.wait(0.05)
"""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
