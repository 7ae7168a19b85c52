"""Several workers train one of the lab's networks: settings with all options of DGC, the trainer, and it on ranks.

Lesson 5. The loop itself is `dgc_lab.training.model_trainer.ModelTrainer`'s.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf

from dgc_lab.cluster.base import Cluster
from dgc_lab.common import LabError, check_choice, check_whole, free_memory
from dgc_lab.compression.config import PAPER_WARM_UP, DGCConfig, geometric_warm_up
from dgc_lab.compression.gallery import parse_scheme
from dgc_lab.compression.scheme import Scheme
from dgc_lab.compression.wrappers import with_momentum
from dgc_lab.distributed.communicators import Communicator, default_communicator
from dgc_lab.distributed.rank_files import RankFiles
from dgc_lab.training.events import TrainingDiverged
from dgc_lab.training.masking_trainer import MaskingConfig
from dgc_lab.training.model_trainer import ModelTrainer, batches_of
from dgc_lab.workloads.batches import cross_entropy, grow_gpu_memory, make_evaluator
from dgc_lab.workloads.data import load
from dgc_lab.workloads.dataset import Dataset
from dgc_lab.workloads.models import MODELS

LENGTHS = ("steps", "evaluations")  # what a run that goes on may change
WARM_UPS = {
    "none": lambda ratio: (),
    "paper": lambda ratio: tuple(stage for stage in PAPER_WARM_UP if stage > ratio),
    "geometric": lambda ratio: geometric_warm_up(ratio) if 0 < ratio < 1 else (),
    "dense": lambda ratio: (1.0,) if ratio < 1 else (),
}


@dataclasses.dataclass(frozen=True)
class DistributedConfig(MaskingConfig):
    """Settings of a run on several workers, except for the ratio: `MaskingConfig` and the options of DGC.

    Attributes:
        dataset, steps, learning_rate, momentum, rule, scope, seed, evaluations: as in `MaskingConfig`.
        batch: examples per update and worker.
        workers: number of workers.
        warm_up: ``"none"``, ``"paper"``, ``"geometric"`` (4 stages) or ``"dense"``; only DGC has a warm-up.
        warm_up_steps: updates in each stage.
        scheme: ``"dgc"``, with all these options; or one of `dgc_lab.compression`, by name such as ``"qsgd:levels=4"``
            or as a `Scheme`. It uses the run's ratio unless it names its own. Clipping, weight decay, the wire format
            and exemptions apply to it, and momentum after the exchange if it has none of its own.
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
            raise ValueError("rule must not be 'off' with several workers: ratio 1 sends everything")
        if not isinstance(self.scheme, str | Scheme):
            raise ValueError(f"scheme must be a name or a Scheme, got {self.scheme!r}")
        check_choice("warm_up", self.warm_up, WARM_UPS)
        check_whole("workers", self.workers, 1)
        self.config(1.0)
        self.compression(1.0)

    def facts(self) -> dict:
        return {**vars(self), "scheme": self.scheme if isinstance(self.scheme, str) else self.scheme.name}

    def compression(self, ratio) -> DGCConfig | Scheme:
        """What the trainer is given: the config, or the scheme with the ratio (a number or ``tf.Variable``) in it."""
        if self.scheme == "dgc":
            return self.config(1.0)
        own = self.scheme if isinstance(self.scheme, Scheme) else parse_scheme(self.scheme, ratio=ratio)
        return own if own.momentum or not self.momentum else with_momentum(own, self.momentum)

    def config(self, ratio: float) -> DGCConfig:
        """The switches as a `dgc_lab.compression.DGCConfig` at one ratio."""
        names = [field.name for field in dataclasses.fields(DGCConfig) if hasattr(self, field.name)]
        switches = {name: getattr(self, name) for name in names}
        stages = WARM_UPS[self.warm_up](ratio) if self.scheme == "dgc" else ()
        return DGCConfig(**switches | {"ratio": ratio, "warm_up": stages})


