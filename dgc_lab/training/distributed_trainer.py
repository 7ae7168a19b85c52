"""Training of the lab's networks by several workers: settings with all options of DGC, and two trainers.

Lesson 5. One trainer runs in this process, the other on Horovod ranks. The loop itself is in
`dgc_lab.training.model_trainer.ModelTrainer`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf

from dgc_lab.cluster.base import Cluster
from dgc_lab.common import LabError, check_choice, check_instance, check_whole, free_memory
from dgc_lab.compression.config import PAPER_WARM_UP, DGCConfig, geometric_warm_up
from dgc_lab.compression.scheme import Scheme
from dgc_lab.compression.schemes.gallery import is_published, parse_scheme, published
from dgc_lab.compression.wrappers import with_momentum
from dgc_lab.distributed.communicators import Communicator, check_communicator, default_communicator
from dgc_lab.distributed.rank_files import RankFiles
from dgc_lab.training.events import TrainingDiverged
from dgc_lab.training.masking_trainer import MaskingConfig
from dgc_lab.training.model_trainer import ModelTrainer
from dgc_lab.workloads.batches import cross_entropy
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Dataset
from dgc_lab.workloads.gpu import grow_gpu_memory
from dgc_lab.workloads.models import network_for

WARM_UPS = {
    "none": lambda ratio: (),
    "paper": lambda ratio: tuple(stage for stage in PAPER_WARM_UP if stage > ratio),
    "geometric": lambda ratio: geometric_warm_up(ratio) if 0 < ratio < 1 else (),
    "dense": lambda ratio: (1.0,) if ratio < 1 else (),
}


@dataclasses.dataclass(frozen=True)
class DistributedConfig(MaskingConfig):
    """Settings of a run on several workers, except for the ratio: `MaskingConfig` plus the options of DGC.

    Attributes:
        dataset, network, steps, learning_rate, schedule, momentum, rule, scope, seed, evaluations: as in
            `MaskingConfig`.
        batch: examples per update and worker.
        workers: number of workers.
        warm_up: ``"none"``, ``"paper"``, ``"geometric"`` (4 stages) or ``"dense"``; only DGC has a warm-up.
        warm_up_steps: updates in each stage.
        scheme: ``"dgc"``, with all these options; or another scheme of `dgc_lab.compression`, given by a name such as
            ``"qsgd:levels=4"`` or as a `Scheme`. It uses the run's ratio unless it sets its own. Clipping, weight
            decay, the wire format and the choice of uncompressed tensors apply to it. Momentum is applied after the
            exchange unless the scheme has its own.
        nesterov, accumulate, momentum_correction, factor_masking, clip_norm, weight_decay, values, indices,
            switch_to_dense, dense_vectors, dense_below: as in `dgc_lab.compression.DGCConfig`, with its defaults.

    Raises:
        ValueError: a value is not allowed; the message names it.

    Example:
        >>> DistributedConfig(warm_up="paper", momentum_correction=False).config(ratio=0.01).warm_up
        (0.25, 0.0625, 0.015625)
    """

    nesterov: bool = False
    accumulate: bool = True
    momentum_correction: bool = True
    factor_masking: bool = True
    clip_norm: float | None = None
    weight_decay: float = 0.0
    dense_vectors: bool = True
    dense_below: int = 1024
    values: str = "float32"
    indices: str = "int32"
    switch_to_dense: bool = True
    workers: int = 2
    warm_up: str = "none"
    warm_up_steps: int = 50
    scheme: str | Scheme = "dgc"

    def __post_init__(self):
        super().__post_init__()
        if self.rule == "off":
            raise ValueError("rule must not be 'off' with several workers: use ratio 1 to send everything")
        if not isinstance(self.scheme, str | Scheme):
            raise ValueError(f"scheme must be a name or a Scheme, got {self.scheme!r}")
        if isinstance(self.scheme, Scheme) and published(self.scheme.name) and not is_published(self.scheme):
            raise ValueError(f"scheme must have a name of its own, got {self.scheme.name!r}, a published scheme's")
        check_choice("warm_up", self.warm_up, WARM_UPS)
        check_whole("workers", self.workers, 1)
        self.config(1.0)
        self.compression(1.0)

    def to_dict(self) -> dict:
        return {**vars(self), "scheme": self.scheme if isinstance(self.scheme, str) else self.scheme.name}

    def compression(self, ratio) -> DGCConfig | Scheme:
        """Return the trainer's config, or its scheme at the ratio (a number or ``tf.Variable``)."""
        if self.scheme == "dgc":
            return self.config(1.0)
        own = self.scheme if isinstance(self.scheme, Scheme) else parse_scheme(self.scheme, ratio=ratio)
        return own if own.momentum != 0 or not self.momentum else with_momentum(own, self.momentum)

    def config(self, ratio: float) -> DGCConfig:
        """Return the options as a `dgc_lab.compression.DGCConfig` at one ratio."""
        names = [field.name for field in dataclasses.fields(DGCConfig) if hasattr(self, field.name)]
        options = {name: getattr(self, name) for name in names}
        stages = WARM_UPS[self.warm_up](ratio) if self.scheme == "dgc" else ()
        return DGCConfig(**options | {"ratio": ratio, "warm_up": stages})


