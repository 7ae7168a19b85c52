"""Schemes in trainers, sweeps and files: a row says which scheme made it, and a user's own is never another's."""

import functools
import sys
import types

import numpy as np
import pytest
import tensorflow as tf

from dgc_lab.__main__ import main
from dgc_lab.compression import (
    SCHEMES,
    AllGather,
    AllReduceMean,
    Compressor,
    DGCConfig,
    Scheme,
    parse_scheme,
    qsgd,
    sign,
)
from dgc_lab.compression.naming import code_of, identity
from dgc_lab.compression.wrappers import with_error_feedback
from dgc_lab.distributed import OneWorker, SimulatedWorkers
from dgc_lab.training import DistributedConfig, DistributedTrainer, RowEnded, read_rows, sweep


def rows_of(scheme, ratios, out=None, **more):
    settings = DistributedConfig(steps=6, evaluations=1, scheme=scheme, **more)
    trainer = DistributedTrainer(settings, SimulatedWorkers(2))
    rows = [event.row for event in sweep(settings, ratios, out, trainer=trainer) if isinstance(event, RowEnded)]
    return rows, trainer


def half_of(factor):
    def step(gradient, state, context):
        mean = yield AllReduceMean(factor * gradient)
        return mean, factor * gradient, state

    return Scheme(step)


def test_one_trace_serves_all_ratios_of_a_scheme():
    rows, trainer = rows_of("top_k", [0.5, 0.1, 0.01])
    sent = [row["bytes a step"] for row in rows]
    assert sent[0] > 3 * sent[1] > 9 * sent[2]
    assert trainer.traces == 1


def test_rows_name_their_scheme_and_are_found_again(tmp_path):
    out = tmp_path / "rows.jsonl"
    made = [
        rows_of(scheme, [1], out)[0][0] for scheme in ("qsgd:levels=4", "qsgd:levels=1", half_of(0.5), half_of(0.25))
    ]
    assert [row["scheme"] for row in made[:2]] == ["qsgd:levels=4", "qsgd:levels=1"]
    assert len({row["scheme"] for row in made}) == 4
    rows_of("qsgd:levels=4", [1], out)
    rows_of(half_of(0.5), [1], out)
    assert len(read_rows(out, {})) == 4, "none was made again"
    rows_of("dgc", [1], out)
    rows_of("dgc", [1], out)
    assert len(read_rows(out, {})) == 5, "a row of another scheme is none of this one"


def test_a_sum_in_place_of_the_mean_is_refused():
    with pytest.raises(ValueError, match="reduction must be one of average, got 'sum'"):
        Compressor(sign(), [tf.Variable([1.0])], OneWorker(), options=DGCConfig(reduction="sum"))


def test_a_scheme_of_ones_own_is_known_by_its_code():
    assert identity(half_of(0.5)) == identity(half_of(0.5))
    assert identity(half_of(0.5)) != identity(half_of(0.25))
    assert identity(with_error_feedback(half_of(0.5))) != identity(with_error_feedback(half_of(0.25)))
    assert identity(with_error_feedback(qsgd(4))) == "qsgd:levels=4, with error feedback"
    for name in SCHEMES:
        assert identity(parse_scheme(name)) == parse_scheme(name).name

    def other(gradient, state, context):
        everyone = yield AllGather((gradient,))
        return tf.add_n([own for (own,) in everyone]) / len(everyone), gradient, state

    assert identity(Scheme(other, name="mine")) != identity(half_of(0.5)._replace(name="mine"))


FACTOR = (1.0,)


def scaled_by(scale):
    def by_what_it_holds(gradient, state, context):
        mean = yield AllReduceMean(gradient * scale[0])
        return mean, gradient, state

    def by_default(gradient, state, context, scale=scale):
        mean = yield AllReduceMean(gradient * scale[0])
        return mean, gradient, state

    def by_argument(scale, gradient, state, context):
        mean = yield AllReduceMean(gradient * scale[0])
        return mean, gradient, state

    array = np.array(scale)

    def by_array(gradient, state, context):
        mean = yield AllReduceMean(gradient * array[0])
        return mean, gradient, state

    own = by_what_it_holds, by_default, functools.partial(by_argument, scale), by_array
    return [Scheme(step, name="mine") for step in own]


