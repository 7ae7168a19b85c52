"""Compression schemes on simulated workers: invariants, payload sizes, and errors for invalid schemes."""

import ast
import dataclasses
import inspect
import itertools
import math
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab import compression as lab
from dgc_lab.compression import (
    SCHEMES,
    AllGather,
    AllReduceMean,
    Compressor,
    DGCConfig,
    Scheme,
    SparseMean,
    StepContext,
    driver,
    run_schemes,
    with_error_feedback,
    with_momentum,
)
from dgc_lab.compression import scheme as scheme_module
from dgc_lab.distributed import OneWorker, SimulatedWorkers

EVERY = DGCConfig(dense_below=0, dense_vectors=False)
SHAPE = tf.TensorShape([24, 40])
WITH_MEMORY = (
    *("top_k", "random_k", "threshold", "threshold_reuse", "sidco", "leader_k", "blocks", "cocktail", "dgc"),
    *("ef_sign", "one_bit", "powersgd", "gravac", "adaptive_quantization"),
)


def gradient(worker=0, step=0, shape=SHAPE):
    return tf.random.stateless_normal(shape, (worker, step)) ** 3  # a few large elements, many small ones


def steps_of(scheme, workers=2, steps=5, options=EVERY, shape=SHAPE):
    """Run some steps; return the compressor, all updates and the last report."""
    compressor = Compressor(scheme, [tf.Variable(tf.zeros(shape))], SimulatedWorkers(workers), options=options)
    step = tf.function(lambda gradients: compressor(gradients), autograph=False)
    updates = []
    for number in range(steps):
        [update], report = step([[gradient(worker, number, shape)] for worker in range(workers)])
        updates.append(update.numpy())
    return compressor, updates, report


def contribution_of(scheme, x, seed=0, state=None):
    """Return the part of `x` that one worker sends, and its new state."""
    given = scheme_input(scheme, x)
    state = scheme.init(tf.zeros_like(given)) if state is None else state
    context = StepContext((given.shape.num_elements(),), tf.stack([seed, 0]), tf.stack([seed, 1]), 1)
    [[(_, own, state)]], _ = run_schemes([[scheme.step(given, state, context)]], OneWorker())
    return tf.reshape(tf.convert_to_tensor(own), x.shape), state


def at_each_step(name):
    """Return a published scheme; those for local steps exchange in every step here."""
    return dataclasses.replace(SCHEMES[name](), every=1)


def scheme_input(scheme, x):
    """Return a gradient in the shape in which the scheme receives it."""
    return x if scheme.per_tensor else tf.reshape(x, [-1])


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_trains_and_is_traced_once(name):
    target = gradient()
    weight = tf.Variable(tf.zeros(SHAPE))
    compressor = Compressor(at_each_step(name), [weight], SimulatedWorkers(2), options=EVERY)
    traces = []

    @tf.function(autograph=False)
    def step(rate):
        traces.append(1)
        compressor.train([[weight - target], [weight - target]], rate)

    for number in range(200):
        step(tf.constant(0.02 * (1 - number / 200)))
    assert float(tf.norm(weight - target)) < 0.9 * float(tf.norm(target))
    assert len(traces) == 1