class DistributedTrainer(ModelTrainer):
    """Trainer of the workers in one process, with one traced step for every ratio.

    Args:
        settings: the run's settings, the same on all ranks.
        communicator: the participants (`dgc_lab.distributed.communicators`). If None, Horovod's ranks, or one worker
            if Horovod is not running.
        data: the data set, if it is loaded already.

    Raises:
        ValueError: ``settings.workers`` is not the communicator's number of workers.
        RanksDisagree: ranks have different settings.

    Example:
        >>> from dgc_lab.distributed import SimulatedWorkers
        >>> settings = DistributedConfig(steps=4, evaluations=1)
        >>> events = list(DistributedTrainer(settings, SimulatedWorkers(2)).run(ratio=0.01))
        >>> events[0].bytes_sent < events[0].dense_bytes / 10
        True
    """

    def __init__(
        self, settings: DistributedConfig, communicator: Communicator | None = None, data: Dataset | None = None
    ):
        grow_gpu_memory()
        communicator = check_communicator(communicator) or default_communicator()
        check_instance("settings", settings, DistributedConfig)
        communicator.assert_same_on_all_ranks(str(settings))
        if settings.workers != (size := communicator.size):
            raise ValueError(f"workers must be {size}, the communicator's number of workers, got {settings.workers}")
        self.settings, self.data = settings, data or load(settings.dataset)
        self.evaluate = self.data.evaluator()
        self.ratio = self.files = None  # of the current run
        self.scheme_ratio = tf.Variable(1.0, trainable=False)  # a variable, so that one trace serves all ratios
        super().__init__(
            network_for(settings.dataset, settings.seed, settings.network, self.data),
            cross_entropy,
            self.data.batches(settings.batch, settings.seed),
            settings.compression(self.scheme_ratio),
            settings.rate(),
            communicator,
            settings.seed,
            None if settings.scheme == "dgc" else settings.config(1.0),
        )

    def with_seed(self, seed: int) -> DistributedTrainer:
        """Reset this trainer with a new seed and return it; no new trace is needed.

        Raises ValueError if ``seed`` is not a whole number from 0 to 2**31 - 1.
        """
        settings = dataclasses.replace(self.settings, seed=seed)
        self.settings, self.ratio, self.files = settings, None, None
        self.reseed(seed, network_for(settings.dataset, seed, settings.network, self.data))
        return self

    def run(
        self, ratio: float, stop: Callable[[], bool] = bool, resume: bool = False, look_every: int | None = None
    ) -> Iterator:
        """Train at one ratio; ``look_every`` and the events are those of `ModelTrainer.run`.

        Args:
            ratio: share of the gradient elements that a worker sends, in [0, 1]; the same on all ranks.
            stop: called before every TensorFlow call; if it is True on any rank, all ranks stop after the same step.
            resume: resume from the current state, as after `restore`, instead of the initial weights.

        Raises:
            ValueError: ratio is not in [0, 1], or differs from the ratio of the run to resume.
            RanksDisagree: ranks have different ratios, seeds or numbers of finished steps.
            TrainingDiverged: a worker's gradient contains NaN or infinity; raised on all ranks.
        """
        settings, config = self.settings, self.settings.config(ratio)
        if resume and self.ratio not in (None, ratio):
            raise ValueError(f"ratio must be {self.ratio}, the ratio of the run to resume, got {ratio!r}")
        begins = f"after step {self.steps_done if resume else 0}"
        self.communicator.assert_same_on_all_ranks(f"ratio {ratio}, seed {settings.seed}, {begins}")
        self.ratio = ratio
        self.scheme_ratio.assign(ratio)
        if not resume:
            self.files = None
            self.reset()
        yield from self._train(config, settings.steps, self.evaluate, settings.evaluations, stop, look_every)

    def save(self, folder) -> None:
        """Save weights, and this rank's velocities and residuals, in ``folder`` (`dgc_lab.distributed.rank_files`)."""
        if self.ratio is None:
            raise LabError("nothing has been trained yet: call run(ratio) before save(folder)")
        if self.files is None or self.files.folder != Path(folder):
            self.files = self._files(folder, self.ratio)
        self.files.save(self.steps_done)

    def restore(self, folder, ratio: float) -> bool:
        """Load the last step that all ranks have saved; ``run(ratio, resume=True)`` then resumes as if never stopped.

        Returns False if nothing was saved. Raises LabError if the saved run had other settings; only evaluations may
        differ, and steps if the schedule is constant. On a GPU the last bits may differ, see
        `dgc_lab.distributed.SaveRanks`.
        """
        files = self._files(folder, ratio)
        found = files.restore() > 0
        self.ratio, self.files = ratio, files
        return found

    def _files(self, folder, ratio) -> RankFiles:
        may_change = ("steps", "evaluations") if self.settings.schedule == "constant" else ("evaluations",)
        settings = {name: value for name, value in self.settings.to_dict().items() if name not in may_change}
        if not settings["scheme"]:
            raise ValueError("scheme must have a name to be saved: name it, as in Scheme(step, name='mine')")
        variables = [*self.weights, *self.statistics, *self.compressor.state]
        about = {**settings, "ratio": float(ratio), "data": self.data.fingerprint()}
        return RankFiles(folder, self.communicator, variables, about)


