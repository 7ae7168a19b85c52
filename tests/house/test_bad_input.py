"""Every public name refuses what an argument cannot be, before it works: an error of ours that names the argument.

Which arguments there are is read from signatures; arguments that are right come from the examples in the docstrings,
which are run up to the call. Hypothesis then puts something in one argument's place: another type than its annotation
says. What an annotation excludes by a limit or by choices is tried too.
"""

import contextlib
import doctest
import functools
import importlib
import inspect
import io
import re
import subprocess
import sys
import traceback
import types
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reference import ROOMS, public

from dgc_lab.arguments import Names
from dgc_lab.common import LabError

LIBRARY = str(Path(__file__).resolve().parents[2] / "dgc_lab")
FILES = ("/", "/dev/null", "/dev/full")  # a folder, and what writes to nowhere or fails
# Arguments that are right where the example in the docstring is left out, or calls something else.
EXAMPLES = {
    "distributed.average_statistics": "import keras\naverage_statistics(keras.Sequential([keras.Input((3,))]))",
    "parameter_server.train": "train(RingGAN(hidden=4), AsyncConfig(gradients=6))",
    "parameter_server.train_mirrored": "train_mirrored(RingGAN(hidden=4), AsyncConfig(gradients=6))",
    "parameter_server.train_on": "train_on(HorovodRanks(2), RingGAN(hidden=4), AsyncConfig(gradients=6))",
    "replicas.AssignmentResult": "AssignmentResult((0.0, 0.0), (1.5, 1.5), 1.5)",
    "scaling.Estimate": 'Estimate("dense", 2, 1.0, 1e6, 0.1, 10.0, 20.0, 1.0)',
    "scaling.Workload": "Workload(1000, compute=0.1)",
    "training.TrainerOnRanks": "TrainerOnRanks(DistributedConfig(workers=2), HorovodRanks(2))",
    "training.accuracy_by_rate": 'accuracy_by_rate({"one": (1, 0.1)}, examples=64, seeds=[0])',
    "training.run_with_progress": "run_with_progress(iter([]), steps=4)",
    "workloads.Dataset": 'Dataset("x", *[np.zeros((2, 8, 8, 1), np.float32), np.zeros(2, np.int32)] * 2)',
    "workloads.Vocabulary": 'Vocabulary(("[UNK]", "[MASK]", "the"))',
}
BEFORE_EXAMPLES = """
from dgc_lab.cluster import HorovodRanks
from dgc_lab.parameter_server import AsyncConfig
from dgc_lab.training import DistributedConfig
from dgc_lab.workloads import RingGAN
"""
NOT_HERE = {  # and why
    "parameter_server.worker_step": "its model is on parameter servers",
    **dict.fromkeys(("schemes.All", "schemes.Mean", "schemes.Scheme", "schemes.Turn"), "TensorFlow takes tuples apart"),
}
NOT_CHECKED = {  # arguments, and why
    "aggregation.profiler_trace.arguments": "the function's own",
    "distributed.on_first_rank.callbacks": "any things",
    "distributed.shard.arrays": "of anything that can be cut",
    "training.run_with_progress.run": "of any events",
    "training.steps_of.events": "of any events",
    "training.ModelTrainer.batches": "called later",
    "cluster.HorovodRanks.cluster": "ipyparallel's",
    "cluster.HorovodRanks.client": "ipyparallel's",
}
SAID_ELSEWHERE = {  # what else an argument takes that has no room for an annotation
    **{f"distributed.{name}Optimizer.optimizer": "Optimizer" for name in ("Distributed", "GradientCompression")},
    "comparison.SchemeLab.mine": "Scheme | None",
}
CALLED = {"path": "DGC_LAB_DATA|path", "text": "text|scheme|ratios|parameters", "records": "records|runs"}


class Called(BaseException):
    """The example has come to the call that was waited for."""


def example_of(room, name, thing):
    """The arguments of the first call in a name's example: positional ones, and those by name."""
    package, caught = importlib.import_module(f"dgc_lab.{room}"), []
    module = importlib.import_module(inspect.unwrap(thing).__module__)
    parsed = doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")
    code = EXAMPLES.get(f"{room}.{name}") or "".join(example.source for example in parsed)

    def spy(*args, **kwargs):
        caught.append((args, kwargs))
        raise Called

    names = dict(vars(module))
    exec(BEFORE_EXAMPLES, names)
    names[name] = spy
    setattr(package, name, spy)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, f"the example of {name}", "exec"), names)
    except Called:
        return caught[0]
    finally:
        delattr(package, name)
    raise AssertionError(f"the example of {room}.{name} does not call it: add one to EXAMPLES")


def made(thing):
    return callable(thing) and not (inspect.isclass(thing) and issubclass(thing, BaseException))


