"""The decoders that `tools/fuzz.py` feeds, each with valid examples and the errors by which it refuses."""

from __future__ import annotations

import socket
import types
from pathlib import Path

from dgc_lab.common import LabError, load_arrays, save_arrays
from fuzz import ROOT, Decoder, written
from fuzz_course import COURSE


def of_file(write, folder: Path) -> bytes:
    """What a function writes into the file that it is given."""
    path = folder / "example"
    write(path)
    return path.read_bytes()


def wire() -> Decoder:
    """Messages of two workers, whose first byte chooses one of four layouts."""
    import numpy as np
    import tensorflow as tf

    from dgc_lab.compression.wire_format import INDEX_TYPES, VALUE_TYPES, Layout, Message, pack, unpack

    tensors = ((tf.float32, (2,)), (tf.int32, ()))
    layouts = [Layout(v, i, fixed=4, sparse=1, tensors=tensors) for v in VALUE_TYPES for i in INDEX_TYPES]

    def message(layout: Layout, positions: list[int]) -> bytes:
        values = tf.cast(tf.range(1, len(positions) + 1), tf.float32)
        entries, rows = [(tf.constant(positions, tf.int32), values)], [tf.ones([2, 2]), tf.constant([4, 7])]
        return pack(Message(tf.ones([4]), entries, rows), layout).numpy().tobytes()

    def reader(layout: Layout):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.uint8)])  # as in training, and four times as fast
        def read(message):
            messages = unpack(message, layout, workers=2)
            # Run lengths have more than one encoding, and float16 loses the kind of a NaN on its way through float32.
            exact = layout.indices == "int32" and layout.values == "float32"
            same = tf.concat([pack(own, layout) for own in messages], 0) if exact else message
            return messages, same

        return read

    readers = [reader(layout) for layout in layouts]

    def decode(data: bytes, folder: Path):
        return readers[data[0] % 4 if data else 0](tf.constant(np.frombuffer(data[1:], np.uint8)))

    def wrong(value, data: bytes) -> str | None:
        return None if value[1].numpy().tobytes() == data[1:] else "what was read is not what the bytes say"

    positions = ([], [0], [3, 4, 70_000], list(range(0, 400, 7)))
    pairs = [(number, one, other) for number in range(4) for one in positions for other in positions[1:]]
    examples = [bytes([n]) + message(layouts[n], one) + message(layouts[n], other) for n, one, other in pairs]
    return Decoder(tuple(examples), decode, (tf.errors.InvalidArgumentError,), wrong)


def rows() -> Decoder:
    """Files of a sweep's rows, read and shown as a table."""
    from dgc_lab.training.sweeps import read_rows, table

    def decode(data: bytes, folder: Path):
        found = read_rows(written(folder, "rows.jsonl", data), {"steps": 20_000})
        return table(found) if found else found

    names = ("single_node_first", "two_node_dgc", "workers", "schemes")
    every = [(ROOT / "results" / f"{name}.jsonl").read_bytes().splitlines(keepends=True) for name in names]
    return Decoder(tuple(b"".join(lines[:3]) for lines in every), decode, (ValueError,))


def same_arrays(found, stored) -> str | None:
    """What is wrong with arrays that were read: nothing, when they are those that were stored."""
    import numpy as np

    same = len(found) == len(stored) and all(map(np.array_equal, found, stored))
    return None if same else "other data than were stored, and nothing said so"


def arrays() -> Decoder:
    """Arrays with a SHA-256."""
    import numpy as np

    stored = {"weights": np.arange(12.0).reshape(3, 4), "settings": np.array("seed=0"), "version": np.array(7)}
    example = in_a_folder(lambda path: save_arrays(path, **stored))

    def decode(data: bytes, folder: Path):
        found = load_arrays(written(folder, "arrays.npz", data))
        return [found.get(name) for name in stored] if list(found) == list(stored) else list(found)

    return Decoder((example,), decode, (LabError,), lambda found, _: same_arrays(found, list(stored.values())))


def savez(path: Path, **arrays) -> None:
    """Arrays in a file as numpy has it, under a name of any kind."""
    import numpy as np

    with path.open("wb") as file:
        np.savez(file, **arrays)


def old_arrays() -> Decoder:
    """Arrays as ``numpy.savez`` writes them, and as version 1.0.0 did: no SHA-256 tells of what was changed."""
    import numpy as np

    example = in_a_folder(lambda path: savez(path, weights=np.arange(12.0), about=np.array("seed=0")))
    return Decoder((example,), lambda data, folder: load_arrays(written(folder, "a.npz", data)), (LabError,))


