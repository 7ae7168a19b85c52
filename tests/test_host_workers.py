"""Four real ranks that pose as two hosts: each host is one worker, and all ranks keep the same weights."""

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.clusters import HorovodRanks, RankFailed
from dgc_lab.compressor import Compressor
from dgc_lab.dgc import Recipe
from dgc_lab.engines import LocalEngines
from dgc_lab.exchange import SimulatedWorkers
from dgc_lab.host_workers import NEEDED, HostAwareWorkers
from dgc_lab.rendezvous import LOOPBACK, LOOPBACK_INTERFACE

SHAPES = [(40, 50), (50,), (6, 3)]
RECIPES = {
    "means": Recipe(ratio=0.02, rule="exact", dense_below=0, weight_decay=0.01),
    "sums in 16 bits, dense first": Recipe(
        ratio=0.02,
        reduction="sum",
        values="float16",
        indices="run_lengths",
        clip_norm=1.0,
        warm_up=(1.0,),
        warm_up_steps=2,
        dense_below=0,
    ),
}


def gradients_of(step, rank):
    drawn = [tf.random.stateless_normal(shape, tf.stack([step, 10 * rank + i])) for i, shape in enumerate(SHAPES)]
    return [*drawn[:2], tf.IndexedSlices(drawn[2][:2], tf.stack([step % 6, rank]), tf.constant(SHAPES[2]))]


def of_a_host(step, ranks, average):
    """What the gradients of a host's ranks come to."""
    share = 1 / len(ranks) if average else 1.0
    every = [gradients_of(step, rank) for rank in ranks]
    rows = [own.pop() for own in every]
    values, indices = tf.concat([r.values for r in rows], 0), tf.concat([r.indices for r in rows], 0)
    sums = [share * tf.add_n(tensors) for tensors in zip(*every, strict=True)]
    return [*sums, tf.IndexedSlices(share * values, indices, tf.constant(SHAPES[2]))]


def train(recipe, exchange, local, steps=6):
    """Weights after every step, what was told, and bytes handed over in the last one."""
    weights = [tf.Variable(tf.ones(shape)) for shape in SHAPES]
    compressor = Compressor(recipe, weights, exchange)

    @tf.function
    def update(step):
        own, told = local(step)
        updates, report = compressor(own, told=told)
        for weight, change in zip(weights, updates, strict=True):
            weight.assign_sub(0.1 * tf.convert_to_tensor(change))
        return report.told, report.allgather_bytes

    history = []
    for step in range(steps):
        told, handed = update(tf.constant(step))
        history.append([weight.numpy() for weight in weights])
    return history, told.numpy(), int(handed)


def train_here(recipe):
    import horovod.tensorflow as hvd

    rank = hvd.rank()
    return train(recipe, HostAwareWorkers(), lambda step: ([gradients_of(step, rank)], [tf.constant([float(rank)])]))


def fail_on_rank_3():
    import horovod.tensorflow as hvd

    weights = [tf.Variable(tf.zeros([40]), name="weight")]
    spoilt = tf.fill([40], float("nan") if hvd.rank() == 3 else 1.0)
    Compressor(Recipe(dense_below=0, dense_vectors=False), weights, HostAwareWorkers())([[spoilt]])


@pytest.fixture(scope="module")
def two_hosts_of_two(horovod):
    """Ranks 0 and 1 on host a, ranks 2 and 3 on host b, as far as Horovod knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(NEEDED, "1")
        patch.setattr(LocalEngines, "hosts", lambda engines: ["a", "a", "b", "b"])
        with HorovodRanks(4, progress=None, address=LOOPBACK, interface=LOOPBACK_INTERFACE) as ranks:
            yield ranks


@pytest.mark.parametrize("name", RECIPES)
def test_two_hosts_of_two_ranks_are_two_workers(two_hosts_of_two, name):
    recipe = RECIPES[name]
    found = two_hosts_of_two.run(train_here, recipe)
    average = recipe.reduction == "average"

    def hosts(step):
        return [of_a_host(step, ranks, average) for ranks in ((0, 1), (2, 3))], [tf.zeros([1])] * 2

    expected, _, _ = train(recipe, SimulatedWorkers(2), hosts)
    for history, told, handed in found:
        for here, first, simulated in zip(history, found[0][0], expected, strict=True):
            for own, other, wanted in zip(here, first, simulated, strict=True):
                np.testing.assert_array_equal(own, other)
                np.testing.assert_allclose(own, wanted, atol=1e-5)
        assert told.tolist() == [[0.5], [2.5]], "the mean of what a host's ranks tell"
        assert handed == found[0][2]
    assert any(np.any(weight != 1) for weight in found[0][0][-1])


def test_a_gradient_that_is_not_finite_names_its_host_on_all_ranks(two_hosts_of_two):
    with pytest.raises(RankFailed) as failure:
        two_hosts_of_two.run(fail_on_rank_3)
    assert set(failure.value.problems) == {0, 1, 2, 3}
    for problem in failure.value.problems.values():
        assert 'gradient of "weight" on worker 1 holds NaN' in problem.message


def test_what_is_needed_is_said(two_ranks):
    with pytest.raises(RankFailed) as failure:
        two_ranks.run(HostAwareWorkers)
    assert all(f"set {NEEDED}=1" in problem.message for problem in failure.value.problems.values())
