"""Deep Gradient Compression: hand-computed examples, and its invariants on simulated workers."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from dgc_lab.compression import clip_locally, momentum_step
from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import MASKING, PAPER_WARM_UP, DGCConfig, geometric_warm_up, payload_bytes
from dgc_lab.compression.scheme import StepContext
from dgc_lab.compression.selection import Rule, accumulate_and_select
from dgc_lab.compression.thresholding import exact_threshold
from dgc_lab.compression.wire_format import Layout, Message, pack
from dgc_lab.distributed import OneWorker, SimulatedWorkers

SHAPES = [(40, 50), (50,), (3, 30)]
EXACT = DGCConfig(ratio=0.01, rule="exact", dense_below=0)
FORMATS = list(itertools.product(("float32", "float16"), ("int32", "run_lengths")))


def weights():
    return [tf.Variable(tf.random.stateless_normal(shape, (7, i))) for i, shape in enumerate(SHAPES)]


def gradients(step, worker=0):
    return [tf.random.stateless_normal(shape, (step, 10 * worker + i)) for i, shape in enumerate(SHAPES)]


def train(config, workers=1, steps=6, learning_rate=0.1, same_data=False, **switches):
    """Return weights and compressor after some steps of plain SGD on the compressed updates."""
    config = dataclasses.replace(config, **switches)
    variables = weights()
    compressor = Compressor(config, variables, SimulatedWorkers(workers))
    for step in range(steps):
        every = [gradients(step, 0 if same_data else worker) for worker in range(workers)]
        updates, _ = compressor(every)
        for variable, update in zip(variables, updates, strict=True):
            variable.assign_sub(learning_rate * update)
    return variables, compressor


def dense_sgd(momentum=0.0, nesterov=False, workers=1, steps=6, learning_rate=0.1, factor=1.0):
    """Return the reference weights, trained with Keras SGD in float32."""
    import keras

    variables = [keras.Variable(value) for value in weights()]
    sgd = keras.optimizers.SGD(learning_rate * factor, momentum=momentum, nesterov=nesterov)
    for step in range(steps):
        every = zip(*[gradients(step, worker) for worker in range(workers)], strict=True)
        sgd.apply([tf.add_n(own) / workers for own in every], variables)
    return variables


def assert_close(found, expected, tolerance=2e-6):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.array(one), np.array(other), atol=tolerance, rtol=1e-5)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(np.array(one), np.array(other))


# The pure functions -------------------------------------------------------------------------------------------------


def test_vanilla_momentum_by_hand():
    velocity, update = momentum_step(tf.constant([2.0]), tf.constant([1.0]), 0.5)
    assert [float(velocity[0]), float(update[0])] == [2.0, 2.0]


def test_nesterov_momentum_by_hand():
    velocity, update = momentum_step(tf.constant([2.0]), tf.constant([1.0]), 0.5, nesterov=True)
    assert [float(velocity[0]), float(update[0])] == [1.5, 2.5]


@pytest.mark.parametrize(("reduction", "expected"), [("average", 2.0), ("sum", 0.5)])
def test_clip_norm_per_worker_depends_on_the_reduction(reduction, expected):
    clipped = clip_locally([tf.constant([3.0]), tf.constant([[4.0]])], 1.0, 4, reduction)
    assert float(tf.linalg.global_norm(clipped)) == pytest.approx(expected)
    assert float(clipped[0][0] / clipped[1][0, 0]) == pytest.approx(0.75)


def test_clipping_leaves_small_and_zero_gradients_unchanged():
    small = tf.constant([0.3, 0.4])
    assert_same(clip_locally([small], 1.0, 1), [small])
    assert_same(clip_locally([tf.zeros(3)], 1.0, 1), [np.zeros(3)])


def test_clipping_returns_nan_if_the_norm_overflows():
    assert np.isnan(clip_locally([tf.constant([1e20, 1.0])], 1.0, 1)[0]).all()


def send_from(numbers, ratio, values="float32"):
    """Return the indices and values sent from a residual, and the residual afterwards."""
    context = StepContext((len(numbers),), tf.constant([0, 0]), tf.constant([0, 0]), 1, value_type=values)
    residual, nothing = tf.constant(numbers, tf.float32), tf.zeros([len(numbers)])
    indices, sent, [remaining] = accumulate_and_select(nothing, (residual,), Rule(ratio, "exact"), context)
    return indices.numpy(), sent.numpy(), remaining.numpy()


floats = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)  # TensorFlow may flush subnormals to zero


@given(st.lists(floats, min_size=1, max_size=40), st.sampled_from([0.0, 0.001, 0.1, 0.5, 1.0]))
def test_sent_values_and_new_residual_sum_to_the_old_residual(numbers, ratio):
    for values in ("float32", "float16"):
        indices, sent, remaining = send_from(numbers, ratio, values)
        back = remaining.copy()
        back[indices] += sent
        np.testing.assert_array_equal(back, np.float32(numbers))
        np.testing.assert_array_equal(sent.astype(values), sent)
        if values == "float32":
            assert not np.any(remaining[indices])


@pytest.mark.parametrize(
    "numbers", [[0.0] * 5, [2.0] * 5, [1.0], [1.0, -1.0, 1.0], [np.inf, 1.0, -np.inf], [0.5, 1e-45, -0.0]]
)
def test_edge_case_values_are_either_sent_or_kept(numbers):
    indices, sent, remaining = send_from(numbers, 0.3)
    for position, number in enumerate(numbers):
        if position in indices:
            assert not np.isfinite(number) or remaining[position] == 0
            assert sent[indices.tolist().index(position)] == number
        else:
            assert remaining[position] == (number if abs(number) > 1e-38 else 0)  # TensorFlow flushes subnormals


def test_values_beyond_float16_are_sent_as_its_maximum():
    _, sent, remaining = send_from([1e6, -2.0], 1.0, "float16")
    assert sent.tolist() == [65504.0, -2.0]
    assert remaining.tolist() == [1e6 - 65504.0, 0.0]


def test_resnet_50_is_compressed_277_fold():
    """The paper's sizes: 97.49 MB dense, 0.352 MB at 0.1 % with 4 bytes per value, 2 bytes per run of zeros."""
    shapes = resnet_50()
    assert sum(np.prod(shape) for shape in shapes) == 25_557_032
    assert sum(shape[0] for shape in shapes if len(shape) == 1) == 54_120
    config = DGCConfig(ratio=0.001, dense_below=0, indices="run_lengths")
    compressed, dense = payload_bytes(shapes, config)
    assert round(dense / 2**20, 2) == 97.49
    # The published figure ignores that k is rounded up in each of the 54 tensors (180 bytes), and the 8-byte header.
    assert compressed / 2**20 == pytest.approx(0.352, abs=0.0006)
    assert round(dense / compressed) == 277
    # The message itself: every 1000th element of each compressed tensor.
    sizes = [int(np.prod(shape)) for shape in shapes if len(shape) > 1]
    starts = np.cumsum(sizes) - sizes
    indices = tf.concat([start + tf.range(0, size, 1000) for start, size in zip(starts, sizes, strict=True)], 0)
    layout = Layout("float32", "run_lengths", fixed=1 + 54_120, sparse=1)
    message = Message(tf.zeros([1 + 54_120]), [(indices, tf.ones(tf.shape(indices)))], [])
    assert len(pack(message, layout)) == compressed


