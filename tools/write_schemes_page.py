"""Write docs/schemes.md: a description of every compression scheme, and the tables of their results.

python tools/write_schemes_page.py
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from dgc_lab.comparison import STUDIES, bytes_and_accuracy, stored_study
from dgc_lab.comparison.study import SEARCH_SEEDS
from dgc_lab.compression import SCHEMES
from dgc_lab.ui.charts import png

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "schemes.md"
TABLES = {
    "schemes": "MNIST-1D, four simulated workers",
    "schemes on ranks": "MNIST, two Horovod ranks",
}
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

With its fourth argument, the expected `ratio`, a `SparseMean` is sent by allreduce, with zeros between the entries, if
that is cheaper.

Wherever a `DGCConfig` is accepted, a scheme is, too: `DistributedOptimizer(keras.optimizers.SGD(0.1), scheme)` for
`model.fit`, `ModelTrainer(..., config=scheme)`, `SchemeLab(mine=scheme)`. The schemes below can be given by name, as in
`python -m dgc_lab train --scheme qsgd:levels=4`. `with_error_feedback` adds error feedback to any scheme,
`with_momentum` adds momentum after the exchange, `after` sends uncompressed gradients for the first steps
(`powersgd:after=100` by name), and `local_sgd` exchanges less often (`dense:every=8`).
`make docs` writes this page.

## The gallery

g is a worker's gradient, e its residual; sums and means are over the workers.
"""

ELSEWHERE = """## The same methods elsewhere

[GRACE](https://github.com/sands-lab/grace/tree/master/grace_dl/tensorflow/compressor) is a research framework for
TensorFlow 1.15 and 2.0 and PyTorch 1.3 with Horovod 0.18; the table has all its 18 compressors. PyTorch has
[communication hooks](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html) of `DistributedDataParallel`
([sources](https://github.com/pytorch/pytorch/tree/main/torch/distributed/algorithms/ddp_comm_hooks)). DeepSpeed has
optimizers and [settings](https://www.deepspeed.ai/docs/config-json/): 1-bit
[Adam](https://www.deepspeed.ai/tutorials/onebit-adam/) and [LAMB](https://www.deepspeed.ai/tutorials/onebit-lamb/),
[0/1 Adam](https://www.deepspeed.ai/tutorials/zero-one-adam/) and
[ZeRO++](https://www.deepspeed.ai/tutorials/zeropp/). Neither PyTorch nor DeepSpeed has a method that sends only the
largest elements.
"""
METHODS = (
    # method, schemes here, GRACE, PyTorch, DeepSpeed
    ("16-bit floats", "float16 bfloat16", "fp16", "fp16_compress_hook bf16_compress_hook", "communication_data_type"),
    ("8 bits, one scale", "int8 eight_bit", "u8bit", "quantization_pertensor_hook", ""),
    ("integers with a scale for each block", "int8:block=256 int4", "", "quantization_perchannel_hook", "qwZ qgZ"),
    ("other short floats", "natural inceptionn", "natural inceptionn", "", ""),
    ("stochastic rounding to levels", "qsgd terngrad", "qsgd terngrad", "", ""),
    ("signs", "sign signum", "signsgd signum", "", ""),
    ("signs with error feedback", "ef_sign one_bit", "efsignsgd onebit", "", ""),
    ("signs for Adam or LAMB", "one_bit_adam", "", "", "OneBitAdam OneBitLamb ZeroOneAdam"),
    ("levels fitted to the gradient", "adaptive_quantization sketch", "adaq sketch", "", ""),
    ("largest elements or blocks", "masking top_k dgc blocks", "topk dgc", "", ""),
    ("largest by a threshold", "threshold threshold_reuse sidco", "threshold", "", ""),
    ("common or random positions", "random_k leader_k cocktail adaptive_sparsification", "randomk adapsparse", "", ""),
    ("a ratio that adapts", "gravac", "", "", ""),
    ("low rank", "powersgd", "powersgd", "powerSGD_hook batched_powerSGD_hook", ""),
    ("largest frequencies of the momentum", "demo", "", "", ""),
    ("less often", "dense:every=8 diloco sparseloco", "", "post_localSGD_hook", "ZeroOneAdam"),
    ("uncompressed first", "powersgd:after=100", "", "start_powerSGD_iter", "freeze_step"),
    ("your own", "Scheme", "Compressor Memory", "register_comm_hook", ""),
)


def elsewhere() -> str:
    """Return the table of methods here, in GRACE, in PyTorch and in DeepSpeed."""
    lines = ["| method | here | GRACE | PyTorch | DeepSpeed |", "|---|---|---|---|---|"]
    for method, *packages in METHODS:
        cells = (", ".join(f"`{name}`" for name in names.split()) or "–" for names in packages)
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return ELSEWHERE + "\n" + "\n".join(lines)


def gallery() -> str:
    """Return a table of all schemes: name and parameters, what it does, equation, source."""
    lines = ["| scheme | description | equation and collective | source |", "|---|---|---|---|"]
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


def results(name: str) -> str:
    """Return a study's table and its picture."""
    study, table = STUDIES[name], stored_study(name)
    common, rates = study.common, ", ".join(map(str, study.rates))
    falling = ", with a learning rate that falls to 0 along a cosine" if common.get("schedule") == "cosine" else ""
    ends = {max(study.rates), min(study.rates)}
    at_an_end = ", ".join(f"`{scheme}`" for scheme, rate in table["learning rate"].items() if rate in ends)
    doubt = f"{at_an_end} did best at the largest or smallest of these rates, and might do better outside them. "
    lines = [
        f"## {TABLES[name]}",
        f"Each run has {common['steps']} steps of {common['batch']} examples per worker{falling}. Momentum of 0.9 is "
        f"applied after the exchange unless a scheme has its own. Each scheme ran at the learning rates {rates} with "
        f"seed {SEARCH_SEEDS[0]}, and at the two best rates with two more seeds. The table shows three other seeds at "
        f"the better of these rates. {doubt if at_an_end else ''}"
        "*kB per step* is a worker's payload, averaged over the run. "
        f"`.venv/bin/python tools/make_table.py {name.replace(' ', '-')} --out rows.jsonl` computes the table again.",
        f"![{bytes_and_accuracy(table).alt}]({picture(name)})",
    ]
    head = ["scheme", "rate", "accuracy", "min", "max", "kB per step"]
    rows = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for scheme, rate, mean, low, high, _, size in table.itertuples():
        figures = f"{rate:g} | {mean:.3f} | {low:.3f} | {high:.3f} | {size:,.1f}"
        rows.append(f"| `{scheme}` | {figures} |")
    return "\n\n".join([*lines, "\n".join(rows)])


def picture(name: str) -> str:
    """Return the name of a study's picture."""
    return f"{name.replace(' ', '_')}.png"


def page() -> str:
    """Return the whole page."""
    return "\n\n".join([HEAD.strip(), gallery(), elsewhere(), *map(results, TABLES)]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    for name in TABLES:
        (ROOT / "docs" / picture(name)).write_bytes(png(bytes_and_accuracy(stored_study(name)).figure))
