"""Compression schemes on one process's workers: what each must hold to, its bytes, and what a wrong one is told."""

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
MEMORIES = ("top_k", "random_k", "threshold", "ef_sign", "one_bit", "powersgd", "dgc")


def gradient(worker=0, step=0, shape=SHAPE):
    return tf.random.stateless_normal(shape, (worker, step)) ** 3  # a few large ones, many small ones


def steps_of(scheme, workers=2, steps=5, options=EVERY, shape=SHAPE):
    """A compressor that has made some steps, the updates of each, and its last report."""
    compressor = Compressor(scheme, [tf.Variable(tf.zeros(shape))], SimulatedWorkers(workers), options=options)
    step = tf.function(lambda gradients: compressor(gradients), autograph=False)
    updates = []
    for number in range(steps):
        [update], report = step([[gradient(worker, number, shape)] for worker in range(workers)])
        updates.append(update.numpy())
    return compressor, updates, report


def own_of(scheme, x, seed=0, state=None):
    """What of x is in what one worker sends, and the state that it leaves."""
    given = as_given(scheme, x)
    state = scheme.init(tf.zeros_like(given)) if state is None else state
    context = StepContext((given.shape.num_elements(),), tf.stack([seed, 0]), tf.stack([seed, 1]), 1)
    [[(_, own, state)]], _ = run_schemes([[scheme.step(given, state, context)]], OneWorker())
    return tf.reshape(tf.convert_to_tensor(own), x.shape), state


def as_given(scheme, x):
    """A gradient as the compressor gives it to a scheme."""
    return x if scheme.per_tensor else tf.reshape(x, [-1])


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_trains_and_is_traced_once(name):
    target = gradient()
    weight = tf.Variable(tf.zeros(SHAPE))
    compressor = Compressor(SCHEMES[name](), [weight], SimulatedWorkers(2), options=EVERY)
    traces = []

    @tf.function(autograph=False)
    def step(rate):
        traces.append(1)
        compressor.train([[weight - target], [weight - target]], rate)

    for number in range(200):
        step(tf.constant(0.02 * (1 - number / 200)))
    assert float(tf.norm(weight - target)) < 0.9 * float(tf.norm(target))
    assert len(traces) == 1


@pytest.mark.parametrize("name", [name for name in SCHEMES if name not in ("sign", "signum")])
def test_the_update_is_the_mean_of_what_the_workers_sent(name):
    scheme = SCHEMES[name]()
    contexts = [StepContext((960,), tf.constant([0, 0]), tf.constant([0, 7 + worker]), 3) for worker in range(3)]
    given = [as_given(scheme, gradient(worker)) for worker in range(3)]
    started = [[scheme.step(given[w], scheme.init(given[w] * 0), contexts[w])] for w in range(3)]
    results, _ = run_schemes(started, SimulatedWorkers(3))
    updates, owns, _ = zip(*(own for [own] in results), strict=True)
    updates, owns = list(map(tf.convert_to_tensor, updates)), list(map(tf.convert_to_tensor, owns))
    for update in updates:
        np.testing.assert_array_equal(update, updates[0])
    if name != "powersgd":  # its own is the update: the factors are of all
        np.testing.assert_allclose(
            updates[0],
            np.mean(owns, 0),
            rtol=1e-2 if name == "float16" else 1e-5,
            atol=1e-5,
        )


@pytest.mark.parametrize("name", MEMORIES[:-1])
def test_error_feedback_keeps_what_was_not_sent(name):
    scheme = SCHEMES[name]()
    state, came, sent = scheme.init(as_given(scheme, tf.zeros(SHAPE))), tf.zeros(SHAPE), tf.zeros(SHAPE)
    for step in range(5):
        own, state = own_of(scheme, gradient(step=step), step, state)
        came, sent = came + gradient(step=step), sent + own
    memory = tf.reshape(state[1] if name == "powersgd" else state[0], SHAPE)
    np.testing.assert_allclose(sent + memory, came, atol=1e-4)
    assert float(tf.norm(memory)) > 0


@pytest.mark.parametrize("name", ["qsgd", "terngrad", "natural"])
def test_rounding_by_chance_is_right_in_the_mean(name):
    scheme, x = SCHEMES[name](), gradient()
    draw = tf.function(lambda seed: own_of(scheme, x, seed)[0], autograph=False)
    draws, x = np.stack([draw(tf.constant(seed)) for seed in range(2000)]), x.numpy()
    error = draws.std(0) / math.sqrt(len(draws))  # of each element's mean
    apart = draws.mean(0) - x
    assert np.abs(apart).max() < 5 * error.max()
    assert abs(apart.sum()) < 5 * np.sqrt((error**2).sum())
    assert 0.8 < np.sqrt((apart**2).sum() / (error**2).sum()) < 1.2, "as far off as chance makes it, no farther"