def resnet_50():
    """Return ResNet-50's parameter shapes: convolutions without bias, batch norm, a dense layer."""
    shapes = []

    def convolution(size, inputs, outputs):
        shapes.extend([(size, size, inputs, outputs), (outputs,), (outputs,)])

    convolution(7, 3, 64)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(1, inputs, width)
            convolution(3, width, width)
            convolution(1, width, 4 * width)
            if block == 0:
                convolution(1, inputs, 4 * width)
            inputs = 4 * width
    return [*shapes, (2048, 1000), (1000,)]


# The config ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"ratio": -0.1}, r"ratio must be in \[0, 1\], got -0.1"),
        ({"ratio": float("nan")}, r"ratio must be in \[0, 1\], got nan"),
        ({"momentum": 1.0}, "momentum must be at least 0 and below 1, got 1.0"),
        ({"clip_norm": 0}, "clip_norm must be above 0"),
        ({"weight_decay": -1}, "weight_decay must be at least 0, got -1"),
        ({"warm_up": (0.1, 0.1)}, r"warm_up must hold ratios that fall .* got \[0.1, 0.1\]"),
        ({"warm_up": (0.1, 0.2)}, "warm_up must hold ratios that fall"),
        ({"ratio": 0.01, "warm_up": (0.1, 0.001)}, "towards the ratio 0.01"),
        ({"warm_up": (1.5,)}, "from at most 1"),
        ({"warm_up_steps": 0}, "warm_up_steps must be a whole number of at least 1, got 0"),
        ({"rule": "off"}, "rule must be one of exact, sampled, hierarchical, got 'off'"),
        ({"scope": "all"}, "scope must be one of tensor, global, first"),
        ({"values": "int8"}, "values must be one of float32, float16"),
        ({"indices": "gaps"}, "indices must be one of int32, run_lengths, got 'gaps'"),
        ({"reduction": "mean"}, "reduction must be one of average, sum"),
        ({"sample": 0}, r"sample must be in \(0, 1\]"),
        ({"dense_below": -1}, "dense_below must be a whole number"),
        ({"ratio": "0.1"}, "ratio must be a number, got '0.1'"),
        ({"momentum": None}, "momentum must be a number, got None"),
        ({"warm_up": 0.25}, "warm_up must be a sequence of ratios, got 0.25"),
    ],
)
def test_invalid_config_values_are_rejected(switches, message):
    with pytest.raises(ValueError, match=message):
        DGCConfig(**switches)


