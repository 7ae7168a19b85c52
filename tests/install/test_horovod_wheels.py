"""Horovod installed from a release wheel with a known hash; a local server stands in for the release."""

import functools
import http.server
import json
import shutil
import subprocess
import sysconfig
import threading
import venv
from pathlib import Path

import pytest

import build_wheels
from dgc_lab.install import build_horovod, horovod_wheels

ROOT = Path(__file__).resolve().parents[2]
WHEEL = f"horovod-{build_horovod.VERSION}-1tf2.20.0-cp313-cp313-linux_x86_64.whl"


@pytest.fixture
def release(tmp_path):
    """Serve a folder on loopback like a release's files; yield the folder and its address."""
    folder = tmp_path / "release"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def known_wheels(monkeypatch, tmp_path):
    """Function that sets the table of known wheels and their address."""

    def know(address, *wheels):
        table = tmp_path / "horovod_wheels.json"
        table.write_text(json.dumps({"address": address, "wheels": wheels}))
        monkeypatch.setattr(horovod_wheels, "TABLE", table)

    monkeypatch.delenv("DGC_LAB_WHEELS", raising=False)
    return know


def row(file, content, tensorflow="2.20.0"):
    content.write_bytes(content.read_bytes() if content.exists() else b"a wheel")
    return {**horovod_wheels.environment(tensorflow), "file": file, "sha256": horovod_wheels.sha256_of(content)}


def test_wheel_with_a_known_hash_is_installed(release, known_wheels, tmp_path, monkeypatch):
    folder, address = release
    known_wheels(address, row(WHEEL, folder / WHEEL))
    monkeypatch.setenv("DGC_LAB_WHEELS", "")  # as good as not set
    wheel, said = horovod_wheels.fetch_wheel("2.20.0", tmp_path)
    assert wheel.read_bytes() == b"a wheel"
    assert said == f"downloaded {address}/{WHEEL}, which has the expected SHA-256"


def test_wheel_with_a_wrong_hash_is_rejected(release, known_wheels, tmp_path):
    folder, address = release
    known_wheels(address, row(WHEEL, folder / WHEEL))
    (folder / WHEEL).write_bytes(b"something else")
    wheel, said = horovod_wheels.fetch_wheel("2.20.0", tmp_path)
    assert wheel is None
    assert "has SHA-256" in said
    assert not (tmp_path / WHEEL).exists()


def test_unavailable_wheels_are_explained(release, known_wheels, tmp_path, monkeypatch):
    folder, address = release
    known = row(WHEEL, folder / WHEEL)
    known_wheels(address, known)
    assert horovod_wheels.fetch_wheel("2.19.0", tmp_path)[1].startswith("the lab has no wheel for cp")
    (folder / WHEEL).unlink()
    said = horovod_wheels.fetch_wheel("2.20.0", tmp_path)[1]
    assert f"{address}/{WHEEL} cannot be downloaded (HTTP Error 404" in said
    known_wheels("https://github.com/YOUR_NAME/YOUR_COPY/releases/download/x", known)
    assert horovod_wheels.fetch_wheel("2.20.0", tmp_path)[1].startswith("this copy has no address yet")
    monkeypatch.setenv("DGC_LAB_WHEELS", "http://127.0.0.1 ")
    assert "cannot be downloaded (URL can't contain" in horovod_wheels.fetch_wheel("2.20.0", tmp_path)[1]
    monkeypatch.setenv("DGC_LAB_WHEELS", f"file://{folder}")  # offline, from a local folder
    row(WHEEL, folder / WHEEL)
    assert horovod_wheels.fetch_wheel("2.20.0", tmp_path)[0] == tmp_path / WHEEL


def test_truncated_downloads_are_reported(known_wheels, tmp_path):
    class CutShort(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"a wheel")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), CutShort) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        known_wheels(f"http://127.0.0.1:{server.server_port}", row(WHEEL, tmp_path / "known"))
        wheel, said = horovod_wheels.fetch_wheel("2.20.0", tmp_path)
        server.shutdown()
    assert wheel is None
    assert "cannot be downloaded (IncompleteRead" in said


