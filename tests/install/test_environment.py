"""Installation guarantees: a fast import, a correct doctor report, and a working Horovod."""

import json
import math
import os
import pwd
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from check_colab import pins
from dgc_lab.install import build_horovod, doctor, horovod_source
from dgc_lab.install.launch_env import cores, cpu_quotas
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
    for name in (
        "python",
        "tensorflow",
        "Keras's settings",
        "horovod",
        "C\\+\\+ compiler",
        "GPUs",
        "processor cores",
        "memory",
        "MNIST",
    ):
        assert re.search(rf"^\S+ +{name}", done.stdout, re.MULTILINE), f"no line for {name}"


def test_doctor_suggests_remedies(monkeypatch):
    for module in (doctor, build_horovod):
        monkeypatch.setattr(module, "installed", lambda name: {"keras": "2.9.0"}.get(name))
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
    other_waits = "import os, sys, time; time.sleep(600 if os.environ['HOROVOD_RANK'] == '{}' else 0); "
    monkeypatch.setattr(build_horovod, "RANK_PROGRAM", other_waits.format(0) + "sys.exit('lost')")
    with pytest.raises(build_horovod.BuildError, match=r"rank 1 failed:(.|\n)*lost"):
        build_horovod.verify()
    limit = "sys.exit('limit ' + os.environ['HOROVOD_GLOO_TIMEOUT_SECONDS'])"
    monkeypatch.setattr(build_horovod, "RANK_PROGRAM", other_waits.format(1) + limit)
    with pytest.raises(build_horovod.BuildError, match="rank 0 failed:\nlimit 150"):
        build_horovod.verify()
    monkeypatch.setattr(build_horovod, "RANK_PROGRAM", "import time; time.sleep(600)")
    monkeypatch.setattr(build_horovod, "SECONDS_TO_VERIFY", 1)
    with pytest.raises(build_horovod.BuildError, match="rank 0 did not finish its allreduce in 1 s"):
        build_horovod.verify()


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


def test_patched_controller_knows_its_ranks(tmp_path):
    source = tmp_path / horovod_source.CONTROLLER_SOURCE
    source.parent.mkdir(parents=True)
    source.write_text("  global_ranks_.reserve(size_);\n")
    horovod_source.report_stalls(tmp_path)
    assert source.read_text() == "  global_ranks_.resize(size_);\n"
    with pytest.raises(horovod_source.BuildError, match=r"must reserve memory for global_ranks_ once, found 0 times"):
        horovod_source.report_stalls(tmp_path)


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
    oldest = dict(re.match(r"([\w-]+)>=([\d.]+)", requirement).groups() for requirement in required)
    assert oldest.pop("tensorflow") == doctor.OLDEST_TENSORFLOW
    assert oldest.items() <= {name: version for name, (version, _) in doctor.PACKAGES.items()}.items()
    assert [doctor.older("2.22rc1", "2.20"), doctor.older("2.19.0rc2", "2.20")] == [False, True]
    assert [doctor.older("0.0.1", "0.0.2"), doctor.older("11", "11.0")] == [True, False]


def test_custom_cache_folder_needs_no_home(monkeypatch, tmp_path):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    monkeypatch.delenv("DGC_LAB_DATA", raising=False)
    assert build_horovod.wheel_folder().is_relative_to(tmp_path)
    assert "not downloaded yet" in doctor.mnist_finding().found


@pytest.mark.parametrize("location", ["", "~no-such-user/mnist.npz"])
def test_doctor_reports_mnist_of_a_user_without_home(monkeypatch, location):
    def unknown_user(user):
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown_user)
    for name in ("HOME", "KERAS_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DGC_LAB_DATA", location)
    finding = doctor.mnist_finding()
    assert (finding.found, finding.needed) == ("unknown", False)
    assert re.search("home", finding.remedy)


def test_doctor_reports_folders_that_cannot_be_read(monkeypatch):
    monkeypatch.setenv("DGC_LAB_DATA", "x" * 5000)
    finding = doctor.mnist_finding()
    assert finding.found == "unknown"
    assert re.search(r"^DGC_LAB_DATA is 'x+': .*File name too long", finding.remedy)


V1, DOCKER = "sys/fs/cgroup/cpu,cpuacct", "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n0::/"


