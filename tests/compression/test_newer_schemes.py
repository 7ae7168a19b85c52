"""Adaptive schemes, short floats, DeMo, SparseLoCo and 1-bit Adam: what each of them guarantees."""

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.compression import (
    Compressor,
    DGCConfig,
    StepContext,
    adaptive,
    adaptive_quantization,
    blocks,
    demo,
    eight_bit,
    gravac,
    inceptionn,
    masking,
    one_bit_adam,
    run_schemes,
    sent_alone,
    sketch,
    sparseloco,
    with_error_feedback,
)
from dgc_lab.distributed import OneWorker, SimulatedWorkers

EVERY = DGCConfig(dense_below=0, dense_vectors=False)
X = np.random.default_rng(0).normal(size=960).astype(np.float32) ** 3


def steps_alone(scheme, gradients):
    """Yield what one worker sends in each step, and its state."""
    state = scheme.init(tf.zeros_like(gradients[0]))
    for gradient in gradients:
        context = StepContext((gradient.shape[0],), tf.constant([0, 0]), tf.constant([0, 1]), 1)
        [[(_, own, state)]], _ = run_schemes([[scheme.step(gradient, state, context)]], OneWorker())
        yield own, state


# Levels ---------------------------------------------------------------------------------------------------------------


def test_eight_bits_are_accurate_over_seven_decades():
    x = np.float32([1.0, *10.0 ** np.random.default_rng(1).uniform(-7, 0, 2000)])
    error = np.abs(sent_alone(eight_bit(), x) - x)
    assert error[0] == 0, "the largest element is a level"
    assert (error / x)[x > 0.1].max() < 0.07
    assert (error / x)[x > 1e-3].max() < 0.2
    assert (error / x)[x > 1e-5].max() < 1
    for zeros in range(7):  # with this many leading zeros, 6 - zeros bits divide the decade below 10**-zeros
        decade = (x > 10.0 ** -(zeros + 1)) & (x < 10.0**-zeros)
        half_step = 0.9 * 10.0**-zeros / 2 ** (6 - zeros) / 2
        assert 0.9 * half_step < error[decade].max() < 1.01 * half_step
    np.testing.assert_array_equal(sent_alone(eight_bit(), -x), -sent_alone(eight_bit(), x).numpy())


@pytest.mark.parametrize("exponent", [2, 7, 10, 14])
def test_inceptionn_keeps_its_error_bound(exponent):
    own = sent_alone(inceptionn(exponent), X).numpy()
    assert np.abs(own - X).max() < 2.0**-exponent
    assert np.all(own[np.abs(X) < 2.0**-exponent] == 0)
    np.testing.assert_array_equal(own[np.abs(X) >= 1], X[np.abs(X) >= 1])


def test_inceptionn_sends_the_bits_that_each_element_needs():
    x = np.repeat(np.float32([2.0**-11, 2.0**-7, -0.25, 3.0]), [400, 300, 200, 60])
    compressor = Compressor(inceptionn(10), [tf.Variable(x)], SimulatedWorkers(2), options=EVERY)
    _, report = compressor([[tf.constant(x)], [tf.constant(x)]])
    assert int(report.allgather_bytes) == 960 / 4 + 300 + 2 * 200 + 4 * 60 + 4 * 4 + 4  # tags, values, counts, metadata


def test_a_sketch_has_equally_large_groups_and_their_means():
    own = sent_alone(sketch(levels=8), X).numpy()
    values, counts = np.unique(own, return_counts=True)
    assert counts.tolist() == [120] * 8
    for value in values:
        np.testing.assert_allclose(value, X[own == value].mean(), rtol=1e-4, atol=1e-6)
    assert np.all(np.diff(own[np.argsort(X)]) >= 0), "groups are in order"


@pytest.mark.parametrize("size", [17, 31, 100])
def test_sketch_groups_differ_by_at_most_one_element(size):
    _, counts = np.unique(sent_alone(sketch(levels=16), X[:size]).numpy(), return_counts=True)
    assert len(counts) == 16
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("size", [1, 3, 16, 17])
def test_a_sketch_of_few_elements_is_exact_or_grouped(size):
    own = sent_alone(sketch(levels=16), X[:size]).numpy()
    np.testing.assert_allclose(own.sum(), X[:size].sum(), rtol=1e-4)
    if size <= 16:
        np.testing.assert_allclose(own, X[:size], rtol=1e-6)


