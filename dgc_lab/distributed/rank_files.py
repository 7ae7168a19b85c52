"""Checkpoints of every rank, for exact resumption: its own residuals and velocities as well as the shared state.

A run can die when only some ranks have saved. Each rank therefore keeps its last two checkpoints, and all ranks restore
the newest step that every rank has.

Lesson 7, section 5.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from dgc_lab.common import LabError, at_file, check_path, load_arrays, save_arrays
from dgc_lab.distributed.communicators import Communicator, check_communicator, communicator_here, gather_messages


class RankFiles:
    """One rank's checkpoints in a folder, one file per step: the values of ``variables`` after it.

    Args:
        folder: directory of the files; the ranks may share one.
        communicator: the participants; each process saves the state of its own workers.
        variables: list of ``tf.Variable``, the same at each start.
        about: settings that must be the same when a run resumes, as JSON values by name.
    """

    def __init__(self, folder, communicator, variables, about: dict):
        self.folder, self.communicator, self.variables = Path(folder), communicator, list(variables)
        self.about = {"workers": communicator.size, "rank": communicator.first, **about}
        self.step = None  # of the previous checkpoint, or of the restored one

    def save(self, step: int) -> None:
        """Write the checkpoint of a step atomically, and keep the previous one.

        Raises:
            LabError: the folder holds later steps, or the file cannot be written.
        """
        if step == self.step:
            return  # saving it again would delete the previous checkpoint
        if later := [saved for saved in self.steps() if saved > step]:
            found = f"{self.folder} holds step {later[-1]}, which is later than step {step}"
            raise LabError(f"{found}: restore it and continue after it, or use an empty folder")
        save_arrays(self._file(step), json.dumps(self.about), *(raw(variable.numpy()) for variable in self.variables))
        for old in self.steps():
            if old not in (step, self.step):
                self._file(old).unlink()
        self.step = step

    def prepare(self) -> None:
        """Create the folder if it does not exist; raise LabError on all ranks if one of them cannot write to it."""
        self._on_all_ranks(self._write_probe)

    def _write_probe(self):
        with at_file(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as probe:
                probe.write(bytes(4096))  # a full disk still takes empty files

    def restore(self) -> int:
        """Restore the newest step that all ranks have, and return it; return 0 if nothing was saved.

        Raises:
            LabError: on all ranks, if they have no step in common, if a file is damaged, or if the run that saved it
                had other settings or another number of workers.
        """
        steps = self.steps()
        values = self._load_on_all_ranks(steps[-1] if steps else 0)
        mine = tf.constant([[steps[0], steps[-1]] if steps else [0, 0]])
        spans = self.communicator.allgather([mine] * self.communicator.local, "dgc_lab.saved").numpy().tolist()
        step = min(newest for _, newest in spans)
        if step == 0 and all(oldest == newest for oldest, newest in spans):  # no rank has two: a first may be missing
            for lone in steps:  # a new run may save an earlier step first, and would then restore this later one
                self._file(lone).unlink()
            return 0
        for rank, saved in enumerate(spans):
            if saved == [0, 0] or step not in (0, *saved):
                found = f"no checkpoint of rank {rank}, but some of other ranks"
                if step:
                    found = f"steps {saved} of rank {rank}, but step {step} of another rank"
                advice = "restore the missing files, or remove all rank_*_step_*.npz to begin anew"
                raise LabError(f"{self.folder} holds {found}: {advice}")
        if any(newest != step for _, newest in spans):
            values = self._load_on_all_ranks(step)
        for variable, value in zip(self.variables, values, strict=True):
            variable.assign(value.view(variable.dtype.as_numpy_dtype))
        for later in [saved for saved in steps if saved > step]:  # incomplete: the next attempt must not complete it
            self._file(later).unlink()
        self.step = step
        return step

    def _load_on_all_ranks(self, step):
        """Return the arrays of a step, none for step 0; raise LabError on all ranks if one cannot load its file."""
        return self._on_all_ranks(lambda: self._load(step) if step else [])

    def _on_all_ranks(self, action: Callable):
        """Return the result of an action; raise LabError on all ranks if it raises one on any of them.

        All ranks report it, because Horovod kills the others when one exits, possibly before it has reported.
        """
        result, message = None, ""
        try:
            result = action()
        except LabError as error:
            message = str(error)
        messages = gather_messages(self.communicator, message, "dgc_lab.damaged")
        if messages := [each for each in dict.fromkeys(messages) if each]:
            raise LabError("; ".join(messages))
        return result

    def _load(self, step):
        """Return the arrays of a step; raise LabError if its file is damaged or of a run with other settings."""
        about, *values = load_arrays(self._file(step)).values() or [""]
        advice = "resume with the same settings, or use an empty folder"
        try:
            saved = dict(json.loads(str(about)))
        except (TypeError, ValueError):
            raise LabError(f"{self._file(step)} lacks the settings of its run: remove it") from None
        differing = [name for name, now in self.about.items() if saved.get(name) != now]
        if differing:
            changes = ", ".join(f"{name} {saved.get(name)} (now {self.about[name]})" for name in differing)
            raise LabError(f"{self.folder} was saved by a run with {changes}: {advice}")
        if [value.shape for value in values] != [tuple(variable.shape) for variable in self.variables]:
            raise LabError(f"{self._file(step)} holds arrays of other shapes than the variables: remove it")
        for variable, value in zip(self.variables, values, strict=True):
            if value.dtype != raw(np.empty(0, variable.dtype.as_numpy_dtype)).dtype:
                change = f"{variable.name} of another dtype (now {variable.dtype.name})"
                raise LabError(f"{self.folder} was saved by a run with {change}: {advice}")
        return values

    def steps(self) -> list[int]:
        """Return the steps of this rank's checkpoints, in ascending order."""
        files = self.folder.glob(f"rank_{self.communicator.first}_step_*.npz")
        return sorted(int(file.stem.rpartition("_")[2]) for file in files)

    def _file(self, step) -> Path:
        return self.folder / f"rank_{self.communicator.first}_step_{step}.npz"