@pytest.mark.parametrize("name", ["sign", "masking"])
def test_these_are_not(name):
    x = gradient()
    draws = np.mean([own_of(SCHEMES[name](), x, seed)[0] for seed in range(20)], 0)
    assert np.abs(draws - x).mean() > 0.1 * np.abs(x).mean()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("config", [EVERY, DGCConfig()], ids=["all compressed", "small ones whole"])
def test_dgc_as_a_scheme_is_the_compressor_to_the_bit(config, momentum):
    shapes = [(130, 90), (40,), (3, 3, 1, 8), (120, 100)]  # two large enough for a sample
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
    [lab.powersgd(rank=40), lab.top_k(1.0), lab.random_k(1.0), lab.masking(1.0), lab.threshold(0.0), lab.dgc(1.0, 0.0)],
    ids=lambda scheme: scheme.name,
)
def test_where_nothing_is_left_out_it_is_dense(scheme):
    _, updates, _ = steps_of(scheme)
    _, whole, _ = steps_of(lab.dense())
    np.testing.assert_allclose(updates, whole, atol=2e-5)


n, rows, columns = 960, 24, 40
HEADER, METADATA = 4, 4  # the count of a tensor's elements; the number of a gradient that is not finite
TABLE = 2 * METADATA  # of two workers, where nothing is gathered that it could join
BYTES = {  # to allreduce and, beside the metadata, to allgather
    "dense": (4 * n + TABLE, 0),
    "float16": (2 * n + TABLE, 0),
    "bfloat16": (0, 2 * n + HEADER),
    "int8": (0, n + 4 + 2 * HEADER),
    "random_k": (4 * 10 + TABLE, 0),
    "sign": (0, n / 8 + HEADER),
    "ef_sign": (0, n / 8 + 4 + 2 * HEADER),
    "signum": (0, n / 8 + HEADER),
    "one_bit": (0, n / 8 + 8 + 2 * HEADER),
    "qsgd": (0, n / 2 + 4 + 2 * HEADER),
    "terngrad": (0, n / 4 + 4 + 2 * HEADER),
    "natural": (0, n + n / 8 + 2 * HEADER),
    "powersgd": (4 * 2 * (rows + columns) + TABLE, 0),
}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_are_those_of_the_formula(name):
    _, _, report = steps_of(SCHEMES[name](), steps=1)
    reduced, gathered = BYTES[name]
    assert (int(report.allreduce_bytes), int(report.allgather_bytes)) == (reduced, gathered + METADATA * (gathered > 0))


@pytest.mark.parametrize("scheme", [lab.masking(0.05), lab.top_k(0.05), lab.dgc(0.05)], ids=lambda scheme: scheme.name)
def test_bytes_of_entries_are_as_many_as_the_ratio_says(scheme):
    _, _, report = steps_of(scheme, steps=1, shape=tf.TensorShape([100, 100]))
    entries = (int(report.allgather_bytes) - METADATA - HEADER) / 8
    assert 0.03 * 10_000 < entries < 0.07 * 10_000


def test_qsgd_packs_into_as_few_bits_as_its_levels_need():
    sizes = [int(steps_of(lab.qsgd(levels), steps=1)[2].allgather_bytes) for levels in (1, 7, 127)]
    assert [size - METADATA - 2 * HEADER - 4 for size in sizes] == [n / 4, n / 2, n]


def test_a_ratio_in_a_variable_changes_without_a_new_trace():
    ratio = tf.Variable(0.5)
    compressor = Compressor(lab.top_k(ratio), [tf.Variable(tf.zeros([100, 100]))], OneWorker(), options=EVERY)
    step = tf.function(lambda: compressor([[gradient(shape=[100, 100])]])[1].allgather_bytes, autograph=False)
    many = int(step())
    ratio.assign(0.01)
    assert int(step()) < many / 10
    assert step.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("make", [lab.masking, lab.top_k, lab.random_k, lab.dgc])
def test_a_ratio_in_a_variable_is_a_share_too(make):
    with pytest.raises(tf.errors.InvalidArgumentError, match="ratio must be in"):
        steps_of(make(tf.Variable(2.0)), steps=1)


