"""What measures the tests themselves: coverage of killed processes, mutants in forks, lanes of versions."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path

import coverage
import pytest

import full_runs
import measure_coverage
import mutants
import versions

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def own_environment(monkeypatch):
    """Tests that start coverage.py must not start that of a measurement of these tests."""
    for name in [name for name in os.environ if name.startswith("COVERAGE")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tools"))


def test_what_a_killed_process_and_its_fork_ran_is_measured(tmp_path, own_environment):
    script = tmp_path / "endless.py"
    script.write_text(
        textwrap.dedent("""
        import os, time

        def parent():
            return 1

        def child():
            return 2

        parent() if os.fork() else child()
        while True:
            time.sleep(0.05)
        """)
    )
    command = under_coverage(tmp_path, script)
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as process:
        try:
            end = time.monotonic() + 120
            while not {5, 8} <= (ran := lines_run(tmp_path, script)) and time.monotonic() < end:
                time.sleep(0.2)
        finally:
            os.killpg(process.pid, 9)
    assert {5, 8} <= ran


def test_a_fork_ends_though_its_parent_was_saving(tmp_path, own_environment):
    """A lock that another thread held when the process was copied is held for ever in the copy."""
    script = tmp_path / "forked.py"
    script.write_text(
        textwrap.dedent("""
        import os, threading, time, coverage

        def save():
            with coverage.Coverage.current().get_data()._lock:
                saving.set()
                time.sleep(2)

        def end():
            os._exit(0)

        saving = threading.Event()
        threading.Thread(target=save, daemon=True).start()
        saving.wait()
        if child := os.fork():
            os.waitpid(child, 0)
        else:
            end()
        """)
    )
    subprocess.run(under_coverage(tmp_path, script), cwd=tmp_path, timeout=60, check=True)
    assert 10 in lines_run(tmp_path, script)


def under_coverage(folder, script) -> list[str]:
    """The command that measures a script, with what `pyproject.toml` says of forks and of the end of a process."""
    run = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["coverage"]["run"]
    patches = [each for each in run["patch"] if each in ("fork", "_exit")]
    settings = f"[run]\nbranch = true\nparallel = true\npatch = {','.join(patches)}\nplugins = save_often\n"
    (folder / "settings").write_text(settings)
    return [sys.executable, "-m", "coverage", "run", "--rcfile=settings", str(script)]


def lines_run(folder, script) -> set[int]:
    """What all data files in a folder say was run of a script."""
    ran = set()
    for file in folder.glob(".coverage.*"):
        data = coverage.CoverageData(shutil.copy(file, folder / "read"))  # who reads a new file makes its tables
        try:
            data.read()
            ran |= set(data.lines(str(script)) or ())
        except coverage.exceptions.DataError:  # half written at this moment
            continue
    return ran


def test_rooms_of_a_coverage_are_added_up(tmp_path):
    rooms = [
        {"room": "dgc", "lines": 90, "lines_run": 90, "branches": 10, "branches_run": 9},
        {"room": "ui", "lines": 50, "lines_run": 20, "branches": 50, "branches_run": 30},
    ]
    (tmp_path / "coverage.json").write_text(json.dumps({"rooms": rooms}))
    table = measure_coverage.coverage_table(tmp_path / "coverage.json").set_index("room")
    assert table.percent.to_dict() == {"dgc": 99.0, "ui": 50.0, "all": 74.5}
    assert table.loc["all", "lines_run"] == 110


HALF = "def half(x: int | None):\n    return x // 2\n"


def test_a_mutant_is_caught_by_a_failing_or_an_endless_test_and_the_file_comes_back(tmp_path):
    """In a process that has no threads, as the tool itself: it forks."""
    (tmp_path / "half.py").write_text(HALF)
    (tmp_path / "test_half.py").write_text("from half import half\n\ndef test_half():\n    assert half(8) == 4\n")
    code = f"""
        import sys
        from pathlib import Path
        import mutants

        mutants.LOG = Path("log")
        sys.path.insert(0, ".")
        sys.dont_write_bytecode = True
        for new in ("return x // 3", "return x / 2", "while True: pass"):
            mutant = mutants.Mutant("half.py", 2, "return x // 2", new, {HALF!r}.replace("return x // 2", new))
            print(mutants.fails(mutant, ["test_half.py"], {{"cpu_seconds": 10, "clock_seconds": 300}}))
    """
    path = {"PYTHONPATH": str(ROOT / "tools")}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | path, capture_output=True, text=True, timeout=500)
    assert done.stdout.split() == ["True", "False", "True"], done.stderr
    assert (tmp_path / "half.py").read_text() == HALF


def test_a_changed_annotation_is_no_mutant():
    assert mutants.meaning(HALF) == mutants.meaning(HALF.replace("|", "+"))
    assert mutants.meaning(HALF) != mutants.meaning(HALF.replace("//", "/"))


def test_only_the_head_of_a_statement_that_holds_others_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.py").write_text(
        "def f(x):\n    if (\n        x\n    ):\n        return (\n            1\n        )\n"
    )
    lines = {line: list(mutants.statement_at(mutants.Mutant("f.py", line, "", "", ""))) for line in (1, 3, 6)}
    assert lines == {1: [1], 3: [2, 3], 6: [5, 6, 7]}


def test_mutants_that_change_nothing_do_not_count(tmp_path):
    modules = [
        {"module": "a.py", "mutants": 4, "killed": 3, "equivalent": 0, "survived": 1},
        {"module": "b.py", "mutants": 2, "killed": 1, "equivalent": 1, "survived": 0},
    ]
    (tmp_path / "mutants.json").write_text(json.dumps({"modules": modules}))
    table = mutants.mutants_table(tmp_path / "mutants.json").set_index("module")
    assert table.percent.to_dict() == {"a.py": 75.0, "b.py": 100.0, "all": 80.0}
    assert list(table.loc["all", ["mutants", "killed", "equivalent", "survived"]]) == [6, 4, 1, 1]


def test_survivors_that_are_excused_are_lines_that_are_there():
    for each in tomllib.loads(mutants.SETTINGS.read_text())["equivalent"]:
        lines = (ROOT / "dgc_lab" / "compression" / each["module"]).read_text().splitlines()
        assert each["old"] in {line.strip() for line in lines}, each
        assert each["reason"]


def test_a_lane_counts_what_pytest_reports(tmp_path):
    tests = """
        import pytest

        def test_fine(): pass
        def test_wrong(): assert False
        @pytest.mark.skip
        def test_left_out(): pass
        def test_not_run(missing): pass
    """
    (tmp_path / "test_few.py").write_text(textwrap.dedent(tests))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    output = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300).stdout
    counts = versions.counts(tmp_path / "report.xml")
    assert counts.pop("names") == ["test_few.test_wrong", "test_few.test_not_run"]
    assert counts == {"passed": 1, "skipped": 1, "failed": 2}
    assert full_runs.counts(output + output) == {"passed": 2, "skipped": 2, "failed": 4}, "the two parts of a run"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository whose tests are run by what is written to its `.ci/run`, for `full_runs`."""
    root = tmp_path / "repository"
    (root / ".ci").mkdir(parents=True)
    (root / ".ci" / "run").touch(mode=0o755)
    monkeypatch.setattr(full_runs, "ROOT", root)
    monkeypatch.setattr(full_runs, "WORK", root / "build")
    monkeypatch.setattr(full_runs, "RESULTS", root / "rows.jsonl")
    return root