def raw(value: np.ndarray) -> np.ndarray:
    """Return the array, viewed as integers if its dtype is not numpy's own (bfloat16), to save it without pickle.

    Example:
        >>> raw(np.ones(2, tf.bfloat16.as_numpy_dtype)).dtype.name
        'uint16'
    """
    return value if value.dtype.isbuiltin == 1 else value.view(f"uint{8 * value.dtype.itemsize}")


class SaveRanks(keras.callbacks.Callback):
    """Callback that saves each rank's training after every epoch, to resume after a crash with the same bits.

    Put it last in the list of callbacks, on every rank. It saves the full state of the model and its optimizer:
    weights, moving statistics, dropout seeds, the learning rate, and this rank's residuals and velocities. It does not
    save the state of the shuffling in ``fit``. For identical bits, the order of the examples must depend only on the
    epoch, as with ``shuffle=False``. A GPU adds in no fixed order, unless
    ``tf.config.experimental.enable_op_determinism()`` was called before.

    Args:
        folder: directory of the files ``rank_0_step_1200.npz`` and so on; each rank keeps two.
        communicator: as in `DistributedOptimizer`.

    Raises:
        LabError: the folder cannot be written; the files are from another number of ranks, another rank or another
            model; or the folder holds later epochs than the one to save, as without ``initial_epoch``.

    Example:
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> saves = SaveRanks("run")  # doctest: +SKIP
        >>> model.fit(x, y, epochs=9, initial_epoch=saves.restore(model), callbacks=[saves])  # doctest: +SKIP
    """

    def __init__(self, folder: str | os.PathLike, communicator: Communicator | None = None):
        super().__init__()
        self.folder, self.communicator = check_path("folder", folder), check_communicator(communicator)

    def restore(self, model) -> int:
        """Restore the newest epoch that all ranks have saved into a compiled model.

        Every rank must call it. It returns the number of completed epochs, 0 if nothing was saved.
        """
        self.communicator = communicator_here(self.communicator).each_rank
        model.optimizer.build(model.trainable_variables)
        variables = [*model.variables, *model.optimizer.variables]
        compressor = getattr(model.optimizer, "compressor", None)
        held = [variable.value for variable in variables] + (compressor.state if compressor else [])
        shapes = [list(variable.shape) for variable in held]
        self.files = RankFiles(self.folder, self.communicator, held, {"shapes": shapes})
        self.files.prepare()
        return self.files.restore()

    def on_train_begin(self, logs=None):
        if not hasattr(self, "files"):
            raise LabError("call saves.restore(model) first, and pass its result to fit as initial_epoch")

    def on_epoch_end(self, epoch, logs=None):
        self.files.save(epoch + 1)
