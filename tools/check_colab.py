"""Compares what the lab asks for with what pip freeze printed on Colab: would installing it change what Colab ships?

python tools/check_colab.py FILE        such as colab/freeze.txt
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
from pathlib import Path

from dgc_lab.common import LabError
from dgc_lab.install.build_horovod import installed
from dgc_lab.install.doctor import Finding, report

PINNED = re.compile(r"\s*([A-Za-z0-9._-]+)\s*==\s*([^\s;#]+)")


def pins(text: str) -> dict[str, str]:
    """Versions by name (lower case, with hyphens) from the lines of ``pip freeze``; lines of other kinds are left out.

    Example:
        >>> pins("NumPy==2.1.3\\n-e git+https://example.org\\nscikit_learn==1.6.1  # a comment")
        {'numpy': '2.1.3', 'scikit-learn': '1.6.1'}
    """
    found = (PINNED.match(line) for line in text.splitlines())
    return {canonical(match[1]): match[2] for match in found if match}


def canonical(name: str) -> str:
    """A package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def check_colab(file) -> list[Finding]:
    """Each package that the lab asks for: what Colab has, what is here, and whether installing the lab would change it.

    Args:
        file: what ``pip freeze`` printed on Colab.

    Raises:
        LabError: the file cannot be read, or pins nothing.
    """
    try:
        colab = pins(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"cannot read {file}: {error}. On Colab, !pip freeze > freeze.txt makes it") from error
    if not colab:
        raise LabError(f"{file} holds no line such as numpy==2.1.3. On Colab, !pip freeze > freeze.txt makes it")
    return [compared(requirement, colab) for requirement in requirements()]


def requirements() -> list:
    """What the library itself asks for, without its extras, as ``packaging`` reads it."""
    from packaging.requirements import Requirement

    every = map(Requirement, importlib.metadata.requires("dgc_lab") or [])
    return [requirement for requirement in every if requirement.marker is None or requirement.marker.evaluate()]


def compared(requirement, colab: dict[str, str]) -> Finding:
    """One package of the lab's against Colab's version of it."""
    name = canonical(requirement.name)
    theirs, ours = colab.get(name), installed(name)
    if ours is None and name == "tensorflow":
        ours = installed("tensorflow-cpu")
    found = f"Colab {theirs or 'has none'}, here {ours or 'none'}"
    if theirs is None:
        return Finding(name, found, "Colab would install it with the lab", needed=False)
    if not requirement.specifier.contains(theirs, prereleases=True):
        return Finding(name, found, f"the lab asks for {requirement.specifier}, and would replace Colab's")
    same = ours is not None and ours == theirs
    return Finding(name, found, "" if same else "tested here with another version than Colab's", needed=False)


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; returns the exit status: 1 where Colab's packages would be replaced, or for an error."""
    parser = argparse.ArgumentParser(description="Compare what the lab asks for with what Colab has.")
    parser.add_argument("file", metavar="FILE", help="what pip freeze printed on Colab")
    try:
        findings = check_colab(parser.parse_args(arguments).file)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(report(findings))
    return 1 if any(finding.remedy and finding.needed for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
