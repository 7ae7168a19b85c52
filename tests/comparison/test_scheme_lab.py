"""Lesson 8's widget, driven through its controls with real training, and its tables of errors and costs."""

import functools
import re

import numpy as np
import pandas as pd
import pytest

from dgc_lab.comparison import SchemeLab, bias_and_variance, error_table, exchange_table, message
from dgc_lab.comparison.cost import Message
from dgc_lab.comparison.lab_studies import SCHEMES_ON_RANKS, rate_of, stored_study
from dgc_lab.comparison.widget import PRESETS
from dgc_lab.compression import AllGather, AllReduceMean, Scheme, dense, ef_sign, float16, powersgd, qsgd, sign
from dgc_lab.training import read_rows
from widgets import picture_of, press


def whole(gradient, state, context):
    mean = yield AllReduceMean(gradient)
    return mean, gradient, state


def gathered(gradient, state, context):
    everyone = yield AllGather((gradient,))
    return sum(own for (own,) in everyone) / len(everyone), gradient, state


@pytest.fixture
def lab():
    """Factory for widgets with short runs; stops each of them after the test."""
    made = []

    def make(**more):
        made.append(SchemeLab(**{"steps": 12, "workers": 2, "batch": 8, **more}))
        return made[-1]

    yield make
    for widget in made:
        widget.stop()
        assert widget.wait(60)


def test_each_scheme_and_seed_adds_a_point(lab):
    widget = lab(schemes="dense sign", seeds="0, 1")
    before = picture_of(widget)
    press(widget, "run")
    assert widget.wait(120)
    assert "Done: 4 rows" in widget.message.value
    assert [(row["scheme"], row["seed"]) for row in widget.rows] == [
        ("dense", 0),
        ("dense", 1),
        ("sign", 0),
        ("sign", 1),
    ]
    assert [label for label, *_ in widget.curves.points] == ["uncompressed", "uncompressed", "signSGD", "signSGD"]
    (_, dense, _, one), (_, _, _, two), (_, sign, _, other), _ = widget.curves.points
    assert dense > 10 * sign
    assert one.get_color() == two.get_color() != other.get_color()
    assert np.any(picture_of(widget) != before)
    assert re.search(r"Right: test accuracy by kB per step and worker. uncompressed: 0\.\d+ at 153", widget.image.value)
    assert list(widget.frame()["scheme"]) == ["dense", "dense", "sign", "sign"]
    assert widget.table.value.count("<td>signSGD</td>") == widget.table.value.count("<td>uncompressed</td>") == 2
    assert len(widget.curves.accuracy_axes.get_legend().get_texts()) == 2
    assert widget.saves.value == ""
    press(widget, "save")
    for name in ("table.csv", "picture.png", "picture.svg"):
        assert f'download="{name}"' in widget.saves.value
    press(widget, "run")
    assert "has these rows already" in widget.message.value


def test_scheme_parameter_list_and_presets_agree(lab):
    widget = lab()
    widget.scheme.value = "powersgd"
    assert widget.schemes.value == "powersgd:rank=2"
    widget.parameter.value = 4
    assert widget.schemes.value == "powersgd:rank=4"
    assert widget.parameter.description == "Rank"
    assert widget.parameter.layout.display is None, "visible"
    widget.scheme.value = "sign"
    assert widget.schemes.value == "sign"
    assert widget.parameter.layout.display == "none", "a sign has no parameter"
    widget.scheme.value = "int8"
    assert (widget.parameter.layout.display, widget.schemes.value) == ("none", "int8"), "its block is None by default"
    widget.preset.value = "one bit"
    assert widget.schemes.value == "dense sign signum ef_sign one_bit"
    widget.schemes.value = "dense"
    assert widget.preset.value == "as typed"


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_is_valid(lab, preset):
    widget = lab()
    widget.preset.value = preset
    assert len(widget.runs()) == len(widget.schemes.value.split())


