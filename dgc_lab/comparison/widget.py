"""Widget of lesson 8: live accuracy against bytes for any compression schemes, including your own."""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
from typing import TYPE_CHECKING

from ipywidgets import Dropdown, FloatText, IntText, Text

from dgc_lab.cluster.base import Cluster
from dgc_lab.common import check_choice, check_instance, free_memory
from dgc_lab.comparison.lab_studies import rate_of
from dgc_lab.comparison.scheme_names import readable
from dgc_lab.training.live_sweep import LiveSweep, training_controls
from dgc_lab.training.sweeps import table
from dgc_lab.ui.live_panel import LivePanel
from dgc_lab.ui.widget import preset_menu, wide

if TYPE_CHECKING:
    from dgc_lab.compression import Scheme

PRESETS = {
    "one of each family": "dense qsgd:levels=7 ef_sign top_k:ratio=0.01 powersgd:rank=2",
    "fewer bits": "dense float16 int8 qsgd:levels=7 terngrad natural",
    "one bit": "dense sign signum ef_sign one_bit",
    "fewer elements": "dense masking:ratio=0.01 top_k:ratio=0.01 random_k:ratio=0.01 dgc:ratio=0.01",
    "low rank": "dense powersgd:rank=1 powersgd:rank=2 powersgd:rank=4 dgc:ratio=0.01",
    "less often": "dense dense:every=2 dense:every=8 dense:every=8,since=100",
}
TUNED = "tuned"  # as the learning rate: each scheme's own rate, from the lab's study


