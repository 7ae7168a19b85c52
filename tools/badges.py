"""Write the GitHub address of your copy into the badges and setup cells of all lessons. Run it in the copy's folder.

python tools/badges.py [--repo OWNER/NAME] [--ref BRANCH]

Badges open the branch. Setup cells install the release tag of this version, so that a lesson keeps the library version
it was written for, or the branch or tag in ``--ref``. The site's first page and the table of wheels get the address,
too. The placeholder is ``YOUR_NAME/YOUR_COPY``, which cannot exist on GitHub: user names have no underscores there.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import dgc_lab
from dgc_lab.common import LabError

REPO, REF = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+"), re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
ORIGIN = re.compile(r"(?:https://|git@|ssh://git@)github\.com[:/](?P<repo>[^/]+/[^/]+?)(?:\.git)?/?")
NAMES = r"[^/\s\"\\]+/[^/\s\"\\@)]+"
COLAB = re.compile(rf"(colab\.research\.google\.com/github/){NAMES}/blob/[^\s)]+?/(notebooks/)")
BINDER = re.compile(rf"(mybinder\.org/v2/gh/){NAMES}/[^/?\s)]+(\?)")
WHEELS = re.compile(rf"(https://github\.com/){NAMES}(/releases/download/)")
INSTALL = re.compile(rf"(git\+https://github\.com/){NAMES}(?:@[^\s\"\\]+)?")


def stamp(text: str, repo: str, ref: str = "main") -> str:
    """Return a text with all addresses of the lab replaced, whether they are placeholders or from an earlier call.

    Args:
        text: the text of a README, a lesson or its ``.md`` pair.
        repo: ``OWNER/NAME`` on GitHub.
        ref: branch or tag; with ``"main"``, setup cells install the tag of this version, ``v1.0.0``.

    Raises:
        ValueError: repo or ref is malformed.

    Example:
        >>> print(stamp("https://mybinder.org/v2/gh/YOUR_NAME/YOUR_COPY/main?urlpath=lab", "ada/lab", "a/b"))
        https://mybinder.org/v2/gh/ada/lab/a%2Fb?urlpath=lab
        >>> print(stamp('"dgc_lab @ git+https://github.com/YOUR_NAME/YOUR_COPY"', "ada/lab", "v1"))
        "dgc_lab @ git+https://github.com/ada/lab@v1"
    """
    if not REPO.fullmatch(repo):
        raise ValueError(f"repo must be OWNER/NAME, got {repo!r}")
    if not REF.fullmatch(ref):
        raise ValueError(f"ref must be the name of a branch or tag, got {ref!r}")
    at = f"v{dgc_lab.__version__}" if ref == "main" else ref
    text = COLAB.sub(rf"\g<1>{repo}/blob/{ref}/\g<2>", text)
    text = BINDER.sub(rf"\g<1>{repo}/{quote(ref, safe='')}\g<2>", text)
    text = WHEELS.sub(rf"\g<1>{repo}\g<2>", text)
    return INSTALL.sub(rf"\g<1>{repo}@{at}", text)


def stamp_all(root, repo: str | None = None, ref: str = "main") -> list[Path]:
    """Stamp README, first page and table of wheels, and every notebook and its text pair under ``notebooks``.

    Args:
        root: folder of the copy.
        repo: ``OWNER/NAME``; if None, it is taken from ``git remote get-url origin``.
        ref: branch or tag for badges and setup cells.

    Returns:
        The files that changed.

    Raises:
        ValueError: see `stamp`.
        LabError: the folder has no lessons, or ``repo`` is None and ``origin`` is not on GitHub.
    """
    root = Path(root)
    beside = [root / "README.md", root / "index.md", root / "dgc_lab" / "install" / "horovod_wheels.json"]
    files = [*sorted((root / "notebooks").rglob("*.md")), *(root / "notebooks").rglob("*.ipynb")]
    files = [file for file in files if ".ipynb_checkpoints" not in file.parts]
    if not files:
        raise LabError(f"{root.resolve()} has no lessons: run this in the folder of your copy")
    repo = repo or repo_of(root)
    changed = []
    for file in [*filter(Path.is_file, beside), *files]:
        text = file.read_text(encoding="utf-8")
        stamped = stamp(text, repo, ref)
        if stamped != text:
            file.write_text(stamped, encoding="utf-8")
            changed.append(file)
    return changed


def repo_of(root) -> str:
    """Return ``OWNER/NAME`` of the folder's remote ``origin``.

    Raises:
        LabError: there is no such remote, or it is not on GitHub.
    """
    done = subprocess.run(["git", "-C", str(root), "remote", "get-url", "origin"], capture_output=True, text=True)
    found = ORIGIN.fullmatch(done.stdout.strip())
    if not found:
        what = done.stdout.strip() or "none"
        raise LabError(f"the remote origin must be on GitHub, got {what}: pass --repo OWNER/NAME")
    return found["repo"]


def main(arguments: list[str] | None = None) -> int:
    """Stamp the copy in the current folder; return the exit status: 0 if it worked, 1 after an expected error."""
    parser = argparse.ArgumentParser(description="Write the address of your copy into all badges and setup cells.")
    parser.add_argument("--repo", metavar="OWNER/NAME", help="repository on GitHub (default: the git remote origin)")
    parser.add_argument("--ref", default="main", help="branch or tag to open (default: main)")
    options = parser.parse_args(arguments)
    try:
        repo = options.repo or repo_of(".")
        changed = stamp_all(".", repo, options.ref)
    except (ValueError, LabError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{repo} at {options.ref}: {len(changed)} files changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