def test_custom_schemes_are_listed_and_train(lab, tmp_path):
    widget = lab(mine=[Scheme(whole, name="whole"), Scheme(gathered, name="gather all")], out=tmp_path / "rows.jsonl")
    assert widget.schemes.value == "whole"
    assert widget.scheme.options[:3] == (("whole", "whole"), ("gather_all", "gather_all"), ("uncompressed", "dense"))
    widget.schemes.value = "whole gather_all dense"
    widget.learning_rate.value = "0.05"
    widget.run()
    own, other, dense = widget.rows
    assert own["accuracy"] == dense["accuracy"] == pytest.approx(other["accuracy"], abs=0.01)
    assert own["scheme"] == "whole"
    assert own["bytes per step"] == dense["bytes per step"]
    assert len(read_rows(tmp_path / "rows.jsonl", {})) == 3


@pytest.mark.nightly
def test_two_ranks_train_with_a_scheme_from_a_notebook_cell(lab, two_ranks, monkeypatch):
    asked, stream = [], two_ranks.stream
    monkeypatch.setattr(two_ranks, "stream", lambda *given: asked.append(given[1]) or stream(*given))
    text = (
        "def typed(gradient, state, _):\n    mean = yield AllReduceMean(0.5 * gradient)\n    return mean, mean, state"
    )
    space = {"AllReduceMean": AllReduceMean, "__name__": "__main__"}
    exec(text, space)  # like a notebook cell: ranks cannot import the function
    widget = lab(mine=Scheme(space["typed"]), ranks=two_ranks)
    assert widget.workers.disabled
    widget.run()
    assert [row["scheme"] for row in widget.rows] == ["typed"]
    assert widget.rows[0]["workers"] == 2
    assert [settings.workers for settings in asked] == [2], "the run must use the ranks"


@pytest.mark.parametrize(
    ("control", "value", "message"),
    [
        ("schemes", "", "schemes must name at least one scheme"),
        ("schemes", "dense nonsense", "schemes must be one of .*, got .*nonsense"),
        ("schemes", "qsgd:levels=x", "levels of qsgd must be a number"),
        ("seeds", "one", "seeds must be whole numbers such as 0, 1, 2, got .*one"),
        ("seeds", "", "seeds must be whole numbers"),
        ("workers", 0, "workers must be a whole number of at least 1, got 0"),
        ("learning_rate", "-1", "learning_rate must be"),
        ("learning_rate", "fast", "learning_rate must be a number such as 0.1, or tuned, got .*fast"),
    ],
)
def test_invalid_settings_are_reported(lab, control, value, message):
    widget = lab()
    getattr(widget, control).value = value
    press(widget, "run")
    assert re.search(message, widget.message.value)
    assert 'role="alert"' in widget.message.value
    assert not widget.run_button.disabled


@pytest.mark.parametrize(
    ("mine", "message"),
    [
        (whole, r"mine must be a Scheme or a list of them"),
        ([3], "mine must be a Scheme or a list of them, as in Scheme.step., got 3"),
        ([Scheme(whole), Scheme(whole)], "mine must have new, distinct names.*got 'whole'"),
        (Scheme(whole, name="dense"), "got 'dense'"),
    ],
)
def test_invalid_custom_schemes_are_rejected(mine, message):
    with pytest.raises(ValueError, match=message):
        SchemeLab(mine=mine)


def test_a_diverging_scheme_does_not_stop_the_others(lab):
    def wild(gradient, state, context):
        mean = yield AllReduceMean(gradient * 1e30)
        return mean, gradient, state

    widget = lab(mine=Scheme(wild), schemes="wild dense")
    press(widget, "run")
    assert widget.wait(120)
    assert "NaN or infinity" in widget.message.value
    assert [row["scheme"] for row in widget.rows] == ["dense"]


