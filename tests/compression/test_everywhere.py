"""Schemes in trainers, sweeps and result files: every row names its scheme."""

from dataclasses import replace

import cloudpickle
import pytest
import tensorflow as tf

from dgc_lab.__main__ import main
from dgc_lab.compression import (
    SCHEMES,
    AllReduceMean,
    Compressor,
    DGCConfig,
    Scheme,
    parse_scheme,
    qsgd,
    sign,
    top_k,
)
from dgc_lab.compression.schemes.gallery import is_published
from dgc_lab.compression.wrappers import after, local_sgd, with_error_feedback, with_momentum
from dgc_lab.distributed import OneWorker, SimulatedWorkers
from dgc_lab.training import DistributedConfig, DistributedTrainer, RowEnded, read_rows, sweep


def rows_of(scheme, ratios, out=None, **more):
    settings = DistributedConfig(steps=6, evaluations=1, scheme=scheme, **more)
    trainer = DistributedTrainer(settings, SimulatedWorkers(2))
    rows = [event.row for event in sweep(settings, ratios, out, trainer=trainer) if isinstance(event, RowEnded)]
    return rows, trainer


def scaled(factor):
    def step(gradient, state, context):
        mean = yield AllReduceMean(factor * gradient)
        return mean, factor * gradient, state

    return Scheme(step)


def test_one_trace_serves_all_ratios_of_a_scheme():
    rows, trainer = rows_of("top_k", [0.5, 0.1, 0.01])
    sent = [row["bytes per step"] for row in rows]
    assert sent[0] > 3 * sent[1] > 9 * sent[2]
    assert trainer.traces == 1


def test_rows_name_their_scheme_and_are_reused(tmp_path):
    out = tmp_path / "rows.jsonl"
    half, quarter = replace(scaled(0.5), name="half"), replace(scaled(0.25), name="quarter")
    new_rows = [rows_of(scheme, [1], out)[0][0] for scheme in ("qsgd:levels=4", "qsgd:levels=1", half, quarter)]
    assert [row["scheme"] for row in new_rows] == ["qsgd:levels=4", "qsgd:levels=1", "half", "quarter"]
    rows_of("qsgd:levels=4", [1], out)
    rows_of(half, [1], out)
    assert len(read_rows(out, {})) == 4, "finished rows must not run again"
    rows_of("dgc", [1], out)
    rows_of("dgc", [1], out)
    assert len(read_rows(out, {})) == 5, "rows of other schemes must not be reused"


def test_schemes_reject_reduction_by_sum():
    with pytest.raises(ValueError, match="reduction must be one of average, got 'sum'"):
        Compressor(sign(), [tf.Variable([1.0])], OneWorker(), options=DGCConfig(reduction="sum"))


def test_only_unmodified_gallery_schemes_are_published():
    for name in SCHEMES:
        assert is_published(parse_scheme(name))
    for other in (
        replace(scaled(0.5), name="sign"),
        after(qsgd(4), 3),
        scaled(0.5),
        with_error_feedback(qsgd(4)),
        top_k(tf.Variable(0.1)),
    ):
        assert not is_published(other)


def test_a_published_scheme_is_recognized_after_pickling():
    assert is_published(cloudpickle.loads(cloudpickle.dumps(qsgd(4))))
    assert not is_published(replace(qsgd(4), per_tensor=False))


@pytest.mark.parametrize("name", ["dgc", "qsgd:levels=7"])
def test_a_custom_scheme_cannot_take_a_published_name(name):
    with pytest.raises(ValueError, match=f"scheme must have a name of its own, got '{name}', a published scheme's"):
        DistributedConfig(scheme=replace(scaled(0.5), name=name))


def test_wrappers_extend_the_name_if_there_is_one():
    assert with_error_feedback(qsgd(4)).name == "qsgd:levels=4, with error feedback"
    assert after(qsgd(4), 3).name == "qsgd:levels=4, after 3 dense steps"
    wraps = (with_error_feedback, with_momentum, local_sgd, lambda scheme: after(scheme, 3))
    for wrapped in (wrap(scaled(0.5)) for wrap in wraps):
        assert wrapped.name == ""


