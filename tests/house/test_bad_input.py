"""Every public name rejects invalid numbers, choices, flags, texts, and paths, and names the argument.

The tests read arguments and allowed types from signatures, so new public names are covered automatically. Valid
arguments come from the docstring's example, which runs up to its call of the name. Then one argument is replaced.
Each name is imported from its module and from its package: both must reject the same values.
"""

import ast
import contextlib
import dataclasses
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
from test_reference import SUBPACKAGES, public

from dgc_lab.common import LabError

LIBRARY = str(Path(__file__).resolve().parents[2] / "dgc_lab")
# Valid arguments for names whose docstring example is skipped or calls something else.
EXAMPLES = {
    "compression.Scheme": "Scheme(lambda gradient, state, context: None)",
    "distributed.average_statistics": "import keras\naverage_statistics(keras.Sequential([keras.Input((3,))]))",
    "parameter_server.train": "train(RingGAN(hidden=4), AsyncConfig(gradients=6))",
    "parameter_server.train_mirrored": "train_mirrored(RingGAN(hidden=4), AsyncConfig(gradients=6))",
    "parameter_server.train_on": "train_on(HorovodRanks(2), RingGAN(hidden=4), AsyncConfig(gradients=6))",
    "scaling.Workload": "Workload(1000, compute=0.1)",
    "scaling.measure_overlap": "measure_overlap()",
    "training.TrainerOnRanks": "TrainerOnRanks(DistributedConfig(workers=2), HorovodRanks(2))",
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
NOT_HERE = {  # name: reason
    "parameter_server.worker_step": "its model is on parameter servers",
    **dict.fromkeys(
        [f"compression.{name}" for name in ("AllGather", "AllReduceMean", "Rule", "SparseMean", "StepContext")],
        "TensorFlow takes tuples apart",
    ),
    # Results, which only the library creates.
    **dict.fromkeys(
        [
            *(f"parameter_server.{name}" for name in ("Finished", "GradientEvent", "Score", "Training", "WorkerDied")),
            *(f"training.{name}" for name in ("DistributedStep", "Evaluation", "Step")),
            *(f"training.Row{end}" for end in ("Ended", "Failed", "Started")),
            *("replicas.AssignmentResult", "scaling.Estimate", "ui.Picture"),
        ],
        "a result",
    ),
}
NO_ANNOTATION = {  # argument: reason
    "aggregation.profiler_trace.arguments": "the function's own",
    "distributed.on_first_rank.callbacks": "any objects",
}
CALLED = {"path": "DGC_LAB_DATA|path", "text": "text|scheme|ratios|parameters", "records": "records|runs"}


class Called(BaseException):
    """The example has called the name under test."""


def example_of(subpackage, name, thing):
    """Return positional and keyword arguments of the first call in a name's example."""
    package, caught = importlib.import_module(f"dgc_lab.{subpackage}"), []
    parsed = doctest.DocTestParser().get_examples(inspect.getdoc(thing) or "")
    code = EXAMPLES.get(f"{subpackage}.{name}") or "".join(example.source for example in parsed)

    def spy(*args, **kwargs):
        caught.append((args, kwargs))
        raise Called

    names = dict(vars(sys.modules[thing.__module__]))
    exec(BEFORE_EXAMPLES, names)
    names[name] = spy
    setattr(package, name, spy)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(code, f"the example of {name}", "exec"), names)
    except Called:
        return caught[0]
    finally:
        setattr(package, name, thing)
    raise AssertionError(f"the example of {subpackage}.{name} does not call it: add one to EXAMPLES")


examples = functools.cache(example_of)


def from_both(subpackage, name, thing):
    """Return the distinct objects behind a name in its package and its module (normally one)."""
    return {id(each): each for each in (thing, getattr(sys.modules[thing.__module__], name))}.values()


def is_covered(subpackage, name, thing):
    is_error = inspect.isclass(thing) and issubclass(thing, BaseException)
    return callable(thing) and not is_error and f"{subpackage}.{name}" not in NOT_HERE