class TrainerOnRanks:
    """Trainer that runs on Horovod ranks, for notebooks and `dgc_lab.training.sweeps`.

    Args:
        settings: the run's settings; ``workers`` must be the number of ranks.
        ranks: started `dgc_lab.cluster.HorovodRanks`.
        data: the data set, if it is loaded already; the ranks load their own.
        path: location of the data set (`dgc_lab.workloads.data.load`), here and on every rank.

    Raises:
        ValueError: ``settings.workers`` is not the number of ranks.

    Example:
        >>> with HorovodRanks(2) as ranks:  # doctest: +SKIP
        ...     events = list(TrainerOnRanks(DistributedConfig(steps=300), ranks).run(ratio=0.001))
        >>> events[-1].accuracy > 0.9  # doctest: +SKIP
        True
    """

    def __init__(
        self,
        settings: DistributedConfig,
        ranks: Cluster,
        data: Dataset | None = None,
        path: str | os.PathLike | None = None,
    ):
        self.ranks = check_instance("ranks", ranks, Cluster)
        self.settings = check_instance("settings", settings, DistributedConfig)
        if settings.workers != ranks.size:
            raise ValueError(f"workers must be {ranks.size}, the number of ranks, got {settings.workers}")
        self.data = data or load(settings.dataset, path)
        self.path = path and str(Path(path).expanduser().resolve())

    def run(self, ratio: float) -> Iterator:
        """Train on all ranks and yield the events of the first one; closing the iterator stops all of them.

        Raises:
            TrainingDiverged: a worker's gradient contains NaN or infinity.
            LabError: a rank failed or died, or another caller stopped the ranks.
        """
        from dgc_lab.cluster import RankFailed

        step = 0
        try:
            for event in self.ranks.stream(train_on_rank, self.settings, ratio, self.path, self.data.fingerprint()):
                step = event.step
                yield event
        except RankFailed as error:
            diverged = [p.message for p in error.problems.values() if p.kind == TrainingDiverged.__name__]
            if diverged:
                raise TrainingDiverged(diverged[0]) from error
            raise
        if step < self.settings.steps:
            raise LabError(f"the ranks were stopped after step {step} of {self.settings.steps}")


def train_on_rank(settings: DistributedConfig, ratio: float, path: str | None, data: str) -> Iterator:
    """Yield the events of `DistributedTrainer.run` on a rank, and keep the trainer for the next ratio."""
    from dgc_lab.cluster import stop_requested

    trainer = trainer_on_rank(settings, path)
    if trainer.data.fingerprint() != data:
        whence = f" from {path}" if path else ""
        raise LabError(f"data must be the data set that the ranks load{whence}, got another: pass path= to load yours")
    free_memory()  # of the previous trainer, before this one is traced
    yield from trainer.run(ratio, stop_requested)


@functools.lru_cache(maxsize=1)  # keeps the last trace, but no second model in memory
def trainer_on_rank(settings: DistributedConfig, path: str | None = None) -> DistributedTrainer:
    """Return this rank's trainer for these settings and data."""
    from dgc_lab.distributed.communicators import HorovodWorkers

    return DistributedTrainer(settings, HorovodWorkers(), load(settings.dataset, path))