def test_adaptive_quantization_sends_one_value_for_each_sign():
    own = sent_alone(adaptive_quantization(0.1), X).numpy()
    up, down = np.sort(X)[-48:], np.sort(X)[:48]
    np.testing.assert_array_equal(own > 0, up[0] <= X)
    np.testing.assert_array_equal(own < 0, down[-1] >= X)
    np.testing.assert_allclose([own.max(), own.min()], [up.mean(), down.mean()], rtol=1e-5)


def test_adaptive_quantization_counts_elements_with_a_margin():
    """0.07 * 200 / 2 is 7.000000000000001."""
    own = sent_alone(adaptive_quantization(0.07), X[:200]).numpy()
    assert (np.sum(own > 0), np.sum(own < 0)) == (7, 7)


# Ratios that adapt ----------------------------------------------------------------------------------------------------


def kept_and_sent(scheme, steps=150):
    """Return, for the last steps, the share of the squared norm that one worker sends and the number of elements."""
    compressor = Compressor(scheme, [tf.Variable(X)], OneWorker(), options=EVERY)
    step = tf.function(lambda gradient: compressor([[gradient]]), autograph=False)
    rows = []
    for number in range(steps):
        gradient = tf.random.stateless_normal([960], (number, 0)) ** 3
        [sent], report = step(gradient)
        rows.append((np.sum(sent.numpy() ** 2) / np.sum(gradient.numpy() ** 2), float(report.num_sent[0])))
    return np.mean(rows[-40:], 0)


def test_an_adaptive_ratio_keeps_the_chosen_share():
    (little, few), (much, many) = kept_and_sent(adaptive(masking, 0.3)), kept_and_sent(adaptive(masking, 0.8))
    assert 0.2 < little < 0.4
    assert 0.7 < much < 0.9
    assert many > 4 * few


def test_an_adaptive_ratio_is_the_same_on_all_workers():
    compressor = Compressor(gravac(0.3), [tf.Variable(X)], SimulatedWorkers(2), options=EVERY)
    for number in range(5):  # the first worker's gradient has few large elements, the other's has none
        compressor([[tf.constant(X) ** 3], [tf.random.stateless_uniform([960], (number, 0))]])
    ratios = [float(tf.nest.flatten(state)[-1]) for state in compressor.states]
    assert ratios[0] == ratios[1] != np.float32(0.1)


def test_adaptive_wraps_any_scheme_with_a_ratio():
    scheme = with_error_feedback(adaptive(lambda ratio: masking(ratio), 0.5))
    assert scheme.name == "masking, adaptive to keep 0.5, with error feedback"
    assert len(list(steps_alone(scheme, [tf.constant(X)] * 3))) == 3
    with pytest.raises(ValueError, match=r"make must be a function of a ratio, got 0\.5"):
        adaptive(0.5)


# Momentum that is error feedback --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scheme", "decay"), [(demo(decay=0.8), 0.8), (sparseloco(decay=0.6), 0.6)])
def test_what_is_sent_leaves_the_decayed_state(scheme, decay):
    gradients = [tf.constant(X * np.float32(scale)) for scale in (1.0, -0.5, 2.0)]
    before = np.zeros_like(X)
    for gradient, (own, state) in zip(gradients, steps_alone(scheme, gradients), strict=True):
        np.testing.assert_allclose(state + own, decay * before + gradient, atol=1e-4)
        assert 0 < np.linalg.norm(state) < np.linalg.norm(decay * before + gradient)
        before = np.asarray(state)


def test_demo_sends_the_largest_frequencies_of_each_chunk():
    times = np.arange(64)
    tone = np.cos(np.pi * (times + 0.5) * 5 / 64).astype(np.float32)  # the sixth frequency of a chunk of 64
    x = np.concatenate([tone, 3 * tone[:32], np.zeros(4, np.float32)])  # the second chunk is filled up with zeros
    own = sent_alone(demo(k=1), x).numpy()
    np.testing.assert_allclose(own[:64], tone, atol=1e-5)
    np.testing.assert_allclose(sent_alone(demo(k=64), x), x, atol=1e-5)
    compressor = Compressor(demo(k=3), [tf.Variable(x)], SimulatedWorkers(2), options=EVERY)
    assert float(compressor([[tf.constant(x)]] * 2)[1].num_sent[0]) <= 6


