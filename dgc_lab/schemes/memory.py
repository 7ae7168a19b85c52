"""Wrappers around any scheme: error feedback, momentum after the exchange, and exchanges less often."""

from __future__ import annotations

import tensorflow as tf

from dgc_lab.common import check_number, check_whole
from dgc_lab.schemes.scheme import Scheme


def with_memory(scheme: Scheme) -> Scheme:
    """Error feedback: what of a gradient was not sent is added to the next one.

    Invariant: own + memory = gradient + the memory before. ``scheme`` is any that is no such wrapper already.

    Example:
        >>> from dgc_lab.schemes import masking
        >>> with_memory(masking(0.5)).name
        'masking:ratio=0.5, with memory'

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
    """Momentum SGD on what all workers have in common after the exchange; every worker keeps the same velocity.

    A ValueError where ``scheme`` has momentum already, and unless ``momentum`` is at least 0 and below 1.

    Example:
        >>> from dgc_lab.schemes import qsgd
        >>> with_momentum(qsgd(), 0.5).momentum
        0.5

    Source: Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
    """

    check_number("momentum", momentum, "at least 0 and below 1")
    if scheme.momentum:
        raise ValueError(f"scheme must have no momentum, which would be applied twice, got {scheme.name}")

    def init(gradient):
        return tf.zeros_like(gradient), scheme.init(gradient)

    def step(gradient, state, turn):
        velocity, inner = state
        update, own, inner = yield from scheme.step(gradient, inner, turn)
        velocity = momentum * velocity + update
        return velocity, own, (velocity, inner)

    return scheme._replace(step=step, init=init, momentum=momentum, name=f"{scheme.name}, momentum {momentum}")


def local(scheme: Scheme, every: int = 8, since: int = 0) -> Scheme:
    """Local SGD: each worker moves alone, and after ``every`` steps the way it has gone is exchanged by the scheme.

    All then go on from the same weights. With ``since`` it is post-local SGD: so many steps come first in which all is
    exchanged. `dgc_lab.training.ModelTrainer` can do it, `DistributedOptimizer` cannot. A ValueError unless ``every``
    is at least 2 and ``since`` at least 0.

    Source: arXiv:1805.09767, Algorithm 1; arXiv:1808.07217 (post-local).

    Example:
        >>> from dgc_lab.schemes import dense
        >>> local(dense(), every=10).name
        'dense, every 10 steps'
    """
    check_whole("every", every, 2)
    check_whole("since", since, 0)
    name = f"{scheme.name}, every {every} steps" + (f" from {since} on" if since else "")
    return scheme._replace(name=name, every=every, since=since)
