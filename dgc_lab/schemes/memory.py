"""Wrappers around any scheme: error feedback, and momentum after the exchange."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.schemes.scheme import Scheme


def with_memory(scheme: Scheme) -> Scheme:
    """Error feedback: what of a gradient was not sent is added to the next one.

    Invariant: own + memory = gradient + the memory before.

    Source: Seide et al. 2014 (1-bit SGD); arXiv:1809.07599 (Mem-SGD), Algorithm 1; arXiv:1901.09847.
    """

    def init(gradient):
        return tf.zeros_like(gradient), scheme.init(gradient)

    def step(gradient, state, turn):
        memory, inner = state
        corrected = gradient + memory
        update, own, inner = yield from scheme.step(corrected, inner, turn)
        return update, own, (corrected - own, inner)

    return scheme._replace(step=step, init=init, name=f"{scheme.name}, with memory")


def with_momentum(scheme: Scheme, momentum: float = 0.9) -> Scheme:
    """Momentum SGD on what all workers have in common after the exchange; every worker keeps the same velocity."""

    def init(gradient):
        return tf.zeros_like(gradient), scheme.init(gradient)

    def step(gradient, state, turn):
        velocity, inner = state
        update, own, inner = yield from scheme.step(gradient, inner, turn)
        velocity = momentum * velocity + update
        return velocity, own, (velocity, inner)

    return scheme._replace(step=step, init=init, momentum=momentum)
