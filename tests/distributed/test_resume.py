"""Training with `model.fit` on two ranks is killed within an epoch and resumes with the same bits."""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.cluster import HorovodRanks, RankDied, RankFailed
from dgc_lab.common import LabError, load_arrays, save_arrays
from dgc_lab.compression import DGCConfig
from dgc_lab.distributed import AverageMetrics, DistributedOptimizer, SaveRanks

CONFIG = DGCConfig(ratio=0.05, momentum=0.9, dense_below=0, dense_vectors=False, warm_up=(0.5,), warm_up_steps=8)
STEPS = 4  # per epoch


def fit_on_rank(folder, epochs, dies_after=None):
    """Return weights and residuals, and the epoch resumed from; `dies_after`: epoch in which rank 1 is killed."""
    import horovod.tensorflow as hvd

    class Killed(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            if (self.epoch, batch, hvd.rank()) == (dies_after, 1, 1):
                os.kill(os.getpid(), signal.SIGKILL)

    keras.utils.set_random_seed(3 + hvd.rank())
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 5, 0.9)
    model.compile(DistributedOptimizer(keras.optimizers.SGD(rate), CONFIG), "mse", jit_compile=False)
    x = np.random.default_rng(hvd.rank()).normal(size=(STEPS * 4, 8)).astype(np.float32)
    saves = SaveRanks(folder)
    done = saves.restore(model)
    callbacks = [AverageMetrics(), saves, Killed()]
    model.fit(
        x, x.sum(1), batch_size=4, shuffle=False, epochs=epochs, initial_epoch=done, verbose=0, callbacks=callbacks
    )
    residuals = [residual.numpy() for residual in model.optimizer.compressor.residuals()]
    return [*model.get_weights(), *residuals], done


def test_two_ranks_resume_bit_for_bit_after_one_was_killed(tmp_path):
    with HorovodRanks(2, progress=None) as ranks:
        whole = ranks.run(fit_on_rank, str(tmp_path / "whole"), 5)
        with pytest.raises((RankDied, RankFailed)):
            ranks.run(fit_on_rank, str(tmp_path / "killed"), 5, dies_after=3)
    with HorovodRanks(2, progress=None) as ranks:
        again = ranks.run(fit_on_rank, str(tmp_path / "killed"), 5)
        os.truncate(tmp_path / "killed" / "rank_0_step_5.npz", 1000)
        with pytest.raises(RankFailed, match=r"every rank raised LabError: .*rank_0_step_5\.npz .*Remove it"):
            ranks.run(fit_on_rank, str(tmp_path / "killed"), 6)
        for file in (tmp_path / "whole").glob("rank_1*"):
            file.unlink()
        relabel(tmp_path / "whole", workers=2, now=1)
        with pytest.raises(RankFailed, match=r"saved by a run with workers 1 \(now 2\)"):
            ranks.run(fit_on_rank, str(tmp_path / "whole"), 6)
    for (expected, begun), (found, done) in zip(whole, again, strict=True):
        assert (begun, done) == (0, 3)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)
    assert any(np.any(one != other) for one, other in zip(whole[0][0], whole[1][0], strict=True)), "residuals differ"
    for rank in range(2):
        names = {file.name for file in (tmp_path / "killed").glob(f"rank_{rank}_*")}
        assert names == {f"rank_{rank}_step_{epoch}.npz" for epoch in (4, 5)}, "every rank keeps two checkpoints"


def relabel(folder, workers, now):
    """Change the number of workers in rank 0's checkpoints."""
    for file in folder.glob("rank_0*"):
        about, *values = load_arrays(file).values()
        save_arrays(file, str(about).replace(f'"workers": {workers}', f'"workers": {now}'), *values)


def model_and_saves(folder):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1), DGCConfig(dense_below=0)), "mse", jit_compile=False)
    return model, SaveRanks(folder)


def fit(model, saves, epochs=2, first=0):
    model.fit(np.ones((4, 3)), np.ones((4, 2)), epochs=epochs, initial_epoch=first, verbose=0, callbacks=[saves])


