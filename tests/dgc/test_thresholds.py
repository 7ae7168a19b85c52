"""The mask and its thresholds: closed forms, properties, and the awkward tensors."""

import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from dgc_lab import dgc
from dgc_lab.dgc import exchange
from dgc_lab.dgc import thresholding as c
from dgc_lab.dgc.selection import block_maxima, elements_above, select

FLOATS = st.floats(-1e6, 1e6, width=32)
VECTORS = hnp.arrays(np.float32, st.integers(0, 200), elements=FLOATS)
# The bias of a layer that nothing reaches, a saturated layer, and values that tie.
AWKWARD = {
    "empty": [],
    "one": [2.0],
    "one zero": [0.0],
    "zeros": [0.0] * 7,
    "equal": [-3.0] * 7,
    "signs": [3.0, -3.0, 3.0, -3.0],
    "ties at k": [5.0, 1.0, -1.0, 1.0, 0.5],
    "subnormal": [1e-40, -1e-40, 1e-45],
    "largest": [3.4e38, -3.4e38, 1.0],
}
RATIOS = st.one_of(st.sampled_from([0.0, 1e-6, 0.001, 0.5, 1.0]), st.floats(0, 1))


@pytest.fixture(autouse=True, scope="module")
def sample_small_tensors_too():
    """Without the short cut for small tensors the sampled rules run in earnest on every example here."""
    usual, c.SMALL_TENSOR = c.SMALL_TENSOR, 0
    yield
    c.SMALL_TENSOR = usual


def kept_count(x, threshold):
    return int(tf.reduce_sum(tf.cast(c.keep_mask(tf.constant(x), threshold), tf.int32)))


def smallest_normal(x):
    return np.finfo(x.dtype).smallest_normal


@given(VECTORS, RATIOS)
def test_exact_threshold_is_the_kth_largest_magnitude(x, ratio):
    threshold = float(c.exact_threshold(x, ratio))
    k = int(c.elements_to_keep(ratio, x))
    if ratio == 1:
        assert threshold == 0
    elif k == 0:
        assert threshold == math.inf
    else:
        assert threshold == max(np.sort(np.abs(x))[-k], smallest_normal(x))


@given(VECTORS, RATIOS, st.sampled_from(sorted(c.RULES)))
@example(np.zeros(0, np.float32), 1.0, "hierarchical")
def test_kept_and_dropped_part_the_tensor_exactly(x, ratio, rule):
    threshold = c.RULES[rule](x, ratio)
    kept, dropped = (part.numpy() for part in c.split(tf.constant(x), threshold))
    np.testing.assert_array_equal(kept + dropped, x)
    assert not np.any(kept * dropped)
    mask = np.abs(x) >= threshold.numpy()
    np.testing.assert_array_equal(kept, np.where(mask, x, 0))


@given(VECTORS, RATIOS, st.sampled_from(sorted(c.RULES)))
def test_ratio_0_keeps_nothing_1_everything_and_no_zero_in_between(x, ratio, rule):
    assert kept_count(x, c.RULES[rule](x, 0)) == 0
    assert kept_count(x, c.RULES[rule](x, 1)) == x.size
    if ratio < 1:
        mask = c.keep_mask(tf.constant(x), c.RULES[rule](x, ratio)).numpy()
        assert not mask[x == 0].any()


@given(hnp.arrays(np.float32, st.integers(1, 300), elements=FLOATS, unique=True), st.floats(0.001, 0.999))
def test_exact_keeps_k_elements_of_different_size(x, ratio):
    x = x[np.unique(np.abs(x), return_index=True)[1]]
    x = x[np.abs(x) >= smallest_normal(x)]
    assert kept_count(x, c.exact_threshold(x, ratio)) == int(c.elements_to_keep(ratio, x))


@pytest.mark.parametrize("rule", c.RULES)
@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.4, 1.0])
def test_awkward_tensors_behave_as_documented(rule, name, ratio):
    x = np.array(AWKWARD[name], np.float32)
    threshold = c.RULES[rule](x, ratio)
    count = kept_count(x, threshold)
    if ratio == 1:
        assert count == x.size
    elif ratio == 0 or name in ("empty", "zeros", "one zero", "subnormal"):
        assert count == 0
    elif name in ("equal", "signs"):
        assert count == x.size, "all tie with the threshold, so all are kept"
    elif name == "ties at k":
        assert count == {0.01: 1, 0.4: 4}[ratio]
    else:
        assert count == {"one": {0.01: 1, 0.4: 1}, "largest": {0.01: 2, 0.4: 2}}[name][ratio]


