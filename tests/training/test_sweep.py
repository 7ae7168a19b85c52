"""Sweeps: rows are saved as they finish, resumed after a kill and never mixed; plus the command line."""

import dataclasses
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
import weakref

import numpy as np
import pandas as pd
import pytest

from dgc_lab.__main__ import main
from dgc_lab.cluster import RankFailed
from dgc_lab.common import LabError, free_memory
from dgc_lab.distributed import HorovodWorkers
from dgc_lab.terminal import show
from dgc_lab.training import published_tables as published
from dgc_lab.training.distributed_trainer import DistributedConfig, DistributedTrainer
from dgc_lab.training.events import Step
from dgc_lab.training.masking_trainer import MaskingConfig, Trainer
from dgc_lab.training.sweeps import (
    RowEnded,
    RowFailed,
    RowStarted,
    append_row,
    checked_ratios,
    configuration,
    parse_ratios,
    read_rows,
    sweep,
    table,
    train_each,
)

SHORT = MaskingConfig(steps=5, batch=16, evaluations=1)


def rows_of(events):
    return [event.row for event in events if isinstance(event, RowEnded)]


def without_time(row):
    return {name: value for name, value in row.items() if name not in ("seconds", "started")}


def cli(*arguments, **options):
    command = [sys.executable, "-m", "dgc_lab", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def test_row_records_its_full_configuration(digits, tmp_path):
    file = tmp_path / "new folder" / "rows.jsonl"
    (row,) = rows_of(sweep(SHORT, [0.1], file, digits))
    assert row == json.loads(file.read_text())
    assert row.items() >= {**dataclasses.asdict(SHORT), "model": "digits_cnn", "ratio": 0.1}.items()
    assert 0 <= row["accuracy"] <= 1
    assert 0.09 < row["share sent"] < 0.12
    assert row["seconds"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row["started"])


def test_finished_rows_are_read_from_the_file(digits, tmp_path):
    file = tmp_path / "rows.jsonl"
    first = rows_of(sweep(SHORT, [1, 0.1], file, digits))
    events = list(sweep(SHORT, [1, 0.1, 0.01], file, digits))
    assert [event.from_file for event in events if isinstance(event, RowEnded)] == [True, True, False]
    assert rows_of(events)[:2] == first
    assert len(file.read_text().splitlines()) == 3
    assert [event.number for event in events if isinstance(event, RowStarted)] == [0, 1, 2]


def test_file_is_read_once_for_all_ratios(digits, tmp_path, monkeypatch):
    reads = []
    monkeypatch.setattr("dgc_lab.training.sweeps.read_rows", lambda *given: reads.append(given) or [])
    sweep(SHORT, [1, 0.1, 0.01], tmp_path / "rows.jsonl", digits)
    assert len(reads) == 1


def test_rows_of_another_configuration_are_not_reused(digits, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows_of(sweep(SHORT, [1], file, digits))
    for change in ({"seed": 1}, {"rule": "exact"}, {"steps": 6}, {"learning_rate": 0.01}, {"evaluations": 2}):
        events = list(sweep(dataclasses.replace(SHORT, **change), [1], file, digits))
        assert not events[-1].from_file
    other = dataclasses.replace(digits, y_train=digits.y_train[::-1].copy())
    assert not list(sweep(SHORT, [1], file, other))[-1].from_file
    assert list(sweep(SHORT, [1], file, digits))[-1].from_file


def test_stop_keeps_only_finished_rows(digits, tmp_path):
    file = tmp_path / "rows.jsonl"
    events = sweep(SHORT, [1, 0.1, 0.01], file, digits)
    for event in events:
        if isinstance(event, Step) and len(read_rows(file, {})) == 1 and event.step == 3:
            events.close()
    assert [row["ratio"] for row in read_rows(file, {})] == [1]


def test_killed_sweep_resumes_with_the_same_rows(tmp_path):
    """Kill a process with SIGKILL in the middle of a row, then repeat the call."""
    file, whole = tmp_path / "rows.jsonl", tmp_path / "whole.jsonl"
    options = ["--steps", "600", "--ratios", "1,0.1,0.01", "--evaluations", "1", "--rule", "exact"]
    process = subprocess.Popen(
        [sys.executable, "-m", "dgc_lab", "sweep", *options, "--out", str(file)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    end = time.monotonic() + 120
    while not (file.exists() and file.read_text().count("\n") >= 1):
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    process.wait()
    before = file.read_text()
    assert 1 <= before.count("\n") < 3
    assert main(["sweep", *options, "--out", str(file)]) == 0
    assert main(["sweep", *options, "--out", str(whole)]) == 0
    assert file.read_text().startswith(before), "finished rows were made again"
    resumed, straight = read_rows(file, {}), read_rows(whole, {})
    assert [without_time(row) for row in resumed] == [without_time(row) for row in straight]


def test_half_written_row_is_dropped_but_a_complete_one_is_kept(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"ratio": 1}\n{"ratio": 0.1, "acc')
    assert read_rows(file, {}) == [{"ratio": 1}]
    append_row(file, {"ratio": 0.5})
    assert read_rows(file, {}) == [{"ratio": 1}, {"ratio": 0.5}]
    file.write_text('{"ratio": 1}')
    assert read_rows(file, {}) == [{"ratio": 1}]
    append_row(file, {"ratio": 0.5})
    assert read_rows(file, {}) == [{"ratio": 1}, {"ratio": 0.5}]


def test_damaged_file_error_names_the_line_and_the_fix(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"ratio": 1}\n{"rat\x9a\x00": 0.1}\n{"ratio": \xff\xfe\n{"ratio": 0.5}\n')
    with pytest.raises(ValueError, match=r"line 2 of .*rows\.jsonl is not a row .*remove it to resume the sweep"):
        read_rows(file, {})
    folder = tmp_path / "folder.jsonl"
    folder.mkdir()
    words = r"file must be a file, or not exist yet, got .*folder\.jsonl': choose another"
    with pytest.raises(ValueError, match=words):
        read_rows(folder, {})
    with pytest.raises(LabError, match=r"folder\.jsonl cannot be .* \(Is a directory\).*run the same call again"):
        append_row(folder, {"ratio": 1})


def test_unrelated_files_are_never_appended_to(digits, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("my notes\nmore of them\n")
    with pytest.raises(ValueError, match=r"line 1 of .*notes\.txt is not a row of a sweep: 'my notes'"):
        sweep(SHORT, [1], file, digits)
    assert file.read_text() == "my notes\nmore of them\n"
    for text in ("one line", '[{"my": "data"}]', '{"my": "data"}', '{"my": "data"}\n'):
        file.write_text(text)
        with pytest.raises(ValueError, match=r"line 1 of .*notes\.txt is not a row"):
            sweep(SHORT, [1], file, digits)
        assert file.read_text() == text


def test_settings_accept_numpy_numbers(digits, tmp_path):
    typed = {"steps": np.int64(5), "batch": np.int32(16), "seed": np.array(0), "learning_rate": np.float32(0.05)}
    (row,) = rows_of(sweep(MaskingConfig(**typed, evaluations=1), [0.1], tmp_path / "rows.jsonl", digits))
    assert [row["steps"], row["batch"], row["seed"]] == [5, 16, 0]
    assert row["learning_rate"] == pytest.approx(0.05)


def test_sweep_left_at_a_row_does_not_defer_interrupts(digits):
    events = sweep(SHORT, [0.1], data=digits)
    assert not next(event for event in events if isinstance(event, RowEnded)).from_file
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_row_is_printed_when_it_cannot_be_saved(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n" * 4990)  # the check before the training finds space, and the row does not fit
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (5000, 5000))
    done = cli("sweep", "--ratios", "1", "--steps", "2", "--out", str(file), preexec_fn=limit)
    assert done.returncode == 1
    assert f"error: {file} cannot be written (File too large)" in done.stderr
    assert done.stdout.splitlines()[1].split()[0] == "1.0"


def test_diverged_ratio_is_reported_and_the_others_train(digits, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    wild = dataclasses.replace(SHORT, steps=50, learning_rate=1e6)
    events = list(sweep(wild, [0, 1, 0.5], file, digits))
    failed = [event for event in events if isinstance(event, RowFailed)]
    assert [event.ratio for event in failed] == [1, 0.5]
    assert re.match(r"step \d+, ratio 1: gradient of .* holds (NaN|Inf)", failed[0].reason)
    assert [row["ratio"] for row in read_rows(file, {})] == [0]
    assert main(["sweep", "--ratios", "1,0", "--learning-rate", "1e6", "--steps", "50"]) == 1
    printed = capsys.readouterr()
    assert "error: step" in printed.err
    assert printed.out.splitlines()[1].split()[0] == "0.0"


def test_trainer_must_match_the_sweep_settings(digits, tmp_path):
    other = Trainer(dataclasses.replace(SHORT, seed=1), digits)
    with pytest.raises(ValueError, match="trainer must have the settings of the sweep"):
        sweep(SHORT, [1], trainer=other)
    own = Trainer(SHORT, digits, masks=lambda gradients, ratio, seed: [g > 0 for g in gradients])
    with pytest.raises(ValueError, match="out must be None"):
        sweep(SHORT, [1], tmp_path / "rows.jsonl", trainer=own)


def sweep_on_rank():
    settings = DistributedConfig(steps=2)
    return list(sweep(settings, [1.0], trainer=DistributedTrainer(settings, HorovodWorkers())))


def test_sweep_rejects_a_trainer_of_one_rank(two_ranks):
    """Only the first rank evaluates, so the others had no row."""
    with pytest.raises(RankFailed, match="trainer must train all workers in this process: use TrainerOnRanks"):
        two_ranks.run(sweep_on_rank)


def test_only_one_trainer_is_in_memory(digits):
    made = []

    def trainer_of(settings):
        free_memory()
        assert not any(trainer() for trainer in made)
        trainer = Trainer(settings, digits)
        made.append(weakref.ref(trainer))
        return trainer

    rows = rows_of(train_each([(dataclasses.replace(SHORT, seed=seed), 0.1) for seed in (0, 1)], trainer_of, digits))
    assert [row["seed"] for row in rows] == [0, 1]


@pytest.mark.parametrize(
    ("ratios", "message"),
    [([], "at least one"), ([0.1, 2], "got 2"), ([0.1, 0.1], "0.1 more than once"), (["a"], "a number"), (3, "a list")],
)
def test_invalid_ratios_are_rejected_immediately(digits, ratios, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        sweep(SHORT, ratios, tmp_path / "rows.jsonl", digits)
    assert not list(tmp_path.iterdir())


def test_ratios_are_parsed_from_text():
    assert parse_ratios("1, 10%;1% .001 0") == [1, 0.1, 0.01, 0.001, 0]
    assert parse_ratios("0.1%, 0.9%, 5%") == [0.001, 0.009, 0.05]
    assert checked_ratios(iter((1, 0.5))) == [1, 0.5]
    for text in ("", "a", "1,2", "0.1 10%", "%", "nan", "-0.1", "0,01", "0,05%"):
        with pytest.raises(ValueError, match="ratios must"):
            parse_ratios(text)


def test_table_shows_the_settings_that_differ(digits):
    rows = rows_of(sweep(SHORT, [0.1, 1], data=digits))
    assert list(table(rows).columns) == ["ratio", "accuracy", "loss", "share sent", "seconds"]
    assert table(rows)["ratio"].tolist() == [1, 0.1]
    rows += rows_of(sweep(dataclasses.replace(SHORT, momentum=0), [1], data=digits))
    assert table(rows)["momentum"].tolist() == [0.9, 0, 0.9]
    assert table([]).empty
    older = {"ratio": 1.0, "accuracy": 0.9}
    assert "scheme" not in table([older, {**older, "scheme": "dgc"}])
    assert table([older, {**older, "scheme": "sign"}])["scheme"].tolist() == ["dgc", "sign"]


def test_published_accuracy_is_added_only_to_mnist_rows():
    rows = [
        {"dataset": "mnist", "ratio": 0.001, "accuracy": 0.5},
        {"dataset": "mnist", "ratio": 0.7, "accuracy": 0.5},
        {"dataset": "digits", "ratio": 0.001, "accuracy": 0.5},
    ]
    frame = published.beside_published([{**configuration_defaults(), **row} for row in rows])
    assert frame["published accuracy"].fillna(-1).tolist() == [-1, 0.4099, -1]
    assert frame["dataset"].tolist() == ["mnist", "mnist", "digits"]
    assert len(published.SINGLE_NODE) == 12


def configuration_defaults():
    return {**dataclasses.asdict(SHORT), "loss": 1.0, "share sent": 1.0, "seconds": 1.0}


def test_configuration_covers_every_setting(digits):
    names = {field.name for field in dataclasses.fields(MaskingConfig)}
    assert set(configuration(SHORT, digits)) == names | {"model", "data"}


@pytest.mark.nightly
def test_cli_sweep_accuracy_falls_with_the_ratio(tmp_path):
    out = tmp_path / "rows.jsonl"
    options = ["--dataset", "digits", "--ratios", "1,0.1,0.01,0.001,0", "--steps", "300", "--out", str(out)]
    done = cli("sweep", *options)
    assert done.returncode == 0, done.stderr
    accuracies = [float(line.split()[1]) for line in done.stdout.splitlines()[1:]]
    assert len(accuracies) == 5
    assert accuracies[0] > 0.95
    assert accuracies[0] >= accuracies[1] - 0.02 > accuracies[2] > accuracies[3] > accuracies[4]
    assert "ratio 0.01" in done.stderr, "the progress bar must name the ratio"
    assert len(read_rows(out, {})) == 5


def check_one_line(printed, message):
    last = printed.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert message in last
    assert "Traceback" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sweep", "--ratios", "1,3"], "ratios must be in [0, 1], got 3.0"),
        (["sweep", "--dataset", "cifar"], "dataset must be one of digits, mnist1d, python_reference, mnist"),
        (["sweep", "--steps", "0"], "steps must be a whole number of at least 1, got 0"),
        (["sweep", "--dataset", "mnist", "--data", "/nowhere"], "no MNIST file /nowhere"),
        (["sweep", "--out", "/proc/none/rows.jsonl"], "/proc/none"),
    ],
)
def test_cli_errors_are_one_line(arguments, message, capsys):
    assert main(arguments) == 1
    check_one_line(capsys.readouterr().err, message)


@pytest.mark.nightly
def test_cli_error_prints_one_line_and_exits_with_1():
    done = cli("sweep", "--ratios", "1,3")
    assert done.returncode == 1
    check_one_line(done.stderr, "ratios must be in [0, 1], got 3.0")


def test_ctrl_c_during_imports_prints_one_line(tmp_path):
    """Users press Ctrl-C while TensorFlow is importing when they notice a typo in an option."""
    (tmp_path / "tensorflow.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(9)"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = cli("sweep", env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 130
    assert done.stderr == "Stopped. The same command continues from the saved state.\n"


@pytest.mark.nightly_except("Ctrl-C")
@pytest.mark.parametrize(
    ("number", "started"),
    [(signal.SIGINT, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_DFL), (signal.SIGTERM, signal.SIG_IGN)],
    ids=["Ctrl-C", "kill", "kill in the background"],
)
def test_ctrl_c_keeps_rows_and_says_how_to_continue(tmp_path, number, started):
    """Scripts start background jobs (``&``) that ignore Ctrl-C; ``kill`` must still end them."""
    out = tmp_path / "rows.jsonl"
    command = [sys.executable, "-m", "dgc_lab", "sweep", "--ratios", "1,0.1", "--steps", "1500", "--out", str(out)]
    before = functools.partial(signal.signal, signal.SIGINT, started)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before)
    end = time.monotonic() + 120
    while not out.exists() or not out.read_text():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(number)
    printed, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed.splitlines()[1].split()[0] == "1.0"
    assert f"1 of 2 rows finished, saved in {out}" in errors


def test_interrupt_in_a_destructor_is_not_lost():
    code = """
        import signal, sys, time
        from dgc_lab.__main__ import status_of, treat_sigterm_as_ctrl_c

        class Dies:
            def __del__(self):
                signal.raise_signal(signal.SIGTERM)

        def work():
            Dies()
            time.sleep(30)

        treat_sigterm_as_ctrl_c()
        sys.exit(status_of(work))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=29)
    assert (done.returncode, done.stderr) == (130, "Stopped. The same command continues from the saved state.\n")


def test_ctrl_c_during_a_write_still_prints_the_row(tmp_path, monkeypatch, capsys):
    def interrupted(file, row):
        append_row(file, row)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("dgc_lab.training.sweeps.append_row", interrupted)
    out = tmp_path / "rows.jsonl"
    assert main(["sweep", "--ratios", "1,0.1", "--steps", "2", "--out", str(out)]) == 130
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].split()[0] == "1.0"
    assert "1 of 2 rows finished" in printed.err
    assert [row["ratio"] for row in read_rows(out, {})] == [1]


def test_killed_ranks_are_reported_and_rows_are_printed(capsys):
    def events():
        yield RowEnded(0, {"ratio": 1.0, "accuracy": 0.5}, from_file=False)
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            raise LabError("the ranks did not stop within 5 s and were killed")

    assert show(events(), ["ratio 1", "ratio 0.1"], [2, 2], "rows.jsonl", pd.DataFrame) == 130
    printed = capsys.readouterr()
    assert printed.out.split() == ["ratio", "accuracy", "1.0", "0.5"]
    assert "error: the ranks did not stop within 5 s and were killed" in printed.err
    assert "1 of 2 rows finished, saved in rows.jsonl; the same command trains the others" in printed.err


def test_distributed_settings_are_rejected():
    """Rows would be labelled DGC on two workers but hold results of masking on one."""
    with pytest.raises(ValueError, match="settings must be a plain MaskingConfig, got DistributedConfig: use"):
        sweep(DistributedConfig(steps=2), [1.0])
    with pytest.raises(ValueError, match="settings must be a plain MaskingConfig"):
        Trainer(DistributedConfig(steps=2))


@pytest.mark.parametrize("out", ["/proc/rows.csv", "/proc/new/rows.csv"])
def test_unwritable_files_are_refused_before_training(out, digits, capsys):
    """Otherwise the first row would be trained in vain."""
    with pytest.raises(ValueError, match=f"out must be writable, got '{out}' .*: choose another"):
        sweep(SHORT, [1], out, digits)
    assert main(["sweep", "--steps", "5", "--ratios", "1,0.1", "--out", out]) == 1
    printed, errors = capsys.readouterr()
    assert printed == ""
    assert re.search(rf"^error: out must be writable, got '{out}'", errors, re.MULTILINE)
    assert "resumes" not in errors


def test_a_full_disk_is_noticed_before_training(digits, tmp_path):
    """An empty file still fits on a full disk; a limit on file sizes stands for one here."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(ValueError, match=r"out must be writable, got '.*rows.jsonl' \(File too large\)"):
            sweep(SHORT, [1], tmp_path / "rows.jsonl", digits)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(rows_of(sweep(SHORT, [1], tmp_path / "rows.jsonl", digits))) == 1


def test_existing_rows_survive_the_check_for_writing(digits, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows_of(sweep(SHORT, [1], file, digits))
    before = file.read_bytes()
    sweep(SHORT, [0.1], file, digits)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