def test_warm_up_schedules():
    config = DGCConfig(ratio=0.001, warm_up=PAPER_WARM_UP, warm_up_steps=10)
    assert [config.ratio_at(step) for step in (0, 9, 10, 39, 40)] == [0.25, 0.25, 0.0625, 0.004, 0.001]
    geometric = geometric_warm_up(0.001, stages=2)
    assert geometric == pytest.approx((0.1, 0.01))
    assert DGCConfig(ratio=0.001, warm_up=(1.0,), warm_up_steps=3).ratio_at(2) == 1.0
    with pytest.raises(ValueError, match="ratio must be above 0 and below 1, got 1"):
        geometric_warm_up(1)
    with pytest.raises(ValueError, match="stages must be a whole number from 1 to 1000, got 0"):
        geometric_warm_up(0.001, stages=0)


def test_compressor_follows_the_warm_up():
    config = DGCConfig(ratio=0.01, warm_up=(1.0, 0.1), warm_up_steps=2, rule="exact", dense_below=0)
    compressor = Compressor(config, weights(), OneWorker())
    step = tf.function(lambda number: compressor([[g * (1.0 + number) for g in gradients(0)]])[1])
    num_sent = [int(step(tf.constant(float(number))).num_sent[0]) for number in range(6)]
    assert num_sent == [2000, 2000, 200, 200, 20, 20]


# Invariants of dgc.md -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", ["float32", "float16"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_1_sent_values_and_residuals_sum_to_the_gradients(workers, values):
    variables, compressor = weights(), None
    config = dataclasses.replace(EXACT, momentum=0.0, values=values, dense_vectors=False)
    compressor = Compressor(config, variables, SimulatedWorkers(workers))
    sent = [tf.zeros(shape, tf.float64) for shape in SHAPES]
    added = [tf.zeros(shape, tf.float64) for shape in SHAPES]
    for step in range(12):
        every = [gradients(step, worker) for worker in range(workers)]
        updates, _ = compressor(every)
        sent = [s + workers * tf.cast(u, tf.float64) for s, u in zip(sent, updates, strict=True)]
        for own in every:
            added = [a + tf.cast(g, tf.float64) for a, g in zip(added, own, strict=True)]
    every = [compressor.residuals(worker) for worker in range(workers)]
    left = [tf.add_n([tf.cast(own[i], tf.float64) for own in every]) for i in range(len(SHAPES))]
    for s, r, a in zip(sent, left, added, strict=True):
        np.testing.assert_allclose(s + r, a, atol=2e-5)
        assert np.abs(s).sum() > 0
        assert np.abs(r).sum() > 0


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_2_ratio_1_without_factor_masking_is_momentum_sgd(nesterov, workers):
    found, _ = train(EXACT, workers, ratio=1.0, nesterov=nesterov, factor_masking=False)
    assert_close(found, dense_sgd(0.9, nesterov, workers))


