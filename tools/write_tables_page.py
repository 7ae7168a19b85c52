"""Write docs/published_tables.md: the published accuracies on MNIST, compared with the rows in results/.

python tools/write_tables_page.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from dgc_lab.training import SINGLE_NODE, TWO_NODE, single_node_rows, two_node_rows

PAGE = Path(__file__).resolve().parent.parent / "docs" / "published_tables.md"
SEEDS = (0, 1, 2)
ALIKE_FROM = 0.003  # lowest ratio at which the published rows of one worker and ours agree
SCOPES = {"first": "first tensor's threshold", "tensor": "one per tensor"}
NAMES = {"masking": "masking", "masking_per_tensor": "masking like DGC", "dgc": "complete DGC"}
ONE = """\
# The published tables, reproduced

All runs train on MNIST for the published number of steps: 20 000 updates on one worker, 10 000 on each of two workers.

## One worker

Masking: test accuracy for each requested ratio, the share of each gradient to send. The published runs used the first
tensor's threshold for all tensors. Ours use the same configuration, once with that threshold (exact) and once with a
threshold per tensor (estimated from a sample); at 100 %, where thresholds have no effect, one run serves for both.
*Sent* is the share of all elements that was actually sent."""
ONE_SAID = """\
With the first tensor's threshold, far fewer elements are sent than requested: {sent:.2f} % of all elements at a ratio
of 1 %, because the gradients of the large dense layer are smaller than those of the first layer. At 0.1 %, a single one
of the first tensor's 800 elements determines the threshold, and hardly any other elements exceed it: our run reached an
accuracy of {first:.3f}, the published one {published:.3f}. With a threshold per tensor, ours reached {tensor:.3f}. Down
to {alike:g} %, the published accuracies and ours differ by at most {within:.1f} points. Each row is a single run, so a
difference of a few tenths of a point is not conclusive. At 0.2 %, the published runs on one worker and on two have the
same accuracy and the same loss, so one of them was probably copied. At 0 %, our runs send nothing, and the network
keeps its initial weights. The published losses at 0 %, {one_loss:.2f} and {two_loss:.2f}, are below that of guessing
({guess:.2f}), so those runs may have sent a few elements.

```
.venv/bin/python tools/make_table.py single-node --out rows.jsonl                  # as published
.venv/bin/python tools/make_table.py single-node --scope tensor --out rows.jsonl   # a threshold per tensor
```"""
TWO = """\
## Two workers

Two real Horovod ranks train with three methods:

- *masking*, as above, with the first tensor's threshold;
- *masking like DGC*: each tensor has its own threshold, estimated from a sample; vectors and tensors of fewer than
  1 024 elements are sent uncompressed; and the paper's warm-up sends more in the first steps (1 600 of them at 0.2 and
  0.1 %, 1 200 at 1 and 0.5 %). As with masking, the other elements are dropped;
- *complete DGC*: the same thresholds, exemptions and warm-up (400 steps at 10 %, none at 30 %), but the other elements
  are accumulated and sent later (accumulation, momentum correction, momentum factor masking)."""
TWO_SAID = """\
Each row of this table is a single run; the last table has several seeds.

From 30 % up, the published accuracies of masking and ours differ by at most {large:.1f} points, and at 0.5 % by
{half:.1f}. At 1, 0.2 and 0.1 %, ours are {one:.1f}, {fifth:.1f} and {tenth:.1f} points higher. We did not run the
published code, so we cannot say why.

At 0.1 %, masking with DGC's thresholds, exemptions and warm-up is {lost:.2f} points less accurate than training with
uncompressed gradients. Complete DGC sends almost exactly as many bytes, but accumulates the other elements. At 1 % and
below, its accuracy is within {within:.1f} points of that with uncompressed gradients. At 30 and 10 %, it is {at_30:.1f}
and {at_10:.1f} points less accurate at the same learning rate. At 30 %, the cause is momentum factor masking, which
removes most of the momentum ([lesson 5](../notebooks/05_dgc_on_horovod.ipynb), section 5): without factor masking, a
run reaches {without:.4f}.

*kB per step* is the mean over all steps of the kilobytes that one rank sends. At 1 % and below, most of DGC's kilobytes
come from the warm-up, whose first steps send a quarter of the gradient; the tensors that are sent uncompressed add
little. If the requested ratio is 50 % or more, two ranks use a dense allreduce, with zeros in place of the dropped
elements: that many values and their indices would need at least as many bytes. The choice ignores how few elements the
first tensor's threshold keeps: {kept_95:.0f} % at a ratio of 95 %, {kept_80:.0f} % at 80 %, {kept_70:.0f} % at 70 %,
and {kept_50:.0f} % at 50 %. *Masking like DGC* has the same row for 100 % as masking, because without compression the
threshold makes no difference.

```
.venv/bin/python tools/make_table.py two-node --method masking --ratios 0.01,0.001 --out rows.jsonl
.venv/bin/python tools/make_table.py two-node --method dgc --ratios 0.001 --seed 1 --out rows.jsonl
```

The other tables of `make_table.py` are the studies of lessons 3 to 9, most of them on smaller tasks, and all of them
with fewer steps ([schemes](schemes.md)).

Test accuracy over several seeds:"""


def lines(head: list[str], rows) -> str:
    """Return a table in Markdown."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def accuracies(rows: list[dict]) -> pd.Series:
    """Return test accuracies by ratio."""
    return pd.Series({row["ratio"]: row["accuracy"] for row in rows})


