"""Horovod from a wheel that the lab knows by its hash: taken from a release, here a server of the test's own."""

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
    """A folder that a server on the loopback interface hands out, as a release does its files; and its address."""
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
def lab_knows(monkeypatch, tmp_path):
    """The table of known wheels, to be set: what the lab knows, and where."""

    def know(address, *wheels):
        table = tmp_path / "horovod_wheels.json"
        table.write_text(json.dumps({"address": address, "wheels": wheels}))
        monkeypatch.setattr(horovod_wheels, "TABLE", table)

    monkeypatch.delenv("DGC_LAB_WHEELS", raising=False)
    return know


def row(file, content, tensorflow="2.20.0"):
    content.write_bytes(content.read_bytes() if content.exists() else b"a wheel")
    return {**horovod_wheels.environment(tensorflow), "file": file, "sha256": horovod_wheels.sha256_of(content)}


def test_a_wheel_whose_hash_is_known_is_taken(release, lab_knows, tmp_path):
    folder, address = release
    lab_knows(address, row(WHEEL, folder / WHEEL))
    wheel, said = horovod_wheels.fetch_wheel("2.20.0", tmp_path)
    assert wheel.read_bytes() == b"a wheel"
    assert said == f"took {address}/{WHEEL}, whose SHA-256 the lab knows"


def test_another_file_of_that_name_is_not_taken(release, lab_knows, tmp_path):
    folder, address = release
    lab_knows(address, row(WHEEL, folder / WHEEL))
    (folder / WHEEL).write_bytes(b"something else")
    wheel, said = horovod_wheels.fetch_wheel("2.20.0", tmp_path)
    assert wheel is None
    assert "has SHA-256" in said
    assert not (tmp_path / WHEEL).exists()


def test_what_is_not_there_is_said(release, lab_knows, tmp_path, monkeypatch):
    folder, address = release
    known = row(WHEEL, folder / WHEEL)
    lab_knows(address, known)
    assert horovod_wheels.fetch_wheel("2.19.0", tmp_path)[1].startswith("the lab has no wheel for cp")
    (folder / WHEEL).unlink()
    assert f"{address}/{WHEEL} cannot be had (HTTP Error 404" in horovod_wheels.fetch_wheel("2.20.0", tmp_path)[1]
    lab_knows("https://github.com/YOUR_NAME/YOUR_COPY/releases/download/x", known)
    assert horovod_wheels.fetch_wheel("2.20.0", tmp_path)[1].startswith("this copy has no address of its own yet")
    monkeypatch.setenv("DGC_LAB_WHEELS", "http://127.0.0.1 ")
    assert "cannot be had (URL can't contain" in horovod_wheels.fetch_wheel("2.20.0", tmp_path)[1]
    monkeypatch.setenv("DGC_LAB_WHEELS", f"file://{folder}")  # a room without internet
    row(WHEEL, folder / WHEEL)
    assert horovod_wheels.fetch_wheel("2.20.0", tmp_path)[0] == tmp_path / WHEEL


def test_a_download_that_was_cut_short_is_said(lab_knows, tmp_path):
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
        lab_knows(f"http://127.0.0.1:{server.server_port}", row(WHEEL, tmp_path / "known"))
        wheel, said = horovod_wheels.fetch_wheel("2.20.0", tmp_path)
        server.shutdown()
    assert wheel is None
    assert "cannot be had (IncompleteRead" in said


def test_without_a_wheel_it_is_built_and_that_is_said(lab_knows, monkeypatch, capsys, tmp_path):
    lab_knows("http://127.0.0.1:9")
    monkeypatch.setenv("DGC_LAB_CACHE", str(tmp_path))
    monkeypatch.setattr(build_horovod, "horovod_state", lambda: (None, None))
    monkeypatch.setattr(build_horovod, "BUILD_PACKAGES", ("no-such-package",))  # the build then ends at its first check
    with pytest.raises(build_horovod.BuildError, match="no-such-package"):
        build_horovod.build()
    assert capsys.readouterr().out.startswith("Horovod is built here: the lab has no wheel for cp")


def test_a_wheel_that_does_not_work_here_is_taken_off_and_horovod_built(
    release, lab_knows, monkeypatch, capsys, tmp_path
):
    """Built for an older C library, say. No pip and no ranks are started: what they say is the test's own."""
    folder, address = release
    lab_knows(address, row(WHEEL, folder / WHEEL, build_horovod.tensorflow_version()))

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
    """A Python that has all of this one's packages but Horovod."""
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
def test_the_real_wheel_is_installed_and_two_ranks_add_up(horovod, release, tmp_path, monkeypatch):
    """The wheel that this environment's Horovod came from, in an environment without, and nothing is compiled."""
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
    assert f"[1/3] took {address}/{file}, whose SHA-256 the lab knows" in done.stdout
    assert "compiled" not in done.stdout
    assert f"Horovod {build_horovod.VERSION} for TensorFlow {tensorflow} works" in done.stdout


def test_the_table_says_what_a_wheel_was_built_for(tmp_path):
    (tmp_path / WHEEL).write_bytes(b"a wheel")
    [known] = build_wheels.table_of(tmp_path)
    assert (known["python"], known["tensorflow"], known["platform"]) == ("cp313", "2.20.0", "linux-x86_64")
    (tmp_path / "horovod-0.28.1-cp313-cp313-linux_x86_64.whl").write_bytes(b"for which TensorFlow?")
    with pytest.raises(build_horovod.LabError, match="is no wheel that"):
        build_wheels.table_of(tmp_path)


def test_every_known_wheel_says_all_that_is_needed():
    table = json.loads(horovod_wheels.TABLE.read_text())
    needed = {*horovod_wheels.environment(""), "file", "sha256"}
    assert [wheel for wheel in table["wheels"] if set(wheel) != needed] == []
