"""A widget that saves a prediction before an experiment and compares it with the result. Lessons 1 to 9."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence

import ipywidgets
import pandas as pd

from dgc_lab.common import check_list, check_number, check_text
from dgc_lab.ui.widget import close_all, message_line, wide


class Prediction(ipywidgets.VBox):
    """Widget with a slider for each quantity to predict, and a button that saves the prediction.

    In a notebook, make it the last line of a cell before the experiment, and call ``confront`` after the experiment.
    ``saved`` is the saved prediction, a number by name. It is None until the button is pressed.

    Args:
        question: one sentence.
        of: distinct names of the quantities.
        least, most: bounds of every slider.
        step: step of every slider.
        form: format of the numbers, without braces: ``".0%"``.

    Raises:
        ValueError: ``of`` is empty or repeats a name, ``least`` is not below ``most``, ``step`` is not above 0, or
            ``form`` is not a number format.

    Example:
        >>> guess = Prediction("How accurate will it be?", of=("at 1 %", "at 0.1 %"))
        >>> guess.sliders["at 1 %"].value = 0.9
        >>> guess.keep()
        >>> table = guess.confront({"at 1 %": 0.95, "at 0.1 %": 0.5})
        >>> table.loc["at 1 %"].tolist()
        ['0.90', '0.95', '+0.05']
    """

    def __init__(
        self,
        question: str,
        of: Sequence[str],
        least: float = 0.0,
        most: float = 1.0,
        step: float = 0.01,
        form: str = ".2f",
    ):
        check_text("question", question)
        of = [check_text("of", name) for name in check_list("of", of)]
        if len(of) == 0 or len(set(of)) != len(of):
            raise ValueError(f"of must have at least one name, and each name only once, got {of!r}")
        for name, bound in (("least", least), ("most", most)):
            check_number(name, bound, "finite")
        if not least < most:
            raise ValueError(f"least must be below most, got {least!r} and {most!r}")
        check_number("step", step, "above 0 and finite")
        if not re.fullmatch(r",?(\.\d{1,2})?[efg%]?", check_text("form", form)):
            raise ValueError(f"form must be a number format such as .2f, without sign or width, got {form!r}")
        self.form, self.saved = form, None
        label = 1 + 0.58 * max(map(len, of))  # em; all sliders begin below each other
        scale = {"value": (least + most) / 2, "min": least, "max": most, "step": step, "readout_format": form}
        self.sliders = {name: wide(ipywidgets.FloatSlider, name, label, 20, **scale) for name in of}
        for slider in self.sliders.values():
            slider.layout.min_width = f"{label + 10}em"
        self.button = ipywidgets.Button(description="This is my prediction", layout=ipywidgets.Layout(width="14em"))
        self.button.on_click(lambda _: self.keep())
        self.message = ipywidgets.HTML()
        question = ipywidgets.HTML(message_line(question))
        super().__init__([question, *self.sliders.values(), self.button, self.message])

    def keep(self) -> None:
        """Save the prediction, as the button does. A second call has no effect."""
        if self.saved is None:
            self.saved = {name: slider.value for name, slider in self.sliders.items()}
            for each in (self.button, *self.sliders.values()):
                each.disabled = True
            self.message.value = message_line("Prediction saved. Now run the experiment.")

    def close(self) -> None:
        """Close the widget and all its parts."""
        close_all(self)

    def confront(self, seen: Mapping[str, float]) -> pd.DataFrame:
        """Return a table of predicted and observed values and their difference, as text, with a row for each name.

        If no prediction was saved, the table has only the observed values.

        Args:
            seen: the observed value for each name; NaN if there is none.

        Raises:
            ValueError: ``seen`` has other names, or a value that is not a number.
        """
        if not isinstance(seen, Mapping) or not all(isinstance(value, numbers.Real) for value in seen.values()):
            raise ValueError(f"seen must be a dict of numbers, got {seen!r}")
        if set(seen) != set(self.sliders):
            raise ValueError(f"seen must have the names {', '.join(self.sliders)}, got {', '.join(map(str, seen))}")
        columns = {"observed": {name: format(seen[name], self.form) for name in self.sliders}}
        if self.saved is None:
            return pd.DataFrame(columns, index=list(self.sliders))
        off = {name: seen[name] - saved for name, saved in self.saved.items() if not math.isnan(seen[name])}
        if any(off.values()):
            worst = max(off, key=lambda name: abs(off[name]))
            self.message.value = message_line(f"Your prediction was furthest off for {worst}. Why?")
        elif off:
            self.message.value = message_line("Your prediction was right.")
        predicted = {name: format(saved, self.form) for name, saved in self.saved.items()}
        difference = {name: format(off[name], "+" + self.form) if name in off else "" for name in predicted}
        columns = {"predicted": predicted, **columns, "difference": difference}
        return pd.DataFrame(columns, index=list(self.sliders))
