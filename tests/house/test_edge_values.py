"""Every public name takes what is at an argument's edges, or refuses it in words of ours, at once.

Negative and huge numbers, infinities and NaN, empty and odd texts, each in the place of an argument that is right.
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
LONGEST = 60  # seconds for one call
NOT_HERE = {  # and why
    "distributed.DistributedOptimizer.name": "Keras says in words of its own what a name may be",
    "distributed.HierarchicalCommunicator.host": "of a Horovod that has been started",
    "parameter_server.train.checkpoint": "in a cluster's process",
    "parameter_server.train_on.checkpoint": "of a cluster that has been started",
}


class TooLong(BaseException):
    """A call did not come back."""


def too_long(*_):
    raise TooLong


def edges(room, name, thing, parameter) -> list:
    """The values of all types that an argument's annotation names at its top."""
    if f"{room}.{name}.{parameter.name}" in NOT_HERE:
        return []
    annotation = annotation_of(thing, parameter)
    named = names_at_top(ast.parse(annotation, mode="eval").body) if annotation else ()
    return [value for kind, values in EDGES.items() if kind in named for value in values]


def outcome(*each):
    """None for a value that was refused as it should be, or taken; else what came instead."""
    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            told = refused(*each)
    except TooLong:
        told = f"no answer in {LONGEST} s"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    return None if told == "taken" else told


@pytest.mark.parametrize("room", WITH_NAMES)
def test_a_value_at_the_edge_is_taken_or_refused_by_name(room, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if room == "replicas" and not devices():
        in_its_own_process("test_a_value_at_the_edge_is_taken_or_refused_by_name[replicas]", __file__)
        return
    every = [(room, *each, value) for each in parameters(room) for value in edges(room, *each)]
    found = [
        (f"{each[0]}.{each[1]}", each[3].name, str(each[4])[:30], told) for each in every if (told := outcome(*each))
    ]
    assert found == []
