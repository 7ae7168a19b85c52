"""Time to select the elements to send: thresholds by each rule, and the search for elements above them.

python benchmarks/bench_selection.py

For comparison, the table includes `tf.math.top_k` and `numpy.partition` for the threshold, `tf.where` for the elements,
and one pass of `tf.add` over as many elements, which shows the machine's memory bandwidth.
"""

import numpy as np

from bench import report, side_by_side

ROUNDS = {100_000: 40, 1_000_000: 20, 3_211_264: 20, 25_000_000: 3}  # 3 211 264: mnist_cnn's dense layer
RATIOS = (0.1, 0.01, 0.001, 0.0001)


def compiled(find, *arguments):
    """Return a search as a graph without arguments that returns only a few numbers."""
    import tensorflow as tf

    def first_of_each():
        found = tf.nest.flatten(find(*arguments))
        return tf.concat([tf.cast(tf.reshape(part, [-1])[:1], tf.float32) for part in found], 0)

    return tf.function(first_of_each, autograph=False)


def largest(x, k):
    import tensorflow as tf

    return tf.math.top_k(tf.abs(x), k).values[-1]


def masked(x, threshold):
    import tensorflow as tf

    indices = tf.cast(tf.where(tf.abs(x) >= threshold)[:, 0], tf.int32)
    return indices, tf.gather(x, indices)


def main():
    import tensorflow as tf

    from dgc_lab.compression import RULES, elements_above, exact_threshold, thresholds
    from dgc_lab.compression.segment_search import elements_to_keep

    rows, goals = [], {}
    for size, rounds in ROUNDS.items():
        x, other = tf.random.stateless_normal([2, size], seed=(1, 2))
        values = x.numpy()
        for ratio in RATIOS:
            k, share = int(elements_to_keep(ratio, size)), tf.constant(ratio, tf.float64)
            limit = exact_threshold(x, ratio)
            functions = {"tf.math.top_k": compiled(largest, x, k)}
            functions |= {rule: compiled(thresholds, [x], share, rule) for rule in RULES}
            times = side_by_side(functions, rounds)  # separately, because the other functions would flush the cache
            functions = {"np.partition": lambda k=k, values=values: np.partition(np.abs(values), -k)[-k]}
            functions |= {"tf.where": compiled(masked, x, limit)}
            functions |= {"passing": compiled(elements_above, x, limit[None], (size,))}
            times |= side_by_side({**functions, "tf.add": compiled(tf.add, x, other)}, rounds)
            row = {"elements": size, "ratio": ratio, "k": k}
            row |= {f"{name} ms": 1e3 * taken for name, taken in times.items()}
            for rule in RULES:
                row[f"{rule}, times top_k"] = times["tf.math.top_k"] / times[rule]
            row["passing, times tf.where"] = times["tf.where"] / times["passing"]
            row["sampled and passing, passes of tf.add"] = (times["sampled"] + times["passing"]) / times["tf.add"]
            rows.append(row)
            if (size, ratio) == (3_211_264, 0.001):
                goals["sampled threshold, times as fast as top_k at 0.1 % of 3.2 M"] = row["sampled, times top_k"], 10
    report("selection", rows, goals)


if __name__ == "__main__":
    main()
