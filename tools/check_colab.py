"""Compare the lab's requirements with Colab's package list: would installing the lab replace any of Colab's packages?

python tools/check_colab.py FILE        FILE is the output of pip freeze on Colab, such as colab/freeze.txt
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
    """Return versions by name (lower case, with hyphens) from the output of ``pip freeze``, ignoring other lines.

    Example:
        >>> pins("NumPy==2.1.3\\n-e git+https://example.org\\nscikit_learn==1.6.1  # a comment")
        {'numpy': '2.1.3', 'scikit-learn': '1.6.1'}
    """
    found = (PINNED.match(line) for line in text.splitlines())
    return {canonical(match[1]): match[2] for match in found if match}


def canonical(name: str) -> str:
    """Return a package's name in the normal form in which PyPI compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def check_colab(file) -> list[Finding]:
    """Compare the versions of each of the lab's requirements on Colab and here, and the lab's bounds for it.

    Args:
        file: the output of ``pip freeze`` on Colab.

    Raises:
        LabError: the file cannot be read, or has no versions.
    """
    try:
        colab = pins(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"cannot read {file}: {error}. To create it on Colab: !pip freeze > freeze.txt") from error
    if not colab:
        raise LabError(f"{file} has no line such as numpy==2.1.3. To create it on Colab: !pip freeze > freeze.txt")
    return [compared(requirement, colab) for requirement in requirements()]


def requirements() -> list:
    """Return the library's own requirements, without its extras, as ``packaging`` parses them."""
    from packaging.requirements import Requirement

    every = map(Requirement, importlib.metadata.requires("dgc_lab") or [])
    return [requirement for requirement in every if requirement.marker is None or requirement.marker.evaluate()]


def compared(requirement, colab: dict[str, str]) -> Finding:
    """Compare one requirement of the lab with Colab's version of the package."""
    name = canonical(requirement.name)
    theirs, ours = colab.get(name), installed(name)
    if ours is None and name == "tensorflow":
        ours = installed("tensorflow-cpu")
    found = f"Colab {theirs or 'has none'}, here {ours or 'none'}"
    if theirs is None:
        return Finding(name, found, "Colab would install it with the lab", needed=False)
    if not requirement.specifier.contains(theirs, prereleases=True):
        return Finding(name, found, f"the lab requires {requirement.specifier} and would replace Colab's")
    same = ours is not None and ours == theirs
    return Finding(name, found, "" if same else "tested here with a version other than Colab's", needed=False)


def main(arguments: list[str] | None = None) -> int:
    """Print the comparison; return the exit status: 1 if one of Colab's packages would be replaced, or for an error."""
    parser = argparse.ArgumentParser(description="Compare the lab's requirements with Colab's packages.")
    parser.add_argument("file", metavar="FILE", help="output of pip freeze on Colab")
    try:
        findings = check_colab(parser.parse_args(arguments).file)
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(report(findings))
    return 1 if any(finding.remedy and finding.needed for finding in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
