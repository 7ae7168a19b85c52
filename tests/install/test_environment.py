"""Installation guarantees: a fast import, a correct doctor report, and a working Horovod."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
from pathlib import Path

import psutil
import pytest

from check_colab import pins
from dgc_lab.install import build_horovod, doctor, horovod_source
from kernels import until

ROOT = Path(__file__).resolve().parents[2]


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=300
    )


@pytest.mark.parametrize(
    "module",
    [
        "dgc_lab",
        "dgc_lab.workloads.data",
        "dgc_lab.workloads.models",
        "dgc_lab.training.sweeps",
        "dgc_lab.training.masking_widget",
    ],
)
def test_import_does_not_load_tensorflow(module):
    heavy = "('tensorflow', 'keras', 'horovod')"
    done = python(f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_package_import_loads_no_other_modules():
    done = python("import sys; before = set(sys.modules); import dgc_lab; print(sorted(set(sys.modules) - before))")
    assert eval(done.stdout) == ["dgc_lab"]


def test_doctor_reports_the_environment():
    done = subprocess.run([sys.executable, "-m", "dgc_lab", "doctor"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    import keras

    assert re.search(rf"^ok +keras +{re.escape(keras.__version__)} *$", done.stdout, re.MULTILINE)
    for name in ("python", "tensorflow", "horovod", "C\\+\\+ compiler", "GPUs", "processor cores", "memory", "MNIST"):
        assert re.search(rf"^\S+ +{name}", done.stdout, re.MULTILINE), f"no line for {name}"


def test_doctor_suggests_remedies(monkeypatch):
    monkeypatch.setattr(doctor, "installed", lambda name: {"keras": "2.9.0"}.get(name))
    monkeypatch.setattr(doctor, "horovod_state", lambda: ("0.28.1", "2.19.0"))
    monkeypatch.setenv("DGC_LAB_DATA", "/nowhere")
    findings = {finding.name: finding for finding in doctor.examine()}
    assert findings["keras"].remedy == "pip install 'keras>=3.13'"
    assert findings["numpy"].remedy == "pip install 'numpy>=2.0'"
    assert findings["tensorflow"].remedy == "pip install 'tensorflow>=2.20'"
    assert "build-horovod" in findings["horovod"].remedy
    assert not findings["horovod"].needed
    assert "no file /nowhere" in findings["MNIST"].remedy
    text = doctor.report(list(findings.values()))
    assert re.search(r"^! +keras", text, re.MULTILINE)
    assert re.search(r"^- +horovod", text, re.MULTILINE)


@pytest.mark.nightly
@pytest.mark.parametrize("missing", ["numpy", "pandas", "psutil", "matplotlib", "lazy-loader"])
def test_doctor_works_if_a_package_is_missing(missing):
    """Neither the package nor anything that depends on it can be imported."""
    code = f"""
import importlib.metadata, sys
sys.modules[{missing.replace("-", "_")!r}] = None
usual = importlib.metadata.version
def version(name):
    if name == {missing!r}:
        raise importlib.metadata.PackageNotFoundError(name)
    return usual(name)