def test_results_of_unnamed_schemes_cannot_be_saved(tmp_path):
    """A reader of the file could not identify the scheme."""
    with pytest.raises(ValueError, match="out must be None for a scheme without a name"):
        rows_of(with_error_feedback(scaled(0.5)), [1], tmp_path / "rows.jsonl")
    _, trainer = rows_of(scaled(0.5), [1])
    with pytest.raises(ValueError, match="scheme must have a name"):
        trainer.save(tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


def test_momentum_follows_the_exchange_unless_built_in():
    assert DistributedConfig(scheme="qsgd").compression(1.0).momentum == 0.9
    assert DistributedConfig(scheme="qsgd", momentum=0.0).compression(1.0).momentum == 0
    assert DistributedConfig(scheme="signum:momentum=0.5").compression(1.0).momentum == 0.5
    assert DistributedConfig(scheme="demo").compression(1.0).momentum is None, "its state serves as momentum"
    with pytest.raises(ValueError, match=r"scheme must have no momentum, which would be applied twice, got .* demo"):
        with_momentum(parse_scheme("demo"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "scheme must be one of dense, .*, got 'nonsense'"),
        ("qsgd:level=4", "parameters of qsgd must be one of levels, after, every, since, outer_rate, got 'level'"),
        ("qsgd:levels=many", "levels of qsgd must be a number, got 'many'"),
        ("qsgd:levels=", "levels of qsgd must be a number, got ''"),
        ("qsgd:levels=4,levels=2", "levels of qsgd must be given once, got 'levels=4,levels=2'"),
        ("qsgd:after=0", "steps must be a whole number of at least 1, got 0"),
        ("dgc:after=5", "scheme must have no momentum, which the dense steps would skip, got the scheme dgc:"),
        ("demo:after=5", "scheme must have no momentum, which the dense steps would skip, got the scheme demo:"),
        ("dense:since=3,every=1", "every must be a whole number of at least 2, got 1"),
        ("sign:x=1", "parameters of sign must be one of after, every, since, outer_rate, got 'x'"),
    ],
)
def test_invalid_scheme_descriptions_are_rejected(text, message):
    with pytest.raises(ValueError, match=message):
        parse_scheme(text)
    with pytest.raises(ValueError, match=message):
        DistributedConfig(scheme=text)


def test_spaces_in_a_scheme_description_are_ignored():
    assert parse_scheme("qsgd: levels = 4").name == parse_scheme("qsgd:levels=4").name
    assert parse_scheme("dense:every= 8, since=3").name == "dense, every 8 steps from step 3 on"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": "x"}, "step must be a function, got 'x'"),
        ({"init": 0}, "init must be a function, got 0"),
        ({"name": None}, "name must be text, got None"),
        ({"every": "8"}, "every must be a whole number of at least 1, got '8'"),
        ({"every": True}, "every must be a whole number of at least 1, got True"),
        ({"since": -1}, "since must be a whole number of at least 0, got -1"),
        ({"outer_rate": float("inf")}, "outer_rate must be above 0 and finite, got inf"),
        ({"dense_steps": -1}, "dense_steps must be a whole number of at least 0, got -1"),
        ({"momentum": True}, "momentum must be a number, got True"),
        ({"per_tensor": "False"}, "per_tensor must be True or False, got 'False'"),
        ({"selects_non_finite": 1}, "selects_non_finite must be True or False, got 1"),
        ({"nesterov": ""}, "nesterov must be True or False, got ''"),
    ],
)
def test_invalid_fields_of_a_scheme_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        Scheme(**{"step": lambda gradient, state, context: None, **values})


def test_ranks_compare_all_fields_of_a_scheme_but_its_functions():
    """A function has another address on each rank."""
    assert str(scaled(0.5)) == str(scaled(0.5))
    for wrap in (with_momentum, lambda scheme, factor: local_sgd(scheme, outer_rate=factor)):
        assert str(wrap(scaled(0.5), 0.9)) != str(wrap(scaled(0.5), 0.5))


@pytest.mark.parametrize("wrap", [with_error_feedback, with_momentum, local_sgd, lambda scheme: after(scheme, 3)])
def test_wrappers_reject_what_is_not_a_scheme(wrap):
    with pytest.raises(ValueError, match="scheme must be an instance of Scheme, got 'qsgd'"):
        wrap("qsgd")


def test_options_must_be_a_config():
    with pytest.raises(ValueError, match="options must be an instance of DGCConfig, got 5"):
        Compressor(sign(), [tf.Variable([1.0])], OneWorker(), options=5)


@pytest.mark.parametrize("kind", [tf.complex64, tf.int32])
@pytest.mark.parametrize("scheme", [DGCConfig(), sign()])
def test_variables_must_hold_floating_point_numbers(kind, scheme):
    weight = tf.Variable(tf.zeros([2], kind), name="weight")
    with pytest.raises(ValueError, match=f"variables must hold floating-point numbers, got {kind.name} in weight"):
        Compressor(scheme, [weight], OneWorker())


def test_the_train_command_accepts_a_scheme(capsys):
    assert main(["train", "--steps", "20", "--scheme", "powersgd:rank=1", "--evaluations", "1"]) == 0
    assert "step 20: accuracy" in capsys.readouterr().out
    assert main(["train", "--steps", "20", "--scheme", "nonsense"]) == 1
    assert "scheme must be one of dense" in capsys.readouterr().err
