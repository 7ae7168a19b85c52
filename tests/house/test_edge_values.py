"""Every public name accepts an argument's edge values or promptly rejects them with our own message.

The values are negative and huge numbers, infinities, NaN, and empty or unusual texts, one argument at a time.
"""

import ast
import math
import signal
import warnings

import pytest
from test_bad_input import (
    WITH_NAMES,
    annotation_of,
    devices,
    in_its_own_process,
    names_at_top,
    parameters,
    refused,
)

EDGES = {
    "int": [-1, 0, 2**31, 2**62],
    "float": [-1.0, 0.0, 1e30, math.inf, -math.inf, math.nan],
    "str": ["", " ", "ä 中 \0", "../..", "x" * 10_000],
}
LONGEST = 60  # seconds per call
NOT_HERE = {  # argument: reason
    "scaling.measure_overlap.bandwidth": "of a Horovod that has been started",
    "distributed.DistributedOptimizer.name": "Keras says in words of its own what a name may be",
    "distributed.HierarchicalCommunicator.host": "of a Horovod that has been started",
    "parameter_server.train.checkpoint": "in a cluster's process",
    "parameter_server.train_on.checkpoint": "of a cluster that has been started",
}


class TooLong(BaseException):
    """A call did not return in time."""


def too_long(*_):
    raise TooLong


def edges(subpackage, name, thing, parameter) -> list:
    """List the edge values for the types in an argument's annotation."""
    if f"{subpackage}.{name}.{parameter.name}" in NOT_HERE:
        return []
    annotation = annotation_of(thing, parameter)
    named = names_at_top(ast.parse(annotation, mode="eval").body) if annotation else ()
    return [value for kind, values in EDGES.items() if kind in named for value in values]


def outcome(*each):
    """Return None if the value is accepted or correctly rejected, otherwise the problem."""
    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            problem = refused(*each)
    except TooLong:
        problem = f"no answer in {LONGEST} s"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return None if problem == "taken" else problem


@pytest.mark.parametrize("subpackage", WITH_NAMES)
def test_edge_values_are_accepted_or_rejected_by_name(subpackage, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if subpackage == "replicas" and not devices():
        in_its_own_process("test_edge_values_are_accepted_or_rejected_by_name[replicas]", __file__)
        return
    every = [(subpackage, *each, value) for each in parameters(subpackage) for value in edges(subpackage, *each)]
    found = [
        (f"{each[0]}.{each[1]}", each[3].name, str(each[4])[:30], what) for each in every if (what := outcome(*each))
    ]
    assert found == []