importlib.metadata.version = version
from dgc_lab.__main__ import main
print(main(["doctor"]))
"""
    done = python(code)
    assert re.search(rf"^! +{missing} +not installed +pip install '{missing}>=", done.stdout, re.MULTILINE), done.stderr
    assert done.stdout.splitlines()[-1] == "1"


def test_colab_meets_the_lower_bounds():
    """The image of 2026-08-19; a higher bound would break classes on Colab."""
    import tomllib

    colab = pins((ROOT / "colab" / "freeze.txt").read_text())
    colab |= {"pandas": "2.2.2", "pillow": "11.0", "psutil": "5.9.5", "tqdm": "4.67", "cloudpickle": "3.1.1"}
    colab |= {"lazy-loader": "0.4"}  # required by scikit-image and librosa
    colab |= {"scipy": "1.14.1"}  # the oldest version for Python 3.13
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        name, least = requirement.split(">=")
        if name in ("simpy", "mnist1d"):  # not in the image; no dependencies, or without lower bounds
            continue
        assert not doctor.older(colab[name], least), requirement


@pytest.mark.nightly
@pytest.mark.skipif(build_horovod.horovod_state()[0] is None, reason="Horovod is not built here")
def test_two_ranks_compute_a_sum():
    build_horovod.verify()


@pytest.mark.skipif(build_horovod.horovod_state()[0] is None, reason="Horovod is not built here")
def test_errors_name_the_failed_rank(monkeypatch):
    monkeypatch.setattr(build_horovod, "RANK_PROGRAM", "import os; assert os.environ['HOROVOD_RANK'] == '0', 'lost'")
    with pytest.raises(build_horovod.BuildError, match=r"rank 1 failed:(.|\n)*lost"):
        build_horovod.verify()
    monkeypatch.setattr(build_horovod, "RANK_PROGRAM", "import time; time.sleep(600)")
    with pytest.raises(build_horovod.BuildError, match="rank 0 did not finish its allreduce in 1 s"):
        build_horovod.verify(timeout=1)


@pytest.mark.nightly
@pytest.mark.alone  # inspects all listening sockets of the machine
@pytest.mark.skipif(build_horovod.horovod_state()[0] is None, reason="Horovod is not built here")
def test_ranks_and_rendezvous_listen_on_loopback_only(tmp_path, monkeypatch):
    """Both ranks record all listening sockets while the job runs."""
    import psutil

    before = {connection.laddr.port for connection in psutil.net_connections("tcp") if connection.status == "LISTEN"}
    seen = tmp_path / "seen"
    monkeypatch.setattr(
        build_horovod,
        "RANK_PROGRAM",
        build_horovod.RANK_PROGRAM + "import psutil\n"
        "found = {c.laddr for c in psutil.net_connections('tcp') if c.status == 'LISTEN'}\n"
        f"open({str(seen)!r}, 'a').write(''.join(f'{{a.ip}} {{a.port}}\\n' for a in found))\n"
        "hvd.allreduce(total, op=hvd.Sum)\n",
    )
    build_horovod.verify()
    listening = {tuple(line.split()) for line in seen.read_text().splitlines()}
    new = {ip for ip, port in listening if int(port) not in before}
    assert new == {"127.0.0.1"}


def test_missing_build_tools_are_named_with_remedies(monkeypatch):
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, **k: None if name in ("g++", "c++", "clang++", "cmake") else "x")
    with pytest.raises(build_horovod.BuildError, match=r"C\+\+ compiler .*apt-get install g\+\+(.|\n)*cmake<4"):
        build_horovod.check_tools()
    monkeypatch.setattr(shutil, "which", which)
    monkeypatch.setattr(build_horovod, "BUILD_PACKAGES", ("no-such-package",))
    with pytest.raises(build_horovod.BuildError, match="pip install no-such-package"):
        build_horovod.check_tools()


def test_modified_sources_are_never_executed(monkeypatch, tmp_path):
    """pip runs setup.py of a downloaded source to determine its requirements."""
    name, ran = f"horovod-{build_horovod.VERSION}", tmp_path / "ran"
    setup = f"open({str(ran)!r}, 'w')\nfrom setuptools import setup\nsetup(name='horovod', version='0.28.1')"
    (tmp_path / name).mkdir()
    (tmp_path / name / "setup.py").write_text(setup)
    with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / name, name)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    (tmp_path / "to").mkdir()
    with pytest.raises(build_horovod.BuildError, match=r"must have SHA-256 92a43f5a.*: not built"):
        build_horovod.fetch(tmp_path / "to")
    assert not ran.exists()


def test_patched_allgather_posts_receives_first(tmp_path):
    """Otherwise the other rank would read the request only after a long message."""
    source = tmp_path / horovod_source.ALLGATHER_SOURCE
    source.parent.mkdir(parents=True)
    send, recv, wait = (
        f"      out->{what};\n" for what in ("send(sendRank, slot, a)", "recv(recvRank, b)", "waitSend()")
    )
    source.write_text(send + recv + wait + send + recv)
    horovod_source.receive_first(tmp_path)
    assert source.read_text() == recv + send + wait + recv + send
    with pytest.raises(horovod_source.BuildError, match=r"allgatherv\.cc sends and then receives 0 times"):
        horovod_source.receive_first(tmp_path)


@pytest.mark.nightly
def test_ranks_retry_an_unreachable_rendezvous(horovod, monkeypatch):
    """A link may fail for some seconds at startup; unpatched Horovod gives up after 1.5 s."""
    from horovod.runner.http import http_server

    calls, usual = [], http_server.RendezvousHandler.handle

    def handle(self):
        calls.append(time.monotonic())
        if calls[-1] - calls[0] > 5:  # no response until then
            usual(self)

    monkeypatch.setattr(http_server.RendezvousHandler, "handle", handle)
    build_horovod.verify()
    assert calls[-1] - calls[0] > 5


def test_sources_with_unexpected_retry_code_are_rejected(tmp_path):
    source = tmp_path / horovod_source.RENDEZVOUS_SOURCE
    source.parent.mkdir(parents=True)
    source.write_text("#define MAX_RETRY_TIMES 5\n")
    with pytest.raises(horovod_source.BuildError, match=r"http_store\.h must define MAX_RETRY_TIMES .* found 0 times"):
        horovod_source.keep_trying(tmp_path)


def test_wheel_cache_depends_on_python_and_tensorflow(monkeypatch, tmp_path):
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(build_horovod, "tensorflow_version", lambda: "2.20.0")
    one = build_horovod.wheel_folder()
    monkeypatch.setattr(build_horovod, "tensorflow_version", lambda: "2.21.0")
    assert one != build_horovod.wheel_folder()
    assert f"cp{sys.version_info.major}{sys.version_info.minor}" in one.name
    assert one.name.endswith(sysconfig.get_platform()), "different platforms may share a home folder"
    assert one.is_relative_to(tmp_path)


def test_failed_build_shows_the_compiler_output(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "setup.py").write_text("raise SystemExit('no way to compile this')")
    with pytest.raises(build_horovod.BuildError, match=r"build\.log(.|\n)*no way to compile this"):
        build_horovod.compile_wheel(tree, tmp_path / "out", tmp_path / "build.log")


def test_makefile_works_in_a_folder_with_a_space(tmp_path):
    folder = tmp_path / "DGC Lab"
    (folder / "wheelhouse").mkdir(parents=True)
    for file in ROOT.iterdir():
        if not file.name.startswith(".") and file.name != "wheelhouse":
            (folder / file.name).symlink_to(file)
    show = ["--eval", "show: ; +@echo links: $$PIP_FIND_LINKS", "--eval", ".venv/.installed: show"]
    said = [
        subprocess.run(
            ["make", "-n", *words, "GPU=0"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PIP_FIND_LINKS": ""},
        ).stdout
        for words in (["wheelhouse"], [*show, ".venv/.installed"], [*show, "show"])
    ]
    removed = [line for line in said[0].splitlines() if line.startswith(("rm ", "mv "))]
    assert removed == ["rm -rf wheelhouse.new", "rm -rf wheelhouse", "mv wheelhouse.new wheelhouse"]
    assert f"links: file://{tmp_path}/DGC%20Lab/wheelhouse\n" in said[1]
    assert said[2].endswith("\nlinks:\n"), "other targets must not use the wheelhouse"


def test_interrupted_build_leaves_no_compiler_running(tmp_path, monkeypatch):
    tree = tmp_path / "tree"
    tree.mkdir()
    progress = f"[ 10%] compiling\\n{tmp_path}"
    (tree / "setup.py").write_text(
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {str(tmp_path)!r}])\n"
        f"print('{progress}', flush=True)\ntime.sleep(600)\n"
    )

    def stopped(words):
        raise KeyboardInterrupt

    monkeypatch.setattr(build_horovod, "say", stopped)
    with pytest.raises(KeyboardInterrupt):
        build_horovod.compile_wheel(tree, tmp_path / "out", tmp_path / "build.log")
    until(lambda: not any(str(tmp_path) in " ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])))


def test_doctor_checks_all_dependencies():
    import tomllib

    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"\W", requirement.replace("-", "_"))[0].replace("_", "-") for requirement in required}
    assert names - {"tensorflow"} <= set(doctor.PACKAGES)
    assert [doctor.older("2.22rc1", "2.20"), doctor.older("2.19.0rc2", "2.20")] == [False, True]


def test_custom_cache_folder_needs_no_home(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("DGC_LAB_DATA", raising=False)
    assert build_horovod.wheel_folder().is_relative_to(tmp_path)
    assert "not downloaded yet" in doctor.mnist_finding().found
