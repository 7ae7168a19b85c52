"""A rank that waits for another is announced, and a wait that cannot end, ends the call; with a fast clock.

The ranks import this file and run its functions.
"""

import time

import numpy as np
import pytest

from dgc_lab.cluster import HorovodRanks, RankFailed, horovodrun, private_network, stalls


@pytest.fixture(scope="module")
def impatient_ranks(horovod):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(stalls.CHECK_TIME, "1")
        for name, seconds in {"BEFORE_NOTICE": 1, "TO_EXPIRE": 3, "HOPELESS": 4}.items():
            patch.setattr(stalls, f"SECONDS_{name}", seconds)
        with HorovodRanks(2, progress=None) as ranks:
            yield ranks


@pytest.fixture
def ranks(impatient_ranks):
    """Two ranks that report waits after one second."""
    return impatient_ranks if impatient_ranks.ready else impatient_ranks.restart()


def fit(how, agree):
    """Train for three epochs of two steps; rank 0 stops first unless the ranks agree."""
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    from dgc_lab.distributed import AverageMetrics, DistributedOptimizer, on_first_rank

    def stop(*_, **__):
        model.stop_training = True

    rank = hvd.rank()
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, use_bias=False)])
    x = tf.random.stateless_normal((8, 4), (3, rank))
    y = tf.reduce_sum(x, 1)
    callbacks = [AverageMetrics()] if agree else []
    if how == "stop_training":
        callbacks += on_first_rank(keras.callbacks.LambdaCallback(on_epoch_end=stop))
    elif how == "stop inside an epoch":
        callbacks += on_first_rank(keras.callbacks.LambdaCallback(on_train_batch_end=stop))
    elif how == "EarlyStopping":
        callbacks += [keras.callbacks.EarlyStopping("loss", patience=1)]
        x = x if rank else 0 * x  # only rank 0's loss does not improve
    elif how == "NaN":
        callbacks += [keras.callbacks.TerminateOnNaN()]
        y = y if rank else y * np.nan
    model.compile(DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse", jit_compile=False)
    return model.fit(x, y, batch_size=4, epochs=3, verbose=0, callbacks=callbacks).history


WITHOUT_AGREEMENT = {
    "stop_training": "rank 0 has returned, but rank 1 still waits for it in ",
    "EarlyStopping": "rank 0 has returned, but rank 1 still waits for it in ",
    "NaN": r"InvalidArgumentError: [\s\S]*holds NaN",
}


@pytest.mark.nightly_except("stop_training")
@pytest.mark.parametrize("how", WITHOUT_AGREEMENT)
def test_rank_that_leaves_fit_alone_ends_the_call(ranks, how):
    with pytest.raises(RankFailed, match=WITHOUT_AGREEMENT[how]) as failure:
        ranks.run(fit, how, agree=False)
    if how != "NaN":
        assert "AverageMetrics as the first callback" in str(failure.value)
        assert "restart()" in str(failure.value)


WITH_AGREEMENT = {
    "stop_training": "RanksDisagree: .*got training ends on rank 0 and epoch 2 begins on rank 1",
    "NaN": r"InvalidArgumentError: [\s\S]*holds NaN",
}


@pytest.mark.parametrize("how", WITH_AGREEMENT)
def test_agreeing_ranks_all_raise_and_stay_usable(ranks, how):
    with pytest.raises(RankFailed, match=WITH_AGREEMENT[how]) as failure:
        ranks.run(fit, how, agree=True)
    assert set(failure.value.problems) == {0, 1}
    assert ranks.ready


def test_averaged_losses_stop_all_ranks_together(ranks):
    first, second = ranks.run(fit, "EarlyStopping", agree=True)
    assert first == second


@pytest.mark.nightly
def test_ranks_in_different_collectives_end_the_call(ranks):
    """Rank 0 leaves the epoch after its first step, and waits for the metrics of rank 1."""
    with pytest.raises(RankFailed, match=r"waits for rank [01] in .*; rank [01] waits for rank [01] in ") as failure:
        ranks.run(fit, "stop inside an epoch", agree=True)
    assert "rank 1 waits for rank 0 in dgc_lab" in str(failure.value)
    assert not ranks.ready


def step_differently(how):
    """Make two eager steps; in the second, rank 0 differs from rank 1."""
    import horovod.tensorflow as hvd
    import tensorflow as tf

    from dgc_lab.compression import AllGather, AllReduceMean, DGCConfig, Scheme
    from dgc_lab.compression.compressor import Compressor
    from dgc_lab.distributed import HorovodWorkers

    steps = []

    def step(gradient, state, context):
        if how == "AllGather" and steps and hvd.rank() == 0:
            yield AllGather((gradient,))
        mean = yield AllReduceMean(gradient)
        return mean, gradient, state

    weights = [tf.Variable(tf.zeros([3, 4])), tf.Variable(tf.zeros([5, 5]))]
    compressor = Compressor(Scheme(step), weights, HorovodWorkers(), options=DGCConfig(dense_below=0))
    for number in range(2):
        gradients = [tf.ones([3, 4]), tf.ones([5, 5])]
        if how == "None" and number and hvd.rank() == 0:
            gradients[1] = None
        compressor([gradients])
        steps.append(number)


@pytest.mark.parametrize("how", ["AllGather", "None"])
def test_eager_steps_that_differ_on_one_rank_raise_on_all(ranks, how):
    with pytest.raises(RankFailed, match="RanksDisagree: all ranks must have the same settings") as failure:
        ranks.run(step_differently, how)
    assert set(failure.value.problems) == {0, 1}
    assert ranks.ready


def reduce_late(seconds):
    import horovod.tensorflow as hvd
    import tensorflow as tf

    if hvd.rank() == 0:
        time.sleep(seconds)
    return float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum))


