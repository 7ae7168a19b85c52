"""One gradient on its way from the optimizer to the wire and back: which files it enters, and how often it crosses."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import dgc_lab
from dgc_lab.common import cpp_compiler
from dgc_lab.dgc import DGCConfig
from dgc_lab.distributed import DistributedOptimizer, OneWorker

LIBRARY = Path(dgc_lab.__file__).parent
WAY = {
    "distributed/keras_optimizer.py",
    "dgc/compressor.py",
    "dgc/algorithm.py",
    "dgc/thresholding.py",
    "dgc/selection.py",
    "dgc/exchange.py",
    "dgc/wire_format.py",
    "distributed/communicators.py",
}


def calls_between_files(function):
    """Calls from one of the library's files to another one while the function runs: (from, to, name)."""
    calls = []

    def library_file(frame):
        while frame and LIBRARY not in Path(frame.f_code.co_filename).parents:
            frame = frame.f_back
        return frame and Path(frame.f_code.co_filename).relative_to(LIBRARY).as_posix()

    def look(frame, event, _):
        if event == "call" and LIBRARY in Path(frame.f_code.co_filename).parents:
            here, caller = library_file(frame), library_file(frame.f_back)
            if here != caller:
                calls.append((caller, here, frame.f_code.co_name))

    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_enters_at_most_8_files_and_crosses_at_most_16_times_between_them(fused):
    if fused and cpp_compiler() is None:
        pytest.skip("no C++ compiler here")
    weight = keras.Variable(np.zeros((50, 300), np.float32))
    config = DGCConfig(ratio=0.001, clip_norm=1.0)
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), config, OneWorker())
    gradient = tf.random.stateless_normal((50, 300), (0, 1))
    optimizer.apply([gradient], [weight])  # what is set up once is no part of the way
    if not fused:
        optimizer.compressor.fused = ()
    calls = calls_between_files(lambda: optimizer.apply([gradient], [weight]))
    crossings = [call for call in calls if call[0] is not None]
    entered = {file for caller, here, _ in crossings for file in (caller, here)}
    assert entered == (WAY - {"dgc/selection.py"} | {"dgc/fused.py"} if fused else WAY)
    assert len(crossings) <= 16, crossings
