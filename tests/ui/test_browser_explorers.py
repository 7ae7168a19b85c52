"""The explorers of lessons 3, 6 and 9 in JupyterLab and Chromium, each in a notebook with one cell."""

import re

import pytest
from playwright.sync_api import expect

from browser import all_outputs, axe_complaints, control, one_cell_notebook, opened_notebook, run_all, screenshot
from controls import change_all_by_keyboard, change_all_by_mouse, fill, message_of, widget_with

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]


def use_memory(page, widget):
    control(page, "Model").select_option("GPT-2 XL")
    message_of(widget, "GPT-2 XL with 1.558 billion parameters on 8 ranks")
    expect(control(page, "Parameters, 10⁶")).to_have_value("1557.611")
    widget.locator(".noUi-handle").first.press("ArrowRight")
    message_of(widget, "on 16 ranks")
    fill(page, {"Device, GB": "10"})
    message_of(widget, "of 10 GB fits with ZeRO 1 or ZeRO 2 or ZeRO 3, FSDP")
    row = widget.locator("tbody tr", has_text="ZeRO 1").inner_text().split("\t")
    assert f"ZeRO 1: {float(row[4]):.3g} GB, fits" in widget.locator("img").get_attribute("alt")
    fill(page, {"Device, GB": "-3"})
    expect(message_of(widget, "memory must be above 0 GB, got -3")).to_have_attribute("role", "alert")
    fill(page, {"Device, GB": "24"})
    expect(message_of(widget, "of 24 GB fits with")).to_have_attribute("role", "status")


def use_scale(page, widget):
    control(page, "Model").select_option("ResNet-50")
    message_of(widget, "ResNet-50, 8 workers.*Compute 100 ms: assumed")
    expect(control(page, "Compute, ms")).to_have_value("100")
    for _ in range(3):
        widget.locator(".noUi-handle").first.press("ArrowRight")
    message_of(widget, "ResNet-50, 64 workers")
    fill(page, {"Compute, ms": "250"})
    message_of(widget, "Compute 250 ms: set by you")
    row = widget.locator("tbody tr", has_text="switching").inner_text().split("\t")
    assert row[1:3] == ["modelled", "64"]
    alt = widget.locator("img").get_attribute("alt")
    said = re.search(r"switching, modelled: speed-up ([\d.]+)", alt)
    assert float(said[1]) == pytest.approx(float(row[4]), rel=0.005)  # each is rounded in its own way
    fill(page, {"Latency, µs per hop": "-3"})
    expect(message_of(widget, "latency must be at least 0 µs, got -3")).to_have_attribute("role", "alert")
    fill(page, {"Latency, µs per hop": "10"})
    expect(message_of(widget, "Modelled: ResNet-50")).to_have_attribute("role", "status")


def use_stragglers(page, widget):
    box = widget.locator(".noUi-handle").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"], steps=8)
    page.mouse.up()
    message_of(widget, "Of 4 workers, worker 3 takes 10 times as long")


MEMORY = "from dgc_lab.scaling import MemoryExplorer\n\nexplorer = MemoryExplorer()\nexplorer"
SCALE = """\
from dgc_lab.scaling import ScaleExplorer, StepTimes
from dgc_lab.scaling.network import Link

times = StepTimes(0.05, 0.01, 1e-8, "measured here", "measured here")
explorer = ScaleExplorer(times, Link(1.0, latency=1e-3, efficiency=0.9, per_byte=1e-9))
explorer"""
STRAGGLERS = "from dgc_lab.parameter_server import StragglerExplorer\n\nexplorer = StragglerExplorer()\nexplorer"
# By name: source, start of the picture's alternative text, first message, number of rows, and a function that uses it
EXPLORERS = {
    "memory": (
        MEMORY,
        "Memory of a rank",
        "Llama 3 8B with 8.03 billion parameters on 8 ranks of 80 GB",
        4,
        use_memory,
    ),
    "scale": (SCALE, "Speed-up, bytes", "Modelled: mnist_cnn, 8 workers, 1 Gbit/s, ratio 0.001", 5, use_scale),
    "stragglers": (STRAGGLERS, "What workers did", "Of 4 workers, worker 3 takes 3 times", 3, use_stragglers),
}


@pytest.fixture(scope="module")
def lesson_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    return [one_cell_notebook(folder, f"{name}.ipynb", source) for name, (source, *_) in EXPLORERS.items()]


@pytest.fixture(scope="module", params=EXPLORERS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def page(jupyterlab, name):
    with opened_notebook(jupyterlab, f"{name}.ipynb") as page:
        yield page


def widget_of(page, name):
    return widget_with(page, f"img[alt^='{EXPLORERS[name][1]}']")


@pytest.mark.parametrize("restart", [False, True])
def test_explorer_appears_and_reacts_to_its_controls(page, name, restart):
    run_all(page, restart)
    assert not [output for kind, output in all_outputs(page) if kind == "error"]
    *_, message, rows, use = EXPLORERS[name]
    widget = widget_of(page, name)
    message_of(widget, message)
    expect(widget.locator("tbody tr")).to_have_count(rows)
    screenshot(page, f"explorer_{name}")
    before = widget.locator("img").get_attribute("src")
    use(page, widget)
    assert widget.locator("img").get_attribute("src") != before


def test_every_control_works_by_mouse_and_keyboard(page, name):
    change_all_by_mouse(page, widget_of(page, name), "explorer")
    change_all_by_keyboard(page, widget_of(page, name), "explorer")


def test_widget_is_accessible(page):
    assert not axe_complaints(page)


def test_console_shows_no_complaints(page):
    assert page.complaints == []
