"""The picture on the site's first page: recorded runs under a slider, and a table with the same facts.

Vega-Altair describes the picture, and Vega, which comes with it, draws it in the browser: no kernel, no other site.
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
    """The file that tools/record_runs.py has written."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def share(ratio: float) -> str:
    """A ratio as it is said: 0.001 is "0.1 %"."""
    return f"{100 * ratio:g} %"


def chart(runs: list[dict], what: str, title: str, top: float) -> dict:
    """A line for each run at the ratio that the slider says, by method and seed, as a Vega-Lite specification."""
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
    """A row for each ratio: bytes a step and worker, and by method the mean accuracy at the end, least and largest."""
    every = [(run["ratio"], run["method"], run["bytes"], run["accuracy"][-1][1]) for run in record["runs"]]
    frame = pd.DataFrame(every, columns=["ratio", "method", "bytes", "accuracy"])
    table = frame.groupby("ratio")["bytes"].mean().round().astype(int).to_frame()
    for method in METHODS:
        of_method = frame[frame["method"] == method].groupby("ratio")["accuracy"].agg(["mean", "min", "max"])
        table[method] = [f"{row['mean']:.3f} ({row['min']:.3f} to {row['max']:.3f})" for _, row in of_method.iterrows()]
    return table.sort_index(ascending=False)


def picture() -> str:
    """The HTML of slider, picture, words and table."""
    record = recorded()
    table, settings = results(record), record["settings"]
    rows = []
    for ratio, row in table.iterrows():
        end = "; ".join(f"{method} ends at {row[method].partition(' ')[0]}" for method in METHODS)
        times = record["dense_bytes"] / row["bytes"] if row["bytes"] else 1
        fewer = f", {times:.0f} times fewer than whole gradients" if times > 1 else ""
        rows.append(
            {"ratio": ratio, "sent": share(ratio), "words": f"{row['bytes']} bytes a step{fewer}. Accuracy: {end}."}
        )
    specs = {
        "loss": chart(record["runs"], "loss", "Training loss", 2.5),
        "accuracy": chart(record["runs"], "accuracy", "Accuracy on the test set", 1.0),
    }
    words = (
        f"Recorded, not computed in your browser: {settings['workers']} simulated workers, 8x8 digits, "
        f"{settings['steps']} steps, a line for each of the seeds {', '.join(map(str, record['seeds']))}. "
        f"<code>{record['command']}</code> makes the runs again."
    )
    columns = {"bytes": "bytes a step and worker", **{method: f"accuracy, {method}" for method in METHODS}}
    shown = table.rename(columns=columns).set_axis(map(share, table.index)).rename_axis("sent").reset_index()
    return PAGE.format(
        last=len(rows) - 1,
        start=list(table.index).index(0.001),
        words=words,
        table=shown.to_html(index=False, border=0),
        rows=json.dumps(rows),
        specs=json.dumps(specs),
    )


def script() -> str:
    """Vega as one file of JavaScript that leaves ``vegaEmbed`` behind, and no name that Sphinx's own scripts have."""
    import vl_convert

    return f"(() => {{{vl_convert.javascript_bundle()}}})();"