@functools.cache
def parameters(room):
    """Name, thing and parameter of all that a room's public names take."""
    return [
        (name, thing, parameter)
        for name, thing in public(room)
        if made(thing) and f"{room}.{name}" not in NOT_HERE
        for parameter in inspect.signature(thing).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD and f"{room}.{name}.{parameter.name}" not in NOT_CHECKED
    ]


examples = functools.cache(example_of)
WITH_NAMES = [room for room in ROOMS if parameters(room)]


def annotation_of(room, name, thing, parameter) -> str:
    """What an argument takes, by its annotation; every argument has one, or stands in `SAID_ELSEWHERE`."""
    key = f"{room}.{name}.{parameter.name}"
    found = SAID_ELSEWHERE.get(key) if parameter.annotation is parameter.empty else str(parameter.annotation)
    assert found, f"{key} has no annotation"
    return found


def refused(room, name, thing, parameter, value):
    """None, or in words what was wrong with the refusal of a value."""
    args, kwargs = examples(room, name, thing)
    bound = inspect.signature(thing).bind(*args, **kwargs)
    bound.arguments[parameter.name] = (value,) if parameter.kind is parameter.VAR_POSITIONAL else value
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            result = thing(*bound.args, **bound.kwargs)
            if isinstance(result, types.GeneratorType):
                next(result, None)
    except (ValueError, TypeError, LabError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1].filename
        if not last.startswith(LIBRARY):
            return f"{type(error).__name__} from {last}: {error}"
        called = CALLED.get(parameter.name, rf"{parameter.name}|{parameter.name.removesuffix('s')}")
        return None if re.search(rf"\b({called})\b", str(error)) else f"the message does not name it: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


class Stranger:
    """Of no type that anything takes."""


def wrong_types(annotation: str, default):
    """Things that an annotation does not allow."""
    kinds = {"text": st.text(max_size=20), "number": st.floats() | st.integers(-9, 9), "stranger": st.builds(Stranger)}
    kinds |= {"strangers": st.lists(st.builds(Stranger), min_size=1, max_size=3), "bytes": st.binary(max_size=5)}
    kinds |= {"nothing": st.none(), "huge": st.integers(2**64, 2**90), "type": st.just(Stranger)}
    if re.search(r"\bstr\b(?!\])|PathLike|Path\b", annotation):
        kinds.pop("text")
    if re.search(r"\b(int|float|ArrayLike|Int32|Ratio|Sample|Seed)\b(?!\])", annotation):
        kinds.pop("number")
    if re.search(r"\b(float|Ratio|Sample)\b(?!\])", annotation):
        kinds.pop("huge")
    if "None" in annotation or default is None:
        kinds.pop("nothing")
    if "Callable" in annotation:
        kinds.pop("type")
    return st.one_of(*kinds.values())


def devices() -> bool:
    """Whether there are devices for replicas, which TensorFlow makes before it does anything else."""
    from dgc_lab.replicas import TooLate, start_devices

    try:
        return bool(start_devices(4))
    except TooLate:
        return False


def in_its_own_process(test, file=__file__):
    """Run a test of a file where TensorFlow has not started yet."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", f"{file}::{test}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:]


def taken(room, name, thing, parameter, values, examples=8):
    """What hypothesis finds among values for one argument that is not refused as it should be; None for nothing."""

    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    @given(value=values)
    def look(value):
        assert refused(room, name, thing, parameter, value) is None, f"{parameter.name}={value!r}"

    try:
        look()
    except AssertionError as error:
        return f"{room}.{name}: {str(error).splitlines()[0]}"
    return None


@pytest.mark.parametrize("room", WITH_NAMES)
def test_wrong_types_are_refused(room):
    if room == "replicas" and not devices():
        in_its_own_process("test_wrong_types_are_refused[replicas]")
        return
    every = [(*each, wrong_types(annotation_of(room, *each), each[2].default)) for each in parameters(room)]
    assert [found for each in every if (found := taken(room, *each))] == []


OUT_OF_LIMITS = {
    "in [0, 1]": [-0.1, 1.1, float("nan")],
    "in (0, 1]": [0, 2, float("inf")],
    "above 0": [0, -1.0],
    "at least 1": [0, -3],
    "at least 0 and at most 2147483647": [-1, 2**31],
}


def outside(thing, parameter):
    """Values of the right type that an annotation excludes, by its limit or its choices."""
    names = Names(vars(sys.modules[inspect.unwrap(thing).__module__]))
    hint = eval(parameter.annotation, {}, names) if isinstance(parameter.annotation, str) else None
    if typing.get_origin(hint) is typing.Literal:
        return ["none of them", ""]
    return OUT_OF_LIMITS[hint.__metadata__[0]] if hasattr(hint, "__metadata__") else []


def test_values_that_an_annotation_excludes_are_refused():
    every = [(room, *each, value) for room in WITH_NAMES for each in parameters(room) for value in outside(*each[1:])]
    assert len(every) > 30
    assert [each for each in every if refused(*each)] == []
