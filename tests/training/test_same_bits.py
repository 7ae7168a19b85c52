"""Regression tests, bit for bit: a sweep's rows, and weights after 50 steps with every DGC switch.

``same_bits.json`` was recorded before the code was split into subpackages; "no accumulation" and "dense warm-up" were
recorded again after dropping became real dropping and dense warm-up became momentum SGD. With the recorded TensorFlow,
processor and cores, every bit must match. Elsewhere rounding differs and eventually other elements pass the threshold,
so only the norms of the weights are compared: tightly after 10 steps, loosely after 50.
"""

import functools
import hashlib
import json
import os
import platform
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.distributed import HorovodWorkers, SimulatedWorkers
from dgc_lab.install.launch_env import cores
from dgc_lab.training import DistributedConfig, DistributedStep, DistributedTrainer, MaskingConfig, RowEnded, sweep

pytestmark = pytest.mark.alone  # parallel tests use one thread per operation, which changes the last bits
RECORDED = json.loads(Path(__file__).with_name("same_bits.json").read_text(encoding="utf-8"))
SWITCHES = {
    "defaults": {},
    "nesterov": {"nesterov": True},
    "no accumulation": {"accumulate": False},
    "no momentum correction": {"momentum_correction": False},
    "no factor masking": {"factor_masking": False},
    "clipped": {"clip_norm": 1.0},
    "weight decay": {"weight_decay": 1e-3},
    "paper's warm-up": {"warm_up": "paper", "warm_up_steps": 10},
    "geometric warm-up": {"warm_up": "geometric", "warm_up_steps": 10},
    "dense warm-up": {"warm_up": "dense", "warm_up_steps": 10},
    "float16": {"values": "float16"},
    "run lengths": {"indices": "run_lengths"},
    "never dense": {"switch_to_dense": False},
    "vectors too": {"dense_vectors": False},
    "all tensors": {"dense_below": 0},
    "exact": {"rule": "exact"},
    "hierarchical": {"rule": "hierarchical"},
    "global": {"scope": "global"},
    "first": {"scope": "first"},
    "no momentum": {"momentum": 0.0},
}


def environment() -> dict:
    """Return everything besides the code that affects the bits of a run."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = (line.partition(":") for line in cpuinfo.read_text().splitlines()) if cpuinfo.exists() else ()
    cpu = {name.strip(): value.strip() for name, _, value in lines}
    vectors = [flag for flag in cpu.get("flags", "").split() if re.match(r"avx|fma|amx|f16c|sse4", flag)]
    caches = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"))
    variables = ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    return {
        "tensorflow": tf.__version__,
        "gpus": len(tf.config.list_physical_devices("GPU")),
        "cores": cores(),
        "processor": [platform.machine(), *(cpu.get(name) for name in ("vendor_id", "cpu family", "model"))],
        "vectors": " ".join(sorted(vectors)),
        "caches": " ".join(file.read_text().strip() for file in caches),
        "variables": {name: os.environ[name] for name in variables if name in os.environ},
    }


SAME_MACHINE = environment() == RECORDED["made on"]


def norms(weights) -> list[float]:
    return [float(np.linalg.norm(weight.numpy().astype(np.float64))) for weight in weights]


def train(switches, communicator) -> dict:
    """Train 50 steps at 1 %; return a hash of all weights, their norms and the bytes a worker sent."""
    # Weights match the event only at evaluations.
    settings = DistributedConfig(steps=50, evaluations=5, learning_rate=0.05, **switches)
    trainer, found, sent = DistributedTrainer(settings, communicator), {}, 0
    for event in trainer.run(0.01):
        if isinstance(event, DistributedStep):
            sent += event.bytes_sent
            if event.step in (10, 50):
                found[f"norms after {event.step}"] = norms(trainer.weights)
    digest = hashlib.sha256()
    for weight in trainer.weights:
        digest.update(np.ascontiguousarray(weight.numpy()).tobytes())
    return {"sha256": digest.hexdigest(), **found, "bytes": sent}


def train_on_rank(switches) -> dict:
    return train(switches, HorovodWorkers())


def check(found: dict, recorded: dict) -> None:
    if SAME_MACHINE:
        assert found["sha256"] == recorded["sha256"]
        assert found["bytes"] == recorded["bytes"]
    else:
        close = 5e-3 if environment()["gpus"] == 0 else 0.1  # a GPU's TF32 rounds to 10 bits
        np.testing.assert_allclose(found["norms after 10"], recorded["norms after 10"], rtol=close)
        np.testing.assert_allclose(found["norms after 50"], recorded["norms after 50"], rtol=0.1)
        assert found["bytes"] == pytest.approx(recorded["bytes"], rel=0.02)


@functools.cache
def default_hash() -> str:
    return train({}, SimulatedWorkers(2))["sha256"]


@pytest.mark.nightly_except(
    *("defaults", "nesterov", "no accumulation", "no momentum correction", "no factor masking", "clipped"),
    *("paper's warm-up", "float16", "run lengths", "hierarchical"),
)
@pytest.mark.parametrize("name", SWITCHES)
def test_two_simulated_workers_reproduce_recorded_weights(name):
    """On any machine, a switch changes the weights exactly if it did when recorded."""
    found, recorded = train(SWITCHES[name], SimulatedWorkers(2)), RECORDED["simulated"]
    check(found, recorded[name])
    assert (found["sha256"] == default_hash()) == (recorded[name]["sha256"] == recorded["defaults"]["sha256"])


@pytest.mark.nightly_except("defaults")
@pytest.mark.parametrize("name", SWITCHES)
def test_two_ranks_reproduce_recorded_weights(two_ranks, name):
    first, second = two_ranks.run(train_on_rank, SWITCHES[name])
    assert first["sha256"] == second["sha256"]
    check(first, RECORDED["ranks"][name])


def test_sweep_reproduces_recorded_rows(digits):
    recorded = RECORDED["sweep"]
    events = sweep(MaskingConfig(steps=100, evaluations=2), [1, 0.1, 0.01, 0.001, 0.0], data=digits)
    rows = [event.row for event in events if isinstance(event, RowEnded)]
    assert len(rows) == len(recorded) == 5
    for row, wanted in zip(rows, recorded, strict=True):
        found = {name: row[name] for name in wanted}
        if not SAME_MACHINE:
            for name, tolerance in {"accuracy": 0.05, "loss": 0.1, "share sent": 2e-3}.items():
                assert found.pop(name) == pytest.approx(wanted[name], abs=tolerance)
        assert found.items() <= wanted.items()


def test_four_workers_reproduce_a_run_bit_for_bit():
    """The sign scheme amplifies differences in the last bit."""
    settings = DistributedConfig(workers=4, steps=150, batch=16, learning_rate=0.001, evaluations=1, scheme="sign")
    trainer = DistributedTrainer(settings, SimulatedWorkers(4))
    weights = []
    for _ in range(3):
        assert list(trainer.run(1.0))
        weights.append([variable.numpy() for variable in trainer.model.trainable_variables])
    for again in weights[1:]:
        for one, other in zip(weights[0], again, strict=True):
            np.testing.assert_array_equal(one, other)
