"""The explorers on the site, which need no kernel: schemes by family, and lesson 6's model of a step with sliders.

`moving_picture` has the third one, the recorded runs. Python computes all rows; the browser only selects them, and adds
up the parts of a step. So the sliders of the cost model move on a grid of workers and bandwidths.
"""

from __future__ import annotations

import json

import altair
import pandas as pd

from dgc_lab.comparison import stored_study
from dgc_lab.comparison.scheme_names import family, readable
from dgc_lab.scaling import GBIT, Link, Workload, step
from dgc_lab.scaling.cost_model import ELEMENTS
from moving_picture import percent

EVERY = "all families"
COLOURS = ["#1a1a1a", "#0072B2", "#B45F06", "#006B4F", "#8E3B75", "#5B3FB5"]
WORKERS = [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
GBITS = [0.1, 0.3, 1, 3, 10, 25, 50, 100, 200, 400]
RATIOS = [0.01, 0.001]
MODEL = "ResNet-50"
SCHEMES = """<figure class="explorer" id="schemes" aria-labelledby="schemes-words">
<label for="family">Family <select id="family">{options}</select></label>
<p id="schemes-said" role="status"></p>
<div id="schemes-chart"></div>
<figcaption id="schemes-words">Test error and bytes per step and worker on MNIST-1D: the mean of {seeds} seeds, at a
learning rate tuned for each scheme. Further left is fewer bytes, further down is more accurate. Lesson 8 compares these
schemes.</figcaption>
<details><summary>The same schemes as a table</summary>{table}</details>
</figure>
<script src="../_static/vega.js"></script>
<script>
(async () => {{
  const said = {said};
  const chart = await vegaEmbed("#schemes-chart", {spec}, {{actions: false, renderer: "svg"}});
  const menu = document.getElementById("family");
  const choose = () => {{
    document.getElementById("schemes-said").textContent = said[menu.value];
    chart.view.signal("family", menu.value).runAsync();
  }};
  menu.addEventListener("change", choose);
  choose();
}})();
</script>
"""
COST = """<figure class="explorer" id="cost" aria-labelledby="cost-words">
<div class="controls">
<label for="workers">Workers: <output id="said-workers" for="workers"></output></label>
<input type="range" id="workers" min="0" max="{last_workers}" value="4">
<label for="gbit">Bandwidth of a link: <output id="said-gbit" for="gbit"></output></label>
<input type="range" id="gbit" min="0" max="{last_gbit}" value="4">
<label for="compute">Computing a step: <output id="said-compute" for="compute"></output></label>
<input type="range" id="compute" min="10" max="500" step="10" value="100">
<label for="selection">Selecting the elements: <output id="said-selection" for="selection"></output></label>
<input type="range" id="selection" min="0" max="300" step="5" value="50">
<label for="sent">Share that is sent <select id="sent">{ratios}</select></label>
</div>
<p id="cost-said" role="status"></p>
<dl class="bars">
<dt>uncompressed</dt><dd><span id="bar-dense"></span><output id="said-dense"></output></dd>
<dt>compressed</dt><dd><span id="bar-sent"></span><output id="said-sent"></output></dd>
</dl>
<table><caption>A compressed step, by the bandwidth of a link</caption>
<thead><tr><th scope="col">bandwidth</th><th scope="col">times as fast as uncompressed</th></tr></thead>
<tbody>{rows}</tbody></table>
<figcaption id="cost-words">Lesson 6's model of a step with {model}, {elements} parameters, on links with 20 µs per hop
and 94 % of the bandwidth for the payload. Each collective uses its fastest algorithm, and the compressor switches to an
allreduce where an allgather would be longer. Nothing overlaps the backward pass, and the model leaves out the time to
add up the received elements. These are modelled times, not measured ones.</figcaption>
</figure>
<script>
(() => {{
  const exchange = {exchange}, workers = {workers}, gbits = {gbits};
  const get = name => document.getElementById(name), value = name => Number(get(name).value);
  const steps = gbit => {{
    const [dense, ...sent] = exchange[value("workers")][gbit];
    return [value("compute") + dense, value("compute") + value("selection") + sent[value("sent")]];
  }};
  const ms = time => `${{time < 10 ? time.toFixed(1) : Math.round(time)}} ms`;
  const times = ([dense, sent]) => (dense / sent).toFixed(dense / sent < 10 ? 2 : 0);
  const move = () => {{
    const said = {{workers: workers[value("workers")], gbit: `${{gbits[value("gbit")]}} Gbit/s`,
                  compute: `${{value("compute")}} ms`, selection: `${{value("selection")}} ms`}};
    for (const [name, words] of Object.entries(said)) {{
      get(`said-${{name}}`).textContent = words;
      get(name).setAttribute("aria-valuetext", words);
    }}
    const now = steps(value("gbit")), longest = Math.max(...now);
    ["dense", "sent"].forEach((name, place) => {{
      get(`bar-${{name}}`).style.width = `${{70 * now[place] / longest}}%`;
      get(`said-${{name}}`).textContent = ms(now[place]);
    }});
    const verdict = now[1] < now[0] ? "Compression pays" : "Compression does not pay";
    get("cost-said").textContent = `${{verdict}}: a compressed step is ${{times(now)}} times as fast.`;
    document.querySelectorAll("#cost td").forEach((cell, place) => {{ cell.textContent = times(steps(place)); }});
  }};
  document.querySelectorAll("#cost input, #cost select").forEach(control => control.addEventListener("input", move));
  move();
}})();
</script>
"""


def schemes() -> str:
    """Return the HTML of the explorer of schemes."""
    study = stored_study("schemes")
    rows = pd.DataFrame(
        {
            "scheme": [readable(name) for name in study.index],
            "family": [family(name) for name in study.index],
            "kB": study["kB per step"].round(1).to_list(),
            "error": (100 * (1 - study["accuracy"])).round(2).to_list(),
        }
    ).sort_values("kB", ascending=False)
    families = [EVERY, *dict.fromkeys(rows["family"])]
    said = {}
    for name in families:
        own = rows if name == EVERY else rows[rows["family"] == name]
        best, small = own.loc[own["error"].idxmin()], own.loc[own["kB"].idxmin()]
        said[name] = (
            f"Most accurate: {best['scheme']}, {best['error']} % errors with {best['kB']} kB. "
            f"Fewest bytes: {small['scheme']}, {small['error']} % errors with {small['kB']} kB."
        )
    shown = rows.rename(columns={"kB": "kB per step and worker", "error": "test error, %"})
    return SCHEMES.format(
        options="".join(f"<option>{name}</option>" for name in families),
        seeds=int(study["seeds"].min()),
        table=shown.to_html(index=False, border=0),
        said=json.dumps(said),
        spec=json.dumps(chart(rows, families[1:])),
    )


def chart(rows: pd.DataFrame, families: list[str]) -> dict:
    """Return the Vega-Lite specification of the schemes: those of the signal ``family`` are opaque."""
    chosen, is_chosen = altair.param("family", value=EVERY), f"family == '{EVERY}' || datum.family == family"
    legend = altair.Legend(orient="bottom", columns=2, columnPadding=30)
    colours = altair.Scale(domain=families, range=COLOURS[: len(families)])
    picture = (
        altair.Chart(rows, width="container", height=320)
        .mark_point(filled=True, size=90)
        .encode(
            x=altair.X("kB:Q", title="kB per step and worker", scale=altair.Scale(type="log")),
            y=altair.Y("error:Q", title="test error, %", scale=altair.Scale(type="log")),
            color=altair.Color("family:N", title=None, scale=colours, legend=legend),
            shape=altair.Shape("family:N", title=None, scale=altair.Scale(domain=families)),
            opacity=altair.condition(is_chosen, altair.value(1), altair.value(0.1)),
            tooltip=["scheme", "family", "kB", "error"],
        )
        .add_params(chosen)
        .configure(background="white", font="inherit")
        .configure_axis(labelFontSize=12, titleFontSize=12)
        .configure_legend(labelFontSize=12)
    )
    return picture.to_dict()


def exchange_ms(workers: int, gbit: float) -> list[float]:
    """Return the milliseconds that uncompressed gradients take on a link, and then those of each ratio."""
    work, link = Workload(ELEMENTS[MODEL], compute=1.0), Link(gbit * GBIT)
    estimates = [step(work, link, workers, "dense"), *(step(work, link, workers, "switching", r) for r in RATIOS)]
    return [round(1000 * (estimate.seconds - work.compute), 3) for estimate in estimates]


def cost() -> str:
    """Return the HTML of the explorer of the cost model."""
    return COST.format(
        last_workers=len(WORKERS) - 1,
        last_gbit=len(GBITS) - 1,
        ratios="".join(
            f'<option value="{place}"{" selected" * (ratio == 0.001)}>{percent(ratio)}</option>'
            for place, ratio in enumerate(RATIOS)
        ),
        rows="".join(f'<tr><th scope="row">{gbit:g} Gbit/s</th><td></td></tr>' for gbit in GBITS),
        model=MODEL,
        elements=f"{ELEMENTS[MODEL] / 1e6:.1f} million",
        exchange=json.dumps([[exchange_ms(workers, gbit) for gbit in GBITS] for workers in WORKERS]),
        workers=json.dumps(WORKERS),
        gbits=json.dumps(GBITS),
    )
