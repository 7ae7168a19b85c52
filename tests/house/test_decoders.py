"""Every decoder reads external bytes correctly or rejects them with its documented error."""

import tempfile
import types
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from damage import Decoder, inputs, written
from dgc_lab.common import LabError, load_arrays, save_arrays

RESULTS = Path(__file__).resolve().parents[2] / "results"


def bytes_of(write):
    """Return the bytes that a function writes to its path argument."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "example")
        write(path)
        return path.read_bytes()


def savez(path, **arrays):
    with path.open("wb") as file:
        np.savez(file, **arrays)


def same_arrays(stored):
    def wrong(found, _):
        same = len(found) == len(stored) and all(map(np.array_equal, found, stored))
        return None if same else "decoded different data without an error"

    return wrong


def wire():
    """Messages from two workers; the first byte selects one of four layouts."""
    from dgc_lab.compression.wire_format import INDEX_TYPES, VALUE_TYPES, Layout, Message, pack, unpack

    tensors = ((tf.float32, (2,)), (tf.int32, ()))
    layouts = [Layout(v, i, fixed=4, sparse=1, tensors=tensors) for v in VALUE_TYPES for i in INDEX_TYPES]

    def message(layout, positions):
        values = tf.cast(tf.range(1, len(positions) + 1), tf.float32)
        entries, rows = [(tf.constant(positions, tf.int32), values)], [tf.ones([2, 2]), tf.constant([4, 7])]
        return pack(Message(tf.ones([4]), entries, rows), layout).numpy().tobytes()

    def reader(layout):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.uint8)])
        def read(message):
            messages = unpack(message, layout, workers=2)
            # Run lengths are not unique, and float16 changes NaN payloads.
            exact = layout.indices == "int32" and layout.values == "float32"
            return tf.concat([pack(own, layout) for own in messages], 0) if exact else message

        return read

    readers = [reader(layout) for layout in layouts]
    positions = ([], [0], [3, 4, 70_000], list(range(0, 400, 7)))
    pairs = [(number, one, other) for number in range(4) for one in positions for other in positions[1:]]
    return Decoder(
        tuple(bytes([n]) + message(layouts[n], one) + message(layouts[n], other) for n, one, other in pairs),
        lambda data, _: readers[data[0] % 4 if data else 0](tf.constant(np.frombuffer(data[1:], np.uint8))),
        (tf.errors.InvalidArgumentError,),
        lambda again, data: None if again.numpy().tobytes() == data[1:] else "what was read is not what the bytes say",
    )


def rows():
    """Rows of sweeps, read and shown as a table."""
    from dgc_lab.training.sweeps import read_rows, table

    def decode(data, folder):
        found = read_rows(written(folder, "rows.jsonl", data), {"steps": 20_000})
        return table(found) if found else found

    names = ("single_node_first", "two_node_dgc", "studies")
    every = [(RESULTS / f"{name}.jsonl").read_bytes().splitlines(keepends=True) for name in names]
    return Decoder(tuple(b"".join(lines[:3]) for lines in every), decode, (ValueError,))


def arrays():
    """Arrays with a SHA-256."""
    stored = {"weights": np.arange(12.0).reshape(3, 4), "settings": np.array("seed=0"), "version": np.array(7)}

    def decode(data, folder):
        found = load_arrays(written(folder, "arrays.npz", data))
        return [found.get(name) for name in stored] if list(found) == list(stored) else list(found)

    examples = (bytes_of(lambda path: save_arrays(path, **stored)),)
    return Decoder(examples, decode, (LabError,), same_arrays(list(stored.values())))


def rank_files():
    """The checkpoint of one rank."""
    from dgc_lab.distributed.communicators import OneWorker
    from dgc_lab.distributed.rank_files import RankFiles

    variables = [tf.Variable(tf.range(6.0)), tf.Variable(tf.constant([[1.5, -2.0]], tf.bfloat16))]
    stored = [variables[0].numpy(), variables[1].numpy().view("uint16")]

    def save(path):
        RankFiles(path.parent, OneWorker(), variables, {"ratio": 0.01}).save(3)
        (path.parent / "rank_0_step_3.npz").rename(path)

    def decode(data, folder):
        written(folder, "rank_0_step_3.npz", data)
        return RankFiles(folder, OneWorker(), variables, {"ratio": 0.01})._load(3)

    return Decoder((bytes_of(save),), decode, (LabError,), same_arrays(stored))


def server_checkpoints():
    """The checkpoint of a parameter-server run."""
    from dgc_lab.parameter_server import AsyncConfig, Schedule
    from dgc_lab.parameter_server.training_loop import restore, save

    weights = [np.arange(4, dtype=np.float32), np.ones((2, 3), np.float32)]
    task, config = types.SimpleNamespace(initial_weights=lambda: weights), AsyncConfig(Schedule("asynchronous"), 40)
    state = {"weights": weights, "velocities": [w / 2 for w in weights], "updates": np.arange(40) % 9, "version": 9}
    model = types.SimpleNamespace(workers=2, snapshot=lambda: dict(state))

    def decode(data, folder):
        found = restore(written(folder, "checkpoint.npz", data), task, config, 2)
        return [*found["weights"], *found["velocities"], found["updates"], found["version"]]

    stored = [*state["weights"], *state["velocities"], state["updates"], state["version"]]
    examples = (bytes_of(lambda path: save(path, model, config)),)
    return Decoder(examples, decode, (LabError, ValueError), same_arrays(stored))


def mnist():
    """``mnist.npz`` from elsewhere."""
    from dgc_lab.workloads.data import load
    from dgc_lab.workloads.dataset import DataError

    images, labels = np.zeros((4, 28, 28), np.uint8), np.arange(4, dtype=np.uint8)
    example = bytes_of(lambda path: savez(path, x_train=images, y_train=labels, x_test=images, y_test=labels))
    return Decoder((example,), lambda data, folder: load("mnist", written(folder, "mnist.npz", data)), (DataError,))


def texts():
    """Typed ratios and schemes; the first letter selects which."""
    from dgc_lab.compression import parse_scheme
    from dgc_lab.training import parse_ratios

    def decode(data, folder):
        text = data.decode("utf-8", "replace")
        return parse_scheme(text[1:]) if text[:1] == "s" else parse_ratios(text[1:])

    examples = (b"r1, 0.1; 1% 0.001", b"sqsgd:levels=4", b"sdense:every=8,since=2", b"spowersgd:rank=3")
    return Decoder(examples, decode, (ValueError,))


DECODERS = (wire, rows, arrays, rank_files, server_checkpoints, mnist, texts)
made = cache(lambda maker: maker())


@pytest.mark.parametrize("maker", DECODERS)
def test_valid_examples_are_accepted(maker, tmp_path):
    decoder = made(maker)
    for number, example in enumerate(decoder.examples):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert decoder.wrong(decoder.decode(example, folder), example) is None


@pytest.mark.parametrize("maker", DECODERS)
@given(data=st.data())
def test_damaged_bytes_are_rejected_or_decoded_correctly(maker, data):
    made(maker).check(data.draw(inputs(made(maker).examples)))