def by_a_name_in_a_function_in_it(gradient, state, context):
    mean = yield AllReduceMean(tf.map_fn(lambda one: one * FACTOR[0], gradient))
    return mean, gradient, state


def test_whatever_a_scheme_of_ones_own_holds_is_part_of_it(monkeypatch):
    """A row that was made with other numbers would be taken for its own."""
    for one, same, other in zip(scaled_by((1.0,)), scaled_by((1.0,)), scaled_by((0.0,)), strict=True):
        assert identity(one) == identity(same)
        assert identity(one) != identity(other)
        assert identity(with_error_feedback(one)) != identity(with_error_feedback(other))
    before = identity(Scheme(by_a_name_in_a_function_in_it))
    monkeypatch.setattr(sys.modules[__name__], "FACTOR", (2.0,))
    assert identity(Scheme(by_a_name_in_a_function_in_it)) != before


@pytest.mark.parametrize(
    "text",
    [
        "class Coder:\n    @staticmethod\n    def enc(x): return {} * x",
        "class Coder:\n    @classmethod\n    def enc(cls, x): return {} * x",
        "class Base:\n    by = {}\n    def enc(self, x): return self.by * x\nclass Coder(Base): pass\nCoder = Coder()",
        "class Coder:\n    def enc(self, x): return self.by * x\nCoder = Coder()\nCoder.by = {}",
        "Coder = types.ModuleType('coder')\nexec('def enc(x): return {} * x', vars(Coder))\nCoder.itself = Coder",
        "Coder = types.SimpleNamespace(enc=lambda x: x)\nCHOSEN = {{{}}}",
        "Coder = types.SimpleNamespace(enc=lambda x: x)\nCHOSEN = tf.function(lambda: {})",
    ],
)
def test_a_scheme_is_known_by_all_of_its_users_code(text):
    """In a class, an object, a module or a traced function of theirs, and by what is in a set."""
    step = "\ndef step(g, s, _):\n    [CHOSEN, Coder.itself]"
    step += "\n    mean = yield AllReduceMean(Coder.enc(g))\n    return mean, g, s"

    def made(factor):
        space = {"__name__": "__main__", "AllReduceMean": AllReduceMean, "tf": tf, "types": types}
        exec(text.format(factor) + step, space)
        return identity(Scheme(space["step"], name="mine"))

    assert made(2) == made(2)
    assert made(2) != made(3)


def test_a_scheme_is_known_by_its_code_in_every_process():
    """The order of a set of texts is another one in each."""

    def step(x):
        return x in {"gamma", "alpha", "beta", "delta", "epsilon"}

    assert "{'alpha', 'beta', 'delta', 'epsilon', 'gamma'}" in code_of(step.__code__)


def test_momentum_comes_after_the_exchange_unless_the_scheme_has_its_own():
    assert DistributedConfig(scheme="qsgd").compression(1.0).momentum == 0.9
    assert DistributedConfig(scheme="qsgd", momentum=0.0).compression(1.0).momentum == 0
    assert DistributedConfig(scheme="signum:momentum=0.5").compression(1.0).momentum == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "scheme must be one of dense, .*, got 'nonsense'"),
        ("qsgd:level=4", "parameters of qsgd must be one of levels, every, since, got 'level'"),
        ("qsgd:levels=many", "levels of qsgd must be a number, got 'many'"),
        ("dense:since=3,every=1", "every must be a whole number of at least 2, got 1"),
        ("sign:x=1", "parameters of sign must be one of every, since, got 'x'"),
    ],
)
def test_what_is_no_scheme_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        parse_scheme(text)
    with pytest.raises(ValueError, match=message):
        DistributedConfig(scheme=text)


def test_the_command_trains_with_a_scheme(capsys):
    assert main(["train", "--steps", "20", "--scheme", "powersgd:rank=1", "--evaluations", "1"]) == 0
    assert "step 20: accuracy" in capsys.readouterr().out
    assert main(["train", "--steps", "20", "--scheme", "nonsense"]) == 1
    assert "scheme must be one of dense" in capsys.readouterr().err
