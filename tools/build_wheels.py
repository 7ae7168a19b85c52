"""Build the wheel of Horovod for the current Python and TensorFlow, to be attached to a release.

python tools/build_wheels.py [FOLDER]              builds a wheel into the folder (default: dist/horovod)
python tools/build_wheels.py --table [FOLDER]      lists the folder's wheels, with their hashes, in the lab's table

Run the first command with every Python and TensorFlow that the lab supports, including Colab's, on the oldest Linux
that will use the wheels; .github/workflows/wheels.yml does so. A wheel's build tag names its TensorFlow: 1tf2.20.0.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.install import build_horovod
from dgc_lab.install.horovod_wheels import TABLE, sha256_of

FOLDER = Path(__file__).resolve().parent.parent / "dist" / "horovod"
NAME = re.compile(
    r"horovod-(?P<version>[\d.]+)-1tf(?P<tensorflow>[\d.]+)-(?P<python>cp\d+)-cp\d+-(?P<platform>\w+)\.whl"
)


def build_wheel(folder: Path) -> Path:
    """Build, install and verify Horovod here, and copy its wheel to ``folder`` under its released name."""
    tensorflow = build_horovod.tensorflow_version()
    build_horovod.wheel_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        wheel = build_horovod.build_here(tensorflow, Path(scratch))
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / released_name(wheel, tensorflow)
        target.write_bytes(wheel.read_bytes())
    return target


def released_name(wheel: Path, tensorflow: str) -> str:
    """Return the wheel's name with a build tag that names its TensorFlow."""
    name, version, rest = wheel.name.split("-", 2)
    return f"{name}-{version}-1tf{tensorflow}-{rest}"


def table_of(folder: Path) -> list[dict[str, str]]:
    """Return a row for each wheel in the folder: its Python, TensorFlow and platform, its name and its hash.

    Raises:
        LabError: a wheel's name does not have the expected form.
    """
    rows = []
    for wheel in sorted(folder.glob("*.whl")):
        found = NAME.fullmatch(wheel.name)
        if not found or found["version"] != build_horovod.VERSION:
            raise LabError(f"tools/build_wheels.py did not build {wheel} for Horovod {build_horovod.VERSION}")
        platform = found["platform"].replace("linux_", "linux-")
        rows.append(
            {
                "file": wheel.name,
                "python": found["python"],
                "tensorflow": found["tensorflow"],
                "platform": platform,
                "sha256": sha256_of(wheel),
            }
        )
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Build, or write the table; return the exit status: 0 if it worked, 1 after an expected error."""
    parser = argparse.ArgumentParser(description="Build the wheel of Horovod for this Python and its TensorFlow.")
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--table", action="store_true", help="list the folder's wheels in dgc_lab/install")
    options = parser.parse_args(arguments)
    try:
        if options.table:
            table = json.loads(TABLE.read_text(encoding="utf-8")) | {"wheels": table_of(options.folder)}
            TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
            print(f"{len(table['wheels'])} wheels in {TABLE}")
        else:
            wheel = build_wheel(options.folder)
            print(f"{sha256_of(wheel)}  {wheel}")
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
