"""Times of a worker's step without a network, and of a threshold search alone: measured here, scaled, or assumed.

Lesson 6.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgc_lab.common import check_choice, check_list, check_number, check_text, check_whole, rows_of_results
from dgc_lab.scaling.cost_model import ELEMENTS, Workload
from dgc_lab.scaling.named_shapes import SHAPES

if TYPE_CHECKING:
    import pandas as pd

MEASURED, SCALED, ASSUMED = "measured here", "scaled from mnist_cnn measured here", "assumed"
# Seconds of the forward and backward pass on an accelerator of the time of arXiv:2103.00543; not measured here.
ASSUMED_COMPUTE = {"ResNet-50": 0.1, "BERT-base": 0.2}
ENTRIES = (4096, 262_144)  # numbers of received entries for which adding up is timed


@dataclass(frozen=True)
class StepTimes:
    """Times of one worker in seconds, and their sources: ``"measured here"``, ``"assumed"``, and so on.

    Attributes:
        compute: time of the forward pass, the backward pass and the update.
        selection: time to accumulate, select, pack and clear, and to unpack the worker's own entries.
        adding: time to unpack and add up a received entry. The model counts the entries of all workers, so the
            worker's own are counted twice.
        compute_is, selection_is: sources of these times.

    Raises:
        ValueError: a time is negative or not a number, or a source is not text.

    Example:
        >>> StepTimes(compute=0.05, selection=0.01, adding=1e-8).compute_is
        'assumed'
    """

    compute: float
    selection: float
    adding: float
    compute_is: str = ASSUMED
    selection_is: str = ASSUMED

    def __post_init__(self):
        for name in ("compute", "selection", "adding"):
            check_number(name, getattr(self, name), "at least 0 seconds")
        for name in ("compute_is", "selection_is"):
            check_text(name, getattr(self, name))


def measured(batch: int = 50, rounds: int = 9) -> StepTimes:
    """Time the parts of a step of ``mnist_cnn`` at a ratio of 0.001 on this machine; takes a few seconds.

    The ``batch`` examples are random, because their content does not affect the time. Each part's time is the median
    of ``rounds`` calls, at least 3. Raises ValueError if an argument is out of range.

    Example:
        >>> times = measured(batch=2, rounds=3)
        >>> times.compute > 0, times.compute_is
        (True, 'measured here')
    """
    check_whole("batch", batch, 1, 10_000)
    check_whole("rounds", rounds, 3, 1000)
    few, many = (median_seconds(adding(entries), rounds) for entries in ENTRIES)
    return StepTimes(
        compute=median_seconds(training_step(batch), rounds),
        selection=median_seconds(compression_step(0.001), rounds),
        adding=max(0.0, (many - few) / (ENTRIES[1] - ENTRIES[0])),
        compute_is=MEASURED,
        selection_is=MEASURED,
    )


def median_seconds(call, rounds: int) -> float:
    """Return the median time of a call, after two warm-up calls.

    Example:
        >>> median_seconds(lambda: time.sleep(0.01), rounds=3) >= 0.01
        True
    """
    seconds = []
    for number in range(-2, rounds):
        start = time.perf_counter()
        call()
        if number >= 0:
            seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def training_step(batch: int):
    """Return a function without arguments that runs one step of ``mnist_cnn`` on random images, with plain SGD."""
    import tensorflow as tf

    from dgc_lab.workloads.batches import cross_entropy
    from dgc_lab.workloads.models import mnist_cnn

    model = mnist_cnn()
    weights = [variable.value for variable in model.trainable_variables]
    images = tf.random.stateless_uniform([batch, 28, 28, 1], (0, 0))
    labels = tf.zeros([batch], tf.int32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(cross_entropy(labels, model(images, training=True)))
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.001 * gradient)
        return loss

    return lambda: step().numpy()


def compression_step(ratio: float):
    """Return a function without arguments that compresses gradients with ``mnist_cnn``'s shapes in one step."""
    import tensorflow as tf

    from dgc_lab.compression.compressor import Compressor
    from dgc_lab.compression.config import DGCConfig
    from dgc_lab.distributed.communicators import OneWorker

    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES["mnist_cnn"]()]
    gradients = [tf.random.stateless_normal(variable.shape, (0, i)) for i, variable in enumerate(variables)]
    compressor = Compressor(DGCConfig(ratio), variables, OneWorker())

    @tf.function(autograph=False)  # there is nothing to convert, and AutoGraph would warn
    def step():
        updates, _ = compressor([gradients])
        return tf.add_n([tf.reshape(update, [-1])[0] for update in updates])  # needs every update

    return lambda: step().numpy()


def adding(entries: int):
    """Return a function without arguments that unpacks one message of ``entries`` entries and adds them up."""
    import tensorflow as tf

    from dgc_lab.compression.scheme import SparseVector
    from dgc_lab.compression.wire_format import Layout, Message, pack, unpack

    sizes = [math.prod(shape) for shape in SHAPES["mnist_cnn"]() if len(shape) > 1]
    positions = tf.sort(tf.random.stateless_uniform([entries], (0, 1), maxval=sum(sizes), dtype=tf.int32))
    layout = Layout(sparse=1)
    message = pack(Message(tf.zeros([0]), [(positions, tf.ones([entries]))], []), layout)

    @tf.function
    def step(message):
        [content] = unpack(message, layout, workers=1)
        return tf.convert_to_tensor(SparseVector(content.entries, sum(sizes)))[0]

    return lambda: step(message).numpy()