@pytest.mark.parametrize("nesterov", [False, True])
def test_3_factor_masking_keeps_momentum_at_ratio_1(nesterov):
    found, _ = train(EXACT, ratio=1.0, nesterov=nesterov, dense_vectors=False)
    assert_close(found, dense_sgd(0.9, nesterov))


def test_4_without_momentum_dgc_is_gradient_dropping():
    found, compressor = train(EXACT, momentum=0.0, dense_vectors=False)
    residuals = [np.zeros(shape, np.float32) for shape in SHAPES]
    expected = [np.array(value) for value in weights()]
    for step in range(6):
        for i, gradient in enumerate(gradients(step)):
            residuals[i] += gradient.numpy()
            mask = np.abs(residuals[i]) >= exact_threshold(residuals[i], 0.01).numpy()
            expected[i] -= np.float32(0.1) * np.where(mask, residuals[i], np.float32(0))
            residuals[i] = np.where(mask, np.float32(0), residuals[i])
    assert_close(found, expected)
    assert_same(compressor.residuals(0), residuals)


@pytest.mark.parametrize("rule", ["exact", "sampled", "hierarchical"])
def test_5_workers_with_the_same_data_match_one_worker(rule, monkeypatch):
    monkeypatch.setitem(globals(), "SHAPES", [(130, 90), (50,), (3, 30)])  # the first is large enough to be sampled
    one, _ = train(EXACT, 1, rule=rule)
    three, _ = train(EXACT, 4, same_data=True, rule=rule)
    assert_close(three, one)


def test_8_reported_bytes_match_the_collectives():
    for (values, indices), ratio in itertools.product(FORMATS, (0.05, 0.6, 1.0)):
        communicator = Counting(2)
        config = dataclasses.replace(EXACT, values=values, indices=indices, ratio=ratio)
        compressor = Compressor(config, weights(), communicator)
        rows = tf.IndexedSlices(tf.ones([2, 30]), tf.constant([1, 1]), tf.constant([3, 30]))
        _, report = compressor([[*gradients(0, worker)[:2], rows] for worker in range(2)])
        assert 2 * int(report.allreduce_bytes + report.allgather_bytes) == communicator.total
        assert compressor.bytes_sent.numpy().sum() * 2 == communicator.total
        assert report.num_sent.numpy().tolist() == [round(ratio * 2000), 50, 30]


class Counting(SimulatedWorkers):
    """Counts collectives, and the bytes that all workers send."""

    total = calls = 0

    def _count(self, tensors):
        self.total += sum(len(tensor.numpy().tobytes()) for tensor in tensors)
        self.calls += 1

    def allreduce(self, groups, name=None):
        self._count([tensor for group in groups for tensor in group])
        return super().allreduce(groups, name)

    def allgather(self, tensors, name=None):
        self._count(tensors)
        return super().allgather(tensors, name)