def test_sparseloco_sends_four_values_of_the_largest_elements():
    own = sent_alone(sparseloco(k=8), X).numpy()
    values, sent = np.unique(own[own != 0]), np.flatnonzero(own)
    assert len(values) == 4
    for chunk in range(0, 960, 256):
        largest = np.argsort(-np.abs(X[chunk : chunk + 256]))[:8] + chunk
        assert set(largest) == {position for position in sent if chunk <= position < chunk + 256}
    for value in values:
        np.testing.assert_allclose(value, X[own == value].mean(), rtol=1e-5)


# 1-bit Adam -----------------------------------------------------------------------------------------------------------


def train_with_adam(steps, warm_up):
    """Return weights, the last bytes and the state after some steps with two workers, beside Adam by hand."""
    weight, by_hand = tf.Variable(X), X.copy()
    compressor = Compressor(one_bit_adam(warm_up), [weight], SimulatedWorkers(2), options=EVERY)
    step = tf.function(lambda gradients: compressor.train(gradients, 0.01), autograph=False)
    first, second = np.zeros_like(X), np.zeros_like(X)
    for number in range(steps):
        gradients = [tf.random.stateless_normal([960], (number, worker)) + 0.5 * weight for worker in range(2)]
        report, mean = step([[gradient] for gradient in gradients]), np.mean(gradients, 0)
        first, second = 0.9 * first + 0.1 * mean, 0.999 * second + 0.001 * mean**2
        by_hand -= 0.01 * first / (np.sqrt(second) + 1e-8)
    return weight.numpy(), by_hand, report, compressor


def test_one_bit_adam_starts_as_adam():
    weight, by_hand, report, _ = train_with_adam(steps=5, warm_up=5)
    np.testing.assert_allclose(weight, by_hand, atol=1e-4)
    assert int(report.allreduce_bytes) > 4 * 960


def test_one_bit_adam_then_sends_bits_and_keeps_its_scales():
    _, _, _, before = train_with_adam(steps=5, warm_up=5)
    weight, by_hand, report, after = train_with_adam(steps=8, warm_up=5)
    assert int(report.allreduce_bytes) == 0
    assert int(report.allgather_bytes) == 960 / 8 + 4 + 2 * 4 + 4
    (_, square, _), (velocity, later, error) = before.states[0][0], after.states[0][0]
    np.testing.assert_array_equal(square, later)
    np.testing.assert_array_equal(velocity, after.states[1][0][0])
    assert np.any(error.numpy() != after.states[1][0][2].numpy()), "each worker has its own error"
    assert np.corrcoef(weight - X, by_hand - X)[0, 1] > 0.9


def test_one_bit_adam_keeps_unused_weights_in_place():
    """Their mean square is 0, so their bits would otherwise move them by a huge step."""
    weight = tf.Variable([1.0, 1.0])
    compressor = Compressor(one_bit_adam(2), [weight], OneWorker(), options=EVERY)
    for _ in range(20):
        compressor.train([[tf.constant([0.5, 0.0])]], 0.01)
    assert 0.1 < 1 - float(weight[0]) < 2
    assert abs(1 - float(weight[1])) < 0.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sketch(1), "levels must be a whole number from 2 to 256, got 1"),
        (lambda: inceptionn(15), "exponent must be a whole number from 2 to 14, got 15"),
        (lambda: demo(k=65), "k must be a whole number from 1 to 64, got 65"),
        (lambda: blocks(size=2**31), "size must be a whole number from 1 to 2147483647, got 2147483648"),
        (lambda: demo(chunk=1), "chunk must be a whole number of at least 2, got 1"),
        (lambda: demo(decay=1.0), "decay must be at least 0 and below 1, got 1.0"),
        (lambda: sparseloco(k=0), "k must be a whole number from 1 to 256, got 0"),
        (lambda: sparseloco(every=1), "every must be a whole number of at least 2, got 1"),
        (lambda: one_bit_adam(0), "warm_up must be a whole number of at least 1, got 0"),
        (lambda: gravac(2), r"keep must be in \[0, 1\], got 2"),
    ],
)
def test_parameters_out_of_range_are_rejected(make, message):
    with pytest.raises(ValueError, match=message):
        make()
