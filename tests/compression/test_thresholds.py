"""Thresholds and selection: exact values, properties, edge cases, and bitwise equal implementations."""

import contextlib
import functools
import math

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given
from hypothesis import strategies as st

from dgc_lab.common import cpp_compiler
from dgc_lab.compression import native
from dgc_lab.compression import thresholding as c
from dgc_lab.compression.gradients import check_finite
from dgc_lab.compression.scheme import StepContext
from dgc_lab.compression.segment_search import SMALLEST_NORMAL, elements_to_keep
from dgc_lab.compression.selection import Rule, accumulate_and_select, elements_above, select

FLOATS = st.floats(-1e6, 1e6, width=32)
VECTORS = hnp.arrays(np.float32, st.integers(0, 200), elements=FLOATS)
# For example, a bias without gradients, a saturated layer, and ties.
EDGE_CASES = {
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
IMPLEMENTATIONS = ("C++", "TensorFlow")


@pytest.fixture(autouse=True, scope="module")
def sample_small_tensors_too():
    """Make the sampled rules sample every tensor, so that short examples cover them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(c, "SMALL_TENSOR", 0)
        yield


@contextlib.contextmanager
def use_implementation(name):
    """Use one implementation; if a compiler exists, a failure to compile or load C++ fails the test."""
    if name == "C++" and cpp_compiler() is None:
        pytest.skip("no C++ compiler here")
    if name == "C++" and tf.config.list_logical_devices("GPU"):
        pytest.skip("the C++ operations run on CPUs only")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "enabled", name == "C++")
        assert (native.operations() is None) == (name == "TensorFlow")
        yield


@pytest.fixture(scope="module", params=IMPLEMENTATIONS)
def implementation(request):
    with use_implementation(request.param):
        yield request.param


def threshold_of(x, ratio, rule="exact", **options):
    [threshold] = c.thresholds([x], ratio, rule, **options)
    return threshold


def kept_count(x, threshold):
    return int(tf.reduce_sum(tf.cast(c.keep_mask(tf.constant(x), threshold), tf.int32)))


def context_of(*sizes, values="float32", seed=(0, 0)):
    return StepContext(sizes, tf.constant(seed), tf.constant([0, 0]), 1, value_type=values)


# Thresholds -----------------------------------------------------------------------------------------------------------


@given(x=VECTORS, ratio=RATIOS)
def test_exact_threshold_is_the_kth_largest_magnitude(implementation, x, ratio):
    threshold = float(c.exact_threshold(x, ratio))
    k = int(elements_to_keep(ratio, x.size))
    if ratio == 1:
        assert threshold == 0
    elif k == 0:
        assert threshold == math.inf
    else:
        assert threshold == max(np.sort(np.abs(x))[-k], SMALLEST_NORMAL)


@given(x=VECTORS, ratio=RATIOS, rule=st.sampled_from(c.RULES))
@example(x=np.zeros(0, np.float32), ratio=1.0, rule="hierarchical")
def test_kept_and_dropped_elements_sum_to_the_tensor(implementation, x, ratio, rule):
    threshold = threshold_of(x, ratio, rule)
    kept, dropped = (part.numpy() for part in c.split(tf.constant(x), threshold))
    np.testing.assert_array_equal(kept + dropped, x)
    assert not np.any(kept * dropped)
    mask = np.abs(x) >= threshold.numpy()
    np.testing.assert_array_equal(kept, np.where(mask, x, 0))


@given(x=VECTORS, ratio=RATIOS, rule=st.sampled_from(c.RULES))
def test_ratio_0_keeps_none_1_all_and_others_no_zeros(implementation, x, ratio, rule):
    assert kept_count(x, threshold_of(x, 0, rule)) == 0
    assert kept_count(x, threshold_of(x, 1, rule)) == x.size
    if ratio < 1:
        mask = c.keep_mask(tf.constant(x), threshold_of(x, ratio, rule)).numpy()
        assert not mask[x == 0].any()


@given(
    x=hnp.arrays(np.float32, st.integers(1, 300), elements=FLOATS, unique=True),
    ratio=st.floats(0.001, 0.999),
)
def test_exact_rule_keeps_k_elements_of_distinct_magnitude(implementation, x, ratio):
    x = x[np.unique(np.abs(x), return_index=True)[1]]
    x = x[np.abs(x) >= SMALLEST_NORMAL]
    assert kept_count(x, c.exact_threshold(x, ratio)) == int(elements_to_keep(ratio, x.size))


@pytest.mark.parametrize("rule", c.RULES)
@pytest.mark.parametrize("name", EDGE_CASES)
@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.4, 1.0])
def test_edge_cases_follow_the_documented_rules(implementation, rule, name, ratio):
    x = np.array(EDGE_CASES[name], np.float32)
    count = kept_count(x, threshold_of(x, ratio, rule))
    if ratio == 1:
        assert count == x.size
    elif ratio == 0 or name in ("empty", "zeros", "one zero", "subnormal"):
        assert count == 0
    elif name in ("equal", "signs"):
        assert count == x.size, "all elements tie with the threshold, so all are kept"
    elif name == "ties at k":
        assert count == {0.01: 1, 0.4: 4}[ratio]
    else:
        assert count == {"one": {0.01: 1, 0.4: 1}, "largest": {0.01: 2, 0.4: 2}}[name][ratio]


@pytest.mark.parametrize(
    ("ratio", "size", "k"),
    [(0, 10, 0), (1e-9, 10, 1), (0.1, 10, 1), (0.11, 10, 2), (0.07, 100, 7), (0.001, 3_211_264, 3212), (1, 5, 5)],
)
def test_number_of_kept_elements_is_rounded_as_documented(ratio, size, k):
    assert int(elements_to_keep(ratio, size)) == k
    assert int(elements_to_keep(tf.constant(ratio, tf.float32), size)) == k


@pytest.mark.parametrize("ratio", [0.1, 0.01, 0.001])
@pytest.mark.parametrize("sample", [0.001, 0.01])
def test_sampled_threshold_stays_in_its_documented_band(implementation, ratio, sample):
    x = tf.random.stateless_normal([500, 1024], seed=(3, 4))
    n, worst = 500 * 1024, 0.0
    sampled = max(sample * n, min(n, 32 / ratio))
    deviation = 1 / math.sqrt(ratio * sampled)
    for seed in range(20):
        share = kept_count(x, c.sampled_threshold(x, ratio, sample, seed=(7, seed))) / n
        worst = max(worst, abs(share / ratio - 1))
    assert 0 < worst < 5 * deviation


def test_sampled_threshold_is_exact_with_a_full_sample(implementation):
    x = tf.random.stateless_normal([30_000], seed=(1, 1))
    assert float(c.sampled_threshold(x, 0.001)) == float(c.exact_threshold(x, 0.001))


@pytest.mark.parametrize("rule", c.RULES)
def test_a_nan_threshold_becomes_the_smallest_normal_number(implementation, rule):
    x = [math.nan, math.inf, 2.0, 1.0]
    assert float(threshold_of(x, 0.2, rule)) == SMALLEST_NORMAL
    indices, _ = select(tf.constant(x), Rule(0.2, rule), context_of(4))
    assert indices.numpy().tolist() == [0, 1, 2, 3]


def test_tensors_up_to_10000_elements_are_not_sampled(implementation, monkeypatch):
    monkeypatch.setattr(c, "SMALL_TENSOR", 10_000)
    x = tf.random.stateless_normal([10_001], seed=(1, 1))
    for rule in ("sampled", "hierarchical"):
        small, large = (
            {float(threshold_of(part, 0.1, rule, seed=(0, seed))) for seed in range(9)} for part in (x[:10_000], x)
        )
        assert float(threshold_of(x[:9999], 0.1, rule)) == float(c.exact_threshold(x[:9999], 0.1))
        assert small == {float(c.exact_threshold(x[:10_000], 0.1))}
        assert len(large) > 1


def test_sample_covers_all_columns_of_even_length_rows(implementation):
    columns = np.zeros((2000, 1024), np.float32)
    columns[:, ::4] = 1 + np.arange(256)
    for start in range(8):
        threshold = c.sampled_threshold(columns, 0.1, seed=(0, start))
        assert 0.05 < kept_count(columns, threshold) / columns.size < 0.15


def test_same_seed_draws_the_same_sample(implementation):
    x = tf.random.stateless_normal([400_000], seed=(1, 1))
    drawn = [float(c.sampled_threshold(x, 0.01, seed=(0, seed))) for seed in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 2


@pytest.mark.parametrize("kind", ["normal", "sorted", "few large", "sparse"])
@pytest.mark.parametrize("ratio", [0.3, 0.01, 0.001])
def test_hierarchical_threshold_stays_in_its_band(implementation, kind, ratio):
    n = 300_000
    x = tf.random.stateless_normal([n], seed=(5, 6)).numpy()
    if kind == "sorted":
        x = np.sort(x)
    elif kind == "few large":  # the sample may hold too few or too many large elements
        x[: n // 500] *= 1e4
    elif kind == "sparse":
        x[n // 2 :] = 0
    wanted = int(elements_to_keep(ratio, n))
    for seed in range(10):
        count = kept_count(x, threshold_of(x, ratio, "hierarchical", sample=0.001, seed=(1, seed)))
        assert 0.8 * wanted <= count <= 1.3 * wanted


def reorder_by_rank(x, ranks, stride):
    """Reorder x: elements of these ranks (0 is the largest) move to positions 0, stride, 2 * stride, ..."""
    order = np.argsort(-np.abs(x))
    result, sampled = np.empty_like(x), np.arange(x.size) % stride == 0
    result[sampled], result[~sampled] = x[order[ranks]], x[np.delete(order, ranks)]
    return result


def sample_every(monkeypatch, stride):
    monkeypatch.setattr(c, "sampling", lambda *_: (tf.constant([stride]), tf.constant([0])))


@pytest.mark.parametrize(
    ("stride", "ranks"),
    [
        (21, range(4762)),  # the sample holds the largest elements, so the share is doubled
        (21, range(100_000 - 4762, 100_000)),  # it holds the smallest, so nearly all elements pass
        (50_001, range(2)),  # two elements: the share reaches 1, and too few elements pass
    ],
)
def test_hierarchical_rule_corrects_unrepresentative_samples(implementation, monkeypatch, stride, ranks):
    x = reorder_by_rank(tf.random.stateless_normal([100_000], seed=(5, 6)).numpy(), ranks, stride)
    wanted = 1000
    sample_every(monkeypatch, stride)
    assert not 0.8 * wanted <= kept_count(x, c.sampled_threshold(x, 0.01)) <= 1.3 * wanted
    assert 0.8 * wanted <= kept_count(x, threshold_of(x, 0.01, "hierarchical")) <= 1.3 * wanted


@pytest.mark.parametrize(("spacing", "doublings"), [(10, 1), (5, 2)])
def test_hierarchical_rule_doubles_the_share_only_if_needed(implementation, monkeypatch, spacing, doublings):
    """The corrected threshold is still an element of the sample."""
    x = tf.random.stateless_normal([100_000], seed=(5, 6)).numpy()
    # Number of sample elements that pass at each share; in x, `spacing` times as many pass.
    passing = [int(elements_to_keep(0.01 * 2**i, 4762)) for i in range(doublings + 1)]
    largest = spacing * np.arange(passing[-1])
    x = reorder_by_rank(x, np.concatenate([largest, np.arange(2000, 2000 + 4762 - largest.size)]), 21)
    sample_every(monkeypatch, 21)
    sample = np.sort(np.abs(x[::21]))
    assert float(c.sampled_threshold(x, 0.01)) == sample[-passing[0]]
    assert kept_count(x, sample[-passing[-2]]) < 800
    assert float(threshold_of(x, 0.01, "hierarchical")) == sample[-passing[-1]]


def test_hierarchical_rule_keeps_all_nonzeros_if_too_few(implementation):
    x = np.zeros(10_000, np.float32)
    x[:50] = 1
    assert kept_count(x, threshold_of(x, 0.1, "hierarchical")) == 50


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("rule", c.RULES)
def test_all_floating_point_types_get_float32_thresholds(implementation, rule, dtype):
    x = tf.cast(tf.constant([0.5, -4.0, 0.0, 1.0]), dtype)
    threshold = threshold_of(x, 0.5, rule)
    assert threshold.dtype == tf.float32
    assert threshold.shape == []
    assert c.keep_mask(x, threshold).numpy().tolist() == [False, True, False, True]
    assert [part.dtype for part in c.split(x, threshold)] == [dtype, dtype]


def test_magnitudes_are_compared_in_float32(implementation):
    """Two float64 values that round to the same float32 must both pass."""
    x = tf.constant([1.0, 1 + 1e-12, 0.5], tf.float64)
    assert c.keep_mask(x, c.exact_threshold(x, 0.3)).numpy().tolist() == [True, True, False]
    assert c.keep_mask(tf.constant([0.1], tf.float64), tf.constant(0.1)).numpy().tolist() == [True]


@pytest.mark.parametrize("rule", c.RULES)
def test_one_trace_serves_all_ratios_and_agrees_with_eager(implementation, rule):
    x = tf.random.stateless_normal([50_000], seed=(0, 1))
    traced = tf.function(functools.partial(threshold_of, rule=rule))
    for ratio in (0.0, 0.001, 0.1, 1.0):
        assert float(traced(x, tf.constant(ratio, tf.float64))) == float(threshold_of(x, ratio, rule))
    assert traced.experimental_get_tracing_count() == 1


def test_scopes_treat_tensors_of_different_scale_differently(implementation):
    small, large = tf.constant([1.0, 2.0, 3.0, 4.0]), tf.constant([10.0, 20.0, 30.0, 40.0])
    for rule in c.RULES:
        assert [float(t) for t in c.thresholds([small, large], 0.25, rule)] == [4, 40]
        assert [float(t) for t in c.thresholds([small, large], 0.25, rule, "global")] == [30, 30]
        assert [float(t) for t in c.thresholds([small, large], 0.25, rule, "first")] == [4, 4]
        assert c.thresholds([], 0.25, rule, "global") == []
    found = c.thresholds([small, large], 0.25, scope="first")
    assert [kept_count(x, threshold) for x, threshold in zip((small, large), found, strict=True)] == [1, 4]


@pytest.mark.parametrize("ratio", [-0.1, 1.1, math.nan, math.inf])
def test_ratios_outside_0_to_1_are_rejected(implementation, ratio):
    with pytest.raises(ValueError, match=r"ratio must be in \[0, 1\], got"):
        c.exact_threshold([1.0], ratio)
    with pytest.raises(ValueError, match="ratio must be"):
        c.thresholds([[1.0]], tf.constant(ratio))
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
def test_errors_name_the_argument_its_value_and_the_range(arguments, message):
    with pytest.raises(ValueError, match=message):
        c.thresholds([tf.ones([3])], 0.5, **arguments)


def test_integer_tensors_are_rejected():
    with pytest.raises(TypeError, match="gradients must hold floating-point numbers, got int32"):
        c.exact_threshold(tf.constant([1, 2]), 0.5)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (math.inf, "Inf"), (-math.inf, "Inf")])
def test_check_finite_names_the_variable(graph, value, word):
    check = tf.function(check_finite) if graph else check_finite
    fine = tf.constant([1.0, 2.0])
    assert check(fine, "dense/kernel").numpy().tolist() == [1, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"gradient of dense/kernel.*{word}"):
        check(tf.constant([1.0, value]), "dense/kernel")


def test_check_finite_accepts_values_whose_sum_overflows():
    assert np.all(np.isfinite(check_finite(tf.constant([3e38, 3e38]), "dense/kernel")))


# Selection ------------------------------------------------------------------------------------------------------------


def numbers(data, sizes):
    """Return concatenated tensors of these sizes with ties, infinity, NaN and -0.0 at random positions."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    size, odds = sum(sizes), data.draw(st.floats(0, 1))
    chosen = rng.choice([1, -1, 3.5, -3.5, 9, np.inf, -np.inf, np.nan], size)
    return np.where(rng.random(size) < odds, chosen, -0.0).astype(np.float32)


# Blocks of 1 to 64 elements, tensors of several blocks, and empty tensors.
SIZES = st.lists(st.sampled_from([0, 1, 7, 8, 64, 96, 128, 200, 640]), min_size=1, max_size=4)


@given(data=st.data(), sizes=SIZES, one_limit=st.booleans())
def test_elements_above_works_for_all_block_sizes(data, sizes, one_limit):
    x = numbers(data, sizes)
    limits = data.draw(
        hnp.arrays(np.float32, 1 if one_limit else len(sizes), elements=st.sampled_from([0, 1, 3.5, np.inf]))
    )
    indices = elements_above(tf.constant(x), tf.constant(limits), tuple(sizes))
    each = np.full(x.size, limits[0]) if one_limit else np.repeat(limits, sizes)
    np.testing.assert_array_equal(indices, np.flatnonzero(~(np.abs(x) < each)))
    assert indices.dtype == tf.int32


@given(data=st.data(), sizes=SIZES, ratio=RATIOS, rule=st.sampled_from(c.RULES), scope=st.sampled_from(c.SCOPES))
def test_select_works_for_all_block_sizes(implementation, data, sizes, ratio, rule, scope):
    x = numbers(data, sizes)
    x[~np.isfinite(x)] = 2
    indices, values = select(tf.constant(x), Rule(ratio, rule, scope), context_of(*sizes))
    limits = c.thresholds(np.split(x, np.cumsum(sizes)[:-1]), ratio, rule, scope)
    np.testing.assert_array_equal(indices, np.flatnonzero(np.abs(x) >= np.repeat(limits, sizes)))
    np.testing.assert_array_equal(values, x[indices])
    assert (indices.dtype, values.dtype) == (tf.int32, tf.float32)


@given(
    data=st.data(),
    sizes=SIZES,
    ratio=RATIOS,
    rule=st.sampled_from(c.RULES),
    scope=st.sampled_from(c.SCOPES),
    values=st.sampled_from(["float32", "float16"]),
    accumulates=st.booleans(),
)
def test_nan_and_infinity_are_always_selected(implementation, data, sizes, ratio, rule, scope, values, accumulates):
    x = numbers(data, sizes)
    state = (tf.zeros([x.size]),) if accumulates else ()
    rule, context = Rule(ratio, rule, scope), context_of(*sizes, values=values)
    indices, sent, _ = accumulate_and_select(tf.constant(x), state, rule, context)
    assert set(np.flatnonzero(~np.isfinite(x))) <= set(indices.numpy())
    np.testing.assert_array_equal(sent, x[indices])
    if ratio == 0:
        np.testing.assert_array_equal(indices, np.flatnonzero(~np.isfinite(x)))


@pytest.mark.parametrize("values", ["float32", "float16"])
def test_sent_values_and_residual_are_finite(implementation, values):
    residual = tf.constant([7e4, 1e38, 0.25, 0.1])
    rule, context = Rule(0.5, "exact"), context_of(4, values=values)
    indices, sent, [left] = accumulate_and_select(tf.zeros([4]), (residual,), rule, context)
    assert indices.numpy().tolist() == [0, 1]
    assert sent.dtype == left.dtype == tf.float32
    assert np.all(np.isfinite(sent))
    assert np.all(np.isfinite(left))
    np.testing.assert_array_equal(sent, np.minimum(residual[:2], np.finfo(values).max).astype(values))
    np.testing.assert_array_equal(sent + left[:2], residual[:2])
    np.testing.assert_array_equal(left[2:], residual[2:])


# Both implementations -------------------------------------------------------------------------------------------------

KINDS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "ties": lambda rng, size: rng.integers(-3, 4, size),
    "zeros": lambda rng, size: np.zeros(size),
    "equal": lambda rng, size: np.full(size, rng.normal()),
    "sparse": lambda rng, size: rng.normal(size=size) * (rng.random(size) < 0.05),
    "sorted": lambda rng, size: np.sort(rng.normal(size=size)),  # samples are most representative
    "periodic": lambda rng, size: np.where(np.arange(size) % 3, 1e-3, 10.0) * rng.normal(size=size),  # or least so
    "subnormal": lambda rng, size: rng.normal(size=size) * 1e-38,
    "around the smallest float16": lambda rng, size: rng.normal(size=size) * 2.0**-24,
    "large": lambda rng, size: rng.normal(size=size) * 1e37,
    "beyond float16": lambda rng, size: rng.normal(size=size) * 65504,
}