@pytest.mark.parametrize(("size", "ratio"), [(7, 0.5), (1000, 0.3), (32_768, 0.1), (5, 1.0), (5, 0.0), (0, 0.5)])
def test_random_places_are_no_place_twice(size, ratio):
    for seed in range(20):
        own, _ = own_of(lab.random_k(ratio), tf.ones([size]), seed)
        assert set(own.numpy()) <= {0.0, 1.0}
        assert np.count_nonzero(own) == round(ratio * size)


def test_random_places_are_no_place_twice_among_millions():
    """In float32 there are gaps between whole numbers from 2**24 on."""
    own, _ = own_of(lab.random_k(1.0), tf.ones([2**24 + 3]))
    assert float(tf.reduce_min(own)) == float(tf.reduce_max(own)) == 1


def test_a_gradient_whose_norm_overflows_is_named():
    """Half of the schemes divide by a norm; the weights were NaN."""
    compressor = Compressor(lab.qsgd(), [tf.Variable(tf.zeros([2]), name="steep")], OneWorker(), options=EVERY)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of .*steep.* on worker 0 .* or is too large"):
        compressor.train([[tf.constant([1e20, 1.0])]], 1e-20)


@pytest.mark.parametrize("name", lab.SCHEMES)
def test_a_variable_without_elements_is_trained_beside_others(name):
    weights = [tf.Variable(tf.zeros(shape)) for shape in ((5, 0), (0, 5), (4, 4))]
    compressor = Compressor(lab.SCHEMES[name](), weights, SimulatedWorkers(2), options=EVERY)
    compressor.train([[tf.zeros([5, 0]), tf.zeros([0, 5]), tf.ones([4, 4])]] * 2, 0.1)
    assert np.any(weights[2])


def test_a_number_that_is_whole_is_rounded_to_itself_whatever_is_drawn():
    """127 + 0.99999997 is 128 in float32, which is -128 in int8."""
    drawn = [lab.stochastic_round(tf.fill([4_000_000], 127.0), (0, seed)) for seed in range(20)]
    assert {float(each) for numbers in drawn for each in np.unique(numbers)} == {127.0}


def test_momentum_is_in_the_name_by_which_rows_are_told_apart():
    assert with_momentum(lab.qsgd(1), 0.5).name == "qsgd:levels=1, momentum 0.5"


def test_every_tensor_of_a_scheme_per_tensor_is_checked():
    weights = [tf.Variable(tf.zeros([4]), name=name) for name in ("a", "b")]
    compressor = Compressor(lab.masking(0.5)._replace(per_tensor=True), weights, OneWorker(), options=EVERY)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of \W*b\W* on worker 0"):
        compressor([[tf.ones([4]), tf.fill([4], np.nan)]])


def test_momentum_around_a_scheme_is_momentum_sgd():
    _, updates, _ = steps_of(with_momentum(lab.dense(), 0.5), steps=3)
    _, plain, _ = steps_of(lab.dense(), steps=3)
    np.testing.assert_allclose(updates[2], plain[2] + 0.5 * (plain[1] + 0.5 * plain[0]), rtol=1e-5)


@pytest.mark.nightly
def test_error_feedback_lets_signs_learn_where_they_fail_alone():
    """As in arXiv:1901.09847, section 3 (Counterexample 1): signs forget what a rare gradient weighs."""
    weights = {}
    for name, scheme in {"without": lab.sign(), "with": lab.ef_sign()}.items():
        weight = tf.Variable([0.0])
        compressor = Compressor(scheme, [weight], OneWorker(), options=EVERY)
        for step in range(400):  # the mean gradient is 0.5 and points down, but three of four point up
            compressor.train([[tf.constant([5.0 if step % 4 == 0 else -1.0])]], 0.01)
        weights[name] = float(weight[0])
    assert weights["without"] > 1
    assert weights["with"] < -1


def test_state_goes_back_to_the_first(tmp_path):
    compressor, first, _ = steps_of(lab.powersgd())
    before = [variable.numpy() for variable in compressor.state]
    compressor.reset()
    assert any(np.any(old != new) for old, new in zip(before, compressor.state, strict=True))
    [again], _ = compressor([[gradient(worker, 0)] for worker in range(2)])
    np.testing.assert_allclose(again, first[0], atol=1e-5)


def test_a_bad_gradient_is_named_and_changes_nothing():
    weights = [tf.Variable(tf.zeros([4, 4]), name=name) for name in ("good", "bad")]
    compressor = Compressor(lab.top_k(0.5), weights, SimulatedWorkers(2), options=EVERY)
    compressor([[tf.ones([4, 4])] * 2] * 2)
    before = [variable.numpy() for variable in compressor.state]
    wrong = [[tf.ones([4, 4])] * 2, [tf.ones([4, 4]), tf.fill([4, 4], np.nan)]]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of .*bad.* on worker 1 holds NaN or infinity"):
        tf.function(lambda: compressor.train(wrong, 0.1), autograph=False)()
    for old, new in zip(before, compressor.state, strict=True):
        np.testing.assert_array_equal(old, new)


