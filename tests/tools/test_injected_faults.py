"""The tool that strikes: its faults are the same for a seed, it goes on, and it sees every promise that is broken."""

import signal
import sys
from dataclasses import replace

import pytest

from faults import __main__ as tool
from faults import plan, strikes, table, verdict, works
from faults.plan import Fault, fault

# Three rows by way of the lab, without the seconds that TensorFlow takes to be there; what is planted comes before.
PROGRAM = """
import json, os, subprocess, sys, time
from pathlib import Path
from dgc_lab.__main__ import status_of, treat_sigterm_as_ctrl_c
from dgc_lab.training.sweeps import append_row, read_rows
file = sys.argv[1]
def rows():
    {planted}
    for number in range(len(read_rows(file, {{}})), 3):
        time.sleep(0.3)
        append_row(file, {{"ratio": float(number), "accuracy": number / 8}})
    return 0
treat_sigterm_as_ctrl_c()
sys.exit(status_of(rows))
"""
LATER = "second = Path('second').exists(); Path('second').touch()\n    if second: "
PLANTED = {
    "left": "subprocess.Popen(['sleep', '99'], start_new_session=True)",
    "left in the folder": "Path(file).with_suffix('.unfinished').touch()",
    "rows": LATER + "return Path(file).write_text('')",
    "rows that differ": LATER + "append_row(file, {'ratio': 7.0})",
    "hang": LATER + "time.sleep(99)",
    "message": LATER + "raise KeyError('bare')",
}


def program(planted="pass"):
    return works.Work((sys.executable, "-c", PROGRAM.format(planted=planted), "OUT/rows.jsonl"))


def struck(kind, work=None, name="sweep", after=0.5, lasts=1.0):
    for _ in range(3):  # a test that loses its turn comes too late
        row = verdict.strike(Fault(0, 0, kind, name, after, 0.3, lasts, 0.5), work)
        if not row["struck"].startswith("nothing"):
            break
    return row


def test_a_fault_is_the_same_for_the_same_seed_and_number():
    drawn = [fault(seed, number) for seed in (0, 1) for number in range(200)]
    assert drawn == [fault(seed, number) for seed in (0, 1) for number in range(200)]
    assert len(set(drawn)) == 400
    assert {each.kind for each in drawn} == set(plan.KINDS) == set(strikes.STRIKES)
    assert {each.work for each in drawn} == set(works.WORKS)
    assert all(1 <= each.lasts <= 20 and each.work in plan.KINDS[each.kind] for each in drawn)
    assert (drawn[0].kind, drawn[0].work) == ("link lost", "two hosts"), "on every machine"


def test_a_real_sweep_keeps_what_is_promised():
    row = struck("kill")
    assert row["verdict"] == "kept", row
    assert not row["struck"].startswith("nothing")
    assert row["checked"][-2:] == ["the same call came to the same end", "nothing was left behind"]


@pytest.mark.parametrize("kind", ["stop", "interrupt", "garbled file", "read-only disk"])
def test_rows_of_the_lab_survive(kind):
    row = struck(kind, program())
    if row["verdict"] == "left out":
        pytest.skip(row["message"])
    assert row["verdict"] == "kept", row
    assert not row["struck"].startswith("nothing")


def test_what_is_killed_for_its_memory_was_not_struck_too_late():
    row = verdict.strike(Fault(0, 0, "memory short", "sweep", 0.5, 0.3, 1.0, 0.5), replace(program(), megabytes=4))
    if row["verdict"] == "left out":
        pytest.skip(row["message"])
    assert (row["verdict"], row["struck"]) == ("kept", "gave it little memory"), row


def test_who_says_so_may_end_by_the_interrupt_itself():
    """As Python does where the interrupt met code that TensorFlow runs by itself; a shell calls both 130."""
    ends = "import atexit; atexit.register(lambda: len(read_rows(file, {})) < 3 and os.kill(os.getpid(), 2))"
    row = struck("interrupt", program(f"{ends}; import signal; atexit.register(signal.signal, 2, signal.SIG_DFL)"))
    assert row["verdict"] == "kept", row
    assert "it said what happened and what to do" in row["checked"]


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_seen(planted, monkeypatch):
    ordinary = verdict.undisturbed(program())
    monkeypatch.setattr(verdict, "undisturbed", lambda work: ordinary)
    monkeypatch.setattr("faults.traces.SECONDS_TO_END", 0.5)
    if planted == "hang":
        monkeypatch.setattr(works, "LIMIT", 8)
    row = struck("stop" if "left" in planted else "kill", program(PLANTED[planted]))
    assert (row["verdict"], row["broken"]) == ("broken", planted.split()[0]), row


def test_it_goes_on_where_it_was_and_sums_up(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(works.WORKS, "light", program())
    monkeypatch.setattr(tool, "fault", lambda seed, number: Fault(seed, number, "kill", "light", 0.5, 0.3, 1.0, 0.5))
    file = tmp_path / "faults.jsonl"
    assert tool.main(["1", "--out", str(file)]) == 0
    first = file.read_text()
    file.write_text(first + '{"seed": 0, "num')
    handler = signal.getsignal(signal.SIGINT)
    assert tool.main(["2", "--out", str(file)]) == 0
    assert signal.getsignal(signal.SIGINT) is handler
    assert file.read_text().startswith(first)
    assert [row["number"] for row in table.read(file)] == [0, 1]
    frame = table.by_kind(file).set_index("kind")
    assert frame.loc["all", ["faults", "rows lost", "hangs", "left behind", "failures"]].tolist() == [2, 0, 0, 0, 0]
    table.add({**table.read(file)[0], "number": 2, "verdict": "broken", "broken": "rows"}, file)
    assert table.by_kind(file).set_index("kind").loc["kill", ["faults", "rows lost", "failures"]].tolist() == [3, 1, 1]
    assert tool.main(["1", "--out", str(file)]) == 1
    assert "kill" in capsys.readouterr().out
