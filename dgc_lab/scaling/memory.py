"""Lesson 9: memory of a rank and traffic of a step in data parallelism, without and with sharding, by arithmetic.

Plain data parallelism stores weights, gradients and the optimizer's state on every rank. ZeRO gives each of N ranks 1/N
of the optimizer's state (stage 1), of the gradients too (stage 2), and of the weights too (stage 3, which PyTorch calls
FSDP). Activations, buffers and fragmentation come on top and are not included.

References:
    arXiv:1910.02054, sections 3.1 (bytes by precision), 5 (stages) and 7 (traffic)
    arXiv:2304.11277 (PyTorch FSDP)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dgc_lab.common import check_choice, check_instance, check_number, check_whole
from dgc_lab.scaling.network import Link

if TYPE_CHECKING:
    import pandas as pd


class Precision(NamedTuple):
    """Bytes per parameter: of the weights, of the gradients, and of a float32 copy of the weights for the update."""

    weights: int
    gradients: int
    copy: int


class Method(NamedTuple):
    """The parts that a method divides among the ranks, and how often a step passes all weights or gradients in a ring.

    Half an allreduce counts as one pass: a reduce-scatter of the gradients, or an allgather of the weights.
    """

    optimizer: bool
    gradients: bool
    weights: bool
    passes: int


#: Precisions of training by name.
PRECISIONS = {"float32": Precision(4, 4, 0), "bfloat16 with float32 copy": Precision(2, 2, 4)}
#: Bytes of optimizer state per parameter by optimizer, in float32.
OPTIMIZER_BYTES = {"SGD": 0, "SGD with momentum": 4, "Adam": 8}
#: Methods of data parallelism by name.
METHODS_OF_SHARDING = {
    "data parallel": Method(optimizer=False, gradients=False, weights=False, passes=2),
    "ZeRO 1": Method(optimizer=True, gradients=False, weights=False, passes=2),
    "ZeRO 2": Method(optimizer=True, gradients=True, weights=False, passes=2),
    "ZeRO 3, FSDP": Method(optimizer=True, gradients=True, weights=True, passes=3),
}


def rank_memory(parameters: int, ranks: int, method: str, precision: str, optimizer: str) -> dict[str, float]:
    """Return the bytes that a rank stores: weights, gradients, and the optimizer's state with its copy of the weights.

    Args:
        parameters: number of trained parameters, at least 1.
        ranks: number of ranks, at least 1.
        method: one of `METHODS_OF_SHARDING`.
        precision: one of `PRECISIONS`.
        optimizer: one of `OPTIMIZER_BYTES`.

    Raises:
        ValueError: an argument is out of range or unknown.

    Example:
        The ZeRO paper's model of 7.5 billion parameters needs 120 GB, or 31.4 GB on each of 64 ranks with stage 1:

        >>> settings = "bfloat16 with float32 copy", "Adam"
        >>> [sum(rank_memory(7_500_000_000, 64, method, *settings).values()) / 1e9 for method in METHODS_OF_SHARDING]
        [120.0, 31.40625, 16.640625, 1.875]

    References:
        arXiv:1910.02054, figure 1.
    """
    check_whole("parameters", parameters, 1)
    check_whole("ranks", ranks, 1)
    how = METHODS_OF_SHARDING[check_choice("method", method, METHODS_OF_SHARDING)]
    size = PRECISIONS[check_choice("precision", precision, PRECISIONS)]
    state = size.copy + OPTIMIZER_BYTES[check_choice("optimizer", optimizer, OPTIMIZER_BYTES)]
    return {
        "weights": parameters * size.weights / (ranks if how.weights else 1),
        "gradients": parameters * size.gradients / (ranks if how.gradients else 1),
        "optimizer": parameters * state / (ranks if how.optimizer else 1),
    }


def step_traffic(parameters: int, ranks: int, method: str, precision: str) -> tuple[float, float]:
    """Return the hops of a step on a ring of ranks, and the bytes that a rank sends one after another.

    An allreduce of the gradients is a reduce-scatter and an allgather. Stages 1 and 2 gather updated weights instead of
    summed gradients. Stage 3 gathers the weights twice, for the forward and the backward pass, because no rank keeps
    them, and scatters the gradients.

    Args:
        parameters, ranks, method, precision: as in `rank_memory`.

    Raises:
        ValueError: an argument is out of range or unknown.

    Example:
        >>> for method in METHODS_OF_SHARDING:
        ...     print(method, step_traffic(1000, 4, method, "float32"))
        data parallel (6, 6000.0)
        ZeRO 1 (6, 6000.0)
        ZeRO 2 (6, 6000.0)
        ZeRO 3, FSDP (9, 9000.0)

    References:
        arXiv:1910.02054, section 7.
    """
    check_whole("parameters", parameters, 1)
    check_whole("ranks", ranks, 1)
    how = METHODS_OF_SHARDING[check_choice("method", method, METHODS_OF_SHARDING)]
    size = PRECISIONS[check_choice("precision", precision, PRECISIONS)]
    # The first pass carries gradients; the others carry weights, or summed gradients, which have the same size.
    carried = parameters * (size.gradients + (how.passes - 1) * size.weights)
    return how.passes * (ranks - 1), carried * (ranks - 1) / ranks


def compare_methods(parameters: int, ranks: int, precision: str, optimizer: str, link: Link) -> pd.DataFrame:
    """Return memory and traffic of all methods: a row for each, in GB, GB and ms.

    Args:
        parameters, ranks, precision, optimizer: as in `rank_memory`.
        link: the link of each rank; a ring sends over it without overlap.

    Returns:
        Columns ``weights GB``, ``gradients GB``, ``optimizer GB``, ``GB per rank``, ``GB sent per step`` and ``ms per
        exchange``, with the method as index.

    Raises:
        ValueError: an argument is out of range or unknown.

    Example:
        >>> table = compare_methods(1_000_000_000, 8, "float32", "Adam", Link(125e6))
        >>> table["GB per rank"].tolist()
        [16.0, 9.0, 5.5, 2.0]

    References:
        arXiv:1910.02054.
    """
    import pandas as pd

    check_instance("link", link, Link)
    rows = {}
    for method in METHODS_OF_SHARDING:
        parts = rank_memory(parameters, ranks, method, precision, optimizer)
        hops, size = step_traffic(parameters, ranks, method, precision)
        rows[method] = {f"{part} GB": value / 1e9 for part, value in parts.items()}
        rows[method] |= {"GB per rank": sum(parts.values()) / 1e9, "GB sent per step": size / 1e9}
        rows[method]["ms per exchange"] = 1000 * link.seconds(hops, size)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("method")


def fits(table: pd.DataFrame, memory: float) -> list[str]:
    """Return the methods of `compare_methods` that fit into ``memory`` GB per rank, without activations.

    Example:
        >>> fits(compare_methods(1_000_000_000, 8, "float32", "Adam", Link(125e6)), 6)
        ['ZeRO 2', 'ZeRO 3, FSDP']
    """
    check_number("memory", memory, "above 0")
    return table.index[table["GB per rank"] <= memory].tolist()