class SchemeLab(LivePanel):
    """Widget that trains with several compression schemes and plots accuracy against bytes: one point for each run.

    Run trains every scheme of the list with every seed, unless the table has that row already. Stop ends the training
    within a twentieth of a second, or at the end of the step, and keeps the finished rows. A run that has taken its
    last step is still evaluated. Clear empties picture and table. ``run()`` does the same as Run and waits until it has
    finished. If your scheme prints, use ``run()``: its output appears below the cell. After Run or ``start()``, the
    output appears below whichever cell runs next.

    Args:
        mine: your own scheme (`dgc_lab.compression.Scheme`) or a list of them; the list of schemes shows their names.
        ranks: started `dgc_lab.cluster.HorovodRanks` to train on; simulated workers in this process if None.
        out: file for finished rows (`dgc_lab.training.sweeps`); Run finds them after a restart of the kernel.
        settings: initial values of the controls: dataset, schemes (text), seeds (text), workers, learning_rate (text:
            a number for all schemes, or "tuned" for each scheme's tuned rate), momentum, batch, steps, as in
            `dgc_lab.training.DistributedConfig`.

    Attributes:
        rows: the finished rows, in order of completion.

    Raises:
        ValueError: a setting has no control, or its control rejects the value; or two of your schemes have the same
            name, one has the name of a published scheme, or one has no name although ``out`` is given.

    Example:
        >>> lab = SchemeLab(schemes="dense qsgd:levels=1", seeds="0, 1", steps=100)
        >>> [(settings.scheme, settings.seed) for settings, _ in lab.runs()]
        [('dense', 0), ('dense', 1), ('qsgd:levels=1', 0), ('qsgd:levels=1', 1)]
    """

    def __init__(
        self,
        mine: Scheme | list[Scheme] | None = None,
        ranks: Cluster | None = None,
        out: str | os.PathLike | None = None,
        **settings,
    ):
        from dgc_lab.compression import SCHEMES

        if ranks is not None:
            check_instance("ranks", ranks, Cluster)
        self.ranks, self.mine = ranks, named_schemes(mine, out)
        sweep = LiveSweep(
            self.runs,
            self._trainer,
            published={},
            table=scheme_frame,
            label=lambda settings, ratio, first: readable(settings.to_dict()["scheme"]),
            group=self._shared_settings,
            sent=lambda row: row["bytes per step"] / 1000,
            sent_label="kB per step and worker",
            out=out,
        )
        schemes = wide(Text, "Schemes", field=42, value=next(iter(self.mine), "dense"), placeholder="dense sign")
        presets = {name: {"schemes": text} for name, text in PRESETS.items()}
        controls = {
            **training_controls(wide(Text, "Learning rate", value=TUNED, placeholder="tuned or 0.1")),
            "scheme": wide(Dropdown, "Scheme", options=[(readable(name), name) for name in (*self.mine, *SCHEMES)]),
            "parameter": wide(FloatText, "", value=0),
            "schemes": schemes,
            "preset": preset_menu("Sweep", {"schemes": schemes}, presets),
            "seeds": wide(Text, "Seeds", value="0", placeholder="0 or 0, 1, 2"),
            "workers": wide(IntText, "Workers", value=ranks.size if ranks else 4, disabled=ranks is not None),
        }
        controls["scheme"].observe(self._scheme_chosen, "value")
        controls["parameter"].observe(self._write_scheme, "value")
        super().__init__(
            sweep,
            controls,
            ["scheme parameter preset dataset", "workers batch steps seeds", "learning_rate momentum", "schemes"],
            {"batch": 16, **settings},
            helpers=("scheme", "parameter", "preset"),
        )
        self._show_parameter()

    def runs(self):
        """Return the runs selected by the controls: the settings for each scheme and seed, with ratio 1.0.

        Raises:
            ValueError: a control has an invalid value.
        """
        from dgc_lab.training.distributed_trainer import DistributedConfig

        every, seeds = self.schemes.value.replace(";", " ").split(), self.seeds.value.replace(",", " ").split()
        if not every:
            raise ValueError(f"schemes must name at least one scheme, such as dense, got {self.schemes.value!r}")
        if not seeds or not all(seed.isdecimal() for seed in seeds):
            raise ValueError(f"seeds must be whole numbers such as 0, 1, 2, got {self.seeds.value!r}")
        values, runs = self._values(without=("schemes", "seeds", "learning_rate")), []
        for name in dict.fromkeys(name if name in self.mine else self._with_ratio(name) for name in every):
            own = {**values, "scheme": self.mine.get(name, name), "learning_rate": self._rate_of(name)}
            runs += [(DistributedConfig(**own, seed=seed), 1.0) for seed in dict.fromkeys(map(int, seeds))]
        return runs

    def _rate_of(self, name: str) -> float:
        """Return the learning rate of a scheme: the number in the control, or the scheme's tuned rate."""
        text = self.learning_rate.value.strip()
        if text in ("", TUNED):
            return rate_of(name, self.dataset.value)
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"learning_rate must be a number such as 0.1, or {TUNED}, got {text!r}") from None

    def _trainer(self, settings, data):
        from dgc_lab.distributed import SimulatedWorkers
        from dgc_lab.training.distributed_trainer import DistributedTrainer, TrainerOnRanks

        free_memory()  # of the previous trainer
        if self.ranks is not None:
            return TrainerOnRanks(settings, self.ranks, data)
        return DistributedTrainer(settings, SimulatedWorkers(settings.workers), data)

    def _shared_settings(self, settings) -> dict:
        """Return all settings except scheme and seed; tuned rates count as equal, although schemes differ in them."""
        shared = {name: value for name, value in settings.to_dict().items() if name not in ("scheme", "seed")}
        return {**shared, "learning_rate": self.learning_rate.value}

    def _first_parameter(self):
        """Return the chosen scheme's first parameter with a number as its default, or None if it has none."""
        from dgc_lab.compression import SCHEMES

        make = SCHEMES.get(self.scheme.value)
        every = inspect.signature(make).parameters.values() if make else ()
        return next((parameter for parameter in every if parameter.default is not None), None)

    def _show_parameter(self):
        """Give the parameter's control the name and default of the scheme's parameter; hide it if there is none."""
        parameter = self._first_parameter()
        self.parameter.layout.display = None if parameter else "none"
        label = parameter.name.capitalize().replace("_", " ") if parameter else ""
        self.parameter.description = self.parameter.tooltip = label
        self.parameter.value = parameter.default if parameter else 0

    def _show_frame(self, frame, below: str = ""):
        super()._show_frame(frame.assign(scheme=frame["scheme"].map(readable)), below)

    def _scheme_chosen(self, _):
        self._show_parameter()
        self._write_scheme()

    def _write_scheme(self, _=None):
        """Set the list to the chosen scheme with the parameter's value."""
        parameter = self._first_parameter()
        value = repr(self.parameter.value).removesuffix(".0")
        self.schemes.value = self.scheme.value + (f":{parameter.name}={value}" if parameter else "")

    def _with_ratio(self, name: str) -> str:
        """Return a scheme's name, with its default ratio if it sets none; the trainer would use the run's ratio, 1."""
        from dgc_lab.compression import SCHEMES, parse_scheme

        base, _, given = name.partition(":")
        check_choice("schemes", base, (*self.mine, *SCHEMES))
        parse_scheme(name)
        own = inspect.signature(SCHEMES[base]).parameters.get("ratio")
        if own is None or "ratio=" in given:
            return name
        return f"{base}:ratio={own.default}" + f",{given}" * bool(given)


def scheme_frame(rows: list[dict], _):
    """Return the rows as a table: settings that differ, scheme, accuracy, loss, seconds and bytes per step."""
    frame = table(rows).drop(columns=["ratio", "share sent"])
    return frame if "scheme" in frame else frame.assign(scheme=[row["scheme"] for row in rows])


def named_schemes(mine, out) -> dict:
    """Return a user's schemes by name. Raises ValueError if two have the same name, or if rows in ``out`` need names.

    Without ``out``, an unnamed scheme gets the name of its function.
    """
    from dgc_lab.compression import SCHEMES, Scheme

    by_name = {}
    for scheme in mine if isinstance(mine, list) else [mine] * (mine is not None):
        if not isinstance(scheme, Scheme):
            raise ValueError(f"mine must be a Scheme or a list of them, as in Scheme(step), got {scheme!r}")
        if not scheme.name and out is not None:
            raise ValueError(f"mine must have names if out is given, as in Scheme(step, name='mine'), got {scheme!r}")
        name = re.sub(r"\W+", "_", scheme.name or getattr(scheme.step, "__name__", "mine")).strip("_")
        if not name or name in by_name or name in SCHEMES:
            raise ValueError(f"mine must have new, distinct names, as in Scheme(step, name='mine'), got {name!r}")
        by_name[name] = scheme if scheme.name else dataclasses.replace(scheme, name=name)
    return by_name
