"""Accessibility of lessons and figures: low vision, colour blindness, and use without a mouse.

The browser tests of the lessons check keyboard use of the widgets with a kernel, through `tests/controls.py`.
"""

import nbformat
import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.text import Text
from playwright.sync_api import expect

from browser import ROOT, axe_complaints
from dgc_lab.parameter_server.live_figure import StragglerPicture
from dgc_lab.parameter_server.schedule import GradientEvent
from dgc_lab.training import figures as pictures
from dgc_lab.ui.charts import GREY, PALETTE, png
from dgc_lab.ui.curves import Curves
from dgc_lab.ui.widget import message_line

LESSON = "00_start_here.ipynb"
SETTINGS = {"notebook-extension/tracker": {"windowingMode": "none"}}  # renders all cells, not just the visible ones
LESSONS = sorted((ROOT / "notebooks").glob("0*.ipynb"))
TEXT, SHAPE = 4.5, 3.0  # minimum contrast, WCAG 2.2 level AA: 1.4.3 and 1.4.11
# JupyterLab ignores a PNG's alternative text in the metadata, which nbviewer and nbconvert use. Lessons that ran show
# an <img> with alternative text instead.
PNG_OF_JUPYTERLAB = {"image-alt": ".jp-RenderedImage > img"}


@pytest.fixture(scope="module")
def lesson_file():
    return LESSONS


@pytest.mark.nightly
def test_stored_lessons_are_accessible(page):
    for file in LESSONS:
        page.evaluate(
            """async path => {
                const panel = await window.jupyterapp.commands.execute("docmanager:open", {path});
                await panel.revealed;
            }""",
            file.name,
        )
        panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        stored = [output for cell in nbformat.read(file, 4).cells for output in cell.get("outputs", [])]
        shown = [output["metadata"]["image/png"]["alt"] for output in stored if "image/png" in output.get("data", {})]
        expect(panel.locator(".jp-RenderedImage")).to_have_count(len(shown), timeout=180_000)
        assert all(shown)
        assert not axe_complaints(page, PNG_OF_JUPYTERLAB), file.name


def contrast(colour, background="white"):
    """Return the WCAG 2.2 contrast ratio of two colours; a transparent colour is blended first."""

    def luminance(rgb):
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        return linear @ (0.2126, 0.7152, 0.0722)

    *rgb, alpha = to_rgba(colour)
    behind = np.array(to_rgba(background)[:3])
    lighter, darker = sorted((luminance(alpha * np.array(rgb) + (1 - alpha) * behind), luminance(behind)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_matches_wcag():
    assert contrast("black") == pytest.approx(21)
    assert contrast("white") == 1
    assert contrast("#767676") == pytest.approx(4.54, abs=0.005), "the palest grey that passes for text"
    assert contrast("#0000ff") == pytest.approx(8.59, abs=0.005)
    assert contrast((0, 0, 0, 0.5)) == pytest.approx(contrast("0.5"))


@pytest.mark.parametrize("colour", [*PALETTE, GREY])
def test_line_colours_have_enough_contrast(colour):
    assert contrast(colour) >= SHAPE


def test_error_messages_have_enough_contrast():
    colour = message_line("wrong", error=True).partition("color: ")[2].partition(";")[0]
    assert contrast(colour) >= TEXT


def curves():
    picture = Curves(steps=10)
    for number in range(3):
        picture.begin(f"ratio {number}")
        picture.add_loss(1, 2.0)
        picture.add_accuracy(1, 0.5)
    return picture


def stragglers():
    picture = StragglerPicture()
    for name in ("1 synchronous", "2 asynchronous"):
        picture.begin(name, workers=2)
        for update in range(3):
            start = float(update)
            picture.add(
                GradientEvent(0, update, start, start + 0.4, start + 0.5, start + 0.7, update, update, loss=2.0)
            )
    return picture


FIGURES = {
    "curves": lambda: curves(),
    "stragglers": lambda: stragglers(),
    "vector": lambda: pictures.masked_vector([0.5, -1.0, 0.1], 0.4),
    "histograms": lambda: pictures.gradient_histograms({"kernel": np.arange(1.0, 9.0)}, {"kernel": 3.0}),
    "accuracy": lambda: pictures.errors_by_share({"here": [(1, 0.9), (0.1, 0.8)], "there": [(1, 0.8), (0, 0.1)]}),
}


@pytest.mark.parametrize("name", FIGURES)
def test_figure_elements_have_enough_contrast(name):
    figure = FIGURES[name]().figure
    png(figure)  # drawing creates the tick labels
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert len(texts) > 5
    for text in texts:
        assert contrast(text.get_color()) >= TEXT, text
        assert text.get_fontsize() >= 7, text
    shapes = 0
    for axes in figure.axes:
        for line in axes.lines:
            assert contrast(to_rgba(line.get_color(), line.get_alpha())) >= SHAPE, line
        for patch in axes.patches:
            assert max(contrast(patch.get_facecolor()), contrast(patch.get_edgecolor())) >= SHAPE, patch
        shapes += len(axes.lines) + len(axes.patches)
    assert shapes