def test_gradients_of_rows_and_none():
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
        (yields(SparseMean([0], [1.0], 2.0)), r"SparseMean with a size from 0 to 2\*\*31 - 1, got 2.0"),
        (returns(None), r"must return \(update, own, state\), got None"),
        (returns((tf.zeros([3]), tf.zeros([2]), ())), r"must return as update a float32 tensor of shape \(2,\)"),
        (returns((tf.zeros([2]), 3, ())), "must return as own a float32 tensor"),
        (
            returns((tf.zeros([2]), tf.zeros([2]), tf.zeros([2]))),
            "must return a state with the structure",
        ),
        (Scheme(silent, name="mine"), "must yield a question at least once"),
        (Scheme(lambda gradient, state, context: gradient, name="mine"), "must have a step with a yield in it"),
    ],
)
def test_a_wrong_scheme_is_told_what_is_wrong(scheme, message):
    compressor = Compressor(scheme, [tf.Variable([0.0, 0.0], name="weight")], OneWorker(), options=EVERY)
    with pytest.raises(ValueError, match=message):
        compressor([[tf.constant([1.0, 2.0])]])


def test_gather_of_unknown_shape_names_set_shape():
    def step(gradient, state, context):
        yield AllGather((tf.numpy_function(lambda one: one, [gradient], tf.float32),))

    compressor = Compressor(Scheme(step, name="mine"), [tf.Variable([0.0])], OneWorker(), options=EVERY)
    with pytest.raises(ValueError, match=r"mine, for .* except for the first dimension, got <unknown>: use set_shape"):
        tf.function(compressor, autograph=False)([[tf.constant([1.0])]])


def test_workers_that_ask_different_things_are_told():
    rounds = itertools.count()

    def step(gradient, state, context):
        yield AllReduceMean(gradient) if next(rounds) == 0 else AllGather((gradient,))
        return gradient, gradient, state

    compressor = Compressor(Scheme(step, name="mine"), [tf.Variable([0.0])], SimulatedWorkers(2), options=EVERY)
    with pytest.raises(ValueError, match=r"mine must ask the same .*AllReduceMean of float32.*AllGather of float32"):
        compressor([[tf.constant([1.0])]] * 2)


def test_memory_and_state_of_wrappers_have_the_structure_of_what_they_wrap():
    scheme = with_error_feedback(with_momentum(lab.powersgd(rank=1)))
    compressor, updates, _ = steps_of(scheme)
    assert len(compressor.states[0][0]) == 2
    assert np.all(np.isfinite(updates))


def lines_of_code(function):
    """How many lines of a function or module are code: no docstring, no comment, no blank line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return len(ast.unparse(tree).replace("\n\n", "\n").splitlines())


def test_a_scheme_is_short_enough_to_be_read():
    lengths = {name: lines_of_code(make) for name, make in SCHEMES.items()}
    assert max(lengths.values()) <= 20, lengths
    assert lines_of_code(scheme_module) + lines_of_code(driver) <= 200


def test_a_dominant_element_keeps_its_sign():
    """127 x / x can be a little more than 127; rounded up, which is rare, a byte took it for the other sign."""
    drawn = np.random.default_rng(0).uniform(1, 2, 1000).astype(np.float32)
    gradient = tf.constant([-drawn[drawn * np.float32(127) / drawn > 127][0], 0.0])
    step = lab.qsgd(levels=127).step(gradient, (), StepContext((2,), tf.constant([0, 0]), tf.constant([46787, 1]), 1))
    question = next(step)
    with pytest.raises(StopIteration) as ended:
        step.send([question.tensors])
    update, own, _ = ended.value.value
    np.testing.assert_array_equal(update, own)
    assert float(update[0]) < 0


def test_momentum_around_a_scheme_is_below_one():
    for momentum in (1.5, -1.0):
        with pytest.raises(ValueError, match=f"momentum must be at least 0 and below 1, got {momentum}"):
            with_momentum(lab.dense(), momentum)


def test_momentum_around_a_scheme_that_has_it_is_refused():
    with pytest.raises(ValueError, match=r"scheme must have no momentum, .* twice, got the scheme dgc:ratio=0.01,"):
        with_momentum(lab.dgc())
