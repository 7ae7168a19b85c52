"""Eight real ranks hold the same bits, as eight workers and as the ranks of two or four hosts.

The ranks import this file and run its functions.
"""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from test_two_ranks import CONFIGS, SHAPES, assert_bits, local_gradients

from dgc_lab.cluster import HorovodRanks, RankFailed
from dgc_lab.compression.compressor import Compressor
from dgc_lab.distributed.communicators import HorovodWorkers, SimulatedWorkers
from dgc_lab.distributed.hierarchical import HierarchicalCommunicator

pytestmark = pytest.mark.nightly

RANKS, STEPS = 8, 4


@pytest.fixture(scope="module")
def ranks(horovod):
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # more ranks than cores
        patch.setenv("HOROVOD_DYNAMIC_PROCESS_SETS", "1")
        with HorovodRanks(RANKS, progress=None) as ranks:
            yield ranks


def on_ranks(config, hosts, steps=STEPS):
    """Return weights per step, the last metadata, and bytes sent; neighbouring ranks simulate one host."""
    import horovod.tensorflow as hvd

    communicator = (
        HorovodWorkers()
        if hosts == hvd.size()
        else HierarchicalCommunicator(f"host {hvd.rank() * hosts // hvd.size()}")
    )
    weights = [tf.Variable(tf.zeros(shape)) for shape in SHAPES]
    compressor, metadata, history = Compressor(config, weights, communicator), None, []
    for step in range(steps):
        own = local_gradients(tf.constant(step), hvd.rank())
        updates, report = compressor([own], metadata=[tf.constant([float(hvd.rank())])])
        for weight, change in zip(weights, updates, strict=True):
            weight.assign_sub(0.1 * tf.convert_to_tensor(change))
        history.append([weight.numpy() for weight in weights])
        metadata = report.metadata.numpy().tolist()
    return history, metadata, int(compressor.bytes_sent.numpy().sum())


def train_simulated(config, hosts, steps=STEPS):
    """Do the same in one process: one worker per host, with the mean gradient of its ranks."""
    weights, each = [tf.Variable(tf.zeros(shape)) for shape in SHAPES], RANKS // hosts
    compressor = Compressor(config, weights, SimulatedWorkers(hosts))
    for step in range(steps):
        workers = []
        for host in range(hosts):
            own = [local_gradients(tf.constant(step), rank) for rank in range(host * each, (host + 1) * each)]
            dense = [tf.add_n([g[i] for g in own]) / each for i in (0, 1)]
            values, rows = (tf.concat([getattr(g[2], part) for g in own], 0) for part in ("values", "indices"))
            workers.append([*dense, tf.IndexedSlices(values / each, rows, own[0][2].dense_shape)])
        updates, _ = compressor(workers, metadata=[tf.zeros([1])] * hosts)
        for weight, change in zip(weights, updates, strict=True):
            weight.assign_sub(0.1 * tf.convert_to_tensor(change))
    return [weight.numpy() for weight in weights], int(compressor.bytes_sent.numpy().sum())


@pytest.mark.parametrize(("name", "hosts"), [("warm-up", RANKS), ("dgc", 2), ("warm-up", 4)])
def test_eight_ranks_match_each_other_and_simulated_workers(ranks, name, hosts):
    """With eight terms, the order of addition matters and must be the same on every rank."""
    results = ranks.run(on_ranks, CONFIGS[name], hosts)
    first, metadata, _ = results[0]
    for history, *_ in results[1:]:
        assert_bits(first, history)
    expected, bytes_expected = train_simulated(CONFIGS[name], hosts)
    for found, other in zip(first[-1], expected, strict=True):
        assert tf.reduce_max(tf.abs(found - other)) < 1e-6
    each = RANKS // hosts
    assert metadata == [[sum(range(host * each, (host + 1) * each)) / each] for host in range(hosts)]
    sent = [sent for _, _, sent in results[::each]]
    assert sum(sent) / hosts == pytest.approx(bytes_expected, abs=STEPS), "the mean is rounded down in every step"


def beside_hosts():
    """Return a rank's shard, its averaged batch-norm statistics, and its number of callbacks."""
    import horovod.tensorflow as hvd
    import keras

    from dgc_lab.distributed.batch_norm import average_statistics, statistics_of
    from dgc_lab.distributed.callbacks import on_first_rank, shard

    communicator = HierarchicalCommunicator(f"host {hvd.rank() // 4}")
    model = keras.Sequential([keras.Input((1,)), keras.layers.BatchNormalization()])
    mean, _ = statistics_of(model)
    mean.assign([float(hvd.rank())])
    average_statistics(model, communicator)
    callbacks = on_first_rank(keras.callbacks.TerminateOnNaN(), communicator=communicator)
    return shard(np.arange(16), communicator=communicator)[0].tolist(), mean.numpy().tolist(), len(callbacks)


def test_shards_and_callbacks_are_per_rank_with_hosts_as_workers(ranks):
    parts, means, callbacks = zip(*ranks.run(beside_hosts), strict=True)
    assert sorted(number for part in parts for number in part) == list(range(16)), "each example goes to one rank"
    assert means == ([3.5],) * RANKS
    assert callbacks == (1, *[0] * 7)


def pooled_from_bfloat16():
    import horovod.tensorflow as hvd

    own = tf.constant([1.0 + hvd.rank() % 2 / 128], tf.bfloat16)
    rows = tf.IndexedSlices(own[None], tf.constant([hvd.rank()]), tf.constant([RANKS, 1]))
    communicator = HierarchicalCommunicator(f"host {hvd.rank() // 4}")
    [[dense, rows]], _ = communicator.reduce_within_host([[own, rows]], [tf.zeros([1])], average=True)
    return dense.numpy().tolist(), rows.values.numpy().ravel().tolist()


def test_bfloat16_gradients_are_averaged_in_float32_within_hosts(ranks):
    """Horovod cannot gather bfloat16, and rounding the mean to bfloat16 would lose the differences between ranks."""
    for dense, rows in ranks.run(pooled_from_bfloat16):
        assert dense == [1 + 1 / 256]
        assert rows == [0.25, 0.25 + 1 / 512] * 2


def test_hosts_of_different_sizes_are_rejected(ranks):
    def uneven():
        import horovod.tensorflow as hvd

        HierarchicalCommunicator("a" if hvd.rank() < 3 else "b")

    with pytest.raises(RankFailed, match=r"equal numbers of ranks, got \[\[0, 1, 2\], \[3, 4, 5, 6, 7\]\]"):
        ranks.run(uneven)