def test_checkpoints_of_a_different_run_are_rejected(tmp_path):
    model, saves = model_and_saves(tmp_path)
    with pytest.raises(LabError, match=r"call saves.restore\(model\) first"):
        fit(model, saves)
    assert saves.restore(model) == 0
    fit(model, saves)
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
    other.compile(DistributedOptimizer(keras.optimizers.SGD(0.1), DGCConfig(dense_below=0)), "mse", jit_compile=False)
    with pytest.raises(LabError, match="was saved by a run with shapes"):
        SaveRanks(tmp_path).restore(other)
    relabel(tmp_path, workers=1, now=2)
    model, saves = model_and_saves(tmp_path)
    with pytest.raises(LabError, match=r"was saved by a run with workers 2 \(now 1\)"):
        saves.restore(model)


def test_a_new_run_does_not_delete_later_checkpoints(tmp_path):
    model, saves = model_and_saves(tmp_path)
    saves.restore(model)
    fit(model, saves, epochs=5)
    model, saves = model_and_saves(tmp_path)
    assert saves.restore(model) == 5
    fit(model, saves, epochs=6, first=5)
    fresh, saves = model_and_saves(tmp_path)
    assert saves.restore(fresh) == 6
    for restored in (6, None):  # None as if never restored
        saves.files.step = restored
        with pytest.raises(LabError, match="holds step 6, which is later than step 1: restore it and continue"):
            fit(fresh, saves, epochs=1)
    assert {file.name for file in tmp_path.iterdir()} == {"rank_0_step_5.npz", "rank_0_step_6.npz"}


class OneOfTwo:
    """Communicator of one of two ranks; the other rank's checkpoints are set by hand."""

    size, local = 2, 1

    def __init__(self, rank):
        self.first, self.gathered = rank, None

    def allgather(self, tensors, name):
        return tensors[0] if name == "dgc_lab.damaged" else self.gathered


def restore_all(files) -> list[int]:
    """Exchange the available steps; return the step that each rank restores."""
    steps = [each.steps() or [0] for each in files]
    gathered = tf.constant([[own[0], own[-1]] for own in steps])
    for each in files:
        each.communicator.gathered = gathered
    return [each.restore() for each in files]


def test_partial_checkpoints_of_different_runs_are_not_combined(tmp_path):
    """One run dies with step 3 saved on rank 0 only, the next on rank 1 only: these two must not be combined."""
    from dgc_lab.distributed.rank_files import RankFiles

    values = [tf.Variable(0.0), tf.Variable(0.0)]

    def start():
        return [RankFiles(tmp_path, OneOfTwo(rank), [values[rank]], {}) for rank in range(2)]

    files = start()
    for step in (1, 2):
        for rank in range(2):
            values[rank].assign(100 + step)
            files[rank].save(step)
    for run, rank in ((100, 0), (200, 1)):
        values[rank].assign(run + 3)
        files[rank].save(3)
        files = start()
        assert restore_all(files) == [2, 2]
        assert [float(value) for value in values] == [102, 102]


def test_training_restarts_if_only_one_rank_has_a_checkpoint(tmp_path):
    """The next run starts over, and may save an earlier step first, for example after Ctrl-C."""
    from dgc_lab.distributed.rank_files import RankFiles

    def start():
        return [RankFiles(tmp_path, OneOfTwo(rank), [tf.Variable(0.0)], {}) for rank in range(2)]

    start()[0].save(37)
    files = start()
    assert restore_all(files) == [0, 0]
    for each in files:
        each.save(20)
    assert restore_all(start()) == [20, 20]


def test_every_rank_reports_that_no_step_is_common_to_all(tmp_path):
    """A damaged checkpoint was removed, and it was the only step that both ranks had."""
    from dgc_lab.distributed.rank_files import RankFiles

    for rank, steps in enumerate(([1, 2], [2, 3])):
        files = RankFiles(tmp_path, OneOfTwo(rank), [tf.Variable(0.0)], {})
        for step in steps:
            files.save(step)
    (tmp_path / "rank_0_step_2.npz").unlink()
    for rank in range(2):
        files = RankFiles(tmp_path, OneOfTwo(rank), [tf.Variable(0.0)], {})
        files.communicator.gathered = tf.constant([[1, 1], [2, 3]])
        message = r"holds steps \[2, 3\] of rank 1, but step 1 of another rank: .* or remove all rank_\*_step_\*.npz to"
        with pytest.raises(LabError, match=message):
            files.restore()