def test_equal_seeds_train_once(lab):
    assert [settings.seed for settings, _ in lab(schemes="dense", seeds="0, 00, 1").runs()] == [0, 1]


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (error_table, ([sign()], [1.0]), "schemes must be an instance of dict, got"),
        (error_table, ({}, [1.0]), "schemes must have at least one element"),
        (exchange_table, ([(8, 0)], 1), r"messages must be an instance of dict, got \[\(8, 0\)\]"),
        (exchange_table, ({}, 1), "messages must have at least one element"),
    ],
)
def test_tables_need_a_dict(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(*arguments)


def test_error_table_rejects_a_zero_gradient():
    with pytest.raises(ValueError, match="gradient must have a nonzero element, got only zeros"):
        error_table({"sign": sign()}, np.zeros(4, np.float32), draws=2)


@pytest.mark.parametrize("dataset", ["fashion_mnist", "cifar10"])
def test_other_data_sets_start_with_mnist_learning_rates(dataset):
    ((settings, _),) = SchemeLab(dataset=dataset, schemes="powersgd:rank=2").runs()
    assert settings.learning_rate == rate_of("powersgd:rank=2", "mnist") != rate_of("powersgd:rank=2", "mnist1d")
    assert rate_of("nothing like it", "mnist") == 0.05


@pytest.mark.parametrize("scheme", SCHEMES_ON_RANKS)
def test_schemes_of_mnists_study_keep_its_rates(scheme):
    assert rate_of(scheme, "mnist") == stored_study("schemes on ranks").loc[scheme, "learning rate"]


def test_schemes_outside_mnists_study_use_no_higher_rate_than_mnist1d():
    assert rate_of("sign", "mnist") == rate_of("sign", "mnist1d") < 0.05
    assert rate_of("float16", "mnist") == 0.05 < rate_of("float16", "mnist1d")


@pytest.mark.parametrize("text", ["tuned", "", " tuned "])
def test_tuned_learning_rates_differ_between_schemes(lab, text):
    runs = lab(schemes="dense sign", dataset="mnist1d", learning_rate=text).runs()
    assert [settings.learning_rate for settings, _ in runs] == [rate_of(name, "mnist1d") for name in ("dense", "sign")]


def test_typed_learning_rate_applies_to_every_scheme(lab):
    runs = lab(schemes="dense sign", learning_rate="0.03").runs()
    assert [settings.learning_rate for settings, _ in runs] == [0.03, 0.03]


def test_points_keep_the_marker_of_their_settings(lab):
    widget = lab(schemes="dense sign", steps=20)
    widget.learning_rate.value = "0.05"
    marks = []
    widget.curves.add_row = lambda sent, accuracy, mark: (marks.append(mark), turn())

    def turn():
        widget.learning_rate.value = "0.1"  # while the run is in progress

    widget.run()
    assert [row["learning_rate"] for row in widget.rows] == [0.05, 0.05]
    assert marks == [0, 0]


def test_parameter_control_keeps_all_digits(lab):
    widget = lab()
    for scheme, value, text in (("top_k", 0.01234567, "top_k:ratio=0.01234567"), ("qsgd", 7, "qsgd:levels=7")):
        widget.scheme.value, widget.parameter.value = scheme, value
        assert widget.schemes.value == text


def test_custom_schemes_need_unique_names(lab, tmp_path):
    widget = lab(mine=Scheme(functools.partial(whole)))
    assert widget.scheme.options[0] == ("mine", "mine")
    with pytest.raises(ValueError, match="mine must have new, distinct names"):
        SchemeLab(mine=Scheme(whole, name="!!!"))
    with pytest.raises(ValueError, match="mine must have names if out is given"):
        SchemeLab(mine=Scheme(whole), out=tmp_path / "rows.jsonl")
    widget.schemes.value = "nonsense"
    with pytest.raises(ValueError, match=r"schemes must be one of mine, dense, .* got 'nonsense'"):
        widget.runs()


def test_workers_must_match_the_ranks(two_ranks):
    with pytest.raises(ValueError, match="workers must be 2, got 3"):
        SchemeLab(ranks=two_ranks, workers=3)
    SchemeLab(ranks=two_ranks, workers=2).close()


@pytest.mark.parametrize("size", [1e-25, 1e15, 1e18])
def test_relative_errors_are_scale_invariant(size):
    gradient = np.array([3.0, -0.1, 0.2, 0.1])
    one, other = (error_table({"it": ef_sign()}, (by * gradient).astype(np.float32), draws=2) for by in (1.0, size))
    assert other["bias"][0] == pytest.approx(one["bias"][0], rel=1e-4)
    assert 0.1 < one["bias"][0] < 1


@pytest.mark.parametrize(
    ("scheme", "gradient", "message"),
    [
        (sign(), [np.inf, 1.0], "gradient must be finite, got NaN or infinity"),
        (sign(), [np.nan, 1.0], "gradient must be finite, got NaN or infinity"),
        (qsgd(1), [1e20, -1e19], "gradient must be small enough for it, which returned NaN or infinity"),
    ],
)
def test_error_table_rejects_nonfinite_gradients(scheme, gradient, message):
    with pytest.raises(ValueError, match=message):
        error_table({"it": scheme}, np.float32(gradient), draws=2)


def test_picture_of_errors_needs_all_columns():
    with pytest.raises(ValueError, match="table must have the columns scheme, bias, variance, got none named variance"):
        bias_and_variance(pd.DataFrame({"scheme": ["sign"], "bias": [0.1]}))


def test_exchange_table_accepts_an_iterator_of_workers():
    assert list(exchange_table({"a": (8, 0)}, 1, iter([2, 4]))) == list(exchange_table({"a": (8, 0)}, 1, (2, 4)))


@pytest.mark.parametrize("sent", [(0, 0), (-5, 10), (5, -1)])
def test_exchange_table_rejects_invalid_byte_counts(sent):
    with pytest.raises(ValueError, match=r"messages\['a'\].* must be"):
        exchange_table({"a": sent}, 1)


def test_schemes_default_to_the_gallery_ratio(lab):
    """A run's default ratio is 1, and DGC would then send more than uncompressed gradients."""
    widget = lab(schemes="dense dgc top_k:every=2")
    assert [settings.scheme for settings, _ in widget.runs()] == ["dense", "dgc:ratio=0.01", "top_k:ratio=0.01,every=2"]


def test_every_allreduce_adds_latency():
    sent = message(powersgd(rank=1), "mnist_cnn")
    assert (sent.allreduces, sent.allgathers) == (2, 0), "metadata shares an allreduce"
    halves = message(float16(), "mnist_cnn")
    assert (halves.allreduces, halves.allgathers) == (2, 0), "vectors are uncompressed, and an allreduce has one dtype"
    ms = "ms, 1024 workers"
    once, twice = exchange_table({"one": (8, 0), "two": sent._replace(reduced=8, gathered=0)}, 10, (1024,))[ms]
    assert twice == pytest.approx(2 * once, rel=0.01)


def test_exchange_times_match_hand_computed_values():
    """At 10 Gbit/s, the payload gets 1.175 GB/s, and a hop takes 20 us."""
    messages = {"one": (10**6, 0), "two": Message(10**6, 0, allreduces=2), "gathered": (0, 10**6)}
    table = exchange_table(messages, 10, (2, 1024)).set_index("scheme")
    assert table["ms, 2 workers"].tolist() == pytest.approx([0.891064, 0.931064, 0.871064], abs=1e-5)
    assert table["ms, 1024 workers"].tolist() == pytest.approx([2.102128, 2.502128, 870.838298], abs=1e-5)


def test_half_the_bytes_are_exchanged_faster_with_1024_workers():
    messages = {"dense": message(dense(), "mnist_cnn"), "float16": message(float16(), "mnist_cnn")}
    table = exchange_table(messages, 10, (2, 32, 1024)).set_index("scheme").filter(like="ms, ")
    assert (table.loc["float16"] < table.loc["dense"]).all()
    assert (table.loc["float16"] > table.loc["dense"] / 2).all(), "two allreduces instead of one"
