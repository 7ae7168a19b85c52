"""Studies: the search for each method's learning rate, its compared runs, and their table."""

import contextlib

import pytest

from dgc_lab.comparison import Study, run_study
from dgc_lab.comparison.lab_studies import STUDIES, stored_rows, trainers
from dgc_lab.comparison.study import (
    SEARCH_SEEDS,
    best_rate,
    finalists,
    simulated,
    study_events,
)
from dgc_lab.comparison.study_tables import rows_by_method, search_table, study_table
from dgc_lab.terminal import show
from dgc_lab.training import DistributedStep, RowEnded, RowFailed, read_rows

METHODS = {"dense": {}, "DGC": {"ratio": 0.1}}
SHORT = Study(METHODS, {"workers": 2, "batch": 8, "steps": 20}, rates=(0.05, 0.2), seeds=(3, 4))


@pytest.fixture(scope="module")
def finished(digits, tmp_path_factory):
    """Run a short study; return its file of rows and its events."""
    out = tmp_path_factory.mktemp("study") / "rows.jsonl"
    return out, list(study_events(SHORT, simulated(digits), digits, out))


def test_each_method_searches_its_rate_and_then_runs_the_seeds(finished):
    rows = [event.row for event in finished[1] if isinstance(event, RowEnded)]
    first, *others = SEARCH_SEEDS
    assert [row["seed"] for row in rows] == [first, first, *others, *others, 3, 4] * 2
    for start in (0, 8):
        sums = {}
        for row in rows[start : start + 6]:
            sums[row["learning_rate"]] = sums.get(row["learning_rate"], 0) + row["accuracy"]
        assert {row["learning_rate"] for row in rows[start + 6 : start + 8]} == {max(sums, key=sums.get)}
    numbers = [event.number for event in finished[1] if isinstance(event, RowEnded)]
    assert numbers == list(range(16))
    assert len(SHORT.row_names()) == 16


def test_the_best_mean_of_the_search_seeds_decides():
    def row(rate, accuracy, seed):
        return {"learning_rate": rate, "accuracy": accuracy, "seed": seed}

    first, second, third = SEARCH_SEEDS
    rows = [row(0.1, 0.8, first), row(0.2, 0.9, first), row(0.4, 0.7, first), row(0.1, 0.8, second)]
    assert finalists(rows) == [0.2, 0.1]
    assert best_rate([*rows, row(0.1, 0.8, third), row(0.2, 0.9, 0)]) == 0.1, "0.2 diverged with two seeds"
    assert best_rate([*rows, row(0.2, 0.8, second)]) == 0.2
    assert best_rate([]) is None


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
    assert table.loc["DGC", ["min", "max"]].tolist() == sorted(compared)
    assert table.loc["DGC", "kB per step"] < table.loc["dense", "kB per step"]


def test_the_search_shows_each_rate_and_what_diverged(finished):
    rows = read_rows(finished[0], {})
    table = search_table(SHORT, [row for row in rows if row["learning_rate"] != 0.2 or row["ratio"] == 1])
    assert list(table.columns) == [0.05, 0.2]
    assert table.loc["dense"].notna().all()
    assert table.loc["DGC"].isna().tolist() == [False, True]


def test_runs_with_seeds_share_a_trace_and_differ(digits):
    trainer_of, losses = simulated(digits), []
    for seed in (3, 4):
        settings, ratio = SHORT.run("DGC", 0.05, seed)
        trainer = trainer_of(settings)
        losses.append([event.loss for event in trainer.run(ratio) if isinstance(event, DistributedStep)])
    assert trainer.traces == 1
    assert losses[0] != losses[1]


def test_names_of_rows_stay_right_after_a_divergence(digits):
    study = Study({"wild": {}, "dense": {}}, {"workers": 2, "batch": 8, "steps": 30}, (0.05, 1e30), seeds=(0,))
    names, named = study.row_names(), []
    for event in study_events(study, simulated(digits), digits):
        if isinstance(event, RowEnded | RowFailed):
            named.append(names[event.number])
    assert "wild, rate 1e+30" in named
    assert named[-1] == "dense, seed 0"
    assert "dense, rate 0.05" in named