@st.composite
def vectors(draw):
    """Draw concatenated tensors of several kinds and sizes as (float32 vector, sizes)."""
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 63, 64, 65, 300, 700]), min_size=1, max_size=5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    parts = [KINDS[draw(st.sampled_from(sorted(KINDS)))](rng, size) for size in sizes]
    return np.concatenate(parts).astype(np.float32), sizes


def bits(tensors):
    """Return tensors as lists of integers: -0.0 and 0.0 differ."""
    return [np.asarray(tensor).view(np.int32).tolist() for tensor in tensors]


@given(
    vector=vectors(),
    ratio=RATIOS,
    as_tensor=st.booleans(),
    rule=st.sampled_from(c.RULES),
    scope=st.sampled_from(c.SCOPES),
    sample=st.sampled_from([0.01, 0.1, 1.0]),
    smallest_sample=st.sampled_from([1, 4, 32]),
    seed=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    values=st.sampled_from(["float32", "float16"]),
    slots=st.integers(0, 2),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    nesterov=st.booleans(),
    clear_velocity=st.booleans(),
)
def test_both_implementations_give_the_same_bits(
    vector,
    ratio,
    as_tensor,
    rule,
    scope,
    sample,
    smallest_sample,
    seed,
    values,
    slots,
    momentum,
    nesterov,
    clear_velocity,
):
    x, sizes = vector
    ratio = tf.constant(ratio, tf.float64) if as_tensor else ratio
    rng = np.random.default_rng(seed)
    state = tuple(tf.constant(rng.permutation(x)) for _ in range(slots))
    tensors, found = np.split(x, np.cumsum(sizes)[:-1]), []
    context = context_of(*sizes, values=values, seed=seed)
    for name in IMPLEMENTATIONS:
        with use_implementation(name), pytest.MonkeyPatch.context() as patch:
            patch.setattr(c, "MINIMUM_KEPT_IN_SAMPLE", smallest_sample)  # under 32, samples often mislead
            limits = c.thresholds(tensors, ratio, rule, scope, sample, seed)
            indices, sent, new = accumulate_and_select(
                tf.constant(x), state, Rule(ratio, rule, scope, sample), context, momentum, nesterov, clear_velocity
            )
            found.append((bits(limits), bits([indices, sent]), bits(new)))
    assert found[0] == found[1]
