"""Imports in lessons and exercises resolve, and lessons import from subpackages in few lines.

tests/house covers names in other texts.
"""

import importlib
import re
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted((ROOT / "notebooks" / "text").glob("*.md"))
EXERCISES = sorted((ROOT / "notebooks" / "exercises").glob("source/*/text/*.md"))
IMPORT = re.compile(r"^[ \t]*from (dgc_lab[\w.]*) import (\([^)]*\)|.+)$", re.MULTILINE)
FIXED = [("dgc_lab.install", ["prepare"]), ("dgc_lab.exercises", ["Questions"])]  # in each first and last cell
MOST_IMPORTS = 7


def named(path):
    return "/".join(path.relative_to(ROOT).parts[-3:])


def imports(path):
    """Yield the module and the imported names of each import line."""
    for module, names in IMPORT.findall(path.read_text(encoding="utf-8")):
        names = re.sub(r"#.*", "", names).strip("()\n ").split(",")
        yield module, [name.strip() for name in names if name.strip()]


def found(module, name):
    """Return an attribute or a submodule; ``name`` may be "name as alias"."""
    name = name.split(" as ")[0]
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        return importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize("path", [*LESSONS, *EXERCISES], ids=named)
def test_imports_resolve(path):
    for module, names in imports(path):
        for name in names:
            assert found(module, name) is not None


@pytest.mark.parametrize("path", LESSONS, ids=named)
def test_lessons_import_from_subpackages_in_few_lines(path):
    lines = [line for line in imports(path) if line not in FIXED]
    assert 1 <= len(lines) <= MOST_IMPORTS
    for module, _ in lines:
        assert re.fullmatch(r"dgc_lab\.\w+", module), f"{module} is not a subpackage"


@pytest.mark.parametrize("path", [*LESSONS, *EXERCISES], ids=named)
def test_attributes_of_imported_modules_exist(path):
    """For example, lessons import a figures module and call figures.timelines(runs)."""
    code = "\n".join(re.findall(r"(?ms)^```\{code-cell\}.*?^```$", path.read_text(encoding="utf-8")))
    taken = {name.split(" as ")[-1]: found(module, name) for module, names in imports(path) for name in names}
    for name, module in taken.items():
        if isinstance(module, types.ModuleType):
            used = set(re.findall(rf"(?<![\w./]){name}\.([A-Za-z_]\w*)", code))
            assert used, f"{name} is imported but unused"
            assert not {each for each in used if not hasattr(module, each)}
