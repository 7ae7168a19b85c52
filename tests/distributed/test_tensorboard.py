"""The compression ratios that TensorBoard shows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.compression.compressor import Compressor
from dgc_lab.compression.config import DGCConfig
from dgc_lab.distributed.callbacks import WriteCompression, compression_ratios
from dgc_lab.distributed.communicators import OneWorker, SimulatedWorkers
from dgc_lab.distributed.keras_optimizer import DistributedOptimizer

CONFIG = DGCConfig(ratio=0.05, rule="exact", dense_below=0)


def gradients(seed):
    return [tf.random.stateless_normal([20, 30], (seed, 0)), tf.random.stateless_normal([30], (seed, 1))]


def test_compression_ratios_per_tensor_and_in_bytes():
    weights = [tf.Variable(tf.zeros([20, 30]), name="kernel"), tf.Variable(tf.zeros([30]), name="bias")]
    compressor = Compressor(CONFIG, weights, SimulatedWorkers(2))
    reports = [compressor([gradients(step), gradients(100 + step)])[1] for step in range(3)]
    ratios = compression_ratios(compressor)
    assert list(ratios) == ["kernel", "bias", "bytes"]
    assert ratios["kernel"] * 600 == pytest.approx(30)
    assert ratios["bias"] * 30 == pytest.approx(30)  # vectors are sent uncompressed
    bytes_sent = sum(int(report.allreduce_bytes + report.allgather_bytes) for report in reports) / 3
    assert ratios["bytes"] * 2520 == pytest.approx(bytes_sent)
    assert ratios["kernel"] == pytest.approx(0.05)


def read(folder):
    """Return the scalars in a TensorBoard folder as {tag: {step: value}}."""
    found = {}
    for file in sorted(folder.iterdir()):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return found


def test_fit_writes_ratios_for_tensorboard(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(30, name="wide")], name="model")
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.01), CONFIG, OneWorker())
    model.compile(optimizer, loss="mse", jit_compile=False)
    model.fit(np.ones((16, 20)), np.ones((16, 30)), epochs=2, verbose=0, callbacks=[WriteCompression(tmp_path)])
    found = read(tmp_path)
    assert set(found) == {"compression/model/wide/kernel", "compression/model/wide/bias", "compression/bytes"}
    ratios = compression_ratios(optimizer.compressor)
    assert found["compression/bytes"][1] == pytest.approx(ratios["bytes"])
    assert set(found["compression/model/wide/kernel"]) == {0, 1}
    assert found["compression/model/wide/bias"][1] == 1


def test_other_optimizers_are_rejected(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match="DistributedOptimizer, got SGD"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=[WriteCompression(tmp_path)])
