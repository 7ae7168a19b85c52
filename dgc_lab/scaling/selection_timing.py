"""What a threshold costs on this machine, by rule, and how far the share that it lets pass is from the ratio."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dgc_lab.common import check_whole

if TYPE_CHECKING:
    import pandas as pd


def selection_times(elements: int = 3_211_264, ratios=(0.01, 0.001), rounds: int = 9, seed: int = 0) -> pd.DataFrame:
    """Time every rule of `dgc_lab.dgc.thresholding` on one tensor of normal numbers, the rules taking turns.

    Args:
        elements: of the tensor; as many as the large dense layer of ``mnist_cnn`` has, if not given.
        ratios: shares to keep, each above 0 and below 1.
        rounds: how often each search is timed, at least 3; each time with another sample.
        seed: integer from which the numbers and the samples are drawn.

    Returns:
        A row for each ratio and rule: the median in ms, how many times as fast as the exact rule, and the smallest and
        largest share that passed, over the ratio.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> frame = selection_times(elements=100_000, ratios=[0.01], rounds=3)
        >>> frame["rule"].tolist(), float(frame["least kept / ratio"][0])
        (['exact', 'sampled', 'hierarchical'], 1.0)
    """
    import statistics
    import time

    import pandas as pd
    import tensorflow as tf

    from dgc_lab.dgc.thresholding import RULES, keep_mask

    check_whole("elements", elements, 1)
    check_whole("rounds", rounds, 3)
    for ratio in ratios:
        if not 0 < ratio < 1:
            raise ValueError(f"ratios must be above 0 and below 1, got {ratio!r}")
    x, lines = tf.random.stateless_normal([elements], (seed, 0)), []
    for ratio in ratios:
        searches = {rule: tf.function(lambda s, find=find, r=ratio: find(x, r, seed=s)) for rule, find in RULES.items()}
        seconds, kept = {rule: [] for rule in RULES}, {rule: [] for rule in RULES}
        for turn in range(-1, rounds):
            for rule, search in searches.items():
                start = time.perf_counter()
                threshold = search(tf.constant([seed, turn])).numpy()
                if turn < 0:  # it was traced
                    continue
                seconds[rule].append(time.perf_counter() - start)
                kept[rule].append(float(tf.reduce_mean(tf.cast(keep_mask(x, threshold), tf.float64))))
        exact = statistics.median(seconds["exact"])
        for rule in RULES:
            took = statistics.median(seconds[rule])
            near = [round(share / ratio, 6) for share in (min(kept[rule]), max(kept[rule]))]
            lines.append((ratio, rule, 1e3 * took, exact / took, *near))
    names = ["ratio", "rule", "ms", "times as fast as exact", "least kept / ratio", "most kept / ratio"]
    return pd.DataFrame(lines, columns=names)
