"""The interactive figure on the site's first page: recorded runs with a slider, and a table with the same data.

Vega-Altair describes the figure, and Vega, which comes with it, draws it in the browser, without a kernel or other
sites.
"""

from __future__ import annotations

import json
from pathlib import Path

import altair
import pandas as pd

FILE = Path(__file__).resolve().parent.parent / "results" / "recorded_runs.json"
METHODS = ["complete DGC", "masking"]
COLOURS = ["#0072B2", "#B45F06"]
HEIGHT = 240  # pixels
PAGE = """<figure class="recorded-runs" aria-labelledby="recorded-runs-words">
<label for="ratio">Share of each gradient that is sent: <output id="said-ratio" for="ratio"></output></label>
<input type="range" id="ratio" min="0" max="{last}" value="{start}" aria-describedby="recorded-runs-words">
<p id="said-result" role="status"></p>
<div class="charts"><div id="loss"></div><div id="accuracy"></div></div>
<figcaption id="recorded-runs-words">{words}</figcaption>
<details><summary>The same runs as a table</summary>{table}</details>
</figure>
<script src="_static/vega.js"></script>
<script>
(async () => {{
  const rows = {rows};
  const specs = {specs};
  const options = {{actions: false, renderer: "svg"}};
  const names = Object.keys(specs);
  const charts = await Promise.all(names.map(name => vegaEmbed("#" + name, specs[name], options)));
  const slider = document.getElementById("ratio");
  const move = () => {{
    const row = rows[slider.value];
    document.getElementById("said-ratio").textContent = row.sent;
    document.getElementById("said-result").textContent = row.words;
    slider.setAttribute("aria-valuetext", row.sent);
    charts.forEach(({{view}}) => view.signal("ratio", row.ratio).runAsync());
  }};
  slider.addEventListener("input", move);
  move();
}})();
</script>
"""


def recorded() -> dict:
    """Read the file that tools/record_runs.py writes."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def percent(ratio: float) -> str:
    """Format a ratio as a percentage, for example 0.001 as "0.1 %"."""
    return f"{100 * ratio:g} %"


def chart(runs: list[dict], what: str, title: str, top: float) -> dict:
    """Return the Vega-Lite specification of a chart with a line for each run at the slider's ratio."""
    points = [(run["ratio"], run["method"], run["seed"], *point) for run in runs for point in run[what]]
    data = pd.DataFrame(points, columns=["ratio", "method", "seed", "step", what])
    ratio = altair.param("ratio", value=0.001)
    method = {"shorthand": "method:N", "title": None, "legend": altair.Legend(orient="bottom", columnPadding=30)}
    picture = (
        altair.Chart(data, title=title, width="container", height=HEIGHT)
        .mark_line(clip=True)
        .encode(
            x=altair.X("step:Q", title="step"),
            y=altair.Y(f"{what}:Q", title=None, scale=altair.Scale(domain=[0, top])),
            color=altair.Color(**method, scale=altair.Scale(domain=METHODS, range=COLOURS)),
            strokeDash=altair.StrokeDash(**method, scale=altair.Scale(domain=METHODS, range=[[1, 0], [5, 2]])),
            detail="seed:N",
            tooltip=["method", "seed", "step", what],
        )
        .add_params(ratio)
        .transform_filter(altair.datum.ratio == ratio)
        .configure(background="white", font="inherit")
        .configure_axis(labelFontSize=12, titleFontSize=12)
        .configure_legend(labelFontSize=12)
        .configure_title(fontSize=13, anchor="start")
    )
    return picture.to_dict()


def results(record: dict) -> pd.DataFrame:
    """Return a row per ratio: bytes per step and worker, and each method's final accuracy as mean (min to max)."""
    every = [(run["ratio"], run["method"], run["bytes"], run["accuracy"][-1][1]) for run in record["runs"]]
    frame = pd.DataFrame(every, columns=["ratio", "method", "bytes", "accuracy"])
    table = frame.groupby("ratio")["bytes"].mean().round().astype(int).to_frame()
    for method in METHODS:
        of_method = frame[frame["method"] == method].groupby("ratio")["accuracy"].agg(["mean", "min", "max"])
        table[method] = [f"{row['mean']:.3f} ({row['min']:.3f} to {row['max']:.3f})" for _, row in of_method.iterrows()]
    return table.sort_index(ascending=False)


def picture() -> str:
    """Return the HTML of slider, charts, caption and table."""
    record = recorded()
    table, settings = results(record), record["settings"]
    rows = []
    for ratio, row in table.iterrows():
        end = "; ".join(f"{method} ends at {row[method].partition(' ')[0]}" for method in METHODS)
        times = record["dense_bytes"] / row["bytes"] if row["bytes"] else 1
        fewer = f", {times:.0f} times fewer than uncompressed" if times > 1 else ""
        rows.append(
            {"ratio": ratio, "sent": percent(ratio), "words": f"{row['bytes']} bytes per step{fewer}. Accuracy: {end}."}
        )
    specs = {
        "loss": chart(record["runs"], "loss", "Training loss", 2.5),
        "accuracy": chart(record["runs"], "accuracy", "Accuracy on the test set", 1.0),
    }
    words = (
        f"These runs were recorded, not computed in your browser: {settings['workers']} simulated workers, "
        f"data set {settings['dataset']}, {settings['steps']} steps, the better of the learning rates "
        f"{' and '.join(map(str, record['learning_rates']))} for each method and ratio, as found with another seed, "
        f"one line for each of the seeds {', '.join(map(str, record['seeds']))}. "
        f"To repeat them, run <code>{record['command']}</code>."
    )
    columns = {"bytes": "bytes per step and worker", **{method: f"accuracy, {method}" for method in METHODS}}
    shown = table.rename(columns=columns).set_axis(map(percent, table.index)).rename_axis("sent").reset_index()
    return PAGE.format(
        last=len(rows) - 1,
        start=list(table.index).index(0.001),
        words=words,
        table=shown.to_html(index=False, border=0),
        rows=json.dumps(rows),
        specs=json.dumps(specs),
    )


def script() -> str:
    """Return Vega as one JavaScript file that defines ``vegaEmbed``, without conflicts with Sphinx's own scripts."""
    import vl_convert

    return f"(() => {{{vl_convert.javascript_bundle()}}})();"
