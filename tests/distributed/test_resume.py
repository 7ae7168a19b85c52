"""A training in `model.fit` on two ranks dies in the middle of an epoch and goes on as if it never had."""

import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.cluster import HorovodRanks, RankDied, RankFailed
from dgc_lab.common import TRAILER_SIZE, LabError, load_arrays
from dgc_lab.compression import DGCConfig
from dgc_lab.distributed import AverageMetrics, DistributedOptimizer, SaveRanks

CONFIG = DGCConfig(ratio=0.05, momentum=0.9, dense_below=0, dense_vectors=False, warm_up=(0.5,), warm_up_steps=8)
STEPS = 4  # an epoch


def fit_on_rank(folder, epochs, dies_after=None):
    """Weights, residuals and epochs of this call; with ``dies_after`` rank 1 is killed two steps into that epoch."""
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


def test_two_ranks_go_on_after_one_was_killed_with_the_same_bits(tmp_path):
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
        assert names == {f"rank_{rank}_step_{epoch}.npz" for epoch in (4, 5)}, "two saves a rank"


def relabel(folder, workers, now):
    """Make rank 0's saves look as if another number of workers had trained."""
    for file in folder.glob("rank_0*"):
        with np.load(file, allow_pickle=False) as saved:
            about, *values = (saved[name] for name in saved.files)
        about = np.array(str(about).replace(f'"workers": {workers}', f'"workers": {now}'))
        with open(file, "wb") as out:
            np.savez(out, about, *values)


def model_and_saves(folder):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.1), DGCConfig(dense_below=0)), "mse", jit_compile=False)
    return model, SaveRanks(folder)


def fit(model, saves, epochs=2, first=0):
    model.fit(np.ones((4, 3)), np.ones((4, 2)), epochs=epochs, initial_epoch=first, verbose=0, callbacks=[saves])


def test_what_does_not_belong_together_is_refused(tmp_path):
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


def test_a_new_run_does_not_delete_an_old_ones_later_saves(tmp_path):
    model, saves = model_and_saves(tmp_path)
    saves.restore(model)
    fit(model, saves, epochs=5)
    model, saves = model_and_saves(tmp_path)
    assert saves.restore(model) == 5
    fit(model, saves, epochs=6, first=5)
    fresh, saves = model_and_saves(tmp_path)
    saves.restore(fresh)
    saves.files.step = None  # as if never restored
    with pytest.raises(LabError, match="holds step 6 of another run: restore it, or use an empty folder"):
        fit(fresh, saves, epochs=1)
    assert {file.name for file in tmp_path.iterdir()} == {"rank_0_step_5.npz", "rank_0_step_6.npz"}


class OneOfTwo:
    """A rank of two, which hears what it is told all ranks have saved."""

    size, local = 2, 1

    def __init__(self, rank):
        self.first, self.told = rank, None

    def allgather(self, tensors, name):
        return tensors[0] if name == "dgc_lab.damaged" else self.told


def restored(files) -> list[int]:
    """What all ranks take up, each told what all have."""
    steps = [each.steps() or [0] for each in files]
    told = tf.constant([[own[0], own[-1]] for own in steps])
    for each in files:
        each.communicator.told = told
    return [each.restore() for each in files]


def test_what_one_rank_alone_had_saved_is_never_taken_for_a_part_of_another_run(tmp_path):
    """A run dies with step 3 on rank 0, the next one with step 3 on rank 1: these two do not belong together."""
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
        assert restored(files) == [2, 2]
        assert [float(value) for value in values] == [102, 102]


def test_a_first_save_of_one_rank_alone_is_no_dead_end(tmp_path):
    """The next run begins anew, and may save an earlier step first, as after Ctrl-C."""
    from dgc_lab.distributed.rank_files import RankFiles

    def start():
        return [RankFiles(tmp_path, OneOfTwo(rank), [tf.Variable(0.0)], {}) for rank in range(2)]

    start()[0].save(37)
    files = start()
    assert restored(files) == [0, 0]
    for each in files:
        each.save(20)
    assert restored(start()) == [20, 20]


