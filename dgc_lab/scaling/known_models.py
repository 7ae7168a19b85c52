"""Lesson 9: known models on known links, and known clusters on a map of computation against exchange.

Numbers of parameters follow from the published architectures; each constant names its source.

References:
    GPT-2: Radford et al., Language models are unsupervised multitask learners, 2019, table 2; the released
        configurations in github.com/openai/gpt-2. The paper says 117 M for the small model, whose weights are 124 M.
    Llama 2 7B: arXiv:2307.09288, and the released configuration; Llama 3 8B and 70B: arXiv:2407.21783, table 3
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dgc_lab.common import check_list, check_number, check_some, check_text, check_whole
from dgc_lab.scaling.cost_model import BACKWARD, ELEMENTS
from dgc_lab.scaling.memory import step_traffic
from dgc_lab.scaling.network import GBIT, Link, ring

if TYPE_CHECKING:
    import pandas as pd


def gpt2(layers: int, width: int) -> int:
    """Return the parameters of a GPT-2 with 50 257 tokens and 1 024 positions; its output shares the embedding.

    Example:
        >>> gpt2(12, 768)
        124439808
    """
    return (50_257 + 1024) * width + layers * (12 * width**2 + 13 * width) + 2 * width


def llama(layers: int, width: int, hidden: int, keys: int, vocabulary: int) -> int:
    """Return the parameters of a Llama, with ``keys`` numbers in all key heads, and an output of its own.

    Example:
        >>> llama(32, 4096, 14_336, 8 * 128, 128_256)
        8030261248
    """
    layer = 2 * width**2 + 2 * width * keys + 3 * width * hidden + 2 * width
    return 2 * vocabulary * width + layers * layer + width


#: Trained parameters by model.
KNOWN_MODELS = {
    "GPT-2 small": gpt2(12, 768),
    "GPT-2 XL": gpt2(48, 1600),
    "Llama 2 7B": llama(32, 4096, 11_008, 4096, 32_000),
    "Llama 3 8B": llama(32, 4096, 14_336, 1024, 128_256),
    "Llama 3 70B": llama(80, 8192, 28_672, 1024, 128_256),
}

#: Links by name, with the bandwidth in one direction. NVLink 4: NVIDIA's H100 data sheet states 900 GB/s for both
#: directions, and ``hwLat`` in NCCL's ``src/graph/tuning.cc`` 3.4 us per hop of a ring. 400G InfiniBand (NDR): NVIDIA's
#: ConnectX-7 data sheet. Ethernet: IEEE 802.3. Latency and efficiency of the others are those of the reference link.
KNOWN_LINKS = {
    "NVLink 4": Link(450e9, latency=3.4e-6),
    "400G InfiniBand": Link(400 * GBIT),
    "10G Ethernet": Link(10 * GBIT),
    "1G Ethernet": Link(GBIT),
}


def exchange_times(ranks: int = 64) -> pd.DataFrame:
    """Return the time of a step's exchange of the known models over the known links, in plain data parallelism.

    Args:
        ranks: number of ranks, at least 1; their gradients are bfloat16.

    Returns:
        A row for each model: ``parameters, 10^9``, ``GB sent per step`` by each rank in a ring allreduce, and the
        seconds over each link, without overlap.

    Raises:
        ValueError: ``ranks`` is out of range.

    Example:
        >>> exchange_times().loc["Llama 3 8B", ["400G InfiniBand", "1G Ethernet"]].round(1).tolist()
        [0.7, 269.1]

    References:
        `dgc_lab.scaling.network` (the model), and the sources in `dgc_lab.scaling.known_models`.
    """
    import pandas as pd

    check_whole("ranks", ranks, 1)
    rows = {}
    for model, parameters in KNOWN_MODELS.items():
        hops, size = step_traffic(parameters, ranks, "data parallel", "bfloat16 with float32 copy")
        rows[model] = {"parameters, 10^9": parameters / 1e9, "GB sent per step": size / 1e9}
        rows[model] |= {name: link.seconds(hops, size) for name, link in KNOWN_LINKS.items()}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("model")


@dataclass(frozen=True)
class Cluster:
    """Cluster as a point on the map: time per parameter of a step's computation, and of its uncompressed exchange.

    Both times are proportional to the number of parameters, which therefore cancels: tokens per step, the speed of a
    worker and its bandwidth decide.

    Attributes:
        name: short name.
        compute: ns per parameter that a worker computes in a step, above 0.
        bandwidth: bytes per second of a worker in each direction, above 0.
        element_bytes: bytes of a gradient element, above 0.
        workers: number of workers that exchange gradients, at least 2.
        source: where the numbers come from.

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> Cluster("two GPUs", compute=2.0, bandwidth=125e6, element_bytes=2, workers=2, source="example").exchange
        16.0

    References:
        arXiv:2001.08361, section 2.1 (6 operations per parameter and token).
    """

    name: str
    compute: float
    bandwidth: float
    element_bytes: float
    workers: int
    source: str

    def __post_init__(self):
        for name in ("name", "source"):
            check_text(name, getattr(self, name))
        for name in ("compute", "bandwidth", "element_bytes"):
            check_number(name, getattr(self, name), "above 0", finite=True)
        check_whole("workers", self.workers, 2)

    @property
    def exchange(self) -> float:
        """Time in ns per parameter of an uncompressed ring allreduce, without latency."""
        _, size = ring(self.workers, self.element_bytes)
        return 1e9 * size / self.bandwidth

    @property
    def most_gain(self) -> float:
        """Speed-up of a step if compression were free and sent nothing; the backward pass hides what it can."""
        return (self.compute + max(0.0, self.exchange - BACKWARD * self.compute)) / self.compute


def transformer_compute(tokens: float, operations: float) -> float:
    """Return the ns per parameter of a step with ``tokens``, for a worker that achieves ``operations`` per second."""
    return 6e9 * tokens / operations


#: Clusters of the lesson's map, from their publications. A worker is a GPU or, for INTELLECT-1, a node of 8 GPUs.
CLUSTERS = (
    Cluster(
        "Llama 3 405B: 16 384 H100",
        # The tokens of one of 128 replicas: each GPU has a part of the model.
        transformer_compute(16 * 2**20 / 128, 400e12),
        400 * GBIT,
        3,  # on average: 4 in the reduce-scatter, 2 in the allgather of the weights
        128,
        "arXiv:2407.21783, section 3.3 and table 4: 400 Gbit/s and 400 TFLOPS per GPU, 16 M tokens, 128 replicas",
    ),
    Cluster(
        "INTELLECT-1: 14 nodes, 3 continents",
        38 * 60 / 100 / 10,  # seconds of a step for 10^10 parameters
        2 * 13 / 14 * 10e9 / 469,
        2,
        14,
        "arXiv:2412.01152: 100 steps in 38 min; bandwidth from its exchange of 10^10 bytes in 469 s, the global median",
    ),
    Cluster(
        "ResNet-50: V100, 10 Gbit/s",
        0.1 / 25_557_032 * 1e9,
        10 * GBIT,
        4,
        64,
        "64 GPUs as in arXiv:2103.00543, with lesson 6's assumption of 100 ms per step",
    ),
)


def lab_clusters(rows: Sequence[dict]) -> list[Cluster]:
    """Return this lab's two ranks as a cluster for each limited link.

    Args:
        rows: rows of `dgc_lab.scaling.tables.link_rows`.

    Raises:
        ValueError: there are no rows.

    Example:
        >>> rows = [{"method": "no exchange", "link": "1 Gbit/s", "bandwidth": 125e6, "ms": 32.7}]
        >>> lab_clusters(rows)[0].name
        'this lab: 2 CPU ranks, 1 Gbit/s'

    References:
        Lesson 6, section 4.
    """
    return [
        Cluster(
            f"this lab: 2 CPU ranks, {row['link']}",
            1e6 * row["ms"] / ELEMENTS["mnist_cnn"],
            row["bandwidth"],
            4,
            2,
            "measured: results/link.jsonl",
        )
        for row in check_some("rows", rows)
        if row["method"] == "no exchange" and row["bandwidth"]
    ]


def cluster_table(clusters: Sequence[Cluster] = CLUSTERS) -> pd.DataFrame:
    """Return a row for each cluster: both times in ns per parameter, the most that compression can gain, the source.

    Args:
        clusters: the clusters.

    Raises:
        ValueError: there are none, or one is not a `Cluster`.

    Example:
        >>> cluster_table()["at most times as fast"].round(1).tolist()
        [1.0, 41.5, 1.9]

    References:
        The sources of `CLUSTERS`.
    """
    import pandas as pd

    rows = {
        cluster.name: {
            "compute, ns": cluster.compute,
            "exchange, ns": cluster.exchange,
            "at most times as fast": cluster.most_gain,
            "source": cluster.source,
        }
        for cluster in checked_clusters(clusters)
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("cluster")


def checked_clusters(clusters) -> list[Cluster]:
    """Return the clusters as a list; raise ValueError if there are none, or one is not a `Cluster`."""
    clusters = check_some("clusters", check_list("clusters", clusters))
    if wrong := [cluster for cluster in clusters if not isinstance(cluster, Cluster)]:
        raise ValueError(f"clusters must be instances of Cluster, got {wrong[0]!r}")
    return clusters
