"""Wrappers around any scheme: error feedback, momentum after the exchange, a dense start, and local SGD."""

from __future__ import annotations

from dataclasses import replace

import tensorflow as tf

from dgc_lab.common import check_flag, check_instance, check_number, check_whole
from dgc_lab.compression.checks import checked_result
from dgc_lab.compression.scheme import AllReduceMean, Scheme


def with_error_feedback(scheme: Scheme) -> Scheme:
    """Return the scheme with error feedback: the part of a gradient that was not sent is added to the next one.

    Invariant: own + error = gradient + the error before.

    Args:
        scheme: any scheme without error feedback, whose step returns the worker's own contribution.

    Raises:
        ValueError: scheme is not a `Scheme`.

    Example:
        >>> from dgc_lab.compression import masking
        >>> with_error_feedback(masking(0.5)).name
        'masking:ratio=0.5, with error feedback'

    References:
        Seide et al. 2014 (1-bit SGD); arXiv:1809.07599 (Mem-SGD), Algorithm 1; arXiv:1901.09847.
    """
    check_instance("scheme", scheme, Scheme)

    def init(gradient):
        return tf.zeros_like(gradient), scheme.init(gradient)

    def step(gradient, state, context):
        error, inner = state
        corrected = gradient + error
        update, own, inner = yield from checked(scheme, corrected, inner, context)
        if own is None:
            raise ValueError(f"{scheme.label} must return its own contribution: error feedback needs it, got None")
        return update, own, (corrected - own, inner)

    return replace(scheme, step=step, init=init, name=scheme.name and f"{scheme.name}, with error feedback")


def with_momentum(scheme: Scheme, momentum: float = 0.9, nesterov: bool = False) -> Scheme:
    """Return the scheme with momentum applied to the update after the exchange; all workers keep the same velocity.

    Args:
        scheme: any scheme without momentum.
        momentum: at least 0 and below 1.
        nesterov: use Nesterov's momentum.

    Raises:
        ValueError: momentum is out of range, scheme is not a `Scheme`, or it already has momentum.

    Example:
        >>> from dgc_lab.compression import qsgd
        >>> with_momentum(qsgd(), 0.5).momentum
        0.5

    References:
        Sutskever et al. 2013, "On the importance of initialization and momentum in deep learning".
    """
    check_instance("scheme", scheme, Scheme)
    check_number("momentum", momentum, "at least 0 and below 1")
    check_flag("nesterov", nesterov)
    if scheme.momentum != 0:
        raise ValueError(f"scheme must have no momentum, which would be applied twice, got {scheme.label}")

    def init(gradient):
        return tf.zeros_like(gradient), scheme.init(gradient)

    def step(gradient, state, context):
        velocity, inner = state
        update, own, inner = yield from checked(scheme, gradient, inner, context)
        velocity, update = momentum_step(velocity, update, momentum, nesterov)
        return update, own, (velocity, inner)

    kind = "Nesterov momentum" if nesterov else "momentum"
    name = scheme.name and f"{scheme.name}, {kind} {momentum}"
    return replace(scheme, step=step, init=init, momentum=momentum, nesterov=nesterov, name=name)


def checked(scheme: Scheme, gradient: tf.Tensor, state, context):
    """Run the step of a wrapped scheme; raise a clear error if its result cannot be used."""
    result = yield from scheme.step(gradient, state, context)
    return checked_result(result, gradient, state, scheme.label)


def momentum_step(velocity: tf.Tensor, gradient: tf.Tensor, momentum: float, nesterov: bool = False):
    """Return the new velocity, and the update that replaces the gradient.

    Raises ValueError if momentum is not at least 0 and below 1, or nesterov is not True or False.

    With ``gradient`` g, ``velocity`` u and ``momentum`` m: ``u = m u + g``, update u. With ``nesterov``:
    ``u = m (u + g)``, update ``u + g``.

    Example:
        >>> velocity, update = momentum_step(tf.constant([2.0]), tf.constant([1.0]), 0.5, nesterov=True)
        >>> float(velocity[0]), float(update[0])
        (1.5, 2.5)

    References:
        arXiv:1712.01887, eq. 7 and appendix B.
    """
    check_number("momentum", momentum, "at least 0 and below 1")
    if check_flag("nesterov", nesterov):
        velocity = momentum * (velocity + gradient)
        return velocity, velocity + gradient
    velocity = momentum * velocity + gradient
    return velocity, velocity


def after(scheme: Scheme, steps: int) -> Scheme:
    """Return the scheme with a dense start: in the first ``steps`` steps, workers exchange uncompressed gradients.

    The scheme's state stays as it is during these. Early gradients change most, and errors in them do most harm:
    PyTorch suggests a tenth of all steps before PowerSGD, and 1-bit Adam waits until its variance is stable.

    Args:
        scheme: any scheme without momentum of its own; apply `with_momentum` to the result.
        steps: number of steps with uncompressed gradients, at least 1.

    Raises:
        ValueError: steps is below 1, or scheme is not a `Scheme` or has momentum.

    Example:
        >>> from dgc_lab.compression import powersgd
        >>> after(powersgd(rank=1), steps=100).name
        'powersgd:rank=1, after 100 dense steps'

    References:
        ``start_powerSGD_iter`` of PyTorch's hook for PowerSGD (arXiv:1905.13727); arXiv:2102.02888, Algorithm 1.
    """
    check_instance("scheme", scheme, Scheme)
    check_whole("steps", steps, 1)
    if scheme.momentum != 0:
        raise ValueError(f"scheme must have no momentum, which the dense steps would skip, got {scheme.label}")

    def step(gradient, state, context):
        if not context.uncompressed:
            return (yield from checked(scheme, gradient, state, context))
        mean = yield AllReduceMean(gradient)
        return mean, gradient, state

    name = scheme.name and f"{scheme.name}, after {steps} dense steps"
    return replace(scheme, step=step, dense_steps=steps, name=name)


def local_sgd(scheme: Scheme, every: int = 8, since: int = 0, outer_rate: float = 1.0) -> Scheme:
    """Return the scheme for local SGD: workers train alone and exchange their weight changes every few steps.

    After an exchange all continue from the same weights. With ``since`` it is post-local SGD: until that step, workers
    exchange in every step. `dgc_lab.training.ModelTrainer` supports it, `DistributedOptimizer` does not.

    The scheme receives the weight change divided by the learning rate, in place of a gradient, so its state has the
    units of gradients: if the rate falls, earlier changes in a velocity shrink with it.

    Args:
        scheme: how the weight changes are compressed.
        every: steps between exchanges, at least 2.
        since: first step of the local phase, at least 0.
        outer_rate: factor of each exchanged change, above 0.

    Raises:
        ValueError: every, since or outer_rate is out of range, or scheme is not a `Scheme`.

    Example:
        >>> from dgc_lab.compression import dense
        >>> local_sgd(dense(), every=10).name
        'dense, every 10 steps'

    References:
        arXiv:1805.09767, Algorithm 1; arXiv:1808.07217 (post-local).
    """
    check_instance("scheme", scheme, Scheme)
    check_whole("every", every, 2)
    scheme = replace(scheme, every=every, since=since, outer_rate=outer_rate)
    when = f"every {every} steps" + (f" from step {since} on" if since else "")
    when += f", outer rate {outer_rate:g}" if outer_rate != 1 else ""
    return replace(scheme, name=scheme.name and f"{scheme.name}, {when}")
