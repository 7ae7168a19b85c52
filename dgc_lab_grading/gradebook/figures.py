"""Chart of a class's results, with a text alternative."""

from __future__ import annotations

from dgc_lab.ui.charts import BESIDE, HATCHES, PALETTE, grid, image_tag, png


def class_image(table) -> str:
    """Return an HTML image with a bar per task: the students who solved it, failed, or did not try.

    ``table`` is a data frame with the columns of `statistics`, for one exercise.
    """
    right, left = table["right"], table["handed in"] - table["attempted"]
    parts = {"right": right, "not right": table["handed in"] - right - left, "not attempted": left}
    figure, [axes] = grid(1, 1, 8, 1 + 0.3 * len(table))
    before = 0
    for number, (name, counts) in enumerate(parts.items()):
        looks = {"color": PALETTE[number], "hatch": HATCHES[number], "edgecolor": "white"}
        axes.barh(table["task"], counts, left=before, label=name, **looks)
        before = before + counts
    axes.invert_yaxis()
    axes.set_xlabel("students")
    axes.legend(**BESIDE)
    words = "; ".join(
        f"{row.task}: {row.right} right, {count} not, {empty} not attempted, mean {row.mean:g} of {row.points:g}"
        for row, count, empty in zip(table.itertuples(), parts["not right"], left, strict=True)
    )
    return image_tag(png(figure), f"Bar chart of how many students solved each task. {words}.")
