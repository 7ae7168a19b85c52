"""Draw docs/published.png, the README's figure: the published results on MNIST, and those reproduced here.

python tools/draw_published.py
"""

from __future__ import annotations

from pathlib import Path

from dgc_lab.training import SINGLE_NODE, TWO_NODE, single_node_rows, two_node_rows
from dgc_lab.training.figures import percent
from dgc_lab.ui.charts import GREY, MARKERS, PALETTE, Picture, grid, label_panel, png

FILE = Path(__file__).resolve().parent.parent / "docs" / "published.png"
MASKING, PER_TENSOR = "masking, first tensor's threshold", "masking, a threshold per tensor"
LEAST = 0.001  # below this ratio, no run with masking learned anything


def accuracies() -> list[tuple[str, dict, dict[str, list[dict]]]]:
    """Return for one worker and for two: name, published accuracy by ratio, and our rows by method."""
    one = {MASKING: single_node_rows("first"), PER_TENSOR: single_node_rows("tensor")}
    two = {MASKING: two_node_rows("masking"), "complete DGC": two_node_rows("dgc")}
    return [
        (
            who,
            {ratio: accuracy for ratio, (accuracy, _) in table.items() if ratio >= LEAST},
            {name: [row for row in rows if row["ratio"] >= LEAST] for name, rows in made.items()},
        )
        for who, table, made in (("one worker", SINGLE_NODE, one), ("two workers", TWO_NODE, two))
    ]


def picture() -> Picture:
    """Draw the test error by the share of elements sent: one worker on the left, two on the right."""
    figure, panels = grid(2, 2, 4.6, 3.6, sharey=True)
    said = []
    for axes, (who, published, made) in zip(panels, accuracies(), strict=True):
        errors = {ratio: 100 * (1 - accuracy) for ratio, accuracy in published.items()}
        label = "published, requested share"
        axes.plot(*zip(*sorted(errors.items()), strict=True), color=GREY, marker="o", label=label)
        for number, (name, rows) in enumerate(made.items()):
            looks = {"color": PALETTE[number], "marker": MARKERS[number + 1]}
            sent = {row["share sent"]: 100 * (1 - row["accuracy"]) for row in rows}
            axes.plot(*zip(*sorted(sent.items()), strict=True), label=f"here: {name}", **looks)
            [last] = [row for row in rows if row["ratio"] == LEAST]
            said.append(f"{who}, {name}: {100 * (1 - last['accuracy']):.1f} %, with {percent(last['share sent'])} sent")
        said.append(f"{who}, published: {errors[LEAST]:.1f} %")
        axes.set(xscale="log", yscale="log")
        axes.xaxis.set_major_formatter(lambda share, _: percent(share))
        axes.yaxis.set_major_formatter("{x:g}")
        label_panel(axes, who, "share of the elements sent")
        axes.legend(fontsize=8, loc="upper right")
    panels[0].set_ylabel("test error, %")
    alt = f"Test error on MNIST by the share of the gradient's elements that was sent. At {LEAST:.1%} as requested: "
    return Picture(figure, f"{alt}{'; '.join(said)}.")


if __name__ == "__main__":
    FILE.write_bytes(png(picture().figure))
    print(picture().alt)