def test_horovod_is_built_if_there_is_no_wheel(known_wheels, monkeypatch, capsys, tmp_path):
    known_wheels("http://127.0.0.1:9")
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(build_horovod, "horovod_state", lambda: (None, None))
    monkeypatch.setattr(build_horovod, "BUILD_PACKAGES", ("no-such-package",))  # so the first check fails
    with pytest.raises(build_horovod.BuildError, match="no-such-package"):
        build_horovod.build()
    assert capsys.readouterr().out.startswith("Building Horovod here: the lab has no wheel for cp")


def test_horovod_is_built_if_the_wheel_does_not_work(release, known_wheels, monkeypatch, capsys, tmp_path):
    """For example, the wheel needs a newer C library. The test fakes pip and the ranks."""
    folder, address = release
    known_wheels(address, row(WHEEL, folder / WHEEL, build_horovod.tensorflow_version()))

    def broken(wheel):
        raise build_horovod.BuildError("rank 0 failed: GLIBC_2.99 not found")

    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build_horovod, "horovod_state", lambda: (None, None))
    monkeypatch.setattr(build_horovod, "install_and_verify", broken)
    monkeypatch.setattr(build_horovod, "BUILD_PACKAGES", ("no-such-package",))
    with pytest.raises(build_horovod.BuildError, match="no-such-package"):
        build_horovod.build()
    assert "does not work on this machine.\nrank 0 failed: GLIBC_2.99" in capsys.readouterr().out


def without_horovod(folder):
    """Create an environment with all current packages except Horovod; return its Python."""
    packages, view = Path(sysconfig.get_path("purelib")), folder / "packages"
    view.mkdir()
    for entry in packages.iterdir():
        if not entry.name.startswith(("horovod", "__pycache__")) and entry.suffix != ".pth":
            (view / entry.name).symlink_to(entry)
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    own = subprocess.run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True)
    Path(own.stdout.decode().strip(), "lab.pth").write_text(f"{view}\n{ROOT}\n")
    return python


@pytest.mark.nightly
def test_real_wheel_installs_and_two_ranks_compute_a_sum(horovod, release, tmp_path, monkeypatch):
    """Installs this environment's own wheel in an environment without Horovod; nothing is compiled."""
    [real] = list(build_horovod.wheel_folder().glob("horovod-*.whl")) or pytest.skip("the cache has no wheel of it")
    folder, address = release
    name, version, *_, abi, platform = real.name.split("-")
    tensorflow = build_horovod.tensorflow_version()
    file = f"{name}-{version}-1tf{tensorflow}-{abi}-{abi}-{platform}"
    shutil.copy(real, folder / file)
    monkeypatch.setattr(build_wheels, "TABLE", tmp_path / "horovod_wheels.json")
    build_wheels.TABLE.write_text(json.dumps({"address": address, "wheels": []}))
    assert build_wheels.main(["--table", str(folder)]) == 0

    code = "import sys; from pathlib import Path; from dgc_lab.install import build, horovod_wheels\n"
    code += f"horovod_wheels.TABLE = Path({str(build_wheels.TABLE)!r}); build()"
    python = without_horovod(tmp_path)
    environment = {"PATH": "/usr/bin:/bin", "DGC_LAB_CACHE": str(tmp_path / "cache"), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"[1/3] downloaded {address}/{file}, which has the expected SHA-256" in done.stdout
    assert "compiled" not in done.stdout
    assert f"Horovod {build_horovod.VERSION} for TensorFlow {tensorflow} works" in done.stdout


def test_table_records_the_target_of_each_wheel(tmp_path):
    (tmp_path / WHEEL).write_bytes(b"a wheel")
    [known] = build_wheels.table_of(tmp_path)
    assert (known["python"], known["tensorflow"], known["platform"]) == ("cp313", "2.20.0", "linux-x86_64")
    (tmp_path / "horovod-0.28.1-cp313-cp313-linux_x86_64.whl").write_bytes(b"for which TensorFlow?")
    with pytest.raises(build_horovod.LabError, match=r"build_wheels\.py did not build .* for Horovod"):
        build_wheels.table_of(tmp_path)


def test_known_wheels_have_all_fields():
    table = json.loads(horovod_wheels.TABLE.read_text())
    needed = {*horovod_wheels.environment(""), "file", "sha256"}
    assert [wheel for wheel in table["wheels"] if set(wheel) != needed] == []
