"""The GAN of lesson 3: gradients, score, plot and the harm of stale gradients.

`trained` is a single-process trainer that imitates a cluster with a fixed staleness.
"""

import functools
import pickle
import subprocess
import sys

import cloudpickle
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.parameter_server.study_figures import samples_beside_real
from dgc_lab.workloads import gan as gan_module
from dgc_lab.workloads.gan import NOISE, SAMPLES, RingGAN
from dgc_lab.workloads.ring import MODES, RADIUS, centres, quality, ring_points


def trained(task, gradients, learning_rate=0.2, momentum=0.0, staleness=0, workers=1, batch=64, seed=0):
    """Train; each update averages one gradient per worker, taken at weights ``staleness`` updates old."""
    work = tf.function(task.gradients)
    weights = task.initial_weights()
    velocities = [np.zeros_like(weight) for weight in weights]
    past, losses = [], []
    random = np.random.default_rng([seed, 3])
    for update in range(gradients // workers):
        past = [*past, weights][-staleness - 1 :]
        read = [tf.constant(weight) for weight in past[0]]
        computed = []
        for worker in range(workers):
            places = random.integers(0, len(task.examples[0]), batch)
            number = tf.constant([seed, workers * update + worker])
            loss, own = work(read, number, *(tf.constant(array[places]) for array in task.examples))
            computed.append(own)
            losses.append(float(loss))
        mean = [np.mean(parts, axis=0) for parts in zip(*computed, strict=True)]
        velocities = [momentum * v + g for v, g in zip(velocities, mean, strict=True)]
        weights = [w - learning_rate * v for w, v in zip(weights, velocities, strict=True)]
    return weights, losses


@functools.cache
def score_of(**arguments):
    return RingGAN().score(trained(RingGAN(), **arguments)[0])


# Gradients ---------------------------------------------------------------------------------------------------------


def forward(weights, inputs):
    """Return a network's output and its gradient with respect to the inputs, derived by hand."""
    slope = np.eye(inputs.shape[1])[None].repeat(len(inputs), axis=0)
    for place in range(0, 6, 2):
        if place:
            factor = np.where(inputs > 0, 1, 0.2)
            inputs, slope = inputs * factor, slope * factor[:, None]
        inputs, slope = inputs @ weights[place] + weights[place + 1], slope @ weights[place]
    return inputs, slope[:, :, 0]


def losses_in_numpy(weights, noise, real, penalty):
    """Return the generator's loss and the discriminator's loss with and without the penalty, in float64."""
    made, _ = forward(weights[:6], noise)
    on_made, _ = forward(weights[6:], made)
    on_real, slope = forward(weights[6:], real)
    real_by_made, real_by_real = 1 / (1 + np.exp(-on_made)), 1 / (1 + np.exp(-on_real))
    plain_loss = -np.log(real_by_real).mean() - np.log(1 - real_by_made).mean()
    return -np.log(real_by_made).mean(), plain_loss + penalty / 2 * (slope**2).sum(axis=1).mean(), plain_loss


@pytest.mark.parametrize("penalty", [0.0, 2.0])
def test_gradients_match_finite_differences_of_each_loss(penalty, monkeypatch):
    monkeypatch.setattr(gan_module, "PENALTY", penalty)
    gan = RingGAN(hidden=3)
    random = np.random.default_rng(0)
    weights = [weight + random.normal(0, 0.3, weight.shape).astype(np.float32) for weight in gan.initial_weights()]
    real, seed = gan.examples[0][:5], tf.constant([4, 5])
    loss, gradients = tf.function(gan.gradients)([tf.constant(weight) for weight in weights], seed, tf.constant(real))
    noise = tf.random.stateless_normal((5, NOISE), seed).numpy().astype(np.float64)
    exact = [weight.astype(np.float64) for weight in weights]
    assert float(loss) == pytest.approx(losses_in_numpy(exact, noise, real, penalty)[2], rel=1e-5)
    for place, gradient in enumerate(gradients):
        assert gradient.shape == exact[place].shape
        player = 0 if place < 6 else 1
        for index in np.ndindex(exact[place].shape):
            sides = []
            for step in (1e-6, -1e-6):
                exact[place][index] += step
                sides.append(losses_in_numpy(exact, noise, real, penalty)[player])
                exact[place][index] -= step
            assert gradient.numpy()[index] == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=2e-5), (place, index)


def test_seed_determines_the_gradients():
    gan = RingGAN(hidden=8)
    weights = [tf.constant(weight) for weight in gan.initial_weights()]
    real = tf.constant(gan.examples[0][:16])
    first, again, other = (gan.gradients(weights, tf.constant([0, number]), real)[1] for number in (1, 1, 2))
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(first[0], other[0])


