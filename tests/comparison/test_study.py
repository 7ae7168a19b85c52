"""Studies: the search for each method's learning rate, its compared runs, and their table."""

import pytest

from dgc_lab.comparison import Study, study_events, study_table
from dgc_lab.comparison.lab_studies import STUDIES, stored_rows
from dgc_lab.comparison.study import SEARCH_SEED, rows_by_method, simulated
from dgc_lab.terminal import show
from dgc_lab.training import RowEnded, read_rows

METHODS = {"dense": {}, "DGC": {"ratio": 0.1}}
SHORT = Study(METHODS, {"workers": 2, "batch": 8, "steps": 20}, rates=(0.05, 0.2), seeds=(3, 4))


@pytest.fixture(scope="module")
def finished(digits, tmp_path_factory):
    """Run a short study; return its file of rows and its events."""
    out = tmp_path_factory.mktemp("study") / "rows.jsonl"
    return out, list(study_events(SHORT, simulated(digits), digits, out))


def test_each_method_searches_its_rate_and_then_runs_the_seeds(finished):
    rows = [event.row for event in finished[1] if isinstance(event, RowEnded)]
    assert [row["seed"] for row in rows] == [SEARCH_SEED, SEARCH_SEED, 3, 4] * 2
    for first in (0, 4):
        best = max(rows[first : first + 2], key=lambda row: row["accuracy"])
        assert {row["learning_rate"] for row in rows[first + 2 : first + 4]} == {best["learning_rate"]}
    numbers = [event.number for event in finished[1] if isinstance(event, RowEnded)]
    assert numbers == list(range(8))
    assert len(SHORT.row_names()) == 8


def test_a_study_resumes_from_its_rows(finished, digits):
    out, _ = finished
    before = out.read_bytes()
    again = list(study_events(SHORT, simulated(digits), digits, out))
    assert all(event.from_file for event in again if isinstance(event, RowEnded))
    assert out.read_bytes() == before


def test_the_table_has_the_spread_of_the_compared_runs_alone(finished):
    rows = read_rows(finished[0], {})
    table = study_table(SHORT, rows)
    assert sorted(table.index) == ["DGC", "dense"]
    assert (table["seeds"] == 2).all()
    compared = [row["accuracy"] for row in rows_by_method(SHORT, rows)["DGC"]]
    assert table.loc["DGC", ["least", "greatest"]].tolist() == sorted(compared)
    assert table.loc["DGC", "kB a step"] < table.loc["dense", "kB a step"]


def test_runs_with_seeds_share_a_trace_and_differ(digits):
    trainer_of = simulated(digits)
    (settings, ratio), (other, _) = (SHORT.run("DGC", 0.05, seed) for seed in (3, 4))
    first, second = trainer_of(settings), trainer_of(other)
    assert first is second
    assert second.settings.seed == 4


def test_a_search_alone_gives_an_empty_table(finished, capsys):
    search = [row for row in read_rows(finished[0], {}) if row["seed"] == SEARCH_SEED]
    assert study_table(SHORT, search).empty

    def stopped():
        yield RowEnded(0, search[0], from_file=False)
        raise KeyboardInterrupt

    assert show(stopped(), ["dense, rate 0.05"] * 2, 20, "rows.jsonl", lambda rows: study_table(SHORT, rows)) == 130
    assert "Stopped: 1 of 2 rows finished, kept in rows.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": {}}, "methods must hold at least one"),
        ({"rates": ()}, "rates must hold at least one"),
        ({"seeds": ()}, "seeds must hold at least one"),
        ({"methods": {"bad": {"momentum": 2}}}, "momentum must be"),
    ],
)
def test_invalid_studies_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        Study(**{"methods": METHODS, "common": {}, "rates": (0.1,), "seeds": (0,), **options})


@pytest.mark.parametrize("name", STUDIES)
def test_stored_studies_are_complete(name):
    study, rows = STUDIES[name], rows_by_method(STUDIES[name], stored_rows())
    assert list(rows) == list(study.methods)
    assert all(sorted(row["seed"] for row in own) == sorted(study.seeds) for own in rows.values())
