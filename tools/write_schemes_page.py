"""Write docs/schemes.md: every compression scheme in its own words, and the tables of their results.

python tools/write_schemes_page.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from dgc_lab.comparison import bytes_and_accuracy, scheme_rows, scheme_table
from dgc_lab.comparison.table import BATCH, RATES, SEARCH_SEED, STEPS, WORKERS
from dgc_lab.compression import SCHEMES
from dgc_lab.ui.charts import png

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "schemes.md"
HEAD = """# Compression schemes

A scheme says how one worker compresses its gradient, all large tensors as one flat vector. It is a generator: it yields
questions to the other workers, and returns the update, the worker's own contribution to it, and the state for the next
step. The same lines run on one worker, on simulated workers and on Horovod ranks, and one driver counts the bytes of
all schemes. Lesson 8 begins with this:

```python
import tensorflow as tf
from dgc_lab.compression import AllReduceMean, Scheme, with_error_feedback


def half(gradient, state, context):
    short = tf.cast(gradient, tf.float16)
    mean = yield AllReduceMean(short)
    return tf.cast(mean, tf.float32), tf.cast(short, tf.float32), state


scheme = with_error_feedback(Scheme(half))
```

A scheme can ask three questions:

| question | answer | carried by |
|---|---|---|
| `AllReduceMean(tensor)` | the mean of a tensor over all workers | an allreduce |
| `SparseMean(indices, values, size)` | the mean of vectors that are zero except at `indices` | an allgather |
| `AllGather((tensor, ...))` | the tensors of every worker | an allgather |

With its fourth argument, the expected `ratio`, a `SparseMean` travels by allreduce, with zeros between the entries,
where that is cheaper.

Wherever a `DGCConfig` is accepted, a scheme is, too: `DistributedOptimizer(keras.optimizers.SGD(0.1), scheme)` for
`model.fit`, `ModelTrainer(..., config=scheme)`, `SchemeLab(mine=scheme)`. The schemes below can be given by name, as in
`python -m dgc_lab train --scheme qsgd:levels=4`. `with_error_feedback` adds error feedback to any scheme,
`with_momentum` adds momentum after the exchange, and `local_sgd` exchanges less often (`dense:every=8` by name).
`make docs` writes this page.

## The gallery

g is a worker's gradient, e its residual; sums and means are over the workers.
"""


def gallery() -> str:
    """Return a table of all schemes: name and parameters, what it does, equation, source."""
    lines = ["| scheme | what | equation, and what carries it | source |", "|---|---|---|---|"]
    for name, make in SCHEMES.items():
        what, equation, *rest = (re.sub(r"\s+", " ", part) for part in inspect.getdoc(make).split("\n\n"))
        what = re.sub("^Return (a scheme that )?", "", what)
        what = what[:1].upper() + what[1:]
        source = next((part.removeprefix("References: ") for part in rest if part.startswith("References: ")), "")
        source = re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", source)
        parameters = ", ".join(str(p.replace(annotation=p.empty)) for p in inspect.signature(make).parameters.values())
        cells = (f"`{name}({parameters})`", what, equation.replace("|", r"\|"), source)
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
        f"step, *ms* those of the quickest of the three runs. `python tools/make_table.py {which} --out rows.jsonl` "
        f"makes it again."
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