def commit(repository, script):
    """Write what tests it, and commit all."""
    (repository / ".ci" / "run").write_text("#!/usr/bin/env bash\nset -e\n" + script)
    git = ["git", "-c", "user.name=A", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "Tests"]):
        subprocess.run([*git, *words], cwd=repository, check=True)


def test_full_runs_end_with_the_first_in_which_a_test_fails(tmp_path, repository):
    (repository / "test_once.py").write_text(
        f"from pathlib import Path\n\ndef test_once():\n    Path({str(tmp_path / 'been here')!r}).mkdir()\n"
    )
    commit(repository, f"{sys.executable} -m pytest -p no:cacheprovider\n")
    assert full_runs.main(["3"]) == 1
    table = full_runs.full_runs_table()
    assert table[["passed", "failed"]].values.tolist() == [[1, 0], [0, 1]]
    assert "FileExistsError" in max(full_runs.WORK.glob("*.log")).read_text()


def test_a_full_run_that_does_not_come_to_its_end_has_no_row(repository):
    commit(repository, "echo no network; exit 2\n")
    with pytest.raises(SystemExit, match="the tests did not come to their end, see "):
        full_runs.main(["1"])
    assert not full_runs.RESULTS.exists()


@pytest.mark.parametrize("wrong", [[], ["0"], ["-1"], ["ten"], ["1", "2"]])
def test_the_number_of_full_runs_is_checked(wrong):
    with pytest.raises(SystemExit, match="RUNS must be one whole number from 1, got "):
        full_runs.main(wrong)


def test_every_lane_is_run_every_night():
    import yaml

    nightly = yaml.safe_load((ROOT / ".github" / "workflows" / "nightly.yml").read_text())
    matrix = nightly["jobs"]["versions"]["strategy"]["matrix"]
    assert {f"{python}-{end}" for python in matrix["python"] for end in matrix["end"]} == set(versions.LANES)


@pytest.mark.parametrize(
    ("tool", "table", "first"),
    [
        (full_runs, "full_runs_table", "began"),
        (versions, "versions_table", "lane"),
        (mutants, "mutants_table", "module"),
        (measure_coverage, "coverage_table", "room"),
    ],
)
def test_what_was_measured_is_shown_as_a_table(tool, table, first):
    if not tool.RESULTS.exists():
        pytest.skip(f"not measured yet: {tool.RESULTS.name}")
    assert getattr(tool, table)()[first].is_unique


def test_an_unknown_lane_or_room_is_told():
    with pytest.raises(SystemExit, match="LANE must be one of 3"):
        versions.main(["3.10-oldest"])
    with pytest.raises(SystemExit, match="ROOM must be one of aggregation"):
        measure_coverage.main(["kitchen"])
