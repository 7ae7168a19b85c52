"""The same seed gives the same bits: sweeps, simulated workers, ranks and other processes, with 1 and 2 threads.

The results in ``same_bits.json`` hold on one kind of machine; these tests hold on any. The number of threads may change
the order of summation, so runs are compared only at equal thread counts.
"""

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dgc_lab.distributed import HorovodWorkers, SimulatedWorkers
from dgc_lab.training import DistributedConfig, DistributedTrainer, MaskingConfig, RowEnded, sweep
from dgc_lab.workloads.data import load

TIMES = {"started", "seconds"}  # fields of a row that no seed determines
SETTINGS = {
    "complete DGC": {},
    "warm-up and float16": {"warm_up": "paper", "warm_up_steps": 4, "values": "float16"},
    "chance in what is sent": {"scheme": "random_k:ratio=0.1"},
    "chance in rounding": {"scheme": "qsgd:levels=4"},
}
IN_A_PROCESS = """
import json, os, sys
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
tf.config.threading.set_inter_op_parallelism_threads(int(sys.argv[1]))
from test_same_seed import SETTINGS, SimulatedWorkers, weights_hash
print(json.dumps([weights_hash(settings, SimulatedWorkers(2)) for settings in list(SETTINGS.values())[:2]]))
"""


def make_trainer(settings, communicator, seed=0, data=None):
    settings = {"steps": 12, "evaluations": 1, "learning_rate": 0.05, "seed": seed, **settings}
    return DistributedTrainer(DistributedConfig(**settings), communicator, data)


def weights_hash(settings, communicator, seed=0):
    return hash_after_run(make_trainer(settings, communicator, seed))


def hash_after_run(trainer, **how):
    """Return a hash of all weights after 12 steps, and the last loss."""
    *_, last = trainer.run(0.01 if trainer.settings.scheme == "dgc" else 1.0, **how)
    digest = hashlib.sha256()
    for weight in trainer.weights:
        digest.update(np.ascontiguousarray(weight.numpy()).tobytes())
    return digest.hexdigest(), last.loss


def hash_on_rank(settings, seed=0):
    return weights_hash(settings, HorovodWorkers(), seed)


@pytest.mark.nightly_except("complete DGC", "chance in what is sent")
@pytest.mark.parametrize("name", SETTINGS)
def test_simulated_workers_are_reproducible(name):
    first, again = (weights_hash(SETTINGS[name], SimulatedWorkers(2), seed) for seed in (3, 3))
    assert first == again
    other = make_trainer(SETTINGS[name], SimulatedWorkers(2), 4)
    assert first != hash_after_run(other)
    assert first == hash_after_run(other.with_seed(3)), "one trace must serve all seeds"
    assert other.settings.seed == 3
    assert other.traces == 1


def test_another_seed_changes_dropout(small_mnist):
    data, few = load("mnist", small_mnist[0]), {"dataset": "mnist", "steps": 2, "batch": 4}
    trainers = [make_trainer(few, SimulatedWorkers(2), seed, data) for seed in (3, 4)]
    first, other = map(hash_after_run, trainers)
    assert first != other
    begun = hash_after_run(trainers[1].with_seed(3), resume=True)
    assert first == begun, "a new seed must not resume the old run"
    assert first == hash_after_run(trainers[1].with_seed(3))
    with pytest.raises(ValueError, match=r"seed must be .* got -1"):
        trainers[1].with_seed(-1)
    assert first == hash_after_run(trainers[1]), "a rejected seed must change nothing"
    trainers[1].seed.assign(4)  # only dropout's seed; weights and batches keep seed 3
    assert first != hash_after_run(trainers[1])


@pytest.mark.nightly
def test_ranks_are_reproducible_after_a_restart(two_ranks):
    names = list(SETTINGS)[::2]
    first = [two_ranks.run(hash_on_rank, SETTINGS[name]) for name in names]
    again = [two_ranks.run(hash_on_rank, SETTINGS[name]) for name in names]
    two_ranks.restart()
    anew = [two_ranks.run(hash_on_rank, SETTINGS[name]) for name in names]
    assert first == again == anew
    assert len({one for one, _ in first[0]}) == 1, "ranks must hold the same bits"
    assert two_ranks.run(hash_on_rank, SETTINGS[names[0]], seed=1)[0] != first[0][0]


def test_sweep_rows_are_reproducible(tmp_path, digits):
    def rows(name):
        events = sweep(MaskingConfig(steps=30, evaluations=2), [1, 0.01], tmp_path / name, digits)
        made = [event.row for event in events if isinstance(event, RowEnded)]
        return [{key: value for key, value in row.items() if key not in TIMES} for row in made]

    first = rows("first")
    assert first == rows("again")
    assert {"accuracy", "loss", "share sent"} <= set(first[0])


@pytest.mark.nightly
@pytest.mark.parametrize("threads", [1, 2])
def test_another_process_gives_the_same_bits(threads):
    """Addresses and string hashes differ between processes and must not matter."""

    def in_a_process(hash_seed):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", IN_A_PROCESS, str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    first = in_a_process("1")
    assert first == in_a_process("2")
    assert first[0] != first[1]