def test_every_rank_says_that_no_step_is_there_of_all(tmp_path):
    """A damaged save, which had to be removed, was the only one that the other rank had, too."""
    from dgc_lab.distributed.rank_files import RankFiles

    for rank, steps in enumerate(([1, 2], [2, 3])):
        files = RankFiles(tmp_path, OneOfTwo(rank), [tf.Variable(0.0)], {})
        for step in steps:
            files.save(step)
    (tmp_path / "rank_0_step_2.npz").unlink()
    for rank in range(2):
        files = RankFiles(tmp_path, OneOfTwo(rank), [tf.Variable(0.0)], {})
        files.communicator.told = tf.constant([[1, 1], [2, 3]])
        words = r"holds steps \[2, 3\] of rank 1, but step 1 of another rank: .* or remove all rank_\*_step_\*.npz to"
        with pytest.raises(LabError, match=words):
            files.restore()


def test_a_save_that_was_cut_short_is_no_save(tmp_path):
    model, saves = model_and_saves(tmp_path)
    saves.restore(model)
    fit(model, saves)
    (tmp_path / "rank_0_step_3.npz.unfinished").write_bytes(b"half")
    assert model_and_saves(tmp_path)[1].restore(model) == 2


@pytest.mark.parametrize("damage", [lambda whole: whole[:1000], lambda whole: whole[:900] + b"x" * 24 + whole[924:]])
def test_a_damaged_save_is_named_and_without_it_the_one_before_is_taken(tmp_path, damage):
    model, saves = model_and_saves(tmp_path)
    saves.restore(model)
    fit(model, saves)
    file = tmp_path / "rank_0_step_2.npz"
    file.write_bytes(damage(file.read_bytes()))
    model, saves = model_and_saves(tmp_path)
    with pytest.raises(LabError, match=rf"{file} cannot be read, it is damaged .*Remove it, and the same call goes on"):
        saves.restore(model)
    file.unlink()
    assert saves.restore(model) == 1


def test_a_save_that_cannot_be_written_names_the_file_and_leaves_the_one_before(tmp_path):
    model, saves = model_and_saves(tmp_path)
    saves.restore(model)
    fit(model, saves, epochs=1)
    (tmp_path / "rank_0_step_2.npz").mkdir()
    with pytest.raises(LabError, match=r"rank_0_step_2.npz cannot be written .*run the same call again"):
        fit(model, saves, epochs=2, first=1)
    assert {file.name for file in tmp_path.iterdir()} == {"rank_0_step_1.npz", "rank_0_step_2.npz"}, "nothing half"


def test_bfloat16_is_saved_without_pickle_and_taken_for_nothing_else(tmp_path):
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


def test_a_list_that_leaves_out_arrays_is_told_without_a_sha_256_too(tmp_path):
    """`zipfile` reads as many entries as the list's size says, and passes over whatever else is in the file."""
    file = tmp_path / "saved.npz"
    np.savez(file, weights=np.ones(3), step=np.array(7))
    assert list(load_arrays(file)) == ["weights", "step"]
    whole = file.read_bytes()
    file.write_bytes(whole[:-14] + bytes(14))  # no entries, of no bytes, at the file's beginning
    with pytest.raises(LabError, match=r"is damaged \(its list of arrays is incomplete\)"):
        load_arrays(file)


def test_a_bit_that_turned_is_told_wherever_it_is(tmp_path):
    """A zip tells of what turned inside of an array, and not of what turned in its directory: an array was hidden."""
    from dgc_lab.distributed.communicators import OneWorker
    from dgc_lab.distributed.rank_files import RankFiles

    variables = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
    RankFiles(tmp_path, OneWorker(), variables, {}).save(1)
    [file] = tmp_path.glob("rank_0_step_1.npz")
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(LabError, match="is damaged"):
            RankFiles(tmp_path, OneWorker(), variables, {}).restore()
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        files = RankFiles(tmp_path, OneWorker(), variables, {})
        if size == len(whole) - TRAILER_SIZE:  # without its SHA-256 it is a file as version 1.0.0 wrote it
            assert files.restore() == 1
            continue
        with pytest.raises(LabError, match="is damaged"):
            files.restore()
    assert [variable.numpy().tolist() for variable in variables] == [[1.0, 2.0], [3.0]]