def published_accuracies(table: dict) -> pd.Series:
    """Return published test accuracies by ratio."""
    return pd.Series({ratio: accuracy for ratio, (accuracy, _) in table.items()})


def side_by_side(published: pd.Series, heading: str, made: dict[str, list[dict]], beside: str, figure: Callable) -> str:
    """Return a table with a row per ratio: the published accuracy, then each method's accuracy and another number."""
    head = ["ratio", heading, *(title for name in made for title in (f"{name}: accuracy", beside))]
    found = {(name, row["ratio"]): row for name, rows in made.items() for row in rows}
    table = []
    for ratio in sorted({ratio for _, ratio in found}, reverse=True):
        cells = [f"{ratio:.1%}", f"{published[ratio]:.4f}" if ratio in published else ""]
        for name in made:
            row = found.get((name, ratio))
            cells += [f"{row['accuracy']:.4f}", figure(row)] if row else ["", ""]
        table.append(cells)
    return lines(head, table)


def single_node_lines() -> str:
    """Return the table of all runs on one worker."""
    made = {name: single_node_rows(scope) for scope, name in SCOPES.items()}
    published = published_accuracies(SINGLE_NODE)
    return side_by_side(published, "published accuracy", made, "sent", lambda row: f"{row['share sent']:.4%}")


def two_node_lines() -> str:
    """Return the table of all runs on two ranks with the first seed."""
    made = {name: two_node_rows(method) for method, name in NAMES.items()}
    published, heading = published_accuracies(TWO_NODE), "published accuracy, masking"
    return side_by_side(published, heading, made, "kB per step", lambda row: f"{row['bytes per step'] / 1000:,.1f}")


def seed_lines() -> str:
    """Return the mean, minimum and maximum accuracy of runs on two ranks with more than one seed."""
    rows = [
        {"what": "uncompressed gradients" if row["ratio"] == 1 else NAMES[method], **row}
        for method in ("masking", "dgc")
        for seed in SEEDS
        for row in two_node_rows(method, seed)
        if row["ratio"] < 1 or method == "masking"
    ]
    table = [
        [
            what,
            f"{ratio:.1%}",
            str(len(group)),
            *(f"{figure:.4f}" for figure in (group.mean(), group.min(), group.max())),
        ]
        for (what, ratio), group in pd.DataFrame(rows).groupby(["what", "ratio"])["accuracy"]
        if len(group) > 1
    ]
    return lines(["method", "ratio", "seeds", "mean", "min", "max"], table)


def summary() -> list[str]:
    """Return the rows of the README's tables: the ratios that both tables have, and results over several seeds."""
    one, two = published_accuracies(SINGLE_NODE), published_accuracies(TWO_NODE)
    columns = [one, *(accuracies(single_node_rows(scope)) for scope in SCOPES)]
    columns += [two, *(accuracies(two_node_rows(method)) for method in ("masking", "dgc"))]
    return [
        f"| {ratio:.1%} | {' | '.join(f'{column[ratio]:.4f}' for column in columns)} |"
        for ratio in one.index
        if all(ratio in column for column in columns)
    ] + seed_lines().splitlines()


def apart(here: pd.Series, there: pd.Series | float) -> float:
    """Return the largest difference between accuracies at the same ratio, in points, rounded up to a tenth."""
    return math.ceil(1000 * (here - there).abs().max()) / 10


def one_said() -> str:
    """Return the text below the table of one worker, with its numbers."""
    first, tensor = (accuracies(single_node_rows(scope)) for scope in SCOPES)
    published = published_accuracies(SINGLE_NODE)
    (share_sent,) = (row["share sent"] for row in single_node_rows("first") if row["ratio"] == 0.01)
    return ONE_SAID.format(
        sent=100 * share_sent,
        first=first[0.001],
        tensor=tensor[0.001],
        published=published[0.001],
        alike=100 * ALIKE_FROM,
        within=max(apart(rows[rows.index >= ALIKE_FROM], published) for rows in (first, tensor)),
        one_loss=SINGLE_NODE[0.0][1],
        two_loss=TWO_NODE[0.0][1],
        guess=math.log(10),
    )


def two_said() -> str:
    """Return the text below the table of two workers, with its numbers."""
    masking, like, dgc = (accuracies(two_node_rows(method)) for method in ("masking", "masking_per_tensor", "dgc"))
    published = published_accuracies(TWO_NODE)
    ahead, behind = 100 * (masking - published), 100 * (dgc[1.0] - dgc)
    kept = {
        f"kept_{100 * row['ratio']:.0f}": 100 * row["share sent"]
        for row in two_node_rows("masking")
        if row["ratio"] >= 0.5
    }
    return TWO_SAID.format(
        large=apart(masking[masking.index >= 0.3], published),
        half=abs(ahead[0.005]),
        one=ahead[0.01],
        fifth=ahead[0.002],
        tenth=ahead[0.001],
        lost=100 * (like[1.0] - like[0.001]),
        within=apart(dgc[dgc.index <= 0.01], dgc[1.0]),
        at_30=behind[0.3],
        at_10=behind[0.1],
        without=accuracies(two_node_rows("dgc_without_factor_masking"))[0.3],
        **kept,
    )


def page() -> str:
    """Return the page."""
    parts = [ONE, single_node_lines(), one_said(), TWO, two_node_lines(), two_said(), seed_lines()]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
