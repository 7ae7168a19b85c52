"""What every rank has to save to go on as if never stopped: its own residuals and velocities, beside what all share.

A run can die while some ranks have saved and others have not. So each keeps its last two saves, and all take up the
newest step that each of them has.

Lesson 7, section 7.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError, check_path, load_arrays, save_arrays
from dgc_lab.distributed.communicators import Communicator, communicator_here


class RankFiles:
    """One rank's saves in a folder, each a file of its own: the values of ``variables`` after a step.

    Args:
        folder: where; the same for all ranks or not.
        communicator: who takes part; each process saves what the workers in it hold.
        variables: ``tf.Variable``s, the same list at each start.
        about: what a run must have in common with the one that saved, JSON values by name.
    """

    def __init__(self, folder, communicator, variables, about: dict):
        self.folder, self.communicator, self.variables = Path(folder), communicator, list(variables)
        self.about = {"workers": communicator.size, "rank": communicator.first, **about}
        self.step = None  # of the save before, or of the one that was restored

    def save(self, step: int) -> None:
        """Write all of a step or nothing; the save before it stays. A LabError where another run's later ones lie."""
        if step == self.step:
            return  # written again, it would be its own predecessor, and no save before it would stay
        later = [saved for saved in self.steps() if saved > step and self.step is None]
        if later:
            raise LabError(f"{self.folder} holds step {later[-1]} of another run: restore it, or name an empty folder")
        save_arrays(self._file(step), json.dumps(self.about), *(raw(variable.numpy()) for variable in self.variables))
        for old in self.steps():
            if old not in (step, self.step):
                self._file(old).unlink()
        self.step = step

    def restore(self) -> int:
        """Take up the newest step that all ranks have and return it; 0 where nothing was saved.

        Raises:
            LabError: ranks have no step in common, or the run that saved had other settings or as many workers.
        """
        steps = self.steps()
        values = self._values_by_all(steps[-1] if steps else 0)
        mine = tf.constant([[steps[0], steps[-1]] if steps else [0, 0]])
        told = self.communicator.allgather([mine] * self.communicator.local, "dgc_lab.saved").numpy().tolist()
        step = min(newest for _, newest in told)
        if step == 0 and all(oldest == newest for oldest, newest in told):  # the second comes after the first of all
            for lone in steps:  # a new run may save an earlier step first, and this one would pass for its newest
                self._file(lone).unlink()
            return 0
        for rank, saved in enumerate(told):
            if saved == [0, 0] or step not in (0, *saved):
                there = f"no save of rank {rank}, and others are there"
                if step:
                    there = f"steps {saved} of rank {rank}, and step {step} of another"
                words = "bring back what is missing, or remove all rank_*_step_*.npz to begin anew"
                raise LabError(f"{self.folder} holds {there}: {words}")
        if any(newest != step for _, newest in told):
            values = self._values_by_all(step)
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value.view(variable.dtype.as_numpy_dtype))
        for later in [saved for saved in steps if saved > step]:  # not all have it; with that of another try all might
            self._file(later).unlink()
        self.step = step
        return step

    def _values_by_all(self, step):
        """What the file of a step holds, 0 for none; a LabError on all ranks where one cannot read its own.

        All say it: Horovod puts the others down when one has ended, maybe before it has said why.
        """
        values, words = [], ""
        try:
            values = self._values(step) if step else []
        except LabError as error:
            words = str(error)
        mine = tf.constant(list(f"{words}\n".encode()), tf.uint8)
        every = self.communicator.allgather([mine] * self.communicator.local, "dgc_lab.damaged")
        if damaged := bytes(every.numpy()).decode().strip():
            raise LabError("; ".join(dict.fromkeys(damaged.split("\n"))))
        return values

    def _values(self, step):
        """What a file of this run holds; a LabError for another run's, and for a damaged one."""
        about, *values = load_arrays(self._file(step)).values() or [""]
        try:
            saved = dict(json.loads(str(about)))
        except (TypeError, ValueError):
            raise LabError(f"{self._file(step)} does not say which run saved it: remove it") from None
        differing = [name for name, now in self.about.items() if saved.get(name) != now]
        if differing:
            told = ", ".join(f"{name} {saved.get(name)} (now {self.about[name]})" for name in differing)
            raise LabError(f"{self.folder} was saved by a run with {told}")
        if [value.shape for value in values] != [tuple(variable.shape) for variable in self.variables]:
            raise LabError(f"{self._file(step)} does not hold what it was saved with: remove it")
        for variable, value in zip(self.variables, values, strict=True):
            if value.dtype != raw(np.empty(0, variable.dtype.as_numpy_dtype)).dtype:
                told = f"{variable.name} of another type (now {variable.dtype.name})"
                raise LabError(f"{self.folder} was saved by a run with {told}")
        return values

    def steps(self) -> list[int]:
        """Steps of this rank's saves, the last one last."""
        files = self.folder.glob(f"rank_{self.communicator.first}_step_*.npz")
        return sorted(int(file.stem.rpartition("_")[2]) for file in files)

    def _file(self, step) -> Path:
        return self.folder / f"rank_{self.communicator.first}_step_{step}.npz"


def raw(value: np.ndarray) -> np.ndarray:
    """The array, as bytes where numpy alone does not know its type (bfloat16): a file of it needs no pickle.

    Example:
        >>> raw(np.ones(2, tf.bfloat16.as_numpy_dtype)).dtype.name
        'uint16'
    """
    return value if value.dtype.isbuiltin == 1 else value.view(f"uint{8 * value.dtype.itemsize}")


class SaveRanks(keras.callbacks.Callback):
    """Saves each rank's whole training after every epoch, for `restore` after a crash: the same bits as without one.

    Put it last in the list of callbacks, on every rank. What is saved is all that the model and its optimizer hold:
    weights, moving statistics, seeds of dropout, the learning rate, and this rank's residuals and velocities. Not
    saved is where ``fit`` has come in its shuffling: give it the examples in an order that depends on the epoch alone,
    as with ``shuffle=False``, if not a bit may differ. A GPU adds in no fixed order, unless
    ``tf.config.experimental.enable_op_determinism()`` was called before.

    Args:
        folder: for the files, ``rank_0_step_1200.npz`` and so on; each rank keeps two.
        communicator: as in `DistributedOptimizer`.

    Raises:
        LabError: restored with another number of ranks, by another rank, or for another model; or the folder holds
            a run that was not restored.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> saves = SaveRanks("run")  # doctest: +SKIP
        >>> model.fit(x, y, epochs=9, initial_epoch=saves.restore(model), callbacks=[saves])  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike, communicator: Communicator | None = None):
        super().__init__()
        self.folder, self.communicator = check_path("folder", folder), communicator

    def restore(self, model) -> int:
        """Put the newest epoch that all ranks have saved into a compiled model; how many epochs are done (0 at first).

        Every rank must call it.
        """
        self.communicator = communicator_here(self.communicator).each_rank
        model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        compressor = getattr(model.optimizer, "compressor", None)
        held = [variable.value for variable in variables] + (compressor.state if compressor else [])
        shapes = [list(variable.shape) for variable in held]
        self.files = RankFiles(self.folder, self.communicator, held, {"shapes": shapes})
        return self.files.restore()

    def on_train_begin(self, logs=None):
        if not hasattr(self, "files"):
            raise LabError("call saves.restore(model) first, and give what it returns to fit as initial_epoch")

    def on_epoch_end(self, epoch, logs=None):
        self.files.save(epoch + 1)
