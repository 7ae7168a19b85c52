"""What a worker needs for a step without any network, and for a threshold alone: measured here, scaled, or assumed.

Lesson 6.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgc_lab.common import check_choice, check_list, check_number, check_text, check_whole
from dgc_lab.scaling.cost_model import ELEMENTS, Workload
from dgc_lab.scaling.named_shapes import SHAPES

if TYPE_CHECKING:
    import pandas as pd

MEASURED, SCALED, ASSUMED = "measured here", "scaled from mnist_cnn measured here", "assumed"
# Seconds of forward and backward pass on an accelerator of the day of 2103.00543; nobody measured them here.
ASSUMED_COMPUTE = {"ResNet-50": 0.1, "BERT-base": 0.2}
ENTRIES = (4096, 262_144)  # received entries whose adding up is timed


@dataclass(frozen=True)
class StepTimes:
    """Times of one worker in seconds, and where they come from: ``"measured here"``, ``"assumed"``, and so on.

    Attributes:
        compute: of forward and backward pass and update.
        selection: to accumulate, select, pack and clear, and to unpack its own entries.
        adding: to unpack and add up a received entry; the model counts those of all workers, its own once more.
        compute_is, selection_is: where these come from.

    Raises:
        ValueError: a time is negative or no number, or a source is not text.

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
    """Time the parts of a step of ``mnist_cnn`` at a ratio of 0.001 on this machine, in a few seconds.

    ``batch`` random examples are taken, for what they are does not change the time. Each part's time is the median of
    ``rounds``, at least 3; a ValueError for an argument that is out of range.

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
    """Median time of a call, after two that are not counted.

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
    """A function without arguments: one step of ``mnist_cnn`` on random images, with plain SGD."""
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
    """A function without arguments: one step of this lab's compressor on gradients of ``mnist_cnn``'s shapes."""
    import tensorflow as tf

    from dgc_lab.compression.compressor import Compressor
    from dgc_lab.compression.config import DGCConfig
    from dgc_lab.distributed.communicators import OneWorker

    variables = [tf.Variable(tf.zeros(shape)) for shape in SHAPES["mnist_cnn"]()]
    gradients = [tf.random.stateless_normal(variable.shape, (0, i)) for i, variable in enumerate(variables)]
    compressor = Compressor(DGCConfig(ratio), variables, OneWorker())

    @tf.function(autograph=False)  # no Python to convert, and trying to warns
    def step():
        updates, _ = compressor([gradients])
        return tf.add_n([tf.reshape(update, [-1])[0] for update in updates])  # all of them have to be there

    return lambda: step().numpy()


def adding(entries: int):
    """A function without arguments: unpack one message of so many entries and add them up."""
    import tensorflow as tf

    from dgc_lab.compression.scheme import SparseVector
    from dgc_lab.compression.wire_format import Layout, Message, pack, unpack

    sizes = [math.prod(shape) for shape in SHAPES["mnist_cnn"]() if len(shape) > 1]
    places = tf.sort(tf.random.stateless_uniform([entries], (0, 1), maxval=sum(sizes), dtype=tf.int32))
    layout = Layout(sparse=1)
    message = pack(Message(tf.zeros([0]), [(places, tf.ones([entries]))], []), layout)

    @tf.function
    def step(message):
        [content] = unpack(message, layout, workers=1)
        return tf.convert_to_tensor(SparseVector(content.entries, sum(sizes)))[0]

    return lambda: step(message).numpy()


def times_of(model: str, here: StepTimes) -> StepTimes:
    """Times of a named network: of ``mnist_cnn`` those that were `measured`, of others an assumption.

    ``model`` is one of `SHAPES`, else a ValueError; ``here`` has the times of ``mnist_cnn``. Selecting is taken to need
    the same time for each element as there; computing is assumed.

    Example:
        >>> times_of("ResNet-50", StepTimes(0.05, 0.01, 1e-8)).compute_is
        'assumed'
    """
    check_choice("model", model, SHAPES)
    if model == "mnist_cnn":
        return here
    share = ELEMENTS[model] / ELEMENTS["mnist_cnn"]
    return StepTimes(ASSUMED_COMPUTE[model], here.selection * share, here.adding, ASSUMED, SCALED)


def workload(model: str, times: StepTimes, values: str = "float32", indices: str = "int32") -> Workload:
    """What the cost model has to know of a network of `SHAPES`, sent as `dgc_lab.compression.DGCConfig` does it.

    ``model`` is one of `SHAPES`, ``times`` those of a worker; ``values`` and ``indices`` are as in the config. A
    ValueError for another name.

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
    """Time every rule of `dgc_lab.compression.thresholding` on one tensor of normal numbers, the rules taking turns.

    Args:
        elements: of the tensor; as many as the large dense layer of ``mnist_cnn`` has, if not given.
        ratios: shares to keep, each above 0 and below 1.
        rounds: how often each search is timed, at least 3; each time with another sample.

    Returns:
        A row for each ratio and rule: the median in ms, how many times as fast as the exact rule, and the smallest and
        largest share that passed, over the ratio. A ValueError for an argument that is out of range.

    Example:
        >>> frame = selection_times(elements=100_000, ratios=[0.01], rounds=3)
        >>> frame["rule"].tolist(), float(frame["least kept / ratio"][0])
        (['exact', 'sampled', 'hierarchical'], 1.0)
    """
    import pandas as pd
    import tensorflow as tf

    from dgc_lab.compression.thresholding import RULES, keep_mask, thresholds

    check_whole("elements", elements, 1, 2**30)
    check_whole("rounds", rounds, 3, 1000)
    for ratio in check_list("ratios", ratios):
        check_number("ratios", ratio, "above 0 and below 1")
    x, lines = tf.random.stateless_normal([elements], (0, 0)), []
    for ratio in ratios:
        searches = {rule: tf.function(lambda s, r=ratio, w=rule: thresholds([x], r, w, seed=s)[0]) for rule in RULES}
        seconds, kept = {rule: [] for rule in RULES}, {rule: [] for rule in RULES}
        for turn in range(-1, rounds):
            for rule, search in searches.items():
                start = time.perf_counter()
                threshold = search(tf.constant([0, turn])).numpy()
                took = time.perf_counter() - start
                if turn >= 0:  # before, it was traced
                    seconds[rule].append(took)
                    kept[rule].append(float(tf.reduce_mean(tf.cast(keep_mask(x, threshold), tf.float64))))
        exact = statistics.median(seconds["exact"])
        for rule in RULES:
            took = statistics.median(seconds[rule])
            near = [round(share / ratio, 6) for share in (min(kept[rule]), max(kept[rule]))]
            lines.append((ratio, rule, 1e3 * took, exact / took, *near))
    names = ["ratio", "rule", "ms", "times as fast as exact", "least kept / ratio", "most kept / ratio"]
    return pd.DataFrame(lines, columns=names)