def test_slow_rank_is_announced_and_not_killed(ranks, capsys):
    assert ranks.run(reduce_late, 8) == [2.0, 2.0]
    assert capsys.readouterr().out.splitlines() == ["rank 1 waits for rank 0 in HorovodAllreduce"]
    assert ranks.ready


def return_late(seconds):
    import horovod.tensorflow as hvd

    time.sleep(seconds * hvd.rank())
    return hvd.rank()


def test_rank_that_works_alone_is_announced_and_not_killed(ranks, capsys):
    assert ranks.run(return_late, 8) == [0, 1]
    assert capsys.readouterr().out.splitlines() == ["returned: rank 0; still running: rank 1"]
    assert ranks.ready


def test_collective_on_one_rank_only_ends_the_cell(ranks):
    cell = "import horovod.tensorflow as hvd, tensorflow as tf\nhvd.allreduce(tf.zeros([]))"
    with pytest.raises(
        RankFailed, match="rank 0 does not take part, but rank 1 still waits for it in HorovodAllreduce"
    ):
        ranks.run_cell(cell, [1])


def sums():
    import horovod.tensorflow as hvd
    import tensorflow as tf

    for _ in range(60):
        hvd.allreduce(tf.zeros([]))
        yield bytes(10_000)


def test_ranks_that_wait_for_the_reader_are_not_announced(ranks, capsys):
    """Rank 0 cannot send more items than its connection holds, and rank 1 waits for it."""
    for number, _ in enumerate(ranks.stream(sums)):
        if number == 0:
            time.sleep(6)
    assert number == 59
    assert "waits" not in capsys.readouterr().out
    assert ranks.ready


REDUCE_LATE = """
import time
import horovod.tensorflow as hvd, tensorflow as tf
hvd.init()
time.sleep(30 * hvd.rank())
print("sum", float(hvd.allreduce(tf.constant(1.0), op=hvd.Sum)))
"""


@pytest.mark.nightly
def test_horovodrun_reports_missing_ranks_in_a_terminal(horovod):
    if reason := private_network.unavailable_reason():
        pytest.skip(reason)
    lines = horovodrun(2, "python", "-c", REDUCE_LATE)
    said = "\n".join(lines)  # a failed assert shows all of it
    assert "waiting for remainder of ranks for more than 5 seconds" in said
    assert [line for line in lines if line.endswith("1: [HorovodAllreduce]")], said
    assert len([line for line in lines if line.endswith("sum 2.0")]) == 2, said


def test_reports_of_several_collectives_are_read():
    log = "W stall_inspector.cc:105] One or more ...\nMissing ranks:\n0: [a/b, c ...]\n1!: [d]\nother output"
    assert stalls.last_report(log) == {"a/b": ["rank 0"], "c": ["rank 0"], "d": ["rank 1"]}
    assert stalls.last_report(log + "\nMissing ranks:\n1: [e]") == {"e": ["rank 1"]}
    assert stalls.last_report("no report") is None


def test_a_report_from_before_a_rank_returned_is_dropped(monkeypatch, capsys):
    """The rank may have returned from the very collective that it was late for."""
    monkeypatch.setattr(stalls, "SECONDS_BETWEEN_LOOKS", 0)
    report = "Missing ranks:\n0: [mean]\n"
    logs = ["", report, "", report]
    waits = stalls.Waits(["rank 0", "rank 1"], lambda: logs.pop(0), list)
    said = []
    for running in (["rank 0", "rank 1"], ["rank 1"], ["rank 1"]):
        waits.look(running)
        said.append(capsys.readouterr().out.strip())
    assert said == ["rank 1 waits for rank 0 in mean", "", "rank 0 has returned, but rank 1 still waits for it in mean"]
