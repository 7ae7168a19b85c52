"""What single schemes promise: a dense start, scales for blocks, thresholds, and positions that workers share."""

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab import compression as lab
from dgc_lab.compression import Compressor, DGCConfig, after, sent_alone, with_momentum
from dgc_lab.compression.schemes.by_threshold import fitted_threshold
from dgc_lab.distributed import SimulatedWorkers

EVERY = DGCConfig(dense_below=0, dense_vectors=False)
SIZE = 2000
DENSE_BYTES = 4 * SIZE + 2 * 4  # with the metadata of two workers


def gradient(step=0, worker=0, size=SIZE):
    return tf.random.stateless_normal([size], (step, worker)) ** 3


def updates_of(scheme, steps, workers=2):
    """Return the updates of some steps, their payloads, and the compressor."""
    updates, sent = [], []
    compressor = Compressor(scheme, [tf.Variable(tf.zeros([SIZE]))], SimulatedWorkers(workers), options=EVERY)
    step = tf.function(lambda gradients: compressor(gradients), autograph=False)
    for number in steps:
        [update], report = step([[gradient(number, worker)] for worker in range(workers)])
        updates.append(update.numpy())
        sent.append((int(report.allreduce_bytes), int(report.allgather_bytes)))
    assert step.experimental_get_tracing_count() == 1
    return np.array(updates), sent, compressor


def dense_updates(steps):
    return updates_of(lab.dense(), steps)[0]


@pytest.mark.parametrize("make", [lab.top_k, lab.leader_k, lab.threshold_reuse], ids=lambda make: make.__name__)
def test_a_dense_start_is_dense_and_then_the_scheme(make):
    updates, sent, _ = updates_of(after(make(0.01), 3), range(6))
    np.testing.assert_array_equal(updates[:3], dense_updates(range(3)))
    assert sent[:3] == [(DENSE_BYTES, 0)] * 3
    expected, bytes_expected, _ = updates_of(make(0.01), range(3, 6))
    np.testing.assert_array_equal(updates[3:], expected)
    assert sent[3:] == bytes_expected


def test_a_dense_start_leaves_the_state_unchanged():
    _, _, compressor = updates_of(after(lab.top_k(0.01), 3), range(3))
    assert not any(np.any(part) for part in tf.nest.flatten(compressor.states))


def test_momentum_around_a_dense_start_includes_it():
    updates, _, _ = updates_of(with_momentum(after(lab.top_k(0.01), 3), 0.5), range(3))
    expected, _, _ = updates_of(with_momentum(lab.dense(), 0.5), range(3))
    np.testing.assert_array_equal(updates, expected)


def test_a_dense_start_of_schemes_for_single_tensors():
    updates, sent, _ = updates_of(after(lab.int8(), 1), range(2))
    np.testing.assert_array_equal(updates[0], dense_updates([0])[0])
    assert sent[0] == (DENSE_BYTES, 0)
    assert sent[1][1] == pytest.approx(SIZE, rel=0.01)


def test_a_dense_start_needs_a_scheme_without_momentum():
    with pytest.raises(ValueError, match=r"scheme must have no momentum, which the dense steps would skip, .* dgc:"):
        after(lab.dgc(), 3)
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, got 0"):
        after(lab.top_k(), 0)


@pytest.mark.parametrize("make", [lab.int8, lab.int4], ids=lambda make: make.__name__)
def test_scales_of_blocks_bound_each_blocks_error(make):
    x = tf.concat([gradient(size=100), 1e-3 * gradient(1, size=100), gradient(2, size=31)], 0)
    apart = np.abs(sent_alone(make(block=100), x) - x)
    largest = 127 if make is lab.int8 else 7
    for start in (0, 100, 200):
        scale = np.abs(x[start : start + 100]).max() / largest
        assert 0.2 * scale < apart[start : start + 100].max() <= 0.5001 * scale
    assert np.abs(sent_alone(make(block=231), x) - x)[100:200].max() > 10 * apart[100:200].max()


def test_one_block_is_one_scale():
    np.testing.assert_array_equal(sent_alone(lab.int8(block=SIZE), gradient()), sent_alone(lab.int8(), gradient()))
    assert lab.int8().name == "int8"


@pytest.mark.parametrize(
    "name", ["int8", "int4", "ef_sign", "one_bit", "qsgd", "terngrad", "eight_bit", "sketch", "adaptive_quantization"]
)
def test_each_tensor_has_its_own_scale(name):
    def update_beside(factor):
        variables = [tf.Variable(tf.zeros([50, 40])) for _ in range(2)]
        compressor = Compressor(lab.SCHEMES[name](), variables, SimulatedWorkers(1), options=EVERY)
        small = tf.reshape(gradient(), [50, 40])
        for _ in range(3):
            (update, _), _ = compressor([[small, factor * small]])
        return update

    np.testing.assert_array_equal(update_beside(1e6), update_beside(1.0))