@pytest.mark.parametrize("name", [name for name in SCHEMES if name not in ("sign", "signum", "diloco")])
def test_update_is_the_mean_of_the_contributions(name):
    scheme = SCHEMES[name]()
    seeds = [(tf.constant([0, 0]), tf.constant([0, 7 + worker])) for worker in range(3)]
    contexts = [StepContext((960,), *seeds[worker], 3, worker=worker) for worker in range(3)]
    given = [scheme_input(scheme, gradient(worker)) for worker in range(3)]
    started = [[scheme.step(given[w], scheme.init(given[w] * 0), contexts[w])] for w in range(3)]
    results, _ = run_schemes(started, SimulatedWorkers(3))
    updates, owns, _ = zip(*(own for [own] in results), strict=True)
    updates, owns = list(map(tf.convert_to_tensor, updates)), list(map(tf.convert_to_tensor, owns))
    for update in updates:
        np.testing.assert_array_equal(update, updates[0])
    if name != "powersgd":  # PowerSGD's own contribution is the update: all workers share the factors
        np.testing.assert_allclose(
            updates[0],
            np.mean(owns, 0),
            rtol=1e-2 if name == "float16" else 1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize("name", [name for name in WITH_MEMORY if name != "dgc"])
def test_error_feedback_stores_the_unsent_part(name):
    scheme = SCHEMES[name]()
    state, received, sent = scheme.init(scheme_input(scheme, tf.zeros(SHAPE))), tf.zeros(SHAPE), tf.zeros(SHAPE)
    for step in range(5):
        own, state = contribution_of(scheme, gradient(step=step), step, state)
        received, sent = received + gradient(step=step), sent + own
    memory = tf.reshape(state[1] if name == "powersgd" else state[0], SHAPE)
    np.testing.assert_allclose(sent + memory, received, atol=1e-4)
    assert float(tf.norm(memory)) > 0


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "natural", "adaptive_sparsification"])
def test_stochastic_rounding_is_unbiased(name):
    scheme, x = SCHEMES[name](), gradient()
    draw = tf.function(lambda seed: contribution_of(scheme, x, seed)[0], autograph=False)
    draws, x = np.stack([draw(tf.constant(seed)) for seed in range(2000)]), x.numpy()
    error = draws.std(0) / math.sqrt(len(draws))  # of each element's mean
    apart = draws.mean(0) - x
    assert np.abs(apart).max() < 5 * error.max()
    assert abs(apart.sum()) < 5 * np.sqrt((error**2).sum())
    assert 0.8 < np.sqrt((apart**2).sum() / (error**2).sum()) < 1.2, "the error must match the standard error"


@pytest.mark.parametrize("name", ["sign", "masking"])
def test_sign_and_masking_are_biased(name):
    x = gradient()
    draws = np.mean([contribution_of(SCHEMES[name](), x, seed)[0] for seed in range(20)], 0)
    assert np.abs(draws - x).mean() > 0.1 * np.abs(x).mean()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("config", [EVERY, DGCConfig()], ids=["all compressed", "small ones whole"])
def test_dgc_scheme_matches_the_compressor_bit_for_bit(config, momentum):
    shapes = [(130, 90), (40,), (3, 3, 1, 8), (120, 100)]  # two are large enough to be sampled
    weights = [tf.Variable(tf.ones(shape)) for shape in shapes]
    config = dataclasses.replace(config, ratio=0.05, momentum=momentum)
    ours = Compressor(lab.dgc(0.05, momentum), weights, SimulatedWorkers(3), options=config)
    theirs = Compressor(config, weights, SimulatedWorkers(3))
    for step in range(6):
        gradients = [[gradient(worker, step, tf.TensorShape(shape)) for shape in shapes] for worker in range(3)]
        (by_scheme, _), (by_compressor, _) = ours(gradients), theirs(gradients)
        for one, other in zip(by_scheme, by_compressor, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "scheme",
    [
        *(make(1.0) for make in (lab.top_k, lab.random_k, lab.masking, lab.threshold_reuse, lab.sidco)),
        *(lab.leader_k(1.0), lab.blocks(1.0, size=7), lab.threshold(0.0), lab.dgc(1.0, 0.0), lab.powersgd(rank=40)),
    ],
    ids=lambda scheme: scheme.name,
)
def test_sending_everything_matches_dense_training(scheme):
    _, updates, _ = steps_of(scheme)
    _, whole, _ = steps_of(lab.dense())
    np.testing.assert_allclose(updates, whole, atol=2e-5)


