"""The path of a gradient from the optimizer to the wire and back: files involved, and calls between them."""

import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import dgc_lab
from dgc_lab.common import cpp_compiler
from dgc_lab.compression import DGCConfig, native
from dgc_lab.distributed import DistributedOptimizer, OneWorker

LIBRARY = Path(dgc_lab.__file__).parent
FILES = {
    "common.py",
    "distributed/keras_optimizer.py",
    "distributed/communicators.py",
    *(
        f"compression/{name}.py"
        for name in (
            *("compressor", "gradients", "parts", "scheme", "checks", "dgc_scheme", "selection", "thresholding"),
            *("native", "driver", "wire_format", "updates", "config"),
        )
    ),
}
MOST_CALLS = 65  # seven of them check a scheme's questions, or a ratio that changes during training


def calls_between_files(function):
    """Run the function; return the calls between library files as (from, to, name)."""
    calls = []

    def library_file(frame):
        while frame and LIBRARY not in Path(frame.f_code.co_filename).parents:
            frame = frame.f_back
        return frame and Path(frame.f_code.co_filename).relative_to(LIBRARY).as_posix()

    def record(frame, event, _):
        if event == "call" and LIBRARY in Path(frame.f_code.co_filename).parents:
            here, caller = library_file(frame), library_file(frame.f_back)
            if here != caller:
                calls.append((caller, here, frame.f_code.co_name))

    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("native_on", [False, True], ids=["TensorFlow", "C++"])
def test_a_gradient_passes_through_few_files_and_calls(native_on, monkeypatch):
    if native_on and cpp_compiler() is None:
        pytest.skip("no C++ compiler here")
    monkeypatch.setattr(native, "enabled", native_on)
    weight = keras.Variable(np.zeros((50, 300), np.float32))
    config = DGCConfig(ratio=0.001, clip_norm=1.0)
    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), config, OneWorker())
    gradient = tf.random.stateless_normal((50, 300), (0, 1))
    optimizer.apply([gradient], [weight])  # the first call also creates the state
    calls = calls_between_files(lambda: optimizer.apply([gradient], [weight]))
    crossings = [call for call in calls if call[0] is not None]
    search = set() if native_on else {"compression/segment_search.py"}
    print(len(crossings))
    assert {file for caller, here, _ in crossings for file in (caller, here)} == FILES | search
    assert len(crossings) <= MOST_CALLS, crossings