@pytest.mark.parametrize(("values", "indices"), FORMATS)
@pytest.mark.parametrize("ratio", [0.0, 0.01, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("workers", [1, 2, 8])
def test_predicted_bytes_are_sent_in_one_collective(workers, ratio, values, indices):
    communicator = Counting(workers)
    config = dataclasses.replace(EXACT, values=values, indices=indices, ratio=ratio)
    _, report = Compressor(config, weights(), communicator)([gradients(0, worker) for worker in range(workers)])
    assert communicator.calls == 1
    expected = payload_bytes(SHAPES, config, workers)[0]
    assert communicator.total == workers * expected == workers * int(report.allreduce_bytes + report.allgather_bytes)


def test_empty_tensors_add_no_predicted_bytes():
    assert payload_bytes([[40, 50], [0, 9]], EXACT) == payload_bytes([[40, 50]], EXACT)


def test_long_uncompressed_tensors_are_allreduced_separately():
    shapes, config = [(40, 50), (9000,)], EXACT
    for workers, calls in ((2, 1), (4, 2)):
        communicator = Counting(workers)
        compressor = Compressor(config, [tf.Variable(tf.zeros(shape)) for shape in shapes], communicator)
        every = [[tf.random.stateless_normal(shape, (0, worker)) for shape in shapes] for worker in range(workers)]
        updates, report = compressor(every)
        assert communicator.calls == calls
        assert communicator.total == workers * payload_bytes(shapes, config, workers)[0]
        assert int(report.allreduce_bytes) == (0 if workers == 2 else 4 * 9000)
        np.testing.assert_allclose(updates[1], np.mean([own[1] for own in every], axis=0), atol=1e-6)


@pytest.mark.parametrize("values", ["float32", "float16"])
def test_indices_and_run_lengths_give_the_same_training(values):
    """Also for gaps too long for one run: a few of 200 000 elements are sent, with padding entries between them."""
    results = []
    for indices in ("int32", "run_lengths"):
        variables = [tf.Variable(tf.zeros([2, 100_000])), tf.Variable(tf.zeros([300, 5]))]
        config = DGCConfig(ratio=1e-5, rule="exact", dense_below=0, values=values, indices=indices)
        compressor = Compressor(config, variables, SimulatedWorkers(2))
        for step in range(4):
            every = [[tf.random.stateless_normal(v.shape, (step, w)) for v in variables] for w in range(2)]
            for variable, update in zip(variables, compressor(every)[0], strict=True):
                variable.assign_sub(update)
        results.append([*variables, *compressor.state])
    assert_same(*results)
    assert np.count_nonzero(results[0][0]) >= 8


def test_metadata_travels_with_the_gradients():
    for ratio in (0.01, 1.0, tf.constant(0.01, tf.float64)):
        communicator = Counting(3)
        metadata = [tf.constant([worker + 0.5, -worker]) for worker in range(3)]
        compressor = Compressor(EXACT, weights(), communicator)
        _, report = compressor([gradients(0, worker) for worker in range(3)], ratio, metadata)
        assert report.metadata.numpy().tolist() == [[0.5, 0], [1.5, -1], [2.5, -2]]
        assert communicator.calls == 1


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_dtypes_are_sent_as_float32_and_restored(dtype):
    variables = [tf.Variable(tf.cast(weight, dtype)) for weight in weights()]
    compressor = Compressor(dataclasses.replace(EXACT, ratio=0.1, momentum=0.0), variables, OneWorker())
    every = [tf.cast(g, dtype) / 3 for g in gradients(0)]
    updates, _ = compressor([every])
    assert [update.dtype.name for update in updates] == [dtype] * 3
    for i in (0, 2):
        assert compressor.residuals(0)[i].dtype == tf.float32
        whole = tf.cast(updates[i], tf.float32) + compressor.residuals(0)[i]
        np.testing.assert_array_equal(whole, tf.cast(every[i], tf.float32))
    assert 0 < np.count_nonzero(tf.cast(updates[0], tf.float32)) < 300


def test_9_a_resumed_run_matches_an_uninterrupted_run(tmp_path):
    whole, compressor = train(EXACT, 2, steps=6)
    variables, before = train(EXACT, 2, steps=3)
    tf.train.Checkpoint(compressor=before, weights=variables).write(str(tmp_path / "state"))
    again = weights()
    resumed = Compressor(EXACT, again, SimulatedWorkers(2))
    tf.train.Checkpoint(compressor=resumed, weights=again).read(str(tmp_path / "state")).assert_consumed()
    for step in range(3, 6):
        updates, _ = resumed([gradients(step, worker) for worker in range(2)])
        for variable, update in zip(again, updates, strict=True):
            variable.assign_sub(0.1 * update)
    assert_same(again, whole)
    assert_same(resumed.state, compressor.state)


# Switches, one by one -----------------------------------------------------------------------------------------------


def test_masking_keeps_no_residual():
    _, compressor = train(DGCConfig(0.1, **MASKING))
    assert compressor.residuals() == [None] * 3


def test_without_correction_momentum_applies_to_the_average():
    """Equation 5 of the paper: momentum on the averaged sparse update."""
    found, _ = train(DGCConfig(0.1, rule="exact", **MASKING), 2)
    expected, velocity = [np.array(w) for w in weights()], [np.zeros(shape, np.float32) for shape in SHAPES]
    for step in range(6):
        for i, own in enumerate(zip(gradients(step, 0), gradients(step, 1), strict=True)):
            masked = [np.where(np.abs(g) >= exact_threshold(g, 0.1), g, 0) for g in own]
            velocity[i] = 0.9 * velocity[i] + (masked[0] + masked[1]) / 2
            expected[i] -= 0.1 * velocity[i]
    assert_close(found, expected)


def test_factor_masking_clears_velocity_of_sent_elements():
    for factor_masking in (True, False):
        variables = weights()
        compressor = Compressor(dataclasses.replace(EXACT, factor_masking=factor_masking), variables, OneWorker())
        updates, _ = compressor([gradients(0)])
        sent = np.array(updates[0]) != 0
        assert sent.sum() == 20
        assert (not np.any(compressor.velocities()[0].numpy()[sent])) == factor_masking
        assert not np.any(compressor.residuals(0)[0].numpy()[sent])


def test_weight_decay_is_added_before_accumulation():
    variables = weights()
    compressor = Compressor(dataclasses.replace(EXACT, weight_decay=0.5), variables, OneWorker())
    compressor([[tf.zeros(shape) for shape in SHAPES]])
    updates_and_rest = compressor.velocities(0)[0] - 0.5 * variables[0]
    kept = np.array(compressor.residuals(0)[0]) != 0
    assert kept.sum() == kept.size - 20, "every unsent element has a residual"
    np.testing.assert_allclose(np.array(updates_and_rest)[kept], 0, atol=1e-7)


def test_both_reductions_give_the_same_update():
    """Averaging the workers' means equals summing their shares."""
    results = []
    for reduction, factor in (("average", 1.0), ("sum", 0.5)):
        config = dataclasses.replace(EXACT, reduction=reduction, clip_norm=1.0, weight_decay=0.1)
        variables = weights()
        compressor = Compressor(config, variables, SimulatedWorkers(2))
        updates, _ = compressor([[factor * g for g in gradients(0, worker)] for worker in range(2)])
        results.append(updates)
    assert_close(*results)


def test_small_tensors_and_vectors_are_sent_uncompressed():
    compressor = Compressor(DGCConfig(ratio=0.01, dense_below=100), weights(), OneWorker())
    assert compressor.parts.uncompressed == [1, 2]
    _, report = compressor([gradients(0)])
    assert report.num_sent.numpy().tolist()[1:] == [50, 90]
    assert [int(report.allreduce_bytes), int(report.allgather_bytes)] == [0, 8 + 8 * 20 + 4 * 140]


def test_uncompressed_tensors_get_ordinary_momentum():
    found, _ = train(EXACT, 2, dense_below=10**6)
    assert_close(found, dense_sgd(0.9, workers=2))


@pytest.mark.parametrize("traced", [False, True])
def test_row_gradients_stay_rows_and_duplicates_are_merged(traced):
    table = tf.Variable(tf.zeros([6, 2]))
    compressor = Compressor(dataclasses.replace(EXACT, momentum=0.5), [table], SimulatedWorkers(2))

    def step():
        one = tf.IndexedSlices(tf.constant([[1.0, 1.0], [2.0, 2.0]]), tf.constant([4, 4]), tf.constant([6, 2]))
        other = tf.IndexedSlices(tf.constant([[5.0, 7.0]]), tf.constant([0]), tf.constant([6, 2]))
        return compressor([[one], [other]])[0][0]

    step = tf.function(step) if traced else step
    first, second = step(), step()
    assert isinstance(first, tf.IndexedSlices)
    assert first.indices.numpy().tolist() == [4, 0]
    np.testing.assert_allclose(first.values, [[1.5, 1.5], [2.5, 3.5]])
    np.testing.assert_allclose(second.values, 1.5 * np.array(first.values))  # momentum 0.5 on these rows


def test_a_variable_without_a_gradient_gets_no_update():
    compressor = Compressor(EXACT, weights(), OneWorker())
    own = gradients(0)
    updates, report = tf.function(lambda: compressor([[own[0], None, own[2]]]))()
    assert updates[1] is None
    assert report.num_sent.numpy()[1] == 0


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_non_finite_gradient_raises_and_changes_nothing(traced, bad, clip_norm):
    compressor = Compressor(
        dataclasses.replace(EXACT, clip_norm=clip_norm),
        weights(),
        SimulatedWorkers(2),
        names=["kernel", "bias", "logits"],
    )
    compressor([gradients(0, 0), gradients(0, 1)])
    before = [variable.numpy() for variable in (*compressor.state, *compressor.trained)]
    poisoned = [*gradients(1, 1)[:2], tf.tensor_scatter_nd_update(gradients(1, 1)[2], [[1, 2]], [bad])]

    def step():
        return compressor.train([gradients(1, 0), poisoned], 0.1)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient of .*logits.* on worker 1 holds NaN or inf"):
        (tf.function(step) if traced else step)()
    assert_same([*compressor.state, *compressor.trained], before)


@pytest.mark.nightly_except("False-config0", "True-config1")
@pytest.mark.parametrize("config", [EXACT, dataclasses.replace(EXACT, values="float16"), DGCConfig(0.01, **MASKING)])
@pytest.mark.parametrize("traced", [False, True])
def test_train_is_the_same_as_subtracting_the_updates(config, traced):
    """Covers sparse, dense and row updates; the ratio is a Python number or a tensor."""
    for workers, ratio in itertools.product((1, 2), (0.01, 1.0, tf.constant(0.01, tf.float64))):
        every = [[*gradients(0, worker)[:2], None] for worker in range(workers)]
        for own in every:
            own[2] = tf.IndexedSlices(own[1][None, :30], tf.constant([1]), tf.constant(SHAPES[2]))
        one, other = (Compressor(config, weights(), SimulatedWorkers(workers)) for _ in range(2))
        train_step = tf.function(other.train) if traced else other.train
        for _ in range(3):
            for weight, update in zip(one.trained, one(every, ratio)[0], strict=True):
                weight.assign_sub(0.1 * tf.convert_to_tensor(update))
            train_step(every, 0.1, ratio)
        assert_same(other.state, one.state)
        for weight, same, first in zip(other.trained, one.trained, weights(), strict=True):
            assert not np.array_equal(weight, first)
            np.testing.assert_allclose(weight, same, rtol=0, atol=1e-6 if workers > 1 else 0)


def test_an_overflowing_norm_raises_and_changes_nothing():
    compressor = Compressor(
        dataclasses.replace(EXACT, clip_norm=1.0), weights(), OneWorker(), ["kernel", "bias", "logits"]
    )
    before = [variable.numpy() for variable in compressor.state]
    with pytest.raises(tf.errors.InvalidArgumentError, match="holds NaN or infinity"):
        compressor([[1e30 * gradient for gradient in gradients(0)]])
    assert_same(compressor.state, before)


def test_traced_and_eager_steps_agree():
    masking = DGCConfig(0.05, scope="first", **MASKING)
    for config in (EXACT, DGCConfig(ratio=0.01), masking, DGCConfig(ratio=0.01, values="float16")):
        eager, traced = Compressor(config, weights(), OneWorker()), Compressor(config, weights(), OneWorker())
        step = tf.function(traced)
        for number in range(4):
            one, other = eager([gradients(number)])[0], step([gradients(number)])[0]
            assert_close(other, one, tolerance=1e-7)


def test_allreduce_is_used_once_ratio_times_workers_reaches_1():
    """At ratio 0.5, two workers exchange dense masked tensors; just below, values and indices."""
    for values in (0.49, 0.5):
        compressor = Compressor(dataclasses.replace(EXACT, ratio=values), weights(), SimulatedWorkers(2))
        every = [gradients(0, worker) for worker in range(2)]
        updates, report = compressor(every)
        for i in (0, 2):
            expected = 0
            for own, residuals in zip(every, map(compressor.residuals, range(2)), strict=True):
                selected = np.abs(own[i]) >= exact_threshold(own[i], values)
                np.testing.assert_array_equal(residuals[i], np.where(selected, 0, own[i]))
                expected = expected + np.where(selected, own[i], 0) / 2
            np.testing.assert_allclose(updates[i], expected, rtol=1e-6)
        assert (int(report.allgather_bytes) == 0) == (values == 0.5)
        assert report.num_sent.numpy()[0] == round(2000 * values)


@pytest.mark.parametrize(
    ("switches", "by_allreduce"),
    [
        ({}, [True, True, True, False, False]),
        ({"indices": "run_lengths"}, [True, True, False, False, False]),
        ({"indices": "run_lengths", "values": "float16"}, [True, False, False, False, False]),
        ({"switch_to_dense": False}, [False] * 5),
    ],
)
def test_warm_up_uses_the_cheaper_collective_for_four_workers(switches, by_allreduce):
    """Tensors go by allreduce if ratio x workers x bytes per entry is at least 8."""
    config = DGCConfig(ratio=0.01, rule="exact", warm_up=(1.0, 0.4, 0.25, 0.1), warm_up_steps=1, dense_below=0)
    config = dataclasses.replace(config, dense_vectors=False, **switches)
    compressor = Compressor(config, weights(), SimulatedWorkers(4))
    step = tf.function(lambda number: compressor([[g + number for g in gradients(0, worker)] for worker in range(4)]))
    for number, expected in enumerate(by_allreduce):
        _, report = step(tf.constant(float(number)))
        now = dataclasses.replace(config, ratio=config.ratio_at(number), warm_up=())
        assert (int(report.allreduce_bytes) > 0, int(report.allgather_bytes) > 0) == (expected, not expected)
        assert int(report.allreduce_bytes + report.allgather_bytes) == payload_bytes(SHAPES, now, workers=4)[0]


def test_the_switch_to_dense_does_not_change_the_update():
    found = [train(EXACT, 4, warm_up=(1.0, 0.5), warm_up_steps=2, switch_to_dense=on) for on in (True, False)]
    assert_close(found[0][0], found[1][0])
    assert_close(found[0][1].state, found[1][1].state)
    sent = [compressor.bytes_sent.numpy().tolist() for _, compressor in found]
    assert sent[1][0] == 0 < sent[0][0] < sum(sent[1])


def test_one_traced_step_serves_every_ratio():
    traces = []
    compressor = Compressor(EXACT, weights(), OneWorker())

    @tf.function
    def step(ratio):
        traces.append(ratio)
        return compressor([gradients(0)], ratio)[1].num_sent

    num_sent = [int(step(tf.constant(ratio, tf.float64))[0]) for ratio in (1.0, 0.5, 0.01, 0.0)]
    assert num_sent == [2000, 1000, 20, 0]
    assert len(traces) == 1


@pytest.mark.parametrize(
    "workers",
    [0, -1, 257, 1.5, True],
)
def test_invalid_numbers_of_workers_are_rejected(workers):
    with pytest.raises(ValueError, match=f"workers must be a whole number from 1 to 256, got {workers}"):
        SimulatedWorkers(workers)
