"""Film lesson 4's widget for the README: the slider moves, Run is pressed, and the curves of real runs grow.

    PYTHONPATH=tests .venv/bin/python tools/film_widget.py

runs the widget in JupyterLab in a real browser and writes docs/widget.gif, and its last frame as docs/widget.png for
readers who have asked their system for reduced motion. The film plays twice. If the recording is longer than the film
may be, the film plays faster.
"""

from __future__ import annotations

import io
import math
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from PIL import Image
from playwright.sync_api import expect

from browser import control, jupyterlab_on, one_cell_notebook, opened_notebook, run_all
from controls import fill, press, rows, wait_for_message, widget

FILM = Path(__file__).resolve().parent.parent / "docs" / "widget.gif"
CELL = """\
from dgc_lab.training import CompressionSweep

lab = CompressionSweep(steps=600)
lab.redraw_share = 1  # four pictures a second, as on a fast machine
lab"""
RATIOS = (0.01, 0.001)  # filmed; the run at ratio 1 is there from the start
LONGEST = 9_500  # milliseconds, without the last frame
SHORTEST = 120  # milliseconds between two frames
LAST = 2_000  # milliseconds for which the last frame stays
MOST_BYTES = 1_000_000
SPEED = 300  # pixels per second of the mouse pointer
# Screenshots do not contain the mouse pointer.
POINTER = """() => {
    const arrow = document.createElement("div");
    arrow.innerHTML = `<svg width="18" height="26" viewBox="0 0 18 26"><path d="M1 1v20l5-4 4 8 4-2-4-8h7z"
        fill="black" stroke="white" stroke-width="1.5"/></svg>`;
    arrow.style = "position: fixed; left: -99px; top: 0; z-index: 99999; pointer-events: none";
    document.body.append(arrow);
    addEventListener("mousemove", event => {
        arrow.style.left = `${event.clientX}px`;
        arrow.style.top = `${event.clientY}px`;
    }, true);
}"""


class Film:
    """Frames of a part of the page, with the times at which they were taken."""

    def __init__(self, page, clip: dict):
        self.page, self.clip, self.frames, self.mouse = page, clip, [], None

    def shoot(self) -> None:
        """Add a frame, unless it equals the last one."""
        taken = time.monotonic()
        image = Image.open(io.BytesIO(self.page.screenshot(clip=self.clip))).convert("RGB")
        if not self.frames or image.tobytes() != self.frames[-1][1].tobytes():
            self.frames.append((taken, image))

    def glide(self, x: float, y: float) -> None:
        """Move the mouse to a point at an even speed."""
        from_x, from_y = self.mouse
        way, begun = max(1.0, math.dist((x, y), (from_x, from_y))), time.monotonic()
        share = 0.0
        while share < 1:
            share = min(1.0, SPEED * (time.monotonic() - begun) / way)
            self.page.mouse.move(from_x + share * (x - from_x), from_y + share * (y - from_y))
            self.shoot()
        self.mouse = (x, y)

    def watch(self, ended: Callable[[], bool]) -> None:
        """Film until ``ended()`` returns True, then take a last frame."""
        while not ended():
            self.shoot()
            self.page.wait_for_timeout(50)
        self.shoot()

    def save(self, file: Path) -> None:
        """Write the film as a GIF whose frames share a palette, so that still parts need no bytes."""
        began, ended = self.frames[0][0], self.frames[-1][0]
        pace = min(1000, LONGEST / (ended - began))  # milliseconds of the film for a second of the recording
        kept = []
        for taken, image in self.frames[:-1]:
            at = pace * (taken - began)
            if not kept or at >= kept[-1][0] + SHORTEST:
                kept.append((at, image))
        times, images = zip(*kept, (pace * (ended - began), self.frames[-1][1]), strict=True)
        lengths = [round(after - before) for before, after in pairwise(times)] + [LAST]
        palette = images[-1].quantize(255, dither=Image.Dither.NONE)
        first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
        first.save(file, save_all=True, append_images=others, duration=lengths, loop=1, optimize=False)
        if file.stat().st_size > MOST_BYTES:
            raise RuntimeError(f"the film must have at most {MOST_BYTES} bytes, got {file.stat().st_size}")
        palette.save(file.with_suffix(".png"), optimize=True)
        print(f"{file}: {len(images)} frames, {sum(lengths) / 1000:.1f} s, {file.stat().st_size / 1000:.0f} kB")


def middle(element) -> tuple[float, float]:
    """Return the middle of an element on the page."""
    box = element.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def train_at(film: Film, ratio: float) -> None:
    """Drag the slider to a ratio, press Run, and film until the run has ended."""
    page, panel = film.page, widget(film.page)
    handle = panel.locator(".noUi-handle")
    track = handle.locator("xpath=ancestor::*[contains(@class, 'noUi-target')]").bounding_box()
    exponent = math.log10(ratio)
    film.glide(*middle(handle))
    page.mouse.down()
    film.glide(track["x"] + track["width"] * (1 + exponent / 4), film.mouse[1])
    page.mouse.up()
    expect(control(page, "Ratios")).to_have_value(f"{ratio:g}")
    run = panel.get_by_role("button", name="Run")
    film.glide(*middle(run))
    finished = rows(page).count()
    page.mouse.down()
    page.mouse.up()
    film.watch(lambda: rows(page).count() > finished and run.is_enabled())


def film_widget(page) -> Film:
    """Train at ratio 1, then film the runs at `RATIOS`."""
    run_all(page)
    fill(page, {"Ratios": "1"})
    press(page, "Run")
    wait_for_message(page, "Done: 1 row")
    page.evaluate(POINTER)
    page.evaluate("() => document.activeElement.blur()")
    box = widget(page).bounding_box()
    height = box["height"] + 30 * len(RATIOS)  # room for the rows of the film
    film = Film(page, {"x": box["x"] - 4, "y": box["y"] - 4, "width": box["width"] + 8, "height": height + 8})
    film.mouse = (box["x"] + 0.5 * box["width"], box["y"] + 0.4 * height)
    page.mouse.move(*film.mouse)
    page.wait_for_timeout(500)
    film.shoot()
    for ratio in RATIOS:
        train_at(film, ratio)
    expect(rows(page)).to_have_count(1 + len(RATIOS))
    return film


def main() -> None:
    """Write docs/widget.gif and docs/widget.png."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = one_cell_notebook(Path(folder), "widget.ipynb", CELL)
        (served := Path(folder) / "served").mkdir()
        with jupyterlab_on([notebook], served, {}) as address, opened_notebook(address, notebook.name) as page:
            film_widget(page).save(FILM)


if __name__ == "__main__":
    main()
