"""Studies of training modes: the search for each way's rate, the compared seeds, and the stored rows."""

import itertools

import numpy as np
import pytest

from dgc_lab.common import results_file
from dgc_lab.parameter_server import mode_study
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.mode_study import (
    MODE_STUDIES,
    SEARCH_SEEDS,
    SEEDS,
    best_rate,
    rows_in,
    stored_mode_search,
    stored_modes,
    study_rows,
    train_in_study,
)

STORED = rows_in(results_file("modes.jsonl"))


@pytest.mark.parametrize("name", MODE_STUDIES)
def test_stored_rows_match_the_settings(name):
    """All rows of a study are found, so none is trained again."""
    wanted = len(MODE_STUDIES[name].ways) * (len(MODE_STUDIES[name].rates) * len(SEARCH_SEEDS) + len(SEEDS))
    rows = list(study_rows(name, STORED))
    assert len(rows) == wanted
    assert all(row in STORED for row in rows)


def test_all_stored_rows_belong_to_a_study():
    used = list(itertools.chain.from_iterable(study_rows(name, STORED) for name in MODE_STUDIES))
    assert [row for row in STORED if row not in used] == []


@pytest.mark.parametrize("name", MODE_STUDIES)
def test_compared_runs_use_other_seeds_and_the_best_rate(name):
    table, search = stored_modes(name), stored_mode_search(name, MODE_STUDIES[name].objective)
    assert list(search.index) == list(MODE_STUDIES[name].ways)
    for way, runs in table.groupby("way"):
        assert runs["seed"].tolist() == list(SEEDS)
        assert set(runs["learning_rate"]) == {search.loc[way].idxmin()}


@pytest.mark.parametrize("name", MODE_STUDIES)
def test_best_rates_are_inside_the_searched_range(name):
    """A rate at the edge would mean that a better one may lie outside."""
    search = stored_mode_search(name, MODE_STUDIES[name].objective)
    assert set(search.idxmin(axis="columns")) <= set(list(search.columns)[1:-1])


def test_rate_with_a_failed_seed_is_not_the_best():
    study = MODE_STUDIES["GAN"]
    values = {rate: [0.5, 0.5, 0.5] for rate in study.rates}
    values[study.rates[1]], values[study.rates[2]] = [0.1, 0.1, None], [0.4, 0.4, 0.4]
    tried = [{"learning_rate": rate, study.objective: value} for rate, each in values.items() for value in each]
    assert best_rate(study, tried) == study.rates[2]


def test_study_uses_best_rate_and_retrains_changed_settings(monkeypatch):
    """Both ways of a tiny study are trained once, and only the changed one again."""
    ways = {name: (1, AsyncConfig(gradients=gradients, batch=4)) for name, gradients in (("short", 2), ("long", 4))}
    tiny = mode_study.ModeStudy(
        ways, (0.1, 0.2), mode_study.StepCosts(1.0), mode_study.ring, mode_study.gan_outcome, "energy distance"
    )
    monkeypatch.setitem(MODE_STUDIES, "tiny", tiny)
    rows = list(study_rows("tiny", []))
    assert len(rows) == 2 * (2 * len(SEARCH_SEEDS) + len(SEEDS))
    for way in ways:
        own = [row for row in rows if row["way"] == way]
        means = {
            rate: np.mean([row["energy distance"] for row in own[:6] if row["learning_rate"] == rate])
            for rate in tiny.rates
        }
        assert {row["learning_rate"] for row in own[6:]} == {min(means, key=means.get)}
        assert [row["seed"] for row in own[6:]] == list(SEEDS)
    assert list(study_rows("tiny", rows)) == rows
    ways["long"] = (1, AsyncConfig(gradients=6, batch=4))
    again = list(study_rows("tiny", rows))
    assert [row for row in again if row["way"] == "short"] == [row for row in rows if row["way"] == "short"]
    assert {row["updates"] for row in again if row["way"] == "long"} == {6}


def test_repeated_run_gives_the_stored_result():
    """On this kind of processor weights may differ in the last bits; after few hundred updates scores hardly do."""
    way = "synchronous, 4 workers"
    training = train_in_study("GAN", way, seed=0)
    stored = stored_modes("GAN").query("way == @way and seed == 0").iloc[0]
    assert training.end.version == stored["updates"]
    assert training.scores[-1].seconds == pytest.approx(stored["seconds"], abs=0.01)
    again = mode_study.gan_outcome(training)
    assert again["energy distance"] == pytest.approx(stored["energy distance"], abs=0.05)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stored_modes("gan"), "name must be one of time to accuracy, staleness, GAN, got 'gan'"),
        (
            lambda: stored_mode_search("GAN", "seed"),
            "score must be one of modes covered, good samples, energy",
        ),
        (lambda: stored_mode_search("x", "error"), "name must be one of time to accuracy, staleness, GAN, got 'x'"),
        (lambda: train_in_study("GAN", "alone"), "way must be one of synchronous, 2 workers, .*, got 'alone'"),
        (lambda: train_in_study("GAN", "synchronous, 2 workers", seed=-1), "seed must be a whole number from 0"),
    ],
)
def test_unknown_studies_ways_and_seeds_are_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()