@pytest.mark.parametrize(
    ("ratio", "size", "k"),
    [(0, 10, 0), (1e-9, 10, 1), (0.1, 10, 1), (0.11, 10, 2), (0.07, 100, 7), (0.001, 3_211_264, 3212), (1, 5, 5)],
)
def test_number_of_elements_to_keep(ratio, size, k):
    assert int(c.elements_to_keep(ratio, tf.zeros([size], tf.float16))) == k
    assert int(c.elements_to_keep(tf.constant(ratio, tf.float32), tf.zeros([size], tf.float16))) == k


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("sample", [0.001, 0.01])
def test_sampled_threshold_keeps_a_share_within_its_documented_band(ratio, sample):
    x = tf.random.stateless_normal([500, 1024], seed=(3, 4))
    n, worst = 500 * 1024, 0.0
    sampled = max(sample * n, min(n, 32 / ratio))
    deviation = 1 / math.sqrt(ratio * sampled)
    for seed in range(20):
        share = kept_count(x, c.sampled_threshold(x, ratio, sample, seed=(7, seed))) / n
        worst = max(worst, abs(share / ratio - 1))
    assert 0 < worst < 5 * deviation


def test_sampled_threshold_is_exact_where_the_tensor_is_too_small_for_a_sample():
    x = tf.random.stateless_normal([30_000], seed=(1, 1))
    assert float(c.sampled_threshold(x, 0.001)) == float(c.exact_threshold(x, 0.001))


def test_tensors_up_to_ten_thousand_elements_get_their_exact_threshold(monkeypatch):
    monkeypatch.setattr(c, "SMALL_TENSOR", 10_000)
    x = tf.random.stateless_normal([10_001], seed=(1, 1))
    for rule in ("sampled", "hierarchical"):
        small, large = (
            {float(c.RULES[rule](part, 0.1, seed=(0, seed))) for seed in range(9)} for part in (x[:10_000], x)
        )
        assert float(c.RULES[rule](x[:9999], 0.1)) == float(c.exact_threshold(x[:9999], 0.1))
        assert small == {float(c.exact_threshold(x[:10_000], 0.1))}
        assert len(large) > 1


def test_sampling_sees_every_column_of_a_matrix_with_an_even_row_length():
    columns = np.zeros((2000, 1024), np.float32)
    columns[:, ::4] = 1 + np.arange(256)
    for start in range(8):
        threshold = c.sampled_threshold(columns, 0.1, seed=(0, start))
        assert 0.05 < kept_count(columns, threshold) / columns.size < 0.15


def test_same_seed_same_sample():
    x = tf.random.stateless_normal([400_000], seed=(1, 1))
    drawn = [float(c.sampled_threshold(x, 0.01, seed=(0, seed))) for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 2


@pytest.mark.parametrize("kind", ["normal", "sorted", "few large", "sparse"])
@pytest.mark.parametrize("ratio", [0.3, 0.01, 0.001])
def test_hierarchical_threshold_stays_between_four_fifths_and_thirteen_tenths(kind, ratio):
    n = 300_000
    x = tf.random.stateless_normal([n], seed=(5, 6)).numpy()
    if kind == "sorted":
        x = np.sort(x)
    elif kind == "few large":  # the sample sees few of them, or too many
        x[: n // 500] *= 1e4
    elif kind == "sparse":
        x[n // 2 :] = 0
    wanted = int(c.elements_to_keep(ratio, x))
    for seed in range(10):
        count = kept_count(x, c.hierarchical_threshold(x, ratio, sample=0.001, seed=(1, seed)))
        assert 0.8 * wanted <= count <= 1.3 * wanted


def test_hierarchical_threshold_repairs_a_sample_that_misleads(monkeypatch):
    x = tf.random.stateless_normal([100_000], seed=(5, 6))
    wanted = 1000
    # Samples of values three times too large, three times too small, and larger than any.
    for part in (tf.abs(x) * 3, tf.abs(x) / 3, tf.fill([5000], 10.0)):
        monkeypatch.setattr(c, "_sampled_magnitudes", lambda *_, part=part: part[:5000])
        assert not 0.8 * wanted <= kept_count(x, c.sampled_threshold(x, 0.01)) <= 1.3 * wanted
        assert 0.8 * wanted <= kept_count(x, c.hierarchical_threshold(x, 0.01)) <= 1.3 * wanted


def test_hierarchical_threshold_takes_no_larger_share_of_its_sample_than_it_needs(monkeypatch):
    """Of values a tenth too large the share is doubled once, and the threshold is still the sample's own."""
    x = tf.random.stateless_normal([100_000], seed=(5, 6))
    part = 1.107 * tf.abs(x[:5000])
    monkeypatch.setattr(c, "_sampled_magnitudes", lambda *_: part)
    assert kept_count(x, c.sampled_threshold(x, 0.01)) < 800
    assert float(c.hierarchical_threshold(x, 0.01)) == np.sort(part)[-100]


def test_hierarchical_threshold_keeps_all_that_is_not_zero_when_that_is_less_than_wanted():
    x = np.zeros(10_000, np.float32)
    x[:50] = 1
    assert kept_count(x, c.hierarchical_threshold(x, 0.1)) == 50


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("rule", c.RULES)
def test_all_floating_point_types(rule, dtype):
    x = tf.cast(tf.constant([0.5, -4.0, 0.0, 1.0]), dtype)
    threshold = c.RULES[rule](x, 0.5)
    assert threshold.dtype == dtype
    assert c.keep_mask(x, threshold).numpy().tolist() == [False, True, False, True]
    assert c.split(x, threshold)[0].dtype == dtype


@pytest.mark.parametrize("rule", c.RULES)
def test_one_trace_serves_every_ratio_and_agrees_with_eager(rule):
    x = tf.random.stateless_normal([50_000], seed=(0, 1))
    traced = tf.function(c.RULES[rule])
    for ratio in (0.0, 0.001, 0.1, 1.0):
        assert float(traced(x, tf.constant(ratio, tf.float64))) == float(c.RULES[rule](x, ratio))
    assert traced.experimental_get_tracing_count() == 1


def test_scopes_on_tensors_of_different_scale():
    small, large = tf.constant([1.0, 2.0, 3.0, 4.0]), tf.constant([10.0, 20.0, 30.0, 40.0])
    for rule in c.RULES:
        assert [float(t) for t in c.thresholds([small, large], 0.25, rule)] == [4, 40]
        assert [float(t) for t in c.thresholds([small, large], 0.25, rule, "global")] == [30, 30]
        assert [float(t) for t in c.thresholds([small, large], 0.25, rule, "first")] == [4, 4]
        assert c.thresholds([], 0.25, rule, "global") == []
    masks = c.keep_masks([small, large], 0.25, scope="first")
    assert [int(tf.reduce_sum(tf.cast(mask, tf.int32))) for mask in masks] == [1, 4]


@pytest.mark.parametrize("ratio", [-0.1, 1.1, math.nan, math.inf])
def test_impossible_ratio_is_refused(ratio):
    with pytest.raises(ValueError, match=r"ratio must be in \[0, 1\], got"):
        dgc.exact_threshold([1.0], ratio)
    with pytest.raises(ValueError, match="ratio must be"):
        dgc.thresholds([[1.0]], tf.constant(ratio))
    with pytest.raises(tf.errors.InvalidArgumentError, match="ratio must be in"):
        tf.function(c.exact_threshold)(tf.constant([1.0]), tf.constant(ratio))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "best"}, "rule must be one of exact, sampled, hierarchical, got 'best'"),
        ({"scope": "layer"}, "scope must be one of tensor, global, first, got 'layer'"),
        ({"rule": "sampled", "sample": 0}, r"sample must be in \(0, 1\], got 0"),
        ({"rule": "hierarchical", "sample": 2}, r"sample must be in \(0, 1\], got 2"),
    ],
)
def test_bad_arguments_name_the_argument_the_value_and_what_is_allowed(arguments, message):
    with pytest.raises(ValueError, match=message):
        dgc.thresholds([tf.ones([3])], 0.5, **arguments)