def times_of(model: str, here: StepTimes) -> StepTimes:
    """Return the times of a named network: those `measured` for ``mnist_cnn``, estimates for other networks.

    ``here`` has the times of ``mnist_cnn``. For other networks, selection is scaled to take the same time per element,
    and computation is assumed. Raises ValueError if ``model`` is not in `SHAPES`.

    Example:
        >>> times_of("ResNet-50", StepTimes(0.05, 0.01, 1e-8)).compute_is
        'assumed'
    """
    check_choice("model", model, SHAPES)
    if model == "mnist_cnn":
        return here
    share = ELEMENTS[model] / ELEMENTS["mnist_cnn"]
    return StepTimes(ASSUMED_COMPUTE[model], here.selection * share, here.adding, ASSUMED, SCALED)


def gpu_rows() -> list[dict]:
    """Return measured compression steps of one worker at a ratio of 0.001, on a GPU and on the same machine's CPU.

    A row's ``of`` is a network's name, or one large tensor; ``GPU`` and ``CPU`` are in ms. A step includes applying the
    worker's own entries to the weights. The rows are in ``results/gpu_steps.jsonl``: those that
    ``benchmarks/bench_gpu.py`` calls ``step``.

    Example:
        >>> {row["of"]: row["GPU"] < row["CPU"] for row in gpu_rows()}
        {'mnist_cnn': True, 'ResNet-50': False, 'one tensor of 25 M': True}
    """
    return rows_of_results("gpu_steps.jsonl")


def workload(model: str, times: StepTimes, values: str = "float32", indices: str = "int32") -> Workload:
    """Return the cost model's workload for a network that is compressed with `dgc_lab.compression.DGCConfig`.

    ``times`` are those of a worker; ``values`` and ``indices`` are as in the config. Raises ValueError if ``model`` is
    not in `SHAPES` or the config rejects an option.

    Example:
        >>> work = workload("ResNet-50", StepTimes(0.1, 0.05, 1e-8), "float32", "run_lengths")
        >>> work.elements, work.whole, work.entry_bytes
        (25502912, 54120, 6)
    """
    from dgc_lab.compression.config import DGCConfig
    from dgc_lab.compression.wire_format import Layout

    check_choice("model", model, SHAPES)
    config = DGCConfig(values=values, indices=indices)
    whole = sum(math.prod(shape) for shape in SHAPES[model]() if config.is_dense(shape))
    entry_bytes = Layout(values, indices).entry_bytes
    return Workload(ELEMENTS[model] - whole, times.compute, times.selection, times.adding, whole, entry_bytes)


def selection_times(
    elements: int = 3_211_264, ratios: Sequence[float] = (0.01, 0.001), rounds: int = 9
) -> pd.DataFrame:
    """Time every rule of `dgc_lab.compression.thresholding`, in alternation, on one tensor of normal random numbers.

    Args:
        elements: size of the tensor; by default that of the large dense layer of ``mnist_cnn``.
        ratios: shares to select, each above 0 and below 1.
        rounds: number of timed searches per rule, each with a different sample; at least 3.

    Returns:
        A row for each ratio and rule: the median in ms, the speed-up over the exact rule, and the smallest and largest
        selected share, relative to the ratio.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> frame = selection_times(elements=100_000, ratios=[0.01], rounds=3)
        >>> frame["rule"].tolist(), float(frame["min selected / ratio"][0])
        (['exact', 'sampled', 'hierarchical'], 1.0)
    """
    import pandas as pd
    import tensorflow as tf

    from dgc_lab.compression.thresholding import RULES, keep_mask, thresholds

    check_whole("elements", elements, 1, 2**30)
    check_whole("rounds", rounds, 3, 1000)
    ratios = check_list("ratios", ratios)
    for ratio in ratios:
        check_number("ratios", ratio, "above 0 and below 1")
    x, lines = tf.random.stateless_normal([elements], (0, 0)), []
    for ratio in ratios:
        searches = {rule: tf.function(lambda s, r=ratio, w=rule: thresholds([x], r, w, seed=s)[0]) for rule in RULES}
        seconds, kept = {rule: [] for rule in RULES}, {rule: [] for rule in RULES}
        for number in range(-1, rounds):
            for rule, search in searches.items():
                start = time.perf_counter()
                threshold = search(tf.constant([0, number])).numpy()
                took = time.perf_counter() - start
                if number >= 0:  # the first call traces the search
                    seconds[rule].append(took)
                    kept[rule].append(float(tf.reduce_mean(tf.cast(keep_mask(x, threshold), tf.float64))))
        exact = statistics.median(seconds["exact"])
        for rule in RULES:
            took = statistics.median(seconds[rule])
            near = [round(share / ratio, 6) for share in (min(kept[rule]), max(kept[rule]))]
            lines.append((ratio, rule, 1e3 * took, exact / took, *near))
    names = ["ratio", "rule", "ms", "times as fast as exact", "min selected / ratio", "max selected / ratio"]
    return pd.DataFrame(lines, columns=names)