class DistributedTrainer(ModelTrainer):
    """One process's part in a run: its model, its workers' data and state, and one traced step for every ratio.

    Args:
        settings: what to train, the same on all ranks.
        communicator: the participants (`dgc_lab.distributed.communicators`); Horovod's ranks if None, or one worker
            where there are none.
        data: the data set, if it is loaded already.

    Raises:
        ValueError: the communicator has another number of workers than the settings.
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
        self.settings, self.data = settings, data or load(settings.dataset)
        self.evaluate = make_evaluator(self.data.x_test, self.data.y_test)
        self.ratio = self.files = None  # of the run
        self.knob = tf.Variable(1.0, trainable=False)  # the ratio of schemes, which are traced once for all
        super().__init__(
            MODELS[settings.dataset](settings.seed),
            cross_entropy,
            batches_of(self.data.x_train, self.data.y_train, settings.batch, settings.seed),
            settings.compression(self.knob),
            settings.learning_rate,
            communicator or default_communicator(),
            settings.seed,
            None if settings.scheme == "dgc" else settings.config(1.0),
        )
        if settings.workers != self.communicator.size:
            raise ValueError(f"workers must be {self.communicator.size}, as many as there are, got {settings.workers}")
        self.communicator.assert_same_on_all_ranks(str(settings))

    def with_seed(self, seed: int) -> DistributedTrainer:
        """This trainer, as if made with another seed, and without a new trace; a ValueError where that is no seed."""
        self.settings, self.ratio, self.files = dataclasses.replace(self.settings, seed=seed), None, None
        self.reseed(seed, MODELS[self.settings.dataset](seed))
        return self

    def run(
        self, ratio: float, stop: Callable[[], bool] = bool, go_on: bool = False, look_every: int | None = None
    ) -> Iterator:
        """Train at one ratio; ``stop``, ``look_every`` and what it yields are those of `ModelTrainer.run`.

        Args:
            ratio: share of the gradient elements that a worker sends, in [0, 1]; the same on all ranks.
            go_on: from the present state, as after `restore`, in place of the first weights.

        Raises:
            ValueError: ratio outside [0, 1], or another one than the run had that goes on.
            RanksDisagree: another rank was given another ratio.
            TrainingDiverged: a worker's gradient held NaN or infinity; on all ranks.
        """
        settings, config = self.settings, self.settings.config(ratio)
        if go_on and self.ratio not in (None, ratio):
            raise ValueError(f"ratio must be {self.ratio}, as before the stop, got {ratio!r}")
        self.ratio = ratio
        self.knob.assign(ratio)
        begins = f"after step {self.steps_done if go_on else 0}"
        self.communicator.assert_same_on_all_ranks(f"ratio {ratio}, seed {settings.seed}, {begins}")
        if not go_on:
            self.files = None
            self.reset()
        yield from self._train(config, settings.steps, self.evaluate, settings.evaluations, stop, look_every)

    def save(self, folder) -> None:
        """Keep weights, and this rank's velocities and residuals, in ``folder`` (`dgc_lab.distributed.rank_files`)."""
        if self.ratio is None:
            raise LabError("nothing was trained yet: run(ratio) comes before save(folder)")
        if self.files is None or self.files.folder != Path(folder):
            self.files = self._files(folder, self.ratio)
        self.files.save(self.steps_done)

    def restore(self, folder, ratio: float) -> bool:
        """Take up the last step that all ranks have saved; ``run(ratio, go_on=True)`` then goes on as if never stopped.

        False where nothing was saved. A LabError where it had other settings (more steps or evaluations are fine). On
        a GPU the last bits may differ: `dgc_lab.distributed.SaveRanks` says when they do not.
        """
        self.ratio, self.files = ratio, self._files(folder, ratio)
        return self.files.restore() > 0

    def _files(self, folder, ratio) -> RankFiles:
        settings = {name: value for name, value in self.settings.facts().items() if name not in LENGTHS}
        if not settings["scheme"]:
            raise ValueError("scheme must have a name, by which saved states go, as in Scheme(step, name='mine')")
        kept = [*self.weights, *self.statistics, *self.compressor.state]
        about = {**settings, "ratio": float(ratio), "data": self.data.fingerprint()}
        return RankFiles(folder, self.communicator, kept, about)


class TrainerOnRanks:
    """The ranks' trainers as the notebook sees them: what `dgc_lab.training.sweeps` takes as a trainer.

    Args:
        settings: what to train, with ``workers`` as many as there are ranks.
        ranks: started `dgc_lab.cluster.HorovodRanks`.
        data: the data set, when it is loaded already; the ranks load their own.
        path: where it is (`dgc_lab.workloads.data.load`), here and on every rank.

    Raises:
        ValueError: there are more or fewer ranks than ``settings.workers``.

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
        if settings.workers != ranks.size:
            raise ValueError(f"workers must be {ranks.size}, as many as there are ranks, got {settings.workers}")
        self.ranks, self.settings = ranks, settings
        self.data = data or load(settings.dataset, path)
        self.path = path and str(Path(path).expanduser().resolve())

    def run(self, ratio: float) -> Iterator:
        """Train on all ranks and pass on what the first one yields; closing the iterator stops all of them.

        Raises:
            TrainingDiverged: a worker's gradient held NaN or infinity.
            LabError: a rank failed or died, or somebody else stopped the ranks.
        """
        from dgc_lab.cluster import RankFailed

        step = 0
        try:
            data = self.data.fingerprint()
            for event in self.ranks.stream(train_on_rank, self.settings, ratio, self.path, data):
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
    """What each rank runs: the events of `DistributedTrainer.run`, with the trainer kept for the next ratio."""
    from dgc_lab.cluster import stop_requested

    trainer = trainer_on_rank(settings, path)
    if trainer.data.fingerprint() != data:
        whence = f" from {path}" if path else ""
        raise LabError(f"data must be what the ranks load{whence}, and it is not: pass the path of yours, as path=")
    free_memory()  # the trainer before goes ahead of this one's trace
    yield from trainer.run(ratio, stop_requested)


@functools.lru_cache(maxsize=1)  # the last settings alone: their trace is worth keeping, a second model's memory is not
def trainer_on_rank(settings: DistributedConfig, path: str | None = None) -> DistributedTrainer:
    """This rank's trainer for these settings and data."""
    from dgc_lab.distributed.communicators import HorovodWorkers

    return DistributedTrainer(settings, HorovodWorkers(), load(settings.dataset, path))
