"""Makes docs/published.png, the README's picture: the published accuracies on MNIST beside those that were made here.

python tools/draw_published.py
"""

from __future__ import annotations

from pathlib import Path

from dgc_lab.training import SINGLE_NODE, TWO_NODE, single_node_rows, two_node_rows
from dgc_lab.ui.charts import GREY, MARKERS, PALETTE, Picture, grid, label_panel, png

FILE = Path(__file__).resolve().parent.parent / "docs" / "published.png"
MASKING, PER_TENSOR = "masking, first tensor's threshold", "masking, a threshold per tensor"
LEAST = 0.001  # with fewer than that no row of masking learned


def accuracies() -> list[tuple[str, dict, dict[str, dict]]]:
    """For one worker and for two: who, the published accuracy by ratio, and ours by what was trained."""
    one = {MASKING: single_node_rows("first"), PER_TENSOR: single_node_rows("tensor")}
    two = {MASKING: two_node_rows("masking"), "complete DGC": two_node_rows("dgc")}
    return [
        (
            who,
            {r: a for r, (a, _) in table.items() if r >= LEAST},
            {
                name: {row["ratio"]: row["accuracy"] for row in rows if row["ratio"] >= LEAST}
                for name, rows in made.items()
            },
        )
        for who, table, made in (("one worker", SINGLE_NODE, one), ("two workers", TWO_NODE, two))
    ]


def picture() -> Picture:
    """Accuracy by the ratio asked for: one worker at the left, two at the right."""
    figure, panels = grid(2, 2, 4.6, 3.4)
    said = []
    for axes, (who, published, made) in zip(panels, accuracies(), strict=True):
        axes.plot(*zip(*sorted(published.items()), strict=True), color=GREY, marker="o", label="published")
        for number, (name, found) in enumerate(made.items()):
            looks = {"color": PALETTE[number], "marker": MARKERS[number + 1]}
            axes.plot(*zip(*sorted(found.items()), strict=True), label=f"here: {name}", **looks)
            said.append(f"{who}, {name}: {found[LEAST]:.3f}")
        said.append(f"{who}, published: {published[LEAST]:.3f}")
        axes.set(xscale="log", ylim=(0, 1.02), ylabel="test accuracy")
        axes.xaxis.set_major_formatter("{x:.1%}")
        label_panel(axes, who, "share of the gradient that is sent, as asked")
        axes.legend(fontsize=8, loc="lower right")
    alt = f"Test accuracy on MNIST by the share of the gradient that is sent. At {LEAST:.1%}, {'; '.join(said)}."
    return Picture(figure, alt)


if __name__ == "__main__":
    FILE.write_bytes(png(picture().figure))
    print(picture().alt)
