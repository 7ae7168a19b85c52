"""The lab's studies: which methods lessons 4 to 9 compare, on which task, and where the rows are stored."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dgc_lab.common import check_choice, results_file
from dgc_lab.comparison.study import Study, simulated
from dgc_lab.comparison.study_tables import search_table, study_table
from dgc_lab.compression.config import MASKING
from dgc_lab.scaling.residual_staleness import EXAMPLES_PER_STEP
from dgc_lab.training.custom_masks import masking_scheme, masks_by_sign, random_masks
from dgc_lab.training.sweeps import read_rows
from dgc_lab.workloads.mnist1d import TRAIN_EXAMPLES

if TYPE_CHECKING:
    import pandas as pd

    from dgc_lab.workloads.dataset import Dataset

#: MNIST-1D, as in most studies: four simulated workers with 32 examples each, and a rate that falls to 0.
MNIST1D = {"dataset": "mnist1d", "workers": 4, "batch": 32, "steps": 1500, "schedule": "cosine"}
WARM_UP = {"schedule": "warm-up"}  # the learning rate rises, then falls
#: Every tensor is compressed, small ones and vectors, too.
COMPRESS_ALL = {"dense_below": 0, "dense_vectors": False}
DROPPING = {"accumulate": False, "momentum_correction": False, "factor_masking": False}
MOMENTUM_AFTER = {"momentum_correction": False, "factor_masking": False}
RATES = (1.6, 0.8, 0.4, 0.2, 0.1, 0.05, 0.02)

LARGEST = {**MASKING, "rule": "exact"}
MASKS = {
    "largest elements, 5 %": {"ratio": 0.05, **LARGEST},
    "largest of each sign, 5 %": {"ratio": 0.05, "scheme": masking_scheme(masks_by_sign, "masking by sign")},
    "largest elements, 1 %": {"ratio": 0.01, **LARGEST},
    "random elements, 1 %": {"ratio": 0.01, "scheme": masking_scheme(random_masks, "random masking")},
    "one threshold for all tensors, 1 %": {"ratio": 0.01, **LARGEST, "scope": "global"},
    "first tensor's threshold, 1 %": {"ratio": 0.01, **LARGEST, "scope": "first"},
    "small tensors uncompressed, 1 %": {"ratio": 0.01, **LARGEST, "dense_below": 1024, "dense_vectors": True},
}
ACCUMULATION = {
    "uncompressed": {},
    **{
        f"{name}, {percent} %{extent}": {"ratio": ratio, **method, **options}
        for percent, ratio, extent, options in (
            ("1", 0.01, "", {}),
            ("0.1", 0.001, "", {}),
            ("0.1", 0.001, ", all tensors compressed", COMPRESS_ALL),
        )
        for name, method in {"dropping": DROPPING, "accumulating": MOMENTUM_AFTER, "complete DGC": {}}.items()
    },
}
CORRECTIONS = {
    f"{name}{extent}": {"ratio": 0.01, **method, **options}
    for extent, options in {", all tensors compressed": COMPRESS_ALL, "": {}}.items()
    for name, method in {
        "no momentum": {"momentum": 0.0, **MOMENTUM_AFTER},
        "momentum after the exchange": MOMENTUM_AFTER,
        "momentum correction alone": {"factor_masking": False},
        "complete DGC": {},
    }.items()
}
EARLY_STEPS = {
    "neither": {"ratio": 0.001},
    "clipping": {"ratio": 0.001, "clip_norm": 1.0},
    "warm-up": {"ratio": 0.001, "warm_up": "paper", "warm_up_steps": 60},
    "both": {"ratio": 0.001, "clip_norm": 1.0, "warm_up": "paper", "warm_up_steps": 60},
}
SCHEMES = (
    *("dense", "float16", "bfloat16", "int8", "natural", "qsgd:levels=7", "qsgd:levels=1", "terngrad"),
    *("sign", "signum", "ef_sign", "one_bit", "dense:every=8", "dense:every=8,since=500"),
    *("masking:ratio=0.01", "top_k:ratio=0.01", "random_k:ratio=0.01", "random_k:ratio=0.02"),
    *("threshold:limit=0.01", "dgc:ratio=0.001", "dgc:ratio=0.01", "dgc:ratio=0.02"),
    *("dgc:ratio=0.04", "powersgd:rank=1", "powersgd:rank=2", "powersgd:rank=4"),
    *("top_k:ratio=0.001", "random_k:ratio=0.001", "random_k:ratio=0.002"),
    *("int8:block=256", "int4", "threshold_reuse:ratio=0.01", "sidco:ratio=0.01", "blocks:ratio=0.01,size=32"),
    *("leader_k:ratio=0.01", "cocktail:ratio=0.01", "cocktail:ratio=0.001", "powersgd:rank=1,after=150"),
    *("eight_bit", "inceptionn", "sketch", "adaptive_quantization:ratio=0.01", "gravac", "demo:k=1", "one_bit_adam"),
    *("adaptive_sparsification:ratio=0.01", "diloco", "sparseloco"),
)
OWN_SETTINGS = {"one_bit_adam": COMPRESS_ALL}  # its learning rate suits no tensor that SGD trains
LESS_OFTEN = (  # at about 98, 2 and 0.7 kB per step
    *("dense", "dgc:ratio=0.01", "dense:every=50", "diloco:every=50", "sparseloco:k=64,every=4"),
    *("dgc:ratio=0.003", "dense:every=150", "diloco:every=150", "sparseloco:k=64,every=12"),
)
LESS_OFTEN_OPTIONS = {"dense:every=50": {"momentum": 0.0}, "dense:every=150": {"momentum": 0.0}}
SCHEMES_ON_RANKS = (
    *("dense", "qsgd:levels=7", "terngrad", "ef_sign", "top_k:ratio=0.001", "random_k:ratio=0.001"),
    *("dgc:ratio=0.001", "powersgd:rank=1", "powersgd:rank=2", "powersgd:rank=4"),
)
RULES = {f"{rule} threshold": {"ratio": 0.01, "rule": rule} for rule in ("exact", "sampled", "hierarchical")}
WORKERS = {
    f"{workers} worker{'s' * (workers > 1)}, {name}": {
        "workers": workers,
        "batch": EXAMPLES_PER_STEP // workers,
        "ratio": ratio,
        "clip_norm": clip_norm,
    }
    for name, ratio, clip_norm, numbers in (
        ("uncompressed", 1.0, 1.0, (1, 32)),
        ("1 %", 0.01, 1.0, (1, 4, 32)),
        ("0.1 %", 0.001, 1.0, (1, 4, 32)),
        ("0.1 %, no clipping", 0.001, None, (1,)),
    )
    for workers in numbers
}
EPOCHS = 4
RATES_BY_WORKERS = {
    f"{workers} worker{'s' * (workers > 1)}{way}, rate {rate:g}": {
        "workers": workers,
        "steps": EPOCHS * TRAIN_EXAMPLES // (32 * workers),
        "learning_rate": rate,
        **options,
    }
    for workers, way, options in (
        *((number, "", {}) for number in (1, 2, 4, 8)),
        (8, ", warm-up", WARM_UP),
    )
    for rate in (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8)
}

#: The studies by name.
STUDIES = {
    "masks": Study(MASKS, {**MNIST1D, "workers": 1, "batch": 64, **COMPRESS_ALL}, RATES),
    "accumulation": Study(ACCUMULATION, MNIST1D, RATES),
    "corrections": Study(CORRECTIONS, MNIST1D, RATES),
    "early steps": Study(EARLY_STEPS, MNIST1D, RATES),
    "schemes": Study(
        {scheme: {"scheme": scheme, **OWN_SETTINGS.get(scheme, {})} for scheme in SCHEMES},
        MNIST1D,
        (0.8, 0.4, 0.2, 0.1, 0.05, 0.02, 0.005, 0.001),
        (0, 1, 2),
    ),
    "schemes on ranks": Study(
        {scheme: {"scheme": scheme} for scheme in SCHEMES_ON_RANKS},
        {"dataset": "mnist", "workers": 2, "batch": 32, "steps": 200},
        (0.1, 0.05, 0.02, 0.005),
        (0, 1, 2),
        on_ranks=True,
    ),
    "less often": Study(
        {
            **{name: {"scheme": name, **LESS_OFTEN_OPTIONS.get(name, {})} for name in LESS_OFTEN},
            "dgc:ratio=0.003, clipped": {"scheme": "dgc:ratio=0.003", "clip_norm": 1.0},
        },
        {**MNIST1D, **COMPRESS_ALL},
        RATES,
        (0, 1, 2),
    ),
    "rules": Study(RULES, MNIST1D, (0.2,)),  # they differ too little to need their own rates
    "workers": Study(WORKERS, {**MNIST1D, "steps": 600}, (0.2,)),  # all runs have the same gradients to send
    "rates": Study(RATES_BY_WORKERS, {**MNIST1D, "schedule": "constant"}, (0.1,)),
    "bert": Study(
        {"uncompressed": {}, "1 %": {"ratio": 0.01, "warm_up": "paper", "warm_up_steps": 50}},
        {"dataset": "python_reference", "workers": 2, "batch": 64, "steps": 1000, "clip_norm": 1.0, **WARM_UP},
        (0.8, 0.4, 0.2),
        (0, 1, 2),
    ),
    "resnet": Study(
        {"uncompressed": {}, "1 %": {"ratio": 0.01, "warm_up": "paper", "warm_up_steps": 20}},
        {"dataset": "mnist", "network": "resnet20", "workers": 2, "batch": 32, "steps": 250, **WARM_UP},
        (0.2, 0.1),
        (0, 1, 2),
    ),
}


def stored_rows() -> list[dict]:
    """Return the rows of all studies from ``results/studies.jsonl``, including those of the learning-rate searches.

    Example:
        >>> {row["dataset"] for row in stored_rows()} >= {"mnist1d", "mnist"}
        True
    """
    return read_rows(results_file("studies.jsonl"), {})


def stored_study(name: str) -> pd.DataFrame:
    """Return the table (`dgc_lab.comparison.study_tables.study_table`) of a study from the stored rows.

    ``name`` is one of the `STUDIES`; any other raises ValueError.

    Example:
        >>> stored_study("schemes").index[0]
        'dense'
    """
    return study_table(STUDIES[check_choice("name", name, STUDIES)], stored_rows())


def stored_search(name: str) -> pd.DataFrame:
    """Return accuracy by method and learning rate in the search of a study, from the stored rows.

    ``name`` is one of the `STUDIES`; any other raises ValueError.

    Example:
        >>> float(stored_search("corrections").loc["complete DGC", 0.1]) > 0.9
        True
    """
    return search_table(STUDIES[check_choice("name", name, STUDIES)], stored_rows())


@contextlib.contextmanager
def trainers(study: Study, data: Dataset, path=None) -> Iterator[Callable]:
    """Yield a function that makes a trainer from settings: simulated workers, or Horovod ranks."""
    from dgc_lab.training.distributed_trainer import TrainerOnRanks

    if not study.on_ranks:
        yield simulated(data)
        return
    from dgc_lab.cluster import HorovodRanks

    settings, _ = study.run(next(iter(study.methods)), study.rates[0], study.seeds[0])
    with HorovodRanks(settings.workers) as ranks:
        yield lambda settings: TrainerOnRanks(settings, ranks, data, path)


def rate_of(scheme: str, dataset: str) -> float:
    """Return a scheme's tuned learning rate in the lab's study, or else that of a similar scheme, or else 0.05.

    Digits use the rates of MNIST-1D, and other images those of MNIST, because their networks are similar. MNIST's study
    has few schemes, and its rates are lower: other images never use a higher rate than MNIST-1D.

    Example:
        >>> float(rate_of("sign", "mnist1d")), float(rate_of("dense", "mnist1d"))
        (0.001, 0.2)
    """

    def tuned(study):
        rates = stored_study(study)["learning rate"]
        alike = [rate for name, rate in rates.items() if name.partition(":")[0] == scheme.partition(":")[0]]
        return rates.get(scheme, alike[0] if alike else 0.05)

    return tuned("schemes") if dataset in ("digits", "mnist1d") else min(map(tuned, ("schemes", "schemes on ranks")))
