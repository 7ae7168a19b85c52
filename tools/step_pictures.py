"""The site's pictures that move step by step: the ring, the residual, buckets, and a straggler one can drag.

Python draws every picture, with the functions of the lessons, when the site is built. The browser only shows one of
them. Nothing moves until the reader presses Play, and readers who asked for reduced motion see no such button.
"""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dgc_lab.aggregation import ring_step, ring_table
from dgc_lab.parameter_server import StragglerExplorer
from dgc_lab.scaling import GBIT, Link, bucket_moment, model_buckets
from dgc_lab.training import residual_history, residual_step
from dgc_lab.ui.charts import Picture, png
from dgc_lab.ui.stepper import SECONDS_PER_STEP
from dgc_lab.ui.widget import digits

PAGE = """<figure class="explorer steps" id="{name}" aria-labelledby="{name}-words">
<div class="controls"><label for="{name}-step">{label}: <output for="{name}-step"></output></label>
<input type="range" id="{name}-step" min="0" max="{last}" value="{start}"></div>
{button}
<p role="status"></p>
<div class="still" tabindex="0" role="group" aria-label="Picture; on a narrow screen it scrolls sideways">
<img class="dark-light" src="../_static/steps/{name}_{start}.png" alt="{alt}"></div>
<figcaption id="{name}-words">{caption}</figcaption>
<details><summary>The same as a table</summary>{table}</details>
</figure>
<script>
(() => {{
  const shown = {shown}, figure = document.getElementById("{name}"), get = what => figure.querySelector(what);
  const slider = get("input"), play = get("button");
  let timer = null;
  const move = () => {{
    const [value, said, alt] = shown[slider.value];
    Object.assign(get("img"), {{src: `../_static/steps/{name}_${{slider.value}}.png`, alt}});
    get("output").textContent = value;
    get("[role=status]").textContent = said;
    slider.setAttribute("aria-valuetext", value);
  }};
  const pause = () => {{
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  }};
  const next = () => {{
    slider.stepUp();
    move();
    if (slider.value === slider.max) pause();
  }};
  slider.addEventListener("input", move);
  play?.addEventListener("click", () => {{
    if (timer !== null) return pause();
    if (slider.value === slider.max) slider.value = 0;
    move();
    play.textContent = "Pause";
    timer = setInterval(next, {interval});
  }});
  move();
}})();
</script>
"""
BUTTON = '<button type="button">Play</button>'


@dataclass(frozen=True)
class Series:
    """Pictures under a slider: its label, its values in words, a sentence for each, a caption, and a table."""

    label: str
    values: list[str]
    said: list[str]
    pictures: list[Picture]
    caption: str
    table: pd.DataFrame
    start: int = 0
    plays: bool = True


def steps(label: str, pictures: list[Picture], caption: str, table: pd.DataFrame, start: int) -> Series:
    """Return a series of numbered steps, each described by the first sentence of its alternative text."""
    values = [f"{step} of {len(pictures) - 1}" for step in range(len(pictures))]
    said = [f"{picture.alt.partition('. ')[0]}." for picture in pictures]
    return Series(label, values, said, pictures, caption, table, start)


def ring() -> Series:
    """Return the ring allreduce of lesson 1, on four workers."""
    by_digit = [10**worker * np.repeat(np.float32([1, 2, 3, 4]), 6250) for worker in range(4)]
    caption = """A ring allreduce of four workers with 25&nbsp;000 numbers each, as in lesson 1. Worker 0 has only ones
to fours, the others 10, 100 and 1000 times as much, so the digits show whose gradients a part contains."""
    return steps("Step", [ring_step(by_digit, step) for step in range(7)], caption, ring_table(by_digit), 3)


def straggler() -> Series:
    """Return the straggler of lesson 3, from equally fast to ten times as slow."""
    slowdowns = [1 + 0.5 * place for place in range(19)]
    pictures, frames, said = zip(*(StragglerExplorer.result(each, 4, 1) for each in slowdowns), strict=True)
    caption = """Four workers train one model, and worker 3 is slow, as in lesson 3. These times are modelled, not
measured: a fast worker needs 90 ms for a gradient and 10 ms to get the next batch. One worker is a backup: an update
takes the first three gradients, and drops the last one."""
    values = ["as fast as the others", *(f"{each:g} times as slow" for each in slowdowns[1:])]
    table = pd.concat(dict(zip(slowdowns, frames, strict=True)), names=["slowdown"]).reset_index(level=0)
    return Series("Worker 3", values, list(said), list(pictures), caption, table, start=4, plays=False)


def residual() -> Series:
    """Return the residuals of lesson 5, of a run that trains when the site is built."""
    history = residual_history()
    caption = """Three elements of a real gradient in 24 steps of training on the digits, as in lesson 5. Each step
sends the 1 % with the largest residuals, whose bars are filled. The others wait and accumulate."""
    return steps("Step", [residual_step(history, step) for step in range(25)], caption, history, 12)


def buckets() -> Series:
    """Return the buckets of lesson 9, at every millisecond."""
    modelled = model_buckets([500_000] * 12, [1.0] * 12, 1_500_000, Link(10 * GBIT), ranks=64)
    caption = """A backward pass fills buckets of 1.5 MB, and a link of 10 Gbit/s between 64 ranks exchanges them
meanwhile, as in lesson 9. These times are modelled, not measured: 1 ms for each of twelve gradients of 0.5 MB, and an
allreduce in two trees or a ring, whichever is faster, with 20 µs per hop."""
    return steps("Milliseconds", [bucket_moment(modelled, ms) for ms in range(16)], caption, modelled, 7)


SERIES = {"ring": ring, "straggler": straggler, "residual": residual, "buckets": buckets}


def explorer(name: str, site: Path) -> str:
    """Write the pictures of a series into a site's folder, and return the HTML that shows them."""
    series, folder = SERIES[name](), site / "_static" / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    for step, picture in enumerate(series.pictures):
        (folder / f"{name}_{step}.png").write_bytes(png(picture.figure))
    shown = zip(series.values, series.said, (picture.alt for picture in series.pictures), strict=True)
    return PAGE.format(
        name=name,
        label=series.label,
        last=len(series.pictures) - 1,
        start=series.start,
        button=BUTTON * series.plays,
        alt=html.escape(series.pictures[series.start].alt),
        caption=series.caption,
        table=series.table.to_html(index=False, border=0, float_format=digits),
        shown=json.dumps(list(shown)),
        interval=round(1000 * SECONDS_PER_STEP),
    )