@pytest.mark.parametrize("make", [lab.int8, lab.int4, lambda value: lab.blocks(0.1, size=value)])
def test_blocks_must_have_elements(make):
    with pytest.raises(ValueError, match=r"(block|size) must be a whole number from 1 to .*, got 0"):
        make(0)


def test_blocks_with_the_largest_norms_are_sent():
    x = gradient().numpy()
    norms = [np.linalg.norm(x[start : start + 300]) for start in range(0, SIZE, 300)]
    expected = np.zeros_like(x)
    for block in np.argsort(norms)[-3:]:
        expected[300 * block : 300 * (block + 1)] = x[300 * block : 300 * (block + 1)]
    np.testing.assert_array_equal(sent_alone(lab.blocks(3 / 7, size=300), x), expected)


def test_a_reused_threshold_stays_for_its_period():
    growing = [tf.fill([SIZE], 2.0**step) * (1 + tf.range(float(SIZE)) / SIZE) for step in range(8)]
    compressor = Compressor(
        lab.threshold_reuse(0.25, period=4), [tf.Variable(tf.zeros([SIZE]))], SimulatedWorkers(1), options=EVERY
    )
    sent = [int(np.count_nonzero(compressor([[x]])[0][0])) for x in growing]
    assert [number == SIZE // 4 for number in sent] == [True, False, False, False, True, False, False, False]
    assert min(sent[1:4]) > SIZE // 2, "elements grow, the threshold does not"


def test_sidco_is_exact_for_exponential_magnitudes():
    magnitudes = -tf.math.log(tf.random.stateless_uniform([1_000_000], (0, 0), minval=1e-7))
    for ratio in (0.5, 0.1, 0.01, 0.001):
        for stages in (1, 2, 3):
            limit = fitted_threshold(magnitudes, tf.constant(ratio), stages)
            assert float(tf.reduce_mean(tf.cast(magnitudes >= limit, tf.float32))) == pytest.approx(ratio, rel=0.1)


def test_sidco_needs_several_stages_for_heavy_tails():
    share, magnitudes = {}, tf.abs(gradient(size=1_000_000))
    for stages in (1, 2, 3):
        limit = fitted_threshold(magnitudes, tf.constant(0.001), stages)
        share[stages] = float(tf.reduce_mean(tf.cast(magnitudes >= limit, tf.float32)))
    assert share[1] > 5 * 0.001, "one exponential underestimates the tail"
    assert abs(share[3] - 0.001) < abs(share[2] - 0.001) < abs(share[1] - 0.001)
    assert share[3] < 2 * 0.001


def test_sidco_sends_something_of_each_tensor_but_no_zeros():
    context = lab.StepContext((50, 50, 50), tf.constant([0, 0]), tf.constant([0, 0]), workers=1)
    x = tf.concat([tf.fill([50], 3.0), tf.zeros([50]), tf.range(50.0)], 0)
    step = lab.sidco(0.1).step(x, (tf.zeros([150]), ()), context)
    indices = next(step).indices.numpy()
    assert set(range(50)) <= set(indices), "equal magnitudes lie below the fitted threshold"
    assert not set(range(50, 100)) & set(indices)
    assert 149 in indices


def test_workers_lead_in_turns():
    """Each worker's largest elements are in a part of its own."""
    parts = [tf.one_hot([worker], 4, on_value=100.0, off_value=1.0)[0] for worker in range(4)]
    given = [[tf.repeat(part, SIZE // 4) * (1 + tf.range(float(SIZE)) / SIZE)] for part in parts]
    compressor = Compressor(lab.leader_k(0.01), [tf.Variable(tf.zeros([SIZE]))], SimulatedWorkers(4), options=EVERY)
    for leader in (0, 1, 2, 3, 0):
        [update], _ = compressor(given)
        assert set(np.flatnonzero(update) // (SIZE // 4)) == {leader}


@pytest.mark.parametrize(("make", "grows"), [(lab.leader_k, False), (lab.random_k, False), (lab.top_k, True)])
def test_shared_positions_do_not_build_up_with_workers(make, grows):
    few, many = (np.count_nonzero(updates_of(make(0.01), [0], workers)[0]) for workers in (1, 8))
    assert few == 20
    assert (many > 4 * few) if grows else (many == few)


def test_cocktail_sends_the_largest_of_the_drawn_in_4_bits():
    x = gradient()
    own = sent_alone(lab.cocktail(0.02), x).numpy()
    drawn = np.flatnonzero(sent_alone(lab.random_k(0.1), tf.ones([SIZE])))
    largest = drawn[np.argsort(np.abs(x.numpy()[drawn]))[-40:]]
    assert set(np.flatnonzero(own)) <= set(largest)
    scale = np.abs(x.numpy()[largest]).max() / 7
    np.testing.assert_allclose(own[largest] / scale, np.round(x.numpy()[largest] / scale), atol=1e-5)


@pytest.mark.parametrize("make", [lab.threshold_reuse, lab.sidco, lab.leader_k, lab.blocks, lab.cocktail])
def test_a_ratio_of_zero_sends_nothing(make):
    updates, _, _ = updates_of(make(0.0), range(2))
    assert not np.any(updates)
