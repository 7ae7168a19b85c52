"""A small generative adversarial network (GAN) on the ring of `dgc_lab.workloads.ring`, as a task for workers.

Sources: Goodfellow et al. 2014 (arXiv:1406.2661) for the game and the generator's non-saturating loss; Mescheder et al.
2018 (arXiv:1801.04406) for the R1 gradient penalty, which prevents simultaneous steps of the two networks from cycling.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import keras
import numpy as np
import tensorflow as tf

from dgc_lab.common import check_keras, check_whole
from dgc_lab.workloads.ring import quality, ring_points

POINTS = 4096  # size of the training set
PENALTY = 0.3  # weight of half the mean squared gradient at real points; a larger one is more stable, but slower
NOISE = 4  # dimension of the generator's input noise
SAMPLES = 1000  # generated points for a score


def dense_network(widths, seeds) -> keras.Model:
    """Build dense layers of these widths with leaky ReLU between them; initial weights use the next seeds."""
    check_keras()
    layers = [keras.Input((widths[0],))]
    for number, width in enumerate(widths[1:], start=2):
        activation = "leaky_relu" if number < len(widths) else None
        initializer = keras.initializers.GlorotUniform(next(seeds))
        layers.append(keras.layers.Dense(width, activation, kernel_initializer=initializer))
    return keras.Sequential(layers)


@dataclass(frozen=True)
class RingGAN:
    """Task for workers: a GAN of two dense networks that learns the points of the ring.

    The generator maps noise to points, and the discriminator distinguishes real points from generated ones. Both are
    updated simultaneously, with the same learning rate; their weights form one list, the generator's first. Without
    momentum, 2 000 fresh gradients of 64 points suffice for all eight centres at learning rates from 0.05 to 0.5;
    momentum 0.9 is worse at every rate tried.

    Attributes:
        hidden: width of the two hidden layers of each network, from 1 to 4096.
        seed: random seed of the training set and the initial weights, an integer of at least 0.

    Raises:
        ValueError: an attribute is not in its range.

    Example:
        >>> gan = RingGAN(hidden=8)
        >>> [weight.shape for weight in gan.initial_weights()][:3]
        [(4, 8), (8,), (8, 8)]
        >>> sorted(gan.score(gan.initial_weights()))
        ['energy distance', 'good samples', 'modes covered']
    """

    hidden: int = 64
    seed: int = 0

    def __post_init__(self):
        check_whole("hidden", self.hidden, 1, 4096)
        check_whole("seed", self.seed, 0, 2**31 - 2)

    @cached_property
    def examples(self) -> tuple[np.ndarray]:
        """Training set: one array, float32 (4096, 2)."""
        return (ring_points(POINTS, self.seed),)

    @cached_property
    def players(self) -> tuple[keras.Model, keras.Model]:
        """Generator and discriminator with their initial weights: Glorot uniform kernels, zero biases."""
        seeds = iter(range(6 * self.seed, 6 * self.seed + 6))
        hidden = self.hidden, self.hidden
        return dense_network((NOISE, *hidden, 2), seeds), dense_network((2, *hidden, 1), seeds)

    def __getstate__(self):
        """Return only the fields for pickling; a worker recreates the points and the networks from them."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def initial_weights(self) -> list[np.ndarray]:
        """Return the initial weights, float32: kernel and bias of each layer, the generator's first."""
        return [weight for player in self.players for weight in player.get_weights()]

    def split(self, weights) -> tuple[list, list]:
        """Split weights into generator and discriminator; raise ValueError if their shapes do not fit this GAN."""
        own = [tuple(weight.shape) for player in self.players for weight in player.weights]
        shapes = [tuple(weight.shape) for weight in weights]
        if shapes != own:
            raise ValueError(f"weights must have the shapes {own}, got {shapes}")
        return list(weights[: len(own) // 2]), list(weights[len(own) // 2 :])

    def gradients(self, weights, seed, real) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Compute each network's gradient of its own loss, both at the same weights.

        Args:
            weights: float32 tensors, as from `initial_weights`.
            seed: int32 (2,), random seed of the generator's noise.
            real: float32 (batch, 2), real points; the generator makes as many.

        Returns:
            ``(loss, gradients)``: the discriminator's loss without the penalty, a scalar, which is 2 ln 2 = 1.386 if it
            cannot distinguish real from generated points; and the gradients, in the order of ``weights``.

        Raises:
            ValueError: the shapes of ``weights`` do not fit this GAN.
        """
        generate, discriminate = (player.stateless_call for player in self.players)
        generator, discriminator = self.split(weights)
        noise = tf.random.stateless_normal((tf.shape(real)[0], NOISE), seed)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([*generator, *discriminator])
            on_generated, _ = discriminate(discriminator, [], generate(generator, [], noise)[0])
            with tf.GradientTape() as slope_tape:
                slope_tape.watch(real)
                on_real, _ = discriminate(discriminator, [], real)
            slope = slope_tape.gradient(on_real, real)
            # With logit x, softplus(-x) = -log sigmoid(x) is the loss for label "real", softplus(x) for "generated".
            generator_loss = tf.reduce_mean(tf.nn.softplus(-on_generated))
            loss = tf.reduce_mean(tf.nn.softplus(-on_real)) + tf.reduce_mean(tf.nn.softplus(on_generated))
            penalized = loss + PENALTY / 2 * tf.reduce_mean(tf.reduce_sum(slope**2, axis=1))
        return loss, tape.gradient(generator_loss, generator) + tape.gradient(penalized, discriminator)

    def sample(self, weights) -> np.ndarray:
        """Return generated points, float32 (1000, 2), from the same noise at every call."""
        noise = tf.random.stateless_normal((SAMPLES, NOISE), (self.seed, 2))
        points, _ = self.players[0].stateless_call(self.split(weights)[0], [], noise)
        return points.numpy()

    def score(self, weights) -> dict[str, float]:
        """Return the `dgc_lab.workloads.quality` of generated points; raise ValueError if shapes do not fit."""
        return quality(self.sample(weights))