def test_truncated_checkpoint_is_not_used(tmp_path):
    model, saves = model_and_saves(tmp_path)
    saves.restore(model)
    fit(model, saves)
    (tmp_path / "rank_0_step_3.npz.unfinished").write_bytes(b"half")
    assert model_and_saves(tmp_path)[1].restore(model) == 2


@pytest.mark.parametrize("damage", [lambda whole: whole[:1000], lambda whole: whole[:900] + b"x" * 24 + whole[924:]])
def test_removing_a_damaged_checkpoint_restores_the_previous_one(tmp_path, damage):
    model, saves = model_and_saves(tmp_path)
    saves.restore(model)
    fit(model, saves)
    file = tmp_path / "rank_0_step_2.npz"
    file.write_bytes(damage(file.read_bytes()))
    model, saves = model_and_saves(tmp_path)
    with pytest.raises(LabError, match=rf"{file} cannot be read, it is damaged .*Remove it, and run the same call"):
        saves.restore(model)
    file.unlink()
    assert saves.restore(model) == 1


def restore_where_rank_1_cannot_write(folder):
    import horovod.tensorflow as hvd

    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=False)
    SaveRanks("/proc/run" if hvd.rank() else folder).restore(model)


def test_unwritable_folders_are_refused_before_training(two_ranks, tmp_path):
    """Otherwise the first epoch would be trained in vain, and the other ranks would wait for the rank that failed."""
    with pytest.raises(RankFailed, match=r"every rank raised LabError: /proc/run cannot be written"):
        two_ranks.run(restore_where_rank_1_cannot_write, str(tmp_path / "run"))
    assert two_ranks.ready


def test_a_failed_write_names_the_file_and_keeps_the_last_one(tmp_path):
    model, saves = model_and_saves(tmp_path)
    saves.restore(model)
    fit(model, saves, epochs=1)
    (tmp_path / "rank_0_step_2.npz").mkdir()
    with pytest.raises(LabError, match=r"rank_0_step_2.npz cannot be written .*run the same call again"):
        fit(model, saves, epochs=2, first=1)
    assert {file.name for file in tmp_path.iterdir()} == {"rank_0_step_1.npz", "rank_0_step_2.npz"}, "partial file"


def test_bfloat16_round_trips_and_is_not_restored_as_float16(tmp_path):
    from dgc_lab.distributed.communicators import OneWorker
    from dgc_lab.distributed.rank_files import RankFiles

    variable = tf.Variable(tf.constant([1.5, -2.0], tf.bfloat16))
    RankFiles(tmp_path, OneWorker(), [variable], {}).save(1)
    variable.assign([0.0, 0.0])
    assert RankFiles(tmp_path, OneWorker(), [variable], {}).restore() == 1
    assert variable.numpy().tolist() == [1.5, -2.0]
    half = tf.Variable(tf.zeros([2], tf.float16), name="half")
    with pytest.raises(LabError, match=r"was saved by a run with half:0 of another dtype \(now float16\)"):
        RankFiles(tmp_path, OneWorker(), [half], {}).restore()


def test_a_flipped_bit_is_detected_at_any_position(tmp_path):
    """Zip checksums cover the arrays but not the directory, where a flipped bit can hide an array."""
    from dgc_lab.distributed.communicators import OneWorker
    from dgc_lab.distributed.rank_files import RankFiles

    variables = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
    RankFiles(tmp_path, OneWorker(), variables, {}).save(1)
    [file] = tmp_path.glob("rank_0_step_1.npz")
    whole = file.read_bytes()
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 16]) + whole[position + 1 :])
        with pytest.raises(LabError, match="is damaged"):
            RankFiles(tmp_path, OneWorker(), variables, {}).restore()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        with pytest.raises(LabError, match="is damaged"):
            RankFiles(tmp_path, OneWorker(), variables, {}).restore()
    assert [variable.numpy().tolist() for variable in variables] == [[1.0, 2.0], [3.0]]