n, rows, columns = 960, 24, 40
HEADER, METADATA = 4, 4  # number of elements of a tensor; index of a non-finite gradient
TABLE = 2 * METADATA  # for two workers, if no gathered message carries it
BYTES = {  # for allreduce and, without the metadata, for allgather
    "dense": (4 * n + TABLE, 0),
    "float16": (2 * n + TABLE, 0),
    "bfloat16": (0, 2 * n + HEADER),
    "int8": (0, n + 4 + 2 * HEADER),
    "int4": (0, n / 2 + 4 * 4 + 2 * HEADER),  # 4 blocks
    "random_k": (4 * 10 + TABLE, 0),
    "leader_k": (4 * 10, 4 * 10 / 2 + HEADER),  # mean of the leader and of the other worker
    "blocks": (0, 4 + 4 * 256 + 2 * HEADER),
    "cocktail": (0, 48 / 8 + 10 / 2 + 4 + 3 * HEADER),
    "sign": (0, n / 8 + HEADER),
    "ef_sign": (0, n / 8 + 4 + 2 * HEADER),
    "signum": (0, n / 8 + HEADER),
    "one_bit": (0, n / 8 + 8 + 2 * HEADER),
    "qsgd": (0, n / 2 + 4 + 2 * HEADER),
    "terngrad": (0, n / 4 + 4 + 2 * HEADER),
    "natural": (0, n + n / 8 + 2 * HEADER),
    "powersgd": (4 * 2 * (rows + columns) + TABLE, 0),
    "eight_bit": (0, n + 4 + 2 * HEADER),
    "sketch": (0, n / 2 + 4 * 16 + 2 * HEADER),
    "adaptive_quantization": (0, 4 * 10 + 8 + 3 * HEADER),
    "gravac": (8, 8 * 96 + HEADER),  # a tenth of the elements at first
    "demo": (0, 8 * 2 * n / 64 + HEADER),
    "one_bit_adam": (4 * n + TABLE, 0),  # in its warm-up
    "diloco": (4 * n + TABLE, 0),
    "sparseloco": (0, (8 + 8 / 4) * 4 + 4 * 4 + 3 * HEADER),  # 8 elements of each of 4 chunks
}


@pytest.mark.parametrize("name", BYTES)
def test_payload_sizes_match_the_formulas(name):
    _, _, report = steps_of(at_each_step(name), steps=1)
    reduced, gathered = BYTES[name]
    assert (int(report.allreduce_bytes), int(report.allgather_bytes)) == (reduced, gathered + METADATA * (gathered > 0))


@pytest.mark.parametrize("make", [lab.masking, lab.top_k, lab.threshold_reuse, lab.sidco, lab.dgc])
def test_number_of_entries_matches_the_ratio(make):
    _, _, report = steps_of(make(0.05), steps=1, shape=tf.TensorShape([100, 100]))
    entries = (int(report.allgather_bytes) - METADATA - HEADER) / 8
    assert 0.03 * 10_000 < entries < 0.07 * 10_000


def test_qsgd_uses_the_fewest_bits_for_its_levels():
    sizes = [int(steps_of(lab.qsgd(levels), steps=1)[2].allgather_bytes) for levels in (1, 7, 127)]
    assert [size - METADATA - 2 * HEADER - 4 for size in sizes] == [n / 4, n / 2, n]


@pytest.mark.parametrize("make", [lab.top_k, lab.sidco, lab.leader_k, lab.blocks, lab.cocktail])
def test_changing_a_ratio_variable_does_not_retrace(make):
    ratio = tf.Variable(0.5)
    compressor = Compressor(make(ratio), [tf.Variable(tf.zeros([100, 100]))], OneWorker(), options=EVERY)
    step = tf.function(lambda: compressor([[gradient(shape=[100, 100])]])[1].allgather_bytes, autograph=False)
    many = int(step())
    ratio.assign(0.01)
    assert int(step()) < many / 10
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("make", [make for make in SCHEMES.values() if "ratio" in inspect.signature(make).parameters])
def test_a_ratio_variable_out_of_range_is_rejected(make):
    with pytest.raises(tf.errors.InvalidArgumentError, match="ratio must be in"):
        steps_of(make(tf.Variable(2.0)), steps=1)