def test_studies_on_ranks_need_the_command():
    with pytest.raises(ValueError, match="study must run on simulated workers"):
        run_study(STUDIES["schemes on ranks"])


def test_a_search_alone_gives_an_empty_table(finished, capsys):
    search = [row for row in read_rows(finished[0], {}) if row["seed"] in SEARCH_SEEDS]
    assert study_table(SHORT, search).empty

    def stopped():
        yield RowEnded(0, search[0], from_file=False)
        raise KeyboardInterrupt

    assert (
        show(stopped(), ["dense, rate 0.05"] * 2, [20, 20], "rows.jsonl", lambda rows: study_table(SHORT, rows)) == 130
    )
    assert "Stopped: 1 of 2 rows finished, saved in rows.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": {}}, "methods must have at least one"),
        ({"rates": ()}, "rates must have at least one"),
        ({"seeds": ()}, "seeds must have at least one"),
        ({"methods": {"bad": {"momentum": 2}}}, "momentum must be"),
        ({"rates": (0.1, -1)}, "rates must be above 0, got -1"),
        ({"rates": (0.1, 0.1)}, "rates must differ from each other"),
        ({"seeds": (1, 1)}, "seeds must differ from each other"),
        ({"methods": {"bad": {"ratio": 2}}}, "ratio must be"),
        ({"methods": {"bad": {"seed": 2}}}, "settings of 'bad' must be one of"),
        ({"common": {"learning_rate": 2}}, "settings of 'common' must be one of"),
        ({"seeds": (0, 100)}, "seeds must differ from those of the search"),
    ],
)
def test_invalid_studies_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        Study(**{"methods": METHODS, "common": {}, "rates": (0.1,), "seeds": (0,), **options})


def test_a_method_may_be_named_common():
    study = Study({"common": {"ratio": 0.01}}, {"steps": 20}, rates=(0.1,))
    settings, ratio = study.run("common", 0.1, 0)
    assert (settings.steps, ratio) == (20, 0.01)
    with pytest.raises(ValueError, match="settings of 'common' must be one of"):
        Study({"common": {}}, {"ratio": 0.01}, rates=(0.1,))


@pytest.mark.parametrize(("common", "workers"), [({}, 2), ({"workers": 3}, 3)])
def test_studies_start_as_many_ranks_as_workers(common, workers, digits, monkeypatch):
    started = []
    monkeypatch.setattr("dgc_lab.cluster.HorovodRanks", lambda size: started.append(size) or contextlib.nullcontext())
    with trainers(Study({"dense": {}}, common, rates=(0.1,), on_ranks=True), digits):
        assert started == [workers]


def test_each_row_has_the_steps_of_its_method():
    study = STUDIES["rates"]
    steps = dict(zip(study.row_names(), study.row_steps(), strict=True))
    assert all(steps[f"{method}, seed 0"] == own["steps"] for method, own in study.methods.items())
    assert len(set(steps.values())) == 4, "1, 2, 4 and 8 workers"


@pytest.mark.parametrize("name", STUDIES)
def test_stored_studies_are_complete(name):
    """Only at rates that are too high for it may a run of a method have diverged."""
    study, rows = STUDIES[name], rows_by_method(STUDIES[name], stored_rows())
    assert list(rows) == list(study.methods)
    for method, own in rows.items():
        seeds = {row["seed"] for row in own}
        assert len(seeds) == len(own)
        assert seeds <= set(study.seeds)
        too_high = study.methods[method].get("learning_rate", 0) >= 0.4
        assert too_high or seeds == set(study.seeds), method


def test_run_study_returns_the_table_of_its_rows(finished, digits):
    again = run_study(SHORT, digits, finished[0])
    expected = study_table(SHORT, read_rows(finished[0], {}))
    assert again.equals(expected)


def test_unwritable_files_are_refused_before_the_study():
    with pytest.raises(ValueError, match=r"out must be writable, got '/proc/rows\.jsonl'"):
        run_study(SHORT, out="/proc/rows.jsonl")