def parameters_of(thing):
    """List a callable's parameters; ``**options`` of a class are the keyword-only parameters of its base class."""
    own = list(inspect.signature(thing).parameters.values())
    if own and own[-1].kind is own[-1].VAR_KEYWORD:
        inherited = inspect.signature(thing.__base__).parameters.values() if inspect.isclass(thing) else ()
        own[-1:] = [each for each in inherited if each.kind is each.KEYWORD_ONLY]
    return own


@functools.cache
def parameters(subpackage):
    """List (name, object, parameter) for all public names of a subpackage, from package and module."""
    return [
        (name, each, parameter)
        for name, thing in public(subpackage)
        if is_covered(subpackage, name, thing)
        for each in from_both(subpackage, name, thing)
        for parameter in parameters_of(each)
    ]


WITH_NAMES = [subpackage for subpackage in SUBPACKAGES if parameters(subpackage)]


def refused(subpackage, name, thing, parameter, value):
    """Return None if the value is rejected correctly, otherwise a description of the problem."""
    args, kwargs = examples(subpackage, name, thing)
    bound = inspect.signature(thing).bind(*args, **kwargs)
    own = parameter.name in bound.signature.parameters
    arguments = bound.arguments if own else bound.arguments.setdefault("options", {})
    arguments[parameter.name] = (value,) if parameter.kind is parameter.VAR_POSITIONAL else value
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
    """An instance of a type that no argument accepts."""

    def __repr__(self):
        return "Stranger()"


VALUES = ["ten", 5, 1.5, True, None, b"ten", 2**64, Stranger(), [], [5], [1.5], ["ten"], [None], [True], [Stranger()]]
SIMPLE = {
    "int": lambda x: isinstance(x, int) and not isinstance(x, bool) and abs(x) < 2**63,
    "float": lambda x: isinstance(x, int | float) and not isinstance(x, bool),
    "str": lambda x: isinstance(x, str),
    "bool": lambda x: isinstance(x, bool),
    "None": lambda x: x is None,
    "PathLike": lambda x: False,  # none of the values above is a path; annotations list str separately
    "Path": lambda x: False,
    # The lab's own classes for settings and workers; none of the values above is an instance.
    **dict.fromkeys(
        ("Cluster", "Communicator", "DGCConfig", "DistributedConfig", "MaskingConfig", "Scheme"), lambda x: False
    ),
}
SEVERAL = ("Container", "Iterable", "Sequence", "list", "tuple")
ARRAYS = ("ArrayLike", "Seed", "Tensor", "TensorShape", "ndarray")


def last_name(node) -> str:
    return getattr(node, "attr", None) or getattr(node, "id", None) or repr(getattr(node, "value", None))


def rule_of(node):
    """Return a predicate for the values an annotation allows, or None for types such as tensors and models.

    Tensors, arrays, tables, models, functions, and dictionaries are deliberately not covered: a signature does not
    describe their contents, and operations on them raise their own errors.
    """
    if isinstance(node, ast.BinOp):  # A | B
        rules = [rule_of(node.left), rule_of(node.right)]
        if None not in rules:
            return lambda x: any(allows(x) for allows in rules)
        known, other = next(filter(None, rules), None), node.right if rules[1] is None else node.left
        if known in (None, SIMPLE["None"]) or last_name(other) in ARRAYS:
            return None
        return lambda x: known(x) or isinstance(x, Stranger)
    if isinstance(node, ast.Subscript) and last_name(node.value) in SEVERAL:
        inner = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        inside = rule_of(inner)
        return inside and (lambda x: isinstance(x, list) and all(map(inside, x)))
    if isinstance(node, ast.Subscript) and last_name(node.value) == "Literal":
        choices = ast.literal_eval(node.slice)
        return lambda x: isinstance(x, str) and x in choices
    if isinstance(node, ast.Subscript) and last_name(node.value) == "Annotated":
        return rule_of(node.slice.elts[0])
    return SIMPLE.get(last_name(node))