@pytest.mark.parametrize(
    ("groups", "files", "least"),
    [
        ("0::/", {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ("0::/a/b", {"sys/fs/cgroup/a/cpu.max": "200000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 2),
        (DOCKER, {f"{V1}/cpu.cfs_quota_us": "50000\n", f"{V1}/cpu.cfs_period_us": "100000\n"}, 0.5),
        (DOCKER, {f"{V1}/docker/1/cpu.cfs_quota_us": "-1", f"{V1}/docker/1/cpu.cfs_period_us": "100000"}, math.inf),
        ("0::/", {}, math.inf),
    ],
)
def test_cpu_quotas_of_containers_are_found(groups, files, least, tmp_path):
    for name, text in {"proc/self/cgroup": groups, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert min(cpu_quotas(tmp_path)) == least
    assert cpu_quotas(tmp_path / "not Linux") == [math.inf]


@pytest.fixture
def one_core():
    """A control group of version 1 or 2 whose quota is one core; yields its folder."""
    version_1 = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists()
    group = Path("/sys/fs/cgroup", "cpu" * version_1, f"dgc_lab_test_{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be created here: {error}")
    try:
        name, text = ("cpu.cfs_quota_us", "100000") if version_1 else ("cpu.max", "100000 100000")
        try:
            (group / name).write_text(text)
        except OSError as error:
            pytest.skip(f"no quota can be set here: {error}")
        yield group
    finally:
        until(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


@pytest.mark.skipif(cores() < 2, reason="one core has no room for a quota")
def test_a_process_with_a_quota_counts_its_cores(one_core):
    code = f"""
import os
open({str(one_core / "cgroup.procs")!r}, "w").write(str(os.getpid()))
from dgc_lab.install import doctor, launch_env
print(launch_env.cores(), *(finding.found for finding in doctor.examine() if finding.name == "processor cores"))
"""
    done = python(code)
    assert done.stdout.strip() == f"1 1 of {os.cpu_count()}", done.stderr


def test_make_ignores_other_installation_folders():
    """PIP_USER=1, common on clusters, is an error in a virtual environment."""
    show = ["make", "-s", "--eval", f"show: ; +@{sys.executable} -m pip install --dry-run --no-index pip", "show"]
    elsewhere = {"PIP_USER": "1", "PIP_TARGET": "/nowhere", "PIP_PREFIX": "/nowhere", "PIP_ROOT": "/nowhere"}
    done = subprocess.run([*show, "GPU=0"], cwd=ROOT, capture_output=True, text=True, env=os.environ | elsewhere)
    assert done.returncode == 0, done.stderr
    assert "Requirement already satisfied: pip" in done.stdout


@pytest.mark.nightly
def test_cosmic_ray_has_all_its_packages():
    """Two files pin them; one may leave requirements.txt while cosmic-ray still needs it, as new environments show."""
    subprocess.run(["make", ".venv-mutants/.installed"], cwd=ROOT, check=True)
    done = subprocess.run([ROOT / ".venv-mutants/bin/cosmic-ray", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_horovod_is_installed_for_this_python(monkeypatch, tmp_path):
    """Settings of pip for other folders would install it where this Python does not find it."""
    seen = tmp_path / "seen"
    for name, value in {"PIP_USER": "1", "PIP_TARGET": str(tmp_path / "elsewhere"), "PIP_NO_INDEX": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(build_horovod, "verify", lambda: seen.write_text("installed"))
    wheel = tmp_path / "dgc_lab_test_wheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        about = "dgc_lab_test_wheel-1.0.dist-info"
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: dgc_lab_test_wheel\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    try:
        build_horovod.install_and_verify(wheel)
        assert seen.exists()
        assert build_horovod.installed("dgc_lab_test_wheel") == "1.0"
    finally:
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", "dgc_lab_test_wheel"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, build_horovod.BuildError])
def test_unverified_horovod_is_uninstalled(monkeypatch, error):
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    def verify():
        raise error

    monkeypatch.setattr(build_horovod.subprocess, "run", run)
    monkeypatch.setattr(build_horovod, "verify", verify)
    with pytest.raises(error):
        build_horovod.install_and_verify(Path("horovod.whl"))
    assert [command[3] for command in commands] == ["install", "uninstall"]


def test_mac_needs_the_libraries_of_gloo(monkeypatch):
    which = shutil.which
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(shutil, "which", lambda name, **k: which(name, **k) if name != "pkg-config" else None)
    with pytest.raises(build_horovod.BuildError, match="brew install pkg-config libuv"):
        build_horovod.check_tools()


@pytest.mark.nightly_except("keras.json", "floatx")
@pytest.mark.parametrize(
    ("variables", "settings", "message"),
    [
        ({"KERAS_BACKEND": "jax"}, {}, "'jax'"),  # the reason depends on whether JAX is installed
        ({}, {"backend": "jax"}, "'jax'"),
        ({"KERAS_BACKEND": "none"}, {}, "Keras cannot be imported (Unable to import backend : none)"),
        ({}, {"floatx": "float16"}, "floatx must be 'float32', got 'float16'"),
        (
            {},
            {"image_data_format": "channels_first"},
            "image_data_format must be 'channels_last', got 'channels_first'",
        ),
    ],
    ids=["variable", "keras.json", "no such backend", "floatx", "data format"],
)
def test_other_settings_of_keras_are_refused(variables, settings, message, tmp_path, monkeypatch):
    """They would train other models without a word, and mix their rows with those of the lessons."""
    (tmp_path / "keras.json").write_text(json.dumps(settings))
    environment = {"KERAS_HOME": str(tmp_path), **variables}
    if "KERAS_BACKEND" not in variables:
        monkeypatch.delenv("KERAS_BACKEND", raising=False)  # it would override keras.json
    done = python("from dgc_lab.workloads import digits_cnn; digits_cnn()", **environment)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("dgc_lab.common.LabError: Keras")
    assert message in last
    code = "from dgc_lab.__main__ import main; print(main(['sweep', '--steps', '1']), main(['train', '--steps', '1']))"
    done = python(code, **environment)
    assert done.stdout.split() == ["1", "1"]
    said = [line for line in done.stderr.splitlines() if line.startswith("error: Keras")]
    assert len(said) == 2
    assert all(message in line for line in said)
    done = python("from dgc_lab.install.doctor import keras_finding; print(keras_finding().remedy)", **environment)
    assert message in done.stdout