@pytest.mark.parametrize(("size", "ratio"), [(7, 0.5), (1000, 0.3), (32_768, 0.1), (5, 1.0), (5, 0.0), (0, 0.5)])
def test_random_k_never_repeats_a_position(size, ratio):
    for seed in range(20):
        own, _ = contribution_of(lab.random_k(ratio), tf.ones([size]), seed)
        assert set(own.numpy()) <= {0.0, 1.0}
        assert np.count_nonzero(own) == round(ratio * size)


def test_random_k_covers_every_position_of_a_huge_tensor():
    """float32 cannot represent every integer above 2**24."""
    own, _ = contribution_of(lab.random_k(1.0), tf.ones([2**24 + 3]))
    assert float(tf.reduce_min(own)) == float(tf.reduce_max(own)) == 1


def test_a_gradient_whose_norm_overflows_is_named():
    """Half of the schemes divide by a norm, which would make the weights NaN."""
    compressor = Compressor(lab.qsgd(), [tf.Variable(tf.zeros([2]), name="steep")], OneWorker(), options=EVERY)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of .*steep.* on worker 0 .* or is too large"):
        compressor.train([[tf.constant([1e20, 1.0])]], 1e-20)


@pytest.mark.parametrize("name", lab.SCHEMES)
def test_empty_variables_do_not_prevent_training(name):
    weights = [tf.Variable(tf.zeros(shape)) for shape in ((5, 0), (0, 5), (4, 4))]
    compressor = Compressor(at_each_step(name), weights, SimulatedWorkers(2), options=EVERY)
    compressor.train([[tf.zeros([5, 0]), tf.zeros([0, 5]), tf.ones([4, 4])]] * 2, 0.1)
    assert np.any(weights[2])


def test_stochastic_rounding_leaves_integers_unchanged():
    """In float32, 127 + 0.99999997 is 128, which overflows to -128 in int8."""
    drawn = [lab.stochastic_round(tf.fill([4_000_000], 127.0), (0, seed)) for seed in range(20)]
    assert {float(each) for numbers in drawn for each in np.unique(numbers)} == {127.0}


def test_wrapper_momentum_is_part_of_the_scheme_name():
    assert with_momentum(lab.qsgd(1), 0.5).name == "qsgd:levels=1, momentum 0.5"


def test_per_tensor_schemes_check_every_tensor():
    weights = [tf.Variable(tf.zeros([4]), name=name) for name in ("a", "b")]
    compressor = Compressor(dataclasses.replace(lab.masking(0.5), per_tensor=True), weights, OneWorker(), options=EVERY)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of \W*b\W* on worker 0"):
        compressor([[tf.ones([4]), tf.fill([4], np.nan)]])


def test_with_momentum_around_dense_is_momentum_sgd():
    _, updates, _ = steps_of(with_momentum(lab.dense(), 0.5), steps=3)
    _, plain, _ = steps_of(lab.dense(), steps=3)
    np.testing.assert_allclose(updates[2], plain[2] + 0.5 * (plain[1] + 0.5 * plain[0]), rtol=1e-5)


@pytest.mark.nightly
def test_error_feedback_fixes_a_case_where_sign_sgd_fails():
    """See arXiv:1901.09847, section 3, Counterexample 1: signs ignore how large a rare gradient is."""
    weights = {}
    for name, scheme in {"without": lab.sign(), "with": lab.ef_sign()}.items():
        weight = tf.Variable([0.0])
        compressor = Compressor(scheme, [weight], OneWorker(), options=EVERY)
        for step in range(400):  # the mean gradient is 0.5 and points down, but three of four point up
            compressor.train([[tf.constant([5.0 if step % 4 == 0 else -1.0])]], 0.01)
        weights[name] = float(weight[0])
    assert weights["without"] > 1
    assert weights["with"] < -1


