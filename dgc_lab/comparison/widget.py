"""The widget of lesson 8: any compression schemes, your own among them, and accuracy against bytes, live."""

from __future__ import annotations

import inspect
import os
import re
from typing import ClassVar

from ipywidgets import Dropdown, FloatText, IntText, Text

from dgc_lab.cluster.base import Cluster
from dgc_lab.common import check_choice
from dgc_lab.comparison.table import rate_of
from dgc_lab.training.live_sweep import LiveSweep
from dgc_lab.training.sweeps import table
from dgc_lab.ui.widget import wide

PRESETS = {
    "one of each kind": "dense qsgd:levels=7 ef_sign top_k:ratio=0.01 powersgd:rank=2",
    "fewer bits": "dense float16 int8 qsgd:levels=7 terngrad natural",
    "one bit": "dense sign signum ef_sign one_bit",
    "few elements": "dense masking:ratio=0.01 top_k:ratio=0.01 random_k:ratio=0.01 dgc:ratio=0.01",
    "low rank": "dense powersgd:rank=1 powersgd:rank=2 powersgd:rank=4 dgc:ratio=0.01",
    "less often": "dense dense:every=2 dense:every=8 dense:every=8,since=100",
}


class SchemeLab(LiveSweep):
    """Train with one compression scheme after the other and watch accuracy against bytes grow a point per run.

    Run trains every scheme of the list with every seed, unless it has that row already; Stop ends the training within
    a step and keeps the finished rows, Clear empties picture and table. ``run()`` does what Run does and waits for the
    end.

    Args:
        mine: your own scheme (`dgc_lab.compression.Scheme`) or a list of them, shown by name.
        ranks: started `dgc_lab.cluster.HorovodRanks` to train on; simulated workers in this process if None.
        out: file that keeps finished rows (`dgc_lab.training.sweeps`); a restarted kernel goes on with it.
        settings: first values of the controls: dataset, schemes (text), seeds (text), workers, learning_rate (0 for
            each scheme's own), momentum, batch, steps, as in `dgc_lab.training.DistributedConfig`.

    Attributes:
        rows: the finished rows, in the order in which they were made.

    Raises:
        ValueError: a keyword is not the name of a control, or its value is none that the control takes; or two of
            your schemes have one name, or that of a published one.

    Example:
        >>> lab = SchemeLab(schemes="dense qsgd:levels=1", seeds="0, 1", steps=100)
        >>> [(settings.scheme, settings.seed) for settings, _ in lab.runs()]
        [('dense', 0), ('dense', 1), ('qsgd:levels=1', 0), ('qsgd:levels=1', 1)]
    """

    listed: ClassVar = "schemes"
    presets: ClassVar = PRESETS
    sent: ClassVar = "kB a step and worker"
    beside_settings: ClassVar = (*LiveSweep.beside_settings, "scheme", "knob")

    def __init__(self, mine=None, ranks: Cluster | None = None, out: str | os.PathLike | None = None, **settings):
        from dgc_lab.compression import SCHEMES

        self.ranks, self.mine = ranks, named_ones(mine)
        self.scheme = wide(Dropdown, "Scheme", options=[*self.mine, *SCHEMES])
        self.knob = wide(FloatText, "", value=0)
        self.schemes = wide(Text, "Schemes", field=42, value=next(iter(self.mine), "dense"), placeholder="dense sign")
        self.seeds = wide(Text, "Seeds", value="0", placeholder="0 or 0, 1, 2")
        self.workers = wide(IntText, "Workers", value=ranks.size if ranks else 4, disabled=ranks is not None)
        self.scheme.observe(self._scheme_chosen, "value")
        self.knob.observe(self._knob_turned, "value")
        super().__init__(out, **{"batch": 16, "learning_rate": 0, **settings})
        self._name_knob()

    def _columns(self):
        return [
            [self.scheme, self.knob, self.preset, self.dataset],
            [self.workers, self.batch, self.steps, self.seeds],
            [self.learning_rate, self.momentum],
            [self.schemes],
        ]

    def _parameter(self):
        """The chosen scheme's first parameter, which the knob turns; None where it has none."""
        from dgc_lab.compression import SCHEMES

        make = SCHEMES.get(self.scheme.value)
        return next(iter(inspect.signature(make).parameters.values()), None) if make else None

    def _name_knob(self):
        parameter = self._parameter()
        self.knob.disabled = parameter is None
        self.knob.description = self.knob.tooltip = parameter.name.capitalize() if parameter else "No knob"
        self.knob.value = parameter.default if parameter else 0

    def _scheme_chosen(self, _):
        self._name_knob()
        self._knob_turned(None)

    def _knob_turned(self, _):
        parameter = self._parameter()
        value = repr(self.knob.value).removesuffix(".0")
        self.schemes.value = self.scheme.value + (f":{parameter.name}={value}" if parameter else "")

    def runs(self):
        from dgc_lab.training.distributed_trainer import DistributedConfig

        every, seeds = self.schemes.value.replace(";", " ").split(), self.seeds.value.replace(",", " ").split()
        if not every:
            raise ValueError(f"schemes must hold at least one scheme, such as dense, got {self.schemes.value!r}")
        if not seeds or not all(seed.isdecimal() for seed in seeds):
            raise ValueError(f"seeds must be whole numbers such as 0, 1, 2, got {self.seeds.value!r}")
        values, runs = self._values(), []
        del values["schemes"], values["seeds"]
        self._asked_rate = values["learning_rate"]
        for name in dict.fromkeys(name if name in self.mine else self._in_full(name) for name in every):
            rate = values["learning_rate"] or rate_of(name, self.dataset.value)
            own = {**values, "scheme": self.mine.get(name, name), "learning_rate": rate}
            runs += [(DistributedConfig(**own, seed=int(seed)), 1.0) for seed in dict.fromkeys(seeds)]
        return runs

    def _in_full(self, name: str) -> str:
        """A scheme's name with its ratio, where it has one: left out, it would be the run's, which is 1."""
        from dgc_lab.compression import SCHEMES, parse_scheme

        base, _, given = name.partition(":")
        check_choice("schemes", base, self.scheme.options)
        parse_scheme(name)
        own = inspect.signature(SCHEMES[base]).parameters.get("ratio")
        if own is None or "ratio=" in given:
            return name
        return f"{base}:ratio={own.default}" + f",{given}" * bool(given)

    def _trainer(self, settings):
        from dgc_lab.distributed import SimulatedWorkers
        from dgc_lab.training.distributed_trainer import DistributedTrainer, TrainerOnRanks

        if self.ranks is not None:
            return TrainerOnRanks(settings, self.ranks, self._data)
        return DistributedTrainer(settings, SimulatedWorkers(settings.workers), self._data)

    def _sent(self, row):
        return row["bytes a step"] / 1000

    def _mark(self, settings):
        facts = {name: value for name, value in settings.facts().items() if name not in ("scheme", "seed")}
        return self._marks.setdefault(repr({**facts, "learning_rate": self._asked_rate}), len(self._marks))

    def _label(self, settings, _):
        return settings.facts()["scheme"]

    def frame(self):
        """The rows as a table: the settings in which they differ, accuracy, loss, seconds, bytes a step."""
        frame = table(self.rows).drop(columns=["ratio", "kept"])
        return frame if "scheme" in frame else frame.assign(scheme=[row["scheme"] for row in self.rows])


def named_ones(mine) -> dict:
    """A user's schemes by their names; a ValueError where two have one."""
    from dgc_lab.compression import SCHEMES, Scheme

    by_name = {}
    for scheme in mine if isinstance(mine, list) else [mine] * (mine is not None):
        if not isinstance(scheme, Scheme):
            raise ValueError(f"mine must be a Scheme or a list of them, as in Scheme(step), got {scheme!r}")
        name = re.sub(r"\W+", "_", scheme.name or getattr(scheme.step, "__name__", "mine")).strip("_")
        if not name or name in by_name or name in SCHEMES:
            raise ValueError(f"mine must have names of their own, as in Scheme(step, name='mine'), got {name!r} again")
        by_name[name] = scheme
    return by_name
