"""What Binder would build from this checkout: the Dockerfile that repo2docker makes of it, read step by step."""

from __future__ import annotations

import re
import shlex
import shutil
import string
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

USER, USER_ID = "jovyan", 1000  # Binder's


@dataclass
class Image:
    """A Dockerfile of repo2docker's.

    Attributes:
        text: the Dockerfile.
        python: version of the environment, such as ``"3.11"``.
        base: what is installed before anything of ours, as pip would be asked for it.
        steps: the instructions in their order: who runs it, its name, what follows the name.
    """

    text: str
    python: str
    base: list[str]
    steps: list[tuple[str, str, str]]

    def debian_packages(self) -> list[str]:
        """What the last ``apt-get install`` asks for: the packages of binder/apt.txt."""
        runs = [line for _, name, line in self.steps if name == "RUN" and "apt-get install" in line]
        options = runs[-1].split("apt-get install")[1].split("&&")[0].split()
        return [option for option in options if not option.startswith("-")]

    def commands(self) -> list[str]:
        """What the user runs, which is the part that depends on this checkout."""
        return [line for who, name, line in self.steps if name == "RUN" and who == USER]

    def start(self) -> list[str]:
        """What runs when a student has come."""
        (command,) = [line for _, name, line in self.steps if name == "CMD"]
        return [word.strip('", ') for word in command.strip("[]").split(",")]

    def variables(self, moved: dict[str, str]) -> dict[str, str]:
        """The environment at the end.

        Args:
            moved: variables that have these values whatever the Dockerfile says, such as ``HOME``.
        """
        values = {"NB_USER": USER, "NB_UID": str(USER_ID), "PATH": "/usr/local/bin:/usr/bin:/bin", **moved}
        for _, name, line in self.steps:
            for variable, _, value in (part.partition("=") for part in shlex.split(line) if name in ("ENV", "ARG")):
                if variable not in moved and value:
                    values[variable] = string.Template(value).substitute(values)
        return values


def copy_tracked(root: Path, folder: Path) -> Path:
    """Copy the files that git tracks, as they are now; Binder sees no others."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / name, folder / name)
    return folder


def read_steps(text: str) -> list[tuple[str, str, str]]:
    """The instructions of a Dockerfile, with the user that runs each.

    Example:
        >>> read_steps("USER root\\n# why\\nRUN a && \\\\\\n  b\\n")
        [('root', 'USER', 'root'), ('root', 'RUN', 'a && b')]
    """
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    user, steps = "root", []
    for line in re.sub(r"\\\n\s*", "", lines).splitlines():
        name, _, rest = line.strip().partition(" ")
        if name.isupper():
            user = rest.replace("${NB_USER}", USER) if name == "USER" else user
            steps.append((user, name, rest))
    return steps


def base_packages(python: str) -> list[str]:
    """The Jupyter packages of the environment that repo2docker starts from, at the versions of its lock file."""
    import repo2docker

    folder = Path(repo2docker.__file__).parent / "buildpacks" / "conda"
    lock = (folder / f"environment.py-{python}-linux-64.lock").read_text()
    asked = re.findall(r"^ *- ([\w-]+)==", (folder / f"environment.py-{python}.yml").read_text(), re.MULTILINE)
    packages = []
    for name in asked:
        version = re.search(rf"/{name}-([\d.]+)-[^/]*$", lock, re.MULTILINE)[1]
        packages.append(f"{name.removesuffix('-singleuser')}=={version}")  # the part of JupyterHub that students run
    return packages


def image_of(checkout: Path) -> Image:
    """Ask repo2docker what it would build.

    Args:
        checkout: a folder with tracked files alone (`copy_tracked`).

    Raises:
        RuntimeError: repo2docker refused it; the message is its own.
    """
    command = [sys.executable, "-m", "repo2docker", "--no-build", "--debug"]
    command += ["--user-id", str(USER_ID), "--user-name", USER, str(checkout)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"repo2docker: {done.stderr.strip()}")
    text = done.stdout[done.stdout.index("FROM ") :]
    python = re.search(r"conda environment for python=([\d.]+)", done.stdout + done.stderr)[1]
    return Image(text, python, base_packages(python), read_steps(text))