def test_pickled_task_gives_the_same_results():
    gan = RingGAN(hidden=8, seed=3)
    there = pickle.loads(cloudpickle.dumps(gan))
    assert there == gan
    np.testing.assert_array_equal(there.examples[0], gan.examples[0])
    for one, two in zip(there.initial_weights(), gan.initial_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert there.score(there.initial_weights()) == gan.score(gan.initial_weights())


def test_another_seed_changes_points_and_weights():
    one, other = RingGAN(hidden=8, seed=0), RingGAN(hidden=8, seed=1)
    assert not np.array_equal(one.examples[0], other.examples[0])
    assert not np.array_equal(one.initial_weights()[0], other.initial_weights()[0])


def test_weights_and_examples_are_float32():
    gan = RingGAN(hidden=5)
    assert [array.shape for array in gan.examples] == [(4096, 2)]
    assert {array.dtype for array in (*gan.examples, *gan.initial_weights())} == {np.dtype(np.float32)}
    assert sum(weight.size for weight in gan.initial_weights()) == (25 + 30 + 12) + (15 + 30 + 6)


# Score -------------------------------------------------------------------------------------------------------------


def test_real_points_get_the_best_score():
    for seed in range(1, 6):
        score = quality(ring_points(SAMPLES, seed))
        assert score["modes covered"] == MODES
        assert score["good samples"] > 0.97
        assert abs(score["energy distance"]) < 0.01


@pytest.mark.parametrize("kept", [1, 3, 7])
def test_missing_centres_are_counted(kept):
    points = ring_points(8 * SAMPLES, seed=1)
    nearest = np.linalg.norm(points[:, None] - centres(), axis=2).argmin(axis=1)
    score = quality(points[nearest < kept][:SAMPLES])
    assert score["modes covered"] == kept
    assert score["good samples"] > 0.97
    assert score["energy distance"] > 0.02


def test_points_between_the_centres_are_all_bad():
    score = quality(np.zeros((SAMPLES, 2)))
    assert (score["modes covered"], score["good samples"]) == (0, 0)
    # E|x - y| is about the radius; x is constant; two points on a circle are 4/pi radii apart on average.
    assert score["energy distance"] == pytest.approx(2 * RADIUS - 4 / np.pi * RADIUS, abs=0.1)


def test_uniform_circle_covers_all_modes_with_few_good_samples():
    angles = np.linspace(0, 2 * np.pi, SAMPLES, endpoint=False)
    score = quality(RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert score["modes covered"] == MODES
    # A chord of 3 deviations, 0.6, spans 2 asin(0.6 / 2 / RADIUS) to each side of a centre.
    assert score["good samples"] == pytest.approx(MODES * 4 * np.arcsin(0.15) / (2 * np.pi), abs=0.02)


def test_mode_needs_a_fifth_of_its_share():
    one, other = centres()[:2]
    assert quality(np.array([one] * 976 + [other] * 24))["modes covered"] == 1
    assert quality(np.array([one] * 975 + [other] * 25))["modes covered"] == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_diverged_training_gets_the_worst_score(bad):
    gan = RingGAN(hidden=4)
    score = gan.score([weight + np.float32(bad) for weight in gan.initial_weights()])
    assert score == {"modes covered": 0, "good samples": 0, "energy distance": np.inf}


# Learning ----------------------------------------------------------------------------------------------------------


def test_fresh_gradients_learn_all_centres():
    start = RingGAN().score(RingGAN().initial_weights())
    end = score_of(gradients=1000)
    assert start["modes covered"] == 0
    assert end["modes covered"] >= 7
    assert end["good samples"] > 0.5 > start["good samples"] + 0.3
    assert end["energy distance"] < start["energy distance"] / 5


def test_two_synchronous_workers_learn_all_centres():
    assert score_of(gradients=1000, workers=2, learning_rate=0.4)["modes covered"] >= 7


def test_gradients_eight_updates_old_prevent_learning():
    assert score_of(gradients=1000, staleness=8)["modes covered"] <= 4


# Plot and invalid input --------------------------------------------------------------------------------------------


def test_alt_text_describes_the_plot():
    picture = samples_beside_real({"good": ring_points(500, seed=2), "gone": np.full((500, 2), np.nan)})
    assert "good: 8 of 8 modes covered" in picture.alt
    assert "gone: 0 of 8 modes covered, 0% good samples, energy distance inf, 500 points outside" in picture.alt
    shown = [axes for axes in picture.figure.axes if axes.axison]
    assert [axes.get_title().split("\n")[0] for axes in shown] == ["real points", "good", "gone"]
    assert len(shown[1].collections[0].get_offsets()) == 500


def test_four_runs_fill_two_rows_of_panels():
    picture = samples_beside_real({str(number): ring_points(50, number) for number in range(4)})
    assert [axes.axison for axes in picture.figure.axes] == [True] * 5 + [False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": 0}, r"hidden must be a whole number from 1 to 4096, got 0"),
        ({"seed": -1}, r"seed must be a whole number from 0 to \d+, got -1"),
    ],
)
def test_invalid_settings_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        RingGAN(**arguments)


def test_weights_of_another_gan_are_rejected():
    weights = RingGAN(hidden=4).initial_weights()
    for use in (RingGAN().score, RingGAN().sample, lambda w: RingGAN().gradients(w, (0, 0), ring_points(4))):
        with pytest.raises(ValueError, match=r"weights must have the shapes .*\(4, 64\).*, got .*\(4, 4\)"):
            use(weights)


def test_points_of_another_shape_are_rejected():
    for points in (np.zeros(4), np.zeros((4, 3)), np.zeros((1, 2))):
        with pytest.raises(ValueError, match=r"points must have shape \(count, 2\) with at least two points, got"):
            quality(points)
    with pytest.raises(ValueError, match=r"samples must have at least one element"):
        samples_beside_real({})
    with pytest.raises(ValueError, match=r"count must be a whole number from 1"):
        ring_points(0)


@pytest.mark.nightly
def test_scoring_many_points_needs_little_memory():
    """All distances at once would take 8 bytes per pair: 3.2 GB here."""
    code = (
        "import resource\nfrom dgc_lab.workloads.ring import quality, ring_points\nquality(ring_points(100))\n"
        "most = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize() + 10**9\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\nprint(quality(ring_points(20_000)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "modes covered" in done.stdout, done.stderr