def test_integers_are_no_gradient():
    with pytest.raises(TypeError, match="x must hold floating-point numbers, got int32"):
        c.exact_threshold(tf.constant([1, 2]), 0.5)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "Inf")])
def test_check_finite_names_the_variable(graph, value, word):
    check = tf.function(exchange.check_finite) if graph else exchange.check_finite
    fine = tf.constant([1.0, 2.0])
    assert check(fine, "dense/kernel").numpy().tolist() == [1, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"gradient of dense/kernel.*{word}"):
        check(tf.constant([1.0, value]), "dense/kernel")


def test_check_finite_lets_a_sum_overflow():
    check = exchange.check_finite(tf.constant([3e38, 3e38]), "dense/kernel")
    assert np.all(np.isfinite(check))


@given(st.data(), st.sampled_from([0.0, 1.0, 3.5, math.inf]), st.booleans())
def test_what_passes_is_found_whatever_the_blocks(data, threshold, known_shape):
    """Blocks of 1 to 64 elements; ties, infinity, and a NaN that must not hide its neighbours."""
    size = data.draw(st.sampled_from([0, 1, 7, 8, 64, 96, 128, 200, 640]))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    odds = data.draw(st.floats(0, 1))
    numbers = np.where(rng.random(size) < odds, rng.choice([1, -1, 3.5, -3.5, 9, np.inf, -np.inf, np.nan], size), -0.0)
    x = numbers.astype(np.float32)
    find = tf.function(
        elements_above, input_signature=[tf.TensorSpec([size if known_shape else None]), tf.TensorSpec([])]
    )
    indices, values = find(x, threshold)
    expected = np.flatnonzero(np.abs(x) >= threshold)
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(values, x[expected])
    assert indices.dtype == tf.int32


def test_a_block_with_nan_has_a_peak_that_is_nan():
    x = np.ones(128, np.float32)
    x[70] = np.nan
    assert np.isnan(block_maxima(tf.constant(x)).numpy()).tolist() == [False, True]


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("values", ["float32", "float16"])
def test_what_is_sent_and_what_is_left_are_finite_in_every_type(dtype, values):
    large, larger = {"float64": (7e4, 1e300), "bfloat16": (7e4, 1e38), "float16": (6e4, 2.0)}[dtype]
    residual = tf.constant([large, larger, 0.25], dtype)
    indices, sent, left = select(residual, 1.0, values)
    assert indices.numpy().tolist() == [0, 1]
    assert sent.dtype == values
    assert left.dtype == dtype
    assert np.all(np.isfinite(np.float64(sent)))
    np.testing.assert_array_equal(tf.cast(sent, dtype) + left, residual[:2])
