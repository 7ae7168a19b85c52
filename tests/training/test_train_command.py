"""``python -m dgc_lab train``: as one process, stopped and resumed, and under horovodrun."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from dgc_lab.__main__ import main
from dgc_lab.cluster import horovodrun, private_network
from dgc_lab.common import LabError
from dgc_lab.install.build_horovod import horovod_state
from kernels import until

TRAIN = [sys.executable, "-m", "dgc_lab", "train", "--evaluations", "1"]


def train(*options, **more):
    return subprocess.run([*TRAIN, *options], capture_output=True, text=True, timeout=300, **more)


def test_train_prints_the_final_accuracy_and_loss():
    done = train("--steps", "30", "--ratio", "0.1", "--warm-up", "none")
    assert done.returncode == 0, done.stderr
    assert re.search(r"step 30: accuracy 0\.\d+, loss \d", done.stdout.replace("\r", "\n") or done.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--ratio", "2"], "error: ratio must be in [0, 1], got 2"),
        (["--warm-up", "slow"], "error: warm_up must be one of none, paper, geometric, dense, got 'slow'"),
        (["--clip-norm", "-1"], "error: clip_norm must be above 0"),
        (["--save-every", "0"], "error: --save-every must be a whole number of at least 1, got 0"),
        (["--checkpoint", __file__], "error: --checkpoint must be a folder, or not exist yet, got"),
        (["--checkpoint", "/proc/run"], "error: --checkpoint must be writable, got '/proc/run'"),
        (["--checkpoint", "/proc"], "error: --checkpoint must be writable, got '/proc'"),
    ],
)
def test_bad_options_are_named(options, message, capsys):
    assert main(["train", *options]) == 1
    printed, errors = capsys.readouterr()
    assert message in errors
    assert "step" not in printed, "it has trained"


def test_finished_run_keeps_its_last_two_checkpoints(tmp_path):
    """If a rank's last checkpoint is damaged and removed, all ranks resume from the previous one."""
    command = ["train", "--steps", "40", "--save-every", "20", "--evaluations", "1", "--checkpoint", str(tmp_path)]
    for _ in range(2):  # the second run has nothing left to train
        assert main(command) == 0
        assert sorted(file.name for file in tmp_path.iterdir()) == ["rank_0_step_20.npz", "rank_0_step_40.npz"]


def test_diverged_run_prints_one_error_line(capsys):
    assert main(["train", "--learning-rate", "1e30", "--steps", "20", "--warm-up", "none"]) == 1
    (line,) = [line for line in capsys.readouterr().err.split("\n") if line.startswith("error:")]
    expected = r"error: step \d+, ratio 0.001: gradient of .* holds NaN or infinity, or is too large; nothing was saved"
    assert re.fullmatch(expected, line)


def test_horovod_in_a_folder_name_is_not_a_dead_rank(tmp_path, capsys):
    (tmp_path / "horovod" / "rank_0_step_1.npz.unfinished").mkdir(parents=True)
    command = ["train", "--steps", "1", "--save-every", "1", "--evaluations", "1"]
    assert main([*command, "--checkpoint", str(tmp_path / "horovod")]) == 1
    assert "rank_0_step_1.npz cannot be written (Is a directory)" in capsys.readouterr().err


def test_ctrl_c_saves_state_and_the_same_command_resumes(tmp_path, capsys):
    def trained(folder, *options):
        """Run the command in this process; return its status and output."""
        status = main(["train", "--evaluations", "1", "--checkpoint", str(tmp_path / folder), *options])
        return status, "".join(capsys.readouterr())

    _, whole = trained("whole", "--steps", "600")
    command = [*TRAIN, "--steps", "600", "--checkpoint", str(tmp_path / "parts"), "--save-every", "10"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    while not list(tmp_path.glob("parts/rank_0_step_*.npz")):
        assert time.monotonic() < end, "nothing was saved"
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert re.search(r"Stopped at step \d+ of 600; the same command resumes", said)
    status, again = trained("parts", "--steps", "600")
    assert status == 0
    status, other = trained("parts", "--steps", "610", "--seed", "1")
    assert status == 1
    assert "was saved by a run with seed 0 (now 1)" in other
    status, once_more = trained("parts", "--steps", "600")  # nothing is left to train
    assert status == 0
    reached = {re.search(r"step 600: accuracy [\d.]+, loss [\d.]+", said).group() for said in (whole, again, once_more)}
    assert len(reached) == 1


@pytest.mark.nightly
def test_killed_rank_is_reported_with_how_to_resume(horovod, tmp_path):
    if private_network.unavailable_reason():
        pytest.skip(private_network.unavailable_reason())
    command = [*TRAIN, "--steps", "100000", "--save-every", "50", "--checkpoint", str(tmp_path)]

    def kill_rank_1():
        until(lambda: list(tmp_path.glob("rank_1_step_*.npz")), 240)
        ranks = [p for p in psutil.process_iter(["environ", "cmdline"]) if str(tmp_path) in (p.info["cmdline"] or [])]
        [rank] = [p for p in ranks if (p.info["environ"] or {}).get("HOROVOD_RANK") == "1" and p.cmdline()[1] == "-m"]
        rank.kill()

    killer = threading.Thread(target=kill_rank_1)
    killer.start()
    with pytest.raises(LabError) as caught:
        horovodrun(2, *command)
    killer.join()
    expected = (
        f"error: another rank has ended, and no step can be made without it; the same command resumes from {tmp_path}"
    )
    said = str(caught.value)
    assert expected in said, said
    assert "Traceback" not in said, said


@pytest.mark.nightly
def test_all_ranks_train_under_horovodrun(tmp_path):
    if horovod_state()[0] is None:
        pytest.skip("Horovod is not built")
    horovodrun = Path(sys.executable).with_name("horovodrun")
    assert horovodrun.exists() or shutil.which("horovodrun")
    environment = {**os.environ, "PATH": f"{horovodrun.parent}{os.pathsep}{os.environ['PATH']}"}
    environment["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "200"  # a rank's imports may take longer than Horovod waits
    done = subprocess.run(
        ["horovodrun", "-np", "2", *TRAIN, "--steps", "20", "--checkpoint", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "step 20: accuracy" in done.stdout + done.stderr
    assert {path.name for path in tmp_path.glob("*")} == {"rank_0_step_20.npz", "rank_1_step_20.npz"}
