"""The soak for four short rounds, for real: it finds what grows, and the lab gives back what a round took."""

import os
import random
from pathlib import Path

import psutil
import pytest

import soak

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """The rows of four rounds without a browser and without grading, and what was there before and after."""
    out = tmp_path_factory.mktemp("soak") / "soak.jsonl"
    out.write_text('{"round": 1}\n')
    before = set(psutil.Process().children(recursive=True)), dict(os.environ)
    rows = soak.soak(1, out, rounds=4, say=lambda *_, **__: None, browser=False, course=False)
    return rows, out, before, (set(psutil.Process().children(recursive=True)), dict(os.environ))


@pytest.mark.long
def test_a_round_gives_back_what_it_took(rounds):
    """What is loaded and kept for good comes in the first rounds; what each round leaves behind would show twice."""
    _, second, _, fourth = rounds[0]
    for name in (*soak.COUNTED, "files"):
        assert fourth[name] < second[name] + 2, name


@pytest.mark.long
def test_the_rows_are_in_the_file_and_nothing_else_is_left(rounds):
    rows, out, before, after = rounds
    assert soak.read(out) == rows
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert all(row["kernel MB"] > 100 and row["all MB"] >= row["kernel MB"] for row in rows)
    assert after == before


@pytest.mark.long
def test_the_table_and_the_picture_say_what_was_measured(rounds):
    rows = rounds[0]
    table = soak.table(rows).set_index("")
    assert table.loc["kernel MB", "at the end"] == rows[-1]["kernel MB"]
    assert table.loc["processes", "more each hour"] == pytest.approx(0, abs=1e-6)
    picture = soak.picture(rows)
    assert picture.alt.startswith("4 rounds in ")
    drawn = picture.figure.axes[0].lines[0].get_ydata()
    assert list(drawn) == [row["kernel MB"] for row in rows]
    assert f"processes from {rows[0]['processes']:g} to {rows[-1]['processes']:g}" in picture.alt


def grown(each_hour, noise=3.0, rounds=60):
    """Rows of two hours: a rise in the first tenth, as when things load, then a leak of so many MB an hour."""
    chance = random.Random(0)
    hours = [2 * (number + 1) / rounds for number in range(rounds)]
    return [
        {"hours": at, "kernel MB": 900 - 500 * max(0, 1 - at / 0.2) + each_hour * at + chance.uniform(-noise, noise)}
        for at in hours
    ]


@pytest.mark.parametrize("leak", [5.0, 20.0, 300.0])
def test_a_leak_is_found(leak):
    assert soak.slope(grown(leak)) == pytest.approx(leak, abs=2)


def test_flat_is_called_flat():
    assert abs(soak.slope(grown(0, noise=0))) < 1e-6
    assert abs(soak.slope(grown(0))) < 2


LEAKING = "import soak_round\nkept = []\nsoak_round.sweeps = lambda: kept.append(b'x' * 10**8)"


def test_a_kernel_that_keeps_what_it_makes_is_seen_to_grow(tmp_path, monkeypatch):
    """A planted leak, of 100 MB a round, through the same measuring."""
    monkeypatch.setattr(soak, "IN_KERNEL", ("sweeps",))
    start = soak.Kernel.__init__

    def planted(kernel, folder):
        start(kernel, folder)
        kernel.run(LEAKING)

    monkeypatch.setattr(soak.Kernel, "__init__", planted)
    quiet = {"say": lambda *_, **__: None, "browser": False, "course": False}
    rows = soak.soak(1, tmp_path / "rows.jsonl", rounds=6, **quiet)
    rows = [row | {"hours": row["round"]} for row in rows]  # by rounds: a busy machine holds some of them up
    assert soak.slope(rows) * 5 == pytest.approx(500, rel=0.2)


def test_an_error_in_the_kernel_ends_it_and_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "IN_KERNEL", ("nothing_of_that_name",))
    before = set(psutil.Process().children(recursive=True))
    (tmp_path / "rows.jsonl").write_text('{"round": 1}\n')
    with pytest.raises(RuntimeError, match="nothing_of_that_name"):
        soak.soak(1, tmp_path / "rows.jsonl", rounds=1, browser=False, course=False)
    assert set(psutil.Process().children(recursive=True)) == before
    assert soak.read(tmp_path / "rows.jsonl") == [{"round": 1}], "a soak without a round takes nobody's place"


def test_the_committed_rows_are_of_one_soak():
    """But for threads and descriptors: a kernel of JupyterLab keeps some for each page that was opened."""
    if not soak.ROWS.exists():
        pytest.skip("no soak has been run")
    rows = soak.read()
    assert [row["round"] for row in rows] == list(range(1, len(rows) + 1))
    assert Path(soak.PICTURE).exists()
    assert {row["processes"] for row in rows[1:]} == {rows[1]["processes"]}
    assert {row["files"] for row in rows[1:]} == {rows[1]["files"]}
    assert soak.slope(rows) < 20, "MB more each hour in the kernel; what TensorFlow keeps of cells came to 50"
