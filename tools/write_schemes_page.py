"""Makes docs/schemes.md: every compression scheme in its own words, and the tables that were made of them.

python tools/write_schemes_page.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from dgc_lab.comparison import bytes_and_accuracy, scheme_rows, scheme_table
from dgc_lab.comparison.table import BATCH, RATES, SEARCH_SEED, STEPS, WORKERS
from dgc_lab.schemes import SCHEMES
from dgc_lab.ui.charts import png

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "schemes.md"
HEAD = """# Compression schemes

A scheme says what one worker does with the gradient of one tensor: a generator that yields what it wants exchanged,
and returns the update, what of its own gradient is in it, and the state for the next step. The same lines run on one
worker, on simulated workers and on Horovod ranks, and the bytes of all are counted in one place. Lesson 8 begins with
this:

```python
import tensorflow as tf
from dgc_lab.schemes import Mean, Scheme, with_memory


def half(gradient, state, turn):
    short = tf.cast(gradient, tf.float16)
    mean = yield Mean(short)  # by allreduce; All((x, y)) gives every worker's (x, y), by allgather
    return tf.cast(mean, tf.float32), tf.cast(short, tf.float32), state


scheme = with_memory(Scheme(half))
```

A scheme goes wherever Deep Gradient Compression does: `DistributedOptimizer(keras.optimizers.SGD(0.1), scheme)` for
`model.fit`, `ModelTrainer(..., config=scheme)`, `SchemeLab(mine=scheme)`, and those below by name, as in
`python -m dgc_lab train --scheme qsgd:levels=4`. `with_memory` gives any scheme error feedback, `with_momentum`
momentum after the exchange, and `local` exchanges less often (`dense:every=8` by name). This page is made by
`make docs`.

## The gallery

g is a worker's gradient, e its memory; sums and means are over the workers.
"""


def gallery() -> str:
    """A line for each scheme: its name with its parameters, what it does, its equation, its source."""
    lines = ["| scheme | what | equation, and what carries it | source |", "|---|---|---|---|"]
    for name, make in SCHEMES.items():
        what, equation, *rest = (re.sub(r"\s+", " ", part) for part in inspect.getdoc(make).split("\n\n"))
        source = next((part.removeprefix("Source: ") for part in rest if part.startswith("Source: ")), "")
        source = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", source)
        knobs = ", ".join(str(p.replace(annotation=p.empty)) for p in inspect.signature(make).parameters.values())
        cells = (f"`{name}({knobs})`", what, equation.replace("|", r"\|"), source)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def results(dataset: str) -> str:
    """The table of a data set, and its picture."""
    made = scheme_rows(dataset)
    table, days = scheme_table(made), {row["scheme"]: row["started"][:10] for row in made}
    others = ", ".join(f"`{scheme}`" for scheme in table["scheme"] if days[scheme] != days["dense"])
    rates = ", ".join(map(str, RATES[dataset]))
    who, which = {"digits": ("simulated workers", "schemes"), "mnist": ("Horovod ranks", "schemes-mnist")}[dataset]
    lines = [
        f"## {'Digits' if dataset == 'digits' else 'MNIST'}, {WORKERS[dataset]} {who}",
        f"{STEPS[dataset]} steps, {BATCH[dataset]} examples a worker, momentum 0.9 after the exchange where a scheme "
        f"has none of its own. Each scheme had a run at each of the rates {rates} with seed "
        f"{SEARCH_SEED}, and then three seeds at its best one. *kB* are what a worker hands to the collectives in a "
        f"step, *ms* those of the quickest of the three runs. `python -m dgc_lab table {which} --out rows.jsonl` makes "
        f"it again."
        + (f" Made on another day than the rest, with *ms* that are not to be compared: {others}." if others else ""),
        f"![{bytes_and_accuracy(table).alt}](schemes_{dataset}.png)",
    ]
    head = ["scheme", "rate", "accuracy", "least", "greatest", "kB a step", "ms a step"]
    rows = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for row in table.itertuples(index=False):
        scheme, rate, mean, least, greatest, _, size, time = row
        figures = f"{rate:g} | {mean:.3f} | {least:.3f} | {greatest:.3f} | {size:,.1f} | {time:.1f}"
        rows.append(f"| `{scheme}` | {figures} |")
    return "\n\n".join([*lines, "\n".join(rows)])


def page() -> str:
    """The whole page."""
    return "\n\n".join([HEAD.strip(), gallery(), results("digits"), results("mnist")]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for name in STEPS:
        (ROOT / "docs" / f"schemes_{name}.png").write_bytes(
            png(bytes_and_accuracy(scheme_table(scheme_rows(name))).figure)
        )