def names_at_top(node) -> set[str]:
    """Return the type names in an annotation's union, without types of list and dict members."""
    if isinstance(node, ast.BinOp):
        return names_at_top(node.left) | names_at_top(node.right)
    if isinstance(node, ast.Subscript) and last_name(node.value) == "Annotated":
        return names_at_top(node.slice.elts[0])
    return set() if isinstance(node, ast.Subscript) else {last_name(node)}


def annotation_of(thing, parameter) -> str:
    """Return a parameter's annotation with aliases resolved, or "" if there is none."""
    if parameter.annotation is parameter.empty:
        return ""
    names, written = vars(sys.modules[thing.__module__]), parameter.annotation
    return re.sub(r"\b[A-Z]\w*\b", lambda m: repr(names[m[0]]) if typing.get_origin(names.get(m[0])) else m[0], written)


def wrong_values(thing, parameter) -> list:
    """List values a parameter's annotation forbids; in configs this includes fields of the lab's own classes."""
    if not (annotation := annotation_of(thing, parameter)):
        return []
    allows = rule_of(ast.parse(annotation, mode="eval").body)
    if allows is None and dataclasses.is_dataclass(thing) and not re.search("ndarray|Tensor|Callable", annotation):
        allows = {"None": SIMPLE["None"]}.get(annotation.rpartition(" | ")[2], lambda x: x == [])
    default = parameter.default is None
    return [value for value in VALUES if allows and not allows(value) and not (default and value is None)]


@pytest.mark.parametrize("subpackage", WITH_NAMES)
def test_every_argument_has_an_annotation(subpackage):
    """The other tests derive invalid values from annotations and skip arguments without one."""
    every = {f"{subpackage}.{name}.{p.name}": annotation_of(thing, p) for name, thing, p in parameters(subpackage)}
    assert {name for name, annotation in every.items() if not annotation} <= NO_ANNOTATION.keys()


def test_rules_follow_annotations():
    def takes(annotation):
        allows = rule_of(ast.parse(annotation, mode="eval").body)
        return allows and [value for value in VALUES if allows(value)]

    assert takes("int") == [5]
    assert takes("float | None") == [5, 1.5, None, 2**64]
    assert takes("tuple[float, ...]") == [[], [5], [1.5]]
    assert takes("str | os.PathLike | None") == ["ten", None]
    assert takes("Literal['ten', 'two']") == ["ten"]
    assert takes("float | tf.Tensor") is takes("Dataset | None") is takes("list[dict]") is None


def devices() -> bool:
    """Return whether logical devices exist; TensorFlow only creates them at its start."""
    from dgc_lab.replicas import TooLate, start_devices

    try:
        return bool(start_devices(4))
    except TooLate:
        return False


def in_its_own_process(test, file=__file__):
    """Run a test in a subprocess, where TensorFlow has not started yet."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", f"{file}::{test}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.parametrize("subpackage", WITH_NAMES)
def test_wrong_types_are_rejected(subpackage):
    if subpackage == "replicas" and not devices():
        in_its_own_process("test_wrong_types_are_rejected[replicas]")
        return
    every = [(*each, value) for each in parameters(subpackage) for value in wrong_values(*each[1:])]
    found = [
        f"{subpackage}.{name}: {parameter.name}={value!r}: {said}"
        for name, thing, parameter, value in every
        if (said := refused(subpackage, name, thing, parameter, value)) is not None
    ]
    assert found == []


IMPORTS = (
    "from dgc_lab.parameter_server.config import AsyncConfig",
    "from dgc_lab.parameter_server import AsyncConfig",
)


@pytest.mark.parametrize("imported", [*IMPORTS, "\n".join(IMPORTS), "\n".join(reversed(IMPORTS))])
def test_validation_does_not_depend_on_the_import_path(imported):
    code = f'{imported}\nAsyncConfig(staleness_aware="no")'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stderr.splitlines()[-1] == "ValueError: staleness_aware must be True or False, got 'no'"
