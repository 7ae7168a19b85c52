"""How far what a scheme sends is from the gradient: its bias, which stays, and its variance, which chance makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from numpy.typing import ArrayLike

from dgc_lab.common import check_some, check_whole

if TYPE_CHECKING:
    from dgc_lab.compression.scheme import Scheme


def error_table(schemes: dict[str, Scheme], gradient: ArrayLike, draws: int = 200) -> pd.DataFrame:
    """Bias and variance of what one worker's message stands for, over many draws of the same gradient.

    Args:
        schemes: `dgc_lab.compression.Scheme` objects by name, each beginning with its first state at every draw.
        gradient: float32, of any shape.
        draws: number of them, at least 2.

    Returns:
        A line for each scheme: ``scheme``; ``bias``, the squared distance of the draws' mean from the gradient, less
        what chance leaves of it; ``variance``, the mean squared distance of a draw from the draws' mean; both as shares
        of the gradient's square. A scheme is right in the mean where its bias is 0.

    Raises:
        ValueError: ``draws`` is no whole number of at least 2; the gradient is all zeros, holds what is not finite, or
            is too large for a scheme.

    Source: arXiv:1610.02132, section 2 (unbiased, with bounded variance).

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

    check_whole("draws", draws, 2, 100_000)
    check_some("gradient", tf.reshape(gradient, [-1]))
    lines, whole = [], tf.convert_to_tensor(gradient, tf.float32)
    exact = whole.numpy().astype(np.float64)  # squares of float32 numbers need not be float32 numbers
    if not np.isfinite(exact).all():
        raise ValueError("gradient must hold finite numbers only")
    if not (size := (exact**2).sum()):
        raise ValueError("gradient must hold something other than zeros")
    for name, scheme in schemes.items():

        @tf.function(autograph=False)
        def draw(number, scheme=scheme):
            return sent_alone(scheme, whole, number, number)

        sent = np.stack([draw(tf.constant(number)).numpy() for number in range(draws)]).astype(np.float64)
        if not np.isfinite(sent).all():
            raise ValueError(f"gradient must be small enough for {name}, which makes NaN or infinity of it")
        variance = ((sent - sent.mean(0)) ** 2).sum() / (draws - 1)
        bias = ((sent.mean(0) - exact) ** 2).sum() - variance / draws
        lines.append({"scheme": name, "bias": max(0.0, bias) / size, "variance": variance / size})
    return pd.DataFrame(lines)
