"""A small generative adversarial network (GAN) on the ring of `dgc_lab.workloads.ring`, as a task for workers.

Sources: the game and the generator's non-saturating loss, Goodfellow et al. 2014 (arXiv:1406.2661); the penalty that
keeps simultaneous steps of two players from turning in circles, Mescheder et al. 2018 (arXiv:1801.04406, R1).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import keras
import numpy as np
import tensorflow as tf

from dgc_lab.common import check_whole
from dgc_lab.workloads.ring import quality, ring_points

POINTS = 4096  # size of the training set
PENALTY = 0.3  # weight of half the mean squared slope at the real points: the larger, the steadier and the slower
NOISE = 4  # random numbers from which the generator makes a point
SAMPLES = 1000  # points that a score is counted on


def dense_network(widths, seeds) -> keras.Model:
    """Dense layers with these widths, leaky ReLU between them; first weights from the next seeds."""
    layers = [keras.Input((widths[0],))]
    for place, width in enumerate(widths[1:], start=2):
        activation = "leaky_relu" if place < len(widths) else None
        first = keras.initializers.GlorotUniform(next(seeds))
        layers.append(keras.layers.Dense(width, activation, kernel_initializer=first))
    return keras.Sequential(layers)


@dataclass(frozen=True)
class RingGAN:
    """The ring's points and two dense networks that play against each other, as a task for workers.

    The generator makes points out of noise, the discriminator tells real ones from made ones. Both learn at once, from
    the same weights and at the same learning rate: weights are one list, the generator's first. With fresh gradients
    of 64 points, 2 000 of them teach it all eight centres at learning rates from 0.05 to 0.5 without momentum; momentum
    0.9 does worse at every rate tried.

    Attributes:
        hidden: width of the two hidden layers of each network, 1 to 4096.
        seed: integer, at least 0, from which training set and first weights are drawn.

    Raises:
        ValueError: an attribute is not as said above.

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
        """The training set: one array, float32 (4096, 2)."""
        return (ring_points(POINTS, self.seed),)

    @cached_property
    def players(self) -> tuple[keras.Model, keras.Model]:
        """The generator and the discriminator, with their first weights: Glorot's uniform kernels, biases of 0."""
        seeds = iter(range(6 * self.seed, 6 * self.seed + 6))
        hidden = self.hidden, self.hidden
        return dense_network((NOISE, *hidden, 2), seeds), dense_network((2, *hidden, 1), seeds)

    def __getstate__(self):
        """What travels to a worker: the numbers alone, from which points and players are made again there."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def initial_weights(self) -> list[np.ndarray]:
        """First weights, float32: kernel and bias of each layer, the generator's and then the discriminator's."""
        return [weight for player in self.players for weight in player.get_weights()]

    def split(self, weights) -> tuple[list, list]:
        """The generator's weights and the discriminator's; ValueError where shapes are not those of this GAN."""
        own = [tuple(weight.shape) for player in self.players for weight in player.weights]
        shapes = [tuple(weight.shape) for weight in weights]
        if shapes != own:
            raise ValueError(f"weights must have the shapes {own}, got {shapes}")
        return list(weights[: len(own) // 2]), list(weights[len(own) // 2 :])

    def gradients(self, weights, seed, real) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Each player's gradient of its own loss, both at the same weights; ValueError where these have other shapes.

        Args:
            weights: float32 tensors as `initial_weights` has them.
            seed: int32 (2,), from which the generator's noise is drawn.
            real: float32 (batch, 2), real points; as many are made.

        Returns:
            The discriminator's loss without the penalty, a scalar: 2 ln 2 = 1.386 where it cannot tell real points from
            made ones. And the gradients, like ``weights``.
        """
        makes, tells = (player.stateless_call for player in self.players)
        generator, discriminator = self.split(weights)
        noise = tf.random.stateless_normal((tf.shape(real)[0], NOISE), seed)
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([*generator, *discriminator])
            on_made, _ = tells(discriminator, [], makes(generator, [], noise)[0])
            with tf.GradientTape() as slope_tape:
                slope_tape.watch(real)
                on_real, _ = tells(discriminator, [], real)
            slope = slope_tape.gradient(on_real, real)
            # softplus(-x) is -log sigmoid(x): the cost of "real" with x for answer; softplus(x) is that of "made".
            fooling = tf.reduce_mean(tf.nn.softplus(-on_made))
            telling = tf.reduce_mean(tf.nn.softplus(-on_real)) + tf.reduce_mean(tf.nn.softplus(on_made))
            penalized = telling + PENALTY / 2 * tf.reduce_mean(tf.reduce_sum(slope**2, axis=1))
        return telling, tape.gradient(fooling, generator) + tape.gradient(penalized, discriminator)

    def sample(self, weights) -> np.ndarray:
        """Points that the generator makes, float32 (1000, 2); the same noise at every call."""
        noise = tf.random.stateless_normal((SAMPLES, NOISE), (self.seed, 2))
        points, _ = self.players[0].stateless_call(self.split(weights)[0], [], noise)
        return points.numpy()

    def score(self, weights) -> dict[str, float]:
        """The `dgc_lab.workloads.quality` of such points; ValueError where ``weights`` have other shapes."""
        return quality(self.sample(weights))
