"""A figure that a cell draws with pyplot appears below the cell, even if a widget is moved while the cell runs.

JupyterLab sends the messages of widgets to a subshell of the kernel. ipykernel 7.4 passes on the first message of a
control to the shell that created it, so the tests move a control once before the cell.
"""

import nbformat
import pytest

from browser import all_outputs, kernel_says, run_cell, screenshot, wait_until_run
from kernels import until

LESSON = "own_figures.ipynb"
VALUE = "explorer.controls['addends'].value"
WIDGET = """from dgc_lab.aggregation import AggregationExplorer
explorer = AggregationExplorer(addends=64)
explorer"""
# The cell ends some time after the widget has been moved. pyplot is imported in a cell of its own or in the same one.
FIGURE = """import time
import matplotlib.pyplot as plt
first, end = explorer.controls["addends"].value, time.monotonic() + 100
plt.plot([1, 2])
print("plotted", flush=True)
while explorer.controls["addends"].value == first and time.monotonic() < end:
    time.sleep(0.05)
time.sleep(1)
assert explorer.controls["addends"].value != first, "the widget was not moved"
"moved\""""


def subshell(kernel):
    """Return the id of a new subshell."""
    kernel.client.control_channel.send(kernel.client.session.msg("create_subshell_request"))
    return kernel.client.get_control_msg(timeout=60)["content"]["subshell_id"]


def move(kernel, shell, comm, index):
    """Send the message of a moved slider, to a subshell or, if ``shell`` is None, as older front ends do."""
    data = {"method": "update", "state": {"index": index}, "buffer_paths": []}
    message = kernel.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
    message["header"]["subshell_id"] = shell
    kernel.client.shell_channel.send(message)


@pytest.mark.parametrize("before", ["pass", "import matplotlib.pyplot"], ids=["new to pyplot", "after pyplot"])
def test_a_figure_survives_a_widget_that_is_moved(kernel, before):
    kernel.ok(f"{before}\n{WIDGET}")
    comm = kernel.ok("print(explorer.controls['addends'].comm.comm_id)").strip()
    shell = subshell(kernel)
    move(kernel, shell, comm, 2)
    kernel.ok("explorer.wait()")
    for index in (0, 1):  # the first message in the subshell, and a later one
        shown = []

        def hook(message, shown=shown, index=index):
            if message["content"].get("text", "").startswith("plotted"):
                move(kernel, shell, comm, index)
            shown.append((message["msg_type"], message["content"].get("data", {})))

        reply = kernel.client.execute_interactive(FIGURE, output_hook=hook, timeout=200)
        assert reply["content"]["status"] == "ok", reply["content"]
        pictures = [data for kind, data in shown if kind == "display_data" and "image/png" in data]
        assert len(pictures) == 1
    shown = []
    kernel.client.execute_interactive("1 + 1", output_hook=shown.append, timeout=60)
    assert not [message for message in shown if message["msg_type"] == "display_data"], "the picture appears again"


def test_front_ends_without_subshells_keep_their_figures(kernel):
    """Colab and the classic notebook show what a widget's own callback draws below the widget."""
    kernel.ok(f"import matplotlib.pyplot as plt\n{WIDGET}")
    kernel.ok("explorer.controls['addends'].observe(lambda _: plt.plot([1, 2]), 'value')")
    comm = kernel.ok("print(explorer.controls['addends'].comm.comm_id)").strip()
    move(kernel, None, comm, 0)
    message = {"msg_type": ""}
    while message["msg_type"] != "display_data" or "image/png" not in message["content"]["data"]:
        message = kernel.client.get_iopub_msg(timeout=60)
    assert message["parent_header"]["msg_type"] == "comm_msg"


@pytest.fixture(scope="module")
def lesson_file(tmp_path_factory):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (WIDGET, FIGURE)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    file = tmp_path_factory.mktemp("notebook") / LESSON
    nbformat.write(notebook, file)
    return file


def move_handle(page, before):
    """Move the slider by a key, and wait until its value in the kernel, which is idle, differs from ``before``."""
    page.locator(".noUi-handle").first.focus()
    page.keyboard.press("ArrowRight")
    if before:
        until(lambda: kernel_says(page, VALUE) != before)


@pytest.mark.nightly
def test_a_figure_survives_a_drag_in_jupyterlab(page):
    run_cell(page, "AggregationExplorer(")
    page.locator(".noUi-handle").first.wait_for(timeout=180_000)
    move_handle(page, kernel_says(page, VALUE))
    cell = run_cell(page, "plt.plot")
    cell.get_by_text("plotted", exact=True).wait_for(timeout=120_000)
    move_handle(page, None)
    cell.get_by_text("'moved'", exact=True).wait_for(timeout=120_000)
    wait_until_run(page)
    screenshot(page, "own_figure")
    pictures = [output for kind, output in all_outputs(page) if kind == "display_data"]
    assert len([output for output in pictures if "image/png" in output["data"]]) == 1
