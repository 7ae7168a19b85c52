"""Prepare a release without publishing it; ``make release`` calls this before and after the other checks.

python tools/release.py check       check that the tree is clean and that all files name the same version
python tools/release.py build       build sdist and wheel into dist/, install each in an empty environment, and test it
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import dgc_lab

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
# Each file must contain the version in this form.
NAMED = {
    "CHANGELOG.md": r"^## {version} \(\d{{4}}-\d\d-\d\d\)$",
    "CITATION.cff": r"^version: {version}$",
    "notebooks/text/00_start_here.md": r"git\+https://github\.com/[^\s@]+@v{version}\"",
}
SMOKE = """
import sys
import dgc_lab
from pathlib import Path
from dgc_lab.training import SINGLE_NODE, CompressionSweep, single_node_rows
from dgc_lab.__main__ import main

assert "site-packages" in dgc_lab.__file__, dgc_lab.__file__
assert dgc_lab.__version__ == sys.argv[1], dgc_lab.__version__
assert len(single_node_rows()) == len(SINGLE_NODE), "the lab's stored results are not in the package"
assert main(["doctor"]) == 0, "the doctor reports a missing requirement"
lab = CompressionSweep(ratios="1, 0.01", steps=60)
lab.run()
assert len(lab.rows) == 2 and lab.rows[0]["accuracy"] > 0.5, lab.rows
"""


def problems() -> list[str]:
    """Return the problems that prevent a release, one per line."""
    changed = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    wrong = [f"not committed: {line}" for line in changed.stdout.splitlines()]
    for file, pattern in NAMED.items():
        named = pattern.format(version=re.escape(dgc_lab.__version__))
        if not re.search(named, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE):
            wrong.append(f"{file} does not name version {dgc_lab.__version__}")
    tags = subprocess.run(["git", "tag", "--list"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    if f"v{dgc_lab.__version__}" in tags.split():
        wrong.append(f"the tag v{dgc_lab.__version__} exists already: increase the version in dgc_lab/__init__.py")
    return wrong


def build() -> list[Path]:
    """Build sdist and wheel in ``dist/`` after removing old ones; wheels of Horovod in its subfolders are kept."""
    for old in [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]:
        old.unlink()
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(DIST)], cwd=ROOT, check=True)
    return [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]


def try_out(package: Path) -> None:
    """Install a package with its requirements in an empty environment, and use it from another folder.

    Raises:
        subprocess.CalledProcessError: it cannot be installed, or fails the smoke test; its output was printed.
    """
    print(f"{package.name}: testing in an empty environment", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder) / "bin" / "python")
        alone = [python, "-I"]  # ignores PYTHONPATH, which could lead to the checkout's own library
        subprocess.run([*alone, "-m", "pip", "install", "--quiet", str(package)], check=True)
        subprocess.run([*alone, "-c", SMOKE, dgc_lab.__version__], cwd=folder, check=True)


def main(arguments: list[str]) -> int:
    """Check or build; return the exit status."""
    if arguments == ["check"]:
        wrong = problems()
        print("\n".join(wrong) or f"{dgc_lab.__version__} can be released", file=sys.stderr if wrong else sys.stdout)
        return bool(wrong)
    if arguments == ["build"]:
        packages = build()
        for package in packages:
            try_out(package)
        for package in packages:
            print(f"{hashlib.sha256(package.read_bytes()).hexdigest()}  {package.relative_to(ROOT)}")
        print(f"Nothing was published. To publish: git tag v{dgc_lab.__version__} && git push origin --tags")
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
