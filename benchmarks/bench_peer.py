"""Compression and weight update, compared with the authors' PyTorch code on one thread; the two take turns.

DGC_PEER=/path/to/deep-gradient-compression DGC_PEER_PYTHON=/path/to/python python benchmarks/bench_peer.py

The peer is https://github.com/synxlin/deep-gradient-compression, which is not in this repository. It needs a Python
with PyTorch, which may be a different one. The benchmark measures its `compensate`, `_sparsify`, `update` and
`decompress` and the weight update, at 0.1 %; and this lab's whole `dgc_lab.compression.Compressor.train`, including its
check for non-finite gradients, with the native step and with TensorFlow's own operations. ResNet-50 has 161 tensors,
which the peer compresses one by one.

For mnist_cnn, the limit is memory bandwidth. A step reads gradient, velocity and residual and writes the last two: five
passes over the elements, while one `tf.add` makes three. On a machine where version 1's step took 5.4 ms, this addition
took 3.1 ms, so five passes at its speed would take 5.2 ms.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import finish, report
from bench_step import compression, shapes_by_model

ROUNDS = 15
GOALS = {"mnist_cnn": 2, "ResNet-50": 2.5, "one tensor of 25 M": 3.5}  # times as fast as the peer
# The peer's program runs a step for each line that it reads, and prints the seconds.
PEER = """
import json, sys, time, types
import torch
torch.set_num_threads(1)
folder, shapes = sys.argv[1], json.loads(sys.argv[2])
alone = types.ModuleType("horovod.torch")  # one worker, no exchange
alone.size, alone.rank = lambda: 1, lambda: 0
operations = types.ModuleType("horovod.torch.mpi_ops")
operations.Average = "average"
operations.allreduce_async_ = operations.allgather_async = operations.synchronize = None
horovod = types.ModuleType("horovod")
horovod.torch = alone
sys.modules.update({"horovod": horovod, "horovod.torch": alone, "horovod.torch.mpi_ops": operations})
package = types.ModuleType("dgc")  # its __init__ would need more of Horovod
package.__path__ = [folder + "/dgc"]
sys.modules["dgc"] = package
from dgc.compression import DGCCompressor
from dgc.memory import DGCSGDMemory

torch.manual_seed(0)
weights = {str(i): torch.zeros(shape) for i, shape in enumerate(shapes)}
gradients = {name: torch.randn_like(weight) for name, weight in weights.items()}
memory = DGCSGDMemory(momentum=0.9)
memory.initialize([(name, torch.nn.Parameter(weight)) for name, weight in weights.items()])
compressor = DGCCompressor(0.001, memory)
large = [(name, weight) for name, weight in weights.items() if weight.dim() > 1 or len(weights) == 1]
compressor.initialize(large)  # vectors are sent uncompressed, as in its own training
for line in sys.stdin:
    new = {name: gradient.clone() for name, gradient in gradients.items()}  # they are written to
    start = time.perf_counter()
    with torch.no_grad():
        for name, gradient in new.items():
            sent, context = compressor.compress(gradient, name)
            weights[name].sub_(compressor.decompress(sent, context), alpha=0.1)
    print("took", time.perf_counter() - start, flush=True)
"""


def medians(functions: dict) -> dict:
    """Return the median of the seconds that each function returns; the functions take turns."""
    taken = {name: [] for name in functions}
    for number in range(ROUNDS + 2):
        for name, function in functions.items():
            seconds = function()
            if number >= 2:  # the first ones trace, and touch new memory
                taken[name].append(seconds)
    return {name: statistics.median(every) for name, every in taken.items()}


def ours(shapes, native: bool):
    """Return a function that runs one worker's step, including the weight update, and returns its seconds."""
    step = compression(shapes, "float32", "int32", "entries", native)

    def timed():
        start = time.perf_counter()
        finish(step())
        return time.perf_counter() - start

    return timed


def main():
    folder, python = os.environ.get("DGC_PEER"), os.environ.get("DGC_PEER_PYTHON", sys.executable)
    if not folder or not Path(folder, "dgc", "compression.py").is_file():
        print("peer: skipped, DGC_PEER is not the folder of github.com/synxlin/deep-gradient-compression")
        return
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        print(f"peer: skipped, {python} has no PyTorch: set DGC_PEER_PYTHON")
        return
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    rows, goals = [], {}
    for model, goal in GOALS.items():
        shapes = [list(shape) for shape in shapes_by_model()[model]]
        command = [python, "-c", PEER, folder, json.dumps(shapes)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:

            def theirs(peer=peer):
                print(file=peer.stdin, flush=True)
                while not (line := peer.stdout.readline()).startswith("took "):
                    if not line:
                        raise RuntimeError(f"the peer ended with {peer.wait()}")
                return float(line.split()[1])

            times = medians({"peer": theirs, "TensorFlow": ours(shapes, False), "native": ours(shapes, True)})
            peer.stdin.close()
        row = {"model": model, "elements": sum(map(math.prod, shapes))}
        rows.append(row | {f"{name} ms": 1e3 * seconds for name, seconds in times.items()})
        goals[f"{model}, times as fast as the peer"] = (times["peer"] / times["native"], goal)
        goals[f"{model}, times as fast as TensorFlow's own operations"] = (times["TensorFlow"] / times["native"], 2)
    report("peer", rows, goals)


if __name__ == "__main__":
    main()
