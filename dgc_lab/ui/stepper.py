"""The widget of lessons 1, 5 and 9 that shows a series of pictures step by step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ipywidgets import HTML, HBox, IntSlider

from dgc_lab.common import check_whole
from dgc_lab.ui.charts import Picture
from dgc_lab.ui.explorer import Explorer, wider
from dgc_lab.ui.widget import WRAP, button, table_html

if TYPE_CHECKING:
    import pandas as pd

SECONDS_PER_STEP = 1.5
NO_MOTION = "<style>@media (prefers-reduced-motion: reduce) {.dgc-lab-play {display: none !important}}</style>"


class Stepper(Explorer):
    """Widget that shows one of several pictures, with a slider, a play button, and a table of all steps.

    Nothing moves until the reader presses Play, and then each picture stays for 1.5 seconds. Readers who have asked
    their system for reduced motion see no play button; the slider shows them the same pictures.

    Args:
        draw: function of a step, a whole number from 0, that returns its `dgc_lab.ui.Picture`.
        last: the last step, at least 1.
        table: ``pandas.DataFrame`` with the facts of all steps.
        step: the step that is shown first.

    Raises:
        ValueError: last or step is out of range.

    Example:
        >>> import pandas as pd
        >>> from matplotlib.figure import Figure
        >>> squares = pd.DataFrame({"step": [0, 1, 2], "square": [0, 1, 4]})
        >>> stepper = Stepper(lambda step: Picture(Figure(), f"The square is {step**2}."), 2, squares, step=2)
        >>> stepper.picture.alt
        'The square is 4.'
    """

    _pause = _player = None  # an event that ends the thread, and the thread that plays

    def __init__(self, draw: Callable[[int], Picture], last: int, table: pd.DataFrame, step: int = 0):
        self._draw, self._last, self._all_steps = draw, check_whole("last", last, 1, 1000), table
        check_whole("step", step, 0, last)
        slider = wider(IntSlider, "Step", min=0, max=last)
        # ipywidgets' own Play has buttons without a name, which screen readers need.
        self.play_button = button("Play", "play", self._play_or_pause)
        self.play_button.add_class("dgc-lab-play")
        row = HBox([slider, self.play_button, HTML(NO_MOTION, layout={"display": "none"})], layout=WRAP)
        super().__init__({"step": slider}, [row], {"step": step})

    def result(self, step: int):
        """Draw a step; the table is the same for all steps."""
        return self._draw(step), self._all_steps, f"Step {step} of {self._last}."

    def close(self) -> None:
        """Stop playing, then close the widget and all its parts."""
        if self._pause is not None:
            self._pause.set()
            self._player.join()
        super().close()

    def _play_or_pause(self):
        if self._pause is not None:
            self._pause.set()
            return
        self._pause = threading.Event()
        self.play_button.description, self.play_button.icon = "Pause", "pause"
        self._player = threading.Thread(target=self._play, args=[self._pause], daemon=True)
        self._player.start()

    def _play(self, pause: threading.Event):
        """Move the slider from step to step, from the start if it is at the end, until the last step or a pause."""
        slider = self.controls["step"]
        if slider.value == slider.max:
            slider.value = 0
        while slider.value < slider.max and not pause.wait(SECONDS_PER_STEP):
            slider.value += 1
        self.play_button.description, self.play_button.icon = "Play", "play"
        self._pause = None

    def _show_frame(self, frame, below: str = ""):
        # Folded, because it is long. A step does not change the text, so an unfolded table stays unfolded.
        self.table.value = f"<details><summary>Table of all steps</summary>{table_html(frame)}</details>"