def in_a_folder(write) -> bytes:
    """`of_file`, in a folder of its own."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return of_file(write, Path(folder))


def rank_files() -> Decoder:
    """A rank's save."""
    import tensorflow as tf

    from dgc_lab.distributed.communicators import OneWorker
    from dgc_lab.distributed.rank_files import RankFiles

    variables = [tf.Variable(tf.range(6.0)), tf.Variable(tf.constant([[1.5, -2.0]], tf.bfloat16))]
    stored = [variable.numpy() for variable in variables]
    stored[1] = stored[1].view("uint16")

    def save(path: Path) -> None:
        RankFiles(path.parent, OneWorker(), variables, {"ratio": 0.01}).save(3)
        (path.parent / "rank_0_step_3.npz").rename(path)

    def decode(data: bytes, folder: Path):
        written(folder, "rank_0_step_3.npz", data)
        return RankFiles(folder, OneWorker(), variables, {"ratio": 0.01})._load(3)

    return Decoder((in_a_folder(save),), decode, (LabError,), lambda found, _: same_arrays(found, stored))


def server_checkpoints() -> Decoder:
    """The checkpoint of a training on parameter servers."""
    import numpy as np

    from dgc_lab.parameter_server import AsyncConfig, Schedule
    from dgc_lab.parameter_server.training_loop import restore, save

    weights = [np.arange(4, dtype=np.float32), np.ones((2, 3), np.float32)]
    task, config = types.SimpleNamespace(initial_weights=lambda: weights), AsyncConfig(Schedule("asynchronous"), 40)
    state = {"weights": weights, "velocities": [w / 2 for w in weights], "updates": np.arange(40) % 9, "version": 9}
    model = types.SimpleNamespace(workers=2, snapshot=lambda: dict(state))
    kept = [*state["weights"], *state["velocities"], state["updates"], state["version"]]

    def decode(data: bytes, folder: Path):
        found = restore(written(folder, "checkpoint.npz", data), task, config, 2)
        return [*found["weights"], *found["velocities"], found["updates"], found["version"]]

    example = in_a_folder(lambda path: save(path, model, config))
    return Decoder((example,), decode, (LabError, ValueError), lambda found, _: same_arrays(found, kept))


def mnist() -> Decoder:
    """``mnist.npz``, as it comes from elsewhere."""
    import numpy as np

    from dgc_lab.workloads.data import load
    from dgc_lab.workloads.dataset import DataError

    images, labels = np.zeros((4, 28, 28), np.uint8), np.arange(4, dtype=np.uint8)
    example = in_a_folder(lambda path: savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels))
    return Decoder((example,), lambda data, folder: load("mnist", written(folder, "mnist.npz", data)), (DataError,))


def channel() -> Decoder:
    """A message of a student's process to the one that marks."""
    import numpy as np

    from dgc_lab.marking.channel import ChannelError, receive, send

    def decode(data: bytes, folder: Path):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**20)
            ours.sendall(data)
            ours.close()
            return receive(theirs)

    def message(value) -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            send(ours, value)
            ours.close()
            return b"".join(iter(lambda: theirs.recv(2**16), b""))

    values = (
        {"a": [1, 2.5, None, True, "x"]},
        (np.arange(6.0).reshape(2, 3), {1, 2}),
        [..., np.float32(3), 1j, object()],
    )
    return Decoder(tuple(map(message, values)), decode, (ChannelError,))


def texts() -> Decoder:
    """Ratios and schemes that somebody types."""
    from dgc_lab.compression import parse_scheme
    from dgc_lab.training import parse_ratios

    def decode(data: bytes, folder: Path):
        text = data.decode("utf-8", "replace")
        return parse_scheme(text[1:]) if text[:1] == "s" else parse_ratios(text[1:])

    return Decoder(
        (b"r1, 0.1; 1% 0.001", b"sqsgd:levels=4", b"sdense:every=8,since=2", b"spowersgd:rank=3"), decode, (ValueError,)
    )


DECODERS = {
    "wire": wire,
    "rows": rows,
    "arrays": arrays,
    "arrays without a SHA-256": old_arrays,
    "rank files": rank_files,
    "checkpoints of servers": server_checkpoints,
    "mnist.npz": mnist,
    "channel": channel,
    "texts": texts,
    **COURSE,
}
