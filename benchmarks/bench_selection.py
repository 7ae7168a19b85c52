"""How long the search for a threshold takes: exact, sampled and hierarchical, on as many elements as layers have.

python benchmarks/bench_selection.py
"""

from bench import report, side_by_side


def compiled(find, *arguments):
    """A graph of its own for a search, with nothing to hand over at each call."""
    import tensorflow as tf

    return tf.function(lambda: find(*arguments))


def largest(x, k):
    import tensorflow as tf

    return tf.math.top_k(tf.abs(x), k).values[-1]


def main():
    import tensorflow as tf

    from dgc_lab.compression import RULES, elements_to_keep

    rows, goals = [], {}
    for size in (100_000, 3_211_264):
        x = tf.random.stateless_normal([size], seed=(1, 2))
        for ratio in (0.01, 0.001):
            k = elements_to_keep(ratio, x)
            share = tf.constant(ratio, tf.float64)
            functions = {"tf.math.top_k": compiled(largest, x, k)}
            functions |= {rule: compiled(find, x, share) for rule, find in RULES.items()}
            times = side_by_side(functions, rounds=40)
            row = {"elements": size, "ratio": ratio, "k": int(k)}
            row |= {f"{name} ms": 1e3 * taken for name, taken in times.items()}
            row["sampled, times top_k"] = times["tf.math.top_k"] / times["sampled"]
            row["hierarchical, times top_k"] = times["tf.math.top_k"] / times["hierarchical"]
            rows.append(row)
            if (size, ratio) == (3_211_264, 0.001):
                goals["sampled threshold, times as fast as top_k at 0.1 % of 3.2 M"] = row["sampled, times top_k"], 10
    report("selection", rows, goals)


if __name__ == "__main__":
    main()