def test_reset_restores_the_initial_state(tmp_path):
    compressor, first, _ = steps_of(lab.powersgd())
    before = [variable.numpy() for variable in compressor.state]
    compressor.reset()
    assert any(np.any(old != new) for old, new in zip(before, compressor.state, strict=True))
    [again], _ = compressor([[gradient(worker, 0)] for worker in range(2)])
    np.testing.assert_allclose(again, first[0], atol=1e-5)


def test_a_non_finite_gradient_is_named_and_changes_nothing():
    weights = [tf.Variable(tf.zeros([4, 4]), name=name) for name in ("good", "bad")]
    compressor = Compressor(lab.top_k(0.5), weights, SimulatedWorkers(2), options=EVERY)
    compressor([[tf.ones([4, 4])] * 2] * 2)
    before = [variable.numpy() for variable in compressor.state]
    wrong = [[tf.ones([4, 4])] * 2, [tf.ones([4, 4]), tf.fill([4, 4], np.nan)]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of .*bad.* on worker 1 holds NaN or infinity"):
        tf.function(lambda: compressor.train(wrong, 0.1), autograph=False)()
    for old, new in zip(before, compressor.state, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["masking", "top_k", "threshold", "threshold_reuse", "sidco", "dgc", "gravac"])
def test_sparse_schemes_notice_non_finite_elements(name, value):
    weight = tf.Variable(tf.zeros(SHAPE))
    compressor = Compressor(SCHEMES[name](), [weight], OneWorker(), options=EVERY)
    step = tf.function(lambda x: compressor.train([[x]], 0.1), autograph=False)
    step(gradient())
    before = [variable.numpy() for variable in (weight, *compressor.state)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="worker 0 holds NaN or infinity"):
        step(tf.tensor_scatter_nd_update(gradient(step=1), [[3, 5]], [value]))
    for old, new in zip(before, (weight, *compressor.state), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("name", SCHEMES)
def test_residuals_and_velocities_are_none_with_a_scheme(name):
    weights = [tf.Variable(tf.zeros(shape)) for shape in (SHAPE, [3])]
    compressor = Compressor(SCHEMES[name](), weights, OneWorker(), options=DGCConfig(dense_below=0))
    assert compressor.residuals() == [None, None]
    compressed, uncompressed = compressor.velocities()
    assert compressed is None
    assert (uncompressed is None) == (compressor.velocity is None)


def test_row_gradients_and_missing_gradients_are_supported():
    rows, none = tf.Variable(tf.zeros([5, 2])), tf.Variable(tf.zeros([3]))
    compressor = Compressor(lab.top_k(1.0), [rows, none], OneWorker(), options=EVERY)
    given = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([3, 3]), tf.constant([5, 2]))
    [update, nothing], _ = compressor([[given, None]])
    assert nothing is None
    np.testing.assert_array_equal(update, [[0, 0], [0, 0], [0, 0], [4, 6], [0, 0]])


def yields(question):
    def step(gradient, state, context):
        yield question
        return gradient, gradient, state

    return Scheme(step, name="mine")


def returns(result):
    def step(gradient, state, context):
        yield AllReduceMean(gradient)
        return result

    return Scheme(step, name="mine")


def silent(gradient, state, context):
    if False:
        yield
    return gradient, gradient, state


@pytest.mark.parametrize(
    ("scheme", "message"),
    [
        (
            yields(3),
            r"mine, for the compressed tensors, must yield AllReduceMean\(tensor\), .*, got 3",
        ),
        (yields(None), r"\(\(tensor, ...\)\), got None"),
        (yields(AllGather(())), r"must yield AllGather of a tuple of tensors, got AllGather\(\(\)\)"),
        (yields(AllGather(tf.zeros([2]))), "must yield AllGather of a tuple of tensors"),
        (yields(AllReduceMean("text")), "must yield AllReduceMean of floating-point numbers, got string"),
        (yields(AllReduceMean(tf.constant([1]))), "must yield AllReduceMean of floating-point numbers, got int32"),
        (
            yields(AllReduceMean(tf.zeros([2], tf.bfloat16))),
            "not yield AllReduceMean of bfloat16, which Horovod cannot add. AllGather",
        ),
        (yields(AllGather((tf.constant([True]),))), "must yield AllGather of numbers, got bool"),
        (yields(AllReduceMean(object())), "must yield tensors"),
        (
            yields(SparseMean([0.5], [1.0], 2)),
            "must yield SparseMean of int32 indices and .* got float32",
        ),
        (yields(SparseMean([[0]], [1.0], 2)), r"one dimension each, got int32 \(1, 1\) and float32 \(1,\)"),
        (yields(SparseMean([0, 1], [1.0], 2)), r"SparseMean with an index per value, got \(2,\) and \(1,\)"),
        (yields(SparseMean([0], [1.0], 2, 1.5)), r"SparseMean with a ratio in \[0, 1\], a .* or None, got 1.5"),
        (yields(SparseMean([0], [1.0], 2, tf.constant([0.5]))), r"a floating-point scalar tensor or None, got <tf"),
        (yields(SparseMean([0], [1.0], 2.0)), r"SparseMean with a size from 0 to 2\*\*31 - 1, got 2.0"),
        (yields(SparseMean([0], [1.0], 2**31)), r"SparseMean with a size from 0 to 2\*\*31 - 1, got 2147483648"),
        (returns(None), r"must return \(update, own, state\), got None"),
        (returns((tf.zeros([3]), tf.zeros([2]), ())), r"must return as update a float32 tensor of shape \(2,\)"),
        (returns((tf.zeros([2]), 3, ())), "must return as own a float32 tensor"),
        (
            returns((tf.zeros([2]), tf.zeros([2]), tf.zeros([2]))),
            "must return a state with the structure",
        ),
        (with_error_feedback(returns(None)), r"the scheme mine must return \(update, own, state\), got None"),
        (with_momentum(returns(None)), r"the scheme mine must return \(update, own, state\), got None"),
        (
            with_error_feedback(returns((tf.zeros([2]), tf.zeros([3]), ()))),
            r"the scheme mine must return as own a float32 tensor of shape \(2,\)",
        ),
        (
            with_momentum(returns((tf.zeros([3]), None, ()))),
            r"the scheme mine must return as update a float32 tensor of shape \(2,\)",
        ),
        (with_error_feedback(returns((tf.zeros([2]), None, ()))), "the scheme mine must return its own contribution"),
        (
            dataclasses.replace(returns((tf.zeros([2]), None, tf.zeros([3]))), init=tf.zeros_like),
            r"mine, .* must return a state with the tensors that init makes, float32 of shape \(2,\), got",
        ),
        (
            dataclasses.replace(returns((tf.zeros([2]), None, tf.zeros([2], tf.int32))), init=tf.zeros_like),
            r"mine, .* must return a state with the tensors that init makes, float32 of shape \(2,\), got",
        ),
        (Scheme(silent, name="mine"), "must yield a question at least once"),
        (Scheme(lambda gradient, state, context: gradient, name="mine"), "must have a step with a yield in it"),
    ],
)
def test_errors_explain_invalid_schemes(scheme, message):
    compressor = Compressor(scheme, [tf.Variable([0.0, 0.0], name="weight")], OneWorker(), options=EVERY)
    with pytest.raises(ValueError, match=message):
        compressor([[tf.constant([1.0, 2.0])]])


def test_gathering_an_unknown_shape_suggests_set_shape():
    def step(gradient, state, context):
        yield AllGather((tf.numpy_function(lambda one: one, [gradient], tf.float32),))

    compressor = Compressor(Scheme(step, name="mine"), [tf.Variable([0.0])], OneWorker(), options=EVERY)
    with pytest.raises(ValueError, match=r"mine, for .* except for the first dimension, got <unknown>: use set_shape"):
        tf.function(compressor, autograph=False)([[tf.constant([1.0])]])


def asked_in_a_branch(gradient):
    def ask():
        return (yield AllReduceMean(gradient))

    return tf.cond(tf.reduce_sum(gradient) > 0, ask, lambda: gradient)


def only_in_a_branch(gradient, state, context):
    return asked_in_a_branch(gradient), gradient, state


def also_in_a_branch(gradient, state, context):
    yield AllReduceMean(asked_in_a_branch(gradient) + gradient)
    return gradient, gradient, state


@pytest.mark.parametrize("step", [only_in_a_branch, also_in_a_branch])
def test_a_yield_in_a_branch_is_explained(step):
    compressor = Compressor(Scheme(step, name="mine"), [tf.Variable([0.0])], OneWorker(), options=EVERY)
    in_graph = tf.function(lambda gradient: compressor([[gradient]]), autograph=False)
    with pytest.raises(ValueError, match=r"mine, .* must not yield in a function that tf\.cond .*: yield in the step"):
        in_graph(tf.constant([1.0]))
    with pytest.raises(ValueError, match=r"mine, .* must (not yield in a function|have a step with a yield in it)"):
        compressor([[tf.constant([1.0])]])


def test_workers_must_yield_the_same_requests():
    rounds = itertools.count()

    def step(gradient, state, context):
        yield AllReduceMean(gradient) if next(rounds) == 0 else AllGather((gradient,))
        return gradient, gradient, state

    compressor = Compressor(Scheme(step, name="mine"), [tf.Variable([0.0])], SimulatedWorkers(2), options=EVERY)
    with pytest.raises(ValueError, match=r"mine must ask the same .*AllReduceMean of float32.*AllGather of float32"):
        compressor([[tf.constant([1.0])]] * 2)


def test_nested_wrappers_keep_the_state_structure():
    scheme = with_error_feedback(with_momentum(lab.powersgd(rank=1)))
    compressor, updates, _ = steps_of(scheme)
    assert len(compressor.states[0][0]) == 2
    assert np.all(np.isfinite(updates))


def lines_of_code(function):
    """Count lines of code, without docstrings, comments and blank lines."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return len(ast.unparse(tree).replace("\n\n", "\n").splitlines())


def test_schemes_are_short_enough_to_read():
    lengths = {name: lines_of_code(make) for name, make in SCHEMES.items()}
    assert max(lengths.values()) <= 20, lengths
    assert lines_of_code(scheme_module) + lines_of_code(driver) <= 200


def test_a_dominant_element_keeps_its_sign():
    """127 * x / x can slightly exceed 127; rounding it up would overflow int8 and flip the sign."""
    drawn = np.random.default_rng(0).uniform(1, 2, 1000).astype(np.float32)
    gradient = tf.constant([-drawn[drawn * np.float32(127) / drawn > 127][0], 0.0])
    step = lab.qsgd(levels=127).step(gradient, (), StepContext((2,), tf.constant([0, 0]), tf.constant([46787, 1]), 1))
    question = next(step)
    with pytest.raises(StopIteration) as ended:
        step.send([question.tensors])
    update, own, _ = ended.value.value
    np.testing.assert_array_equal(update, own)
    assert float(update[0]) < 0


def test_with_momentum_rejects_values_out_of_range():
    for momentum in (1.5, -1.0):
        with pytest.raises(ValueError, match=f"momentum must be at least 0 and below 1, got {momentum}"):
            with_momentum(lab.dense(), momentum)


def test_with_momentum_rejects_schemes_with_momentum():
    with pytest.raises(ValueError, match=r"scheme must have no momentum, .* twice, got the scheme dgc:ratio=0.01,"):
        with_momentum(lab.dgc())
