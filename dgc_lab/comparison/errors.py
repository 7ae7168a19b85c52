"""Bias and variance of a scheme's messages: the systematic and the random part of their error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from numpy.typing import ArrayLike

from dgc_lab.common import check_instance, check_some, check_whole

if TYPE_CHECKING:
    from dgc_lab.compression.scheme import Scheme


def error_table(schemes: dict[str, Scheme], gradient: ArrayLike, draws: int = 200) -> pd.DataFrame:
    """Return bias and variance of one worker's decoded message, over many draws for the same gradient.

    Args:
        schemes: `dgc_lab.compression.Scheme` objects by name; every draw starts from the scheme's initial state.
        gradient: float32 array of any shape.
        draws: number of draws, 2 to 100 000.

    Returns:
        A row for each scheme: ``scheme``; ``bias``, the squared distance between the gradient and the mean of the
        draws, corrected for the finite number of draws; ``variance``, the mean squared distance of a draw from that
        mean. Both are relative to the gradient's squared norm. A scheme is unbiased if its bias is 0.

    Raises:
        ValueError: ``schemes`` is not a dict or is empty; ``draws`` is not a whole number in this range; or the
            gradient is all zeros, contains NaN or infinity, or is too large for a scheme.

    References:
        arXiv:1610.02132, section 2 (unbiased, with bounded variance).

    Example:
        >>> import tensorflow as tf
        >>> from dgc_lab.compression import qsgd, sign
        >>> table = error_table({"qsgd": qsgd(1), "sign": sign()}, tf.constant([3.0, -0.1, 0.2, 0.1]))
        >>> (table["bias"] < 0.1).tolist()
        [True, False]
    """
    import numpy as np
    import tensorflow as tf

    from dgc_lab.compression import sent_alone

    check_some("schemes", check_instance("schemes", schemes, dict))
    check_whole("draws", draws, 2, 100_000)
    check_some("gradient", tf.reshape(gradient, [-1]))
    rows, tensor = [], tf.convert_to_tensor(gradient, tf.float32)
    exact = tensor.numpy().astype(np.float64)  # because squares can overflow or underflow float32
    if not np.isfinite(exact).all():
        raise ValueError("gradient must be finite, got NaN or infinity")
    if not (size := (exact**2).sum()):
        raise ValueError("gradient must have a nonzero element, got only zeros")
    for name, scheme in schemes.items():

        @tf.function(autograph=False)
        def draw(number, scheme=scheme):
            return sent_alone(scheme, tensor, number, number)

        sent = np.stack([draw(tf.constant(number)).numpy() for number in range(draws)]).astype(np.float64)
        if not np.isfinite(sent).all():
            raise ValueError(f"gradient must be small enough for {name}, which returned NaN or infinity: scale it down")
        variance = ((sent - sent.mean(0)) ** 2).sum() / (draws - 1)
        bias = ((sent.mean(0) - exact) ** 2).sum() - variance / draws
        rows.append({"scheme": name, "bias": max(0.0, bias) / size, "variance": variance / size})
    return pd.DataFrame(rows)
