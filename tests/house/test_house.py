"""The project keeps its own rules: imports between subpackages, size limits, and docstrings.

The tests parse imports without running them, including those inside functions and the names in each `__init__.pyi`.
"""

import ast
import importlib
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from conftest import LESSONS_ALONE, LONGEST

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = ROOT / "dgc_lab"
GRADING = ROOT / "dgc_lab_grading"
FILES = sorted([*LIBRARY.rglob("*.py"), *GRADING.rglob("*.py")])
SUBPACKAGES = sorted(file.parent.name for file in LIBRARY.glob("*/__init__.py"))

FOUNDATION = ("compression", "workloads", "ui", "install")
MAY_IMPORT = {  # besides common and itself
    "common": set(),
    **{subpackage: set() for subpackage in FOUNDATION},
    "cluster": {"install"},
    "distributed": {"compression", "install"},
    "aggregation": {"workloads", "ui"},
    "replicas": {"workloads", "ui"},
    "parameter_server": {"cluster", "workloads", "ui", "install"},
    "training": {"compression", "distributed", "cluster", "workloads", "ui"},
    "comparison": {"compression", "distributed", "cluster", "training", "scaling", "workloads", "ui"},
    "scaling": set(SUBPACKAGES) - {"cluster", "parameter_server", "comparison"},
    "exercises": set(SUBPACKAGES),  # they check results of all lessons
}
PICTURES = re.compile(r"figures|\w+_figures?|widget|\w+_widget|live_\w+")  # files that may import ui
MOST_AT_THE_ROOT, MOST_LINES, MOST_LINES_OF_A_FOLDER = 6, 300, 3600  # compression merges two older subpackages
whole = pytest.mark.skipif(
    not (ROOT / "notebooks" / "exercises" / "source").exists(), reason="student copies contain no grading tests"
)
LESSON = re.compile(r"lessons? \d|(all|every) lessons?|instructors", re.IGNORECASE)


def module_of(file):
    """Map dgc_lab/ui/charts.py to dgc_lab.ui.charts, and an __init__ to its package."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


OURS = {LIBRARY.name, GRADING.name}
MODULES = {module_of(file): ast.parse(file.read_text(encoding="utf-8")) for file in FILES}


def part_of(module):
    """Return a module's subpackage or top-level file, "" for the library itself, or "grading"."""
    package, *rest = module.split(".")
    return "grading" if package == GRADING.name else ".".join(rest[:1])


def exports(subpackage):
    """Map public names to their modules, read from the stub or an eager `__init__`."""
    stub = LIBRARY / subpackage / "__init__.pyi"
    tree = ast.parse(stub.read_text(encoding="utf-8")) if stub.exists() else MODULES[f"dgc_lab.{subpackage}"]
    return {
        alias.name: f"dgc_lab.{subpackage}.{node.module if node.level else node.module.rpartition('.')[2]}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


EXPORTS = {subpackage: exports(subpackage) for subpackage in SUBPACKAGES}
PACKAGES = {f"dgc_lab.{subpackage}" for subpackage in SUBPACKAGES}


def imports_of(module):
    """Yield the lab modules that a module imports; public names resolve to their modules."""
    package = module if module in PACKAGES else module.rpartition(".")[0]
    for node in ast.walk(MODULES[module]):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] in OURS)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package.split(".")[: len(package.split(".")) + 1 - node.level]) if node.level else ""
            source = ".".join(filter(None, [start, node.module]))
            if source.split(".")[0] in OURS:
                yield from (home_of(source, name.name) for name in node.names)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            yield from (
                a.value for a in node.args if isinstance(a, ast.Constant) and str(a.value).startswith("dgc_lab")
            )
    if module in PACKAGES:
        yield from EXPORTS[part_of(module)].values()


def home_of(source, name):
    """Return the module that ``from source import name`` loads."""
    if f"{source}.{name}" in MODULES:
        return f"{source}.{name}"
    return EXPORTS.get(part_of(source), {}).get(name, source) if source.count(".") == 1 else source


IMPORTS = {module: sorted(set(imports_of(module))) for module in MODULES}


def test_imported_modules_exist():
    assert [(module, name) for module, every in IMPORTS.items() for name in every if name not in MODULES] == []


@pytest.mark.parametrize("subpackage", MAY_IMPORT)
def test_subpackages_import_only_allowed_ones(subpackage):
    allowed = MAY_IMPORT[subpackage] | {subpackage} | (set() if subpackage == "common" else {"common", ""})
    wrong = {
        f"{module} imports {name}"
        for module, every in IMPORTS.items()
        for name in every
        if part_of(module) == subpackage and part_of(name) not in allowed
    }
    assert wrong == set()


def test_library_does_not_import_the_grader():
    assert [m for m, every in IMPORTS.items() if part_of(m) != "grading" and "grading" in map(part_of, every)] == []


@pytest.mark.parametrize(("part", "above"), [("marking", ("course", "gradebook")), ("course", ("gradebook",))])
def test_grader_layers_only_import_downwards(part, above):
    """Marking a submission is independent of the course, and grading a course of the gradebook."""
    below = {m: every for m, every in IMPORTS.items() if m.startswith(f"{GRADING.name}.{part}")}
    others = tuple(f"{GRADING.name}.{each}" for each in above)
    assert [f"{m} imports {name}" for m, every in below.items() for name in every if name.startswith(others)] == []


def test_only_figures_and_widgets_import_ui():
    plain = [m for m in MODULES if part_of(m) not in ("ui", "grading") and not PICTURES.fullmatch(m.rpartition(".")[2])]
    assert [f"{m} imports {name}" for m in plain for name in IMPORTS[m] if part_of(name) == "ui"] == []


def test_every_subpackage_has_an_import_rule():
    assert set(SUBPACKAGES) == set(MAY_IMPORT) - {"common"}


def test_there_are_no_circular_imports():
    """Ignores package stubs, which load modules lazily."""
    files = {module: every for module, every in IMPORTS.items() if module not in PACKAGES}
    try:
        TopologicalSorter({module: set(every) - {module} for module, every in files.items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_few_files_are_at_the_root():
    assert len(list(LIBRARY.glob("*.py"))) <= MOST_AT_THE_ROOT


def lines_of(file):
    return len(file.read_text(encoding="utf-8").splitlines())


def test_no_file_is_too_long():
    assert {module_of(file): lines_of(file) for file in FILES if lines_of(file) > MOST_LINES} == {}


def test_no_folder_of_the_library_is_too_large():
    folders = {file.parent for file in LIBRARY.rglob("*.py")}
    sizes = {str(folder): sum(map(lines_of, folder.glob("*.py"))) for folder in folders}
    assert {folder: lines for folder, lines in sizes.items() if lines > MOST_LINES_OF_A_FOLDER} == {}


@pytest.mark.parametrize("file", sorted((LIBRARY / "compression").glob("*.py")), ids=lambda file: file.stem)
def test_the_core_of_compression_imports_no_schemes(file):
    assert "from dgc_lab.compression.schemes" not in file.read_text(encoding="utf-8")


@whole
def test_test_folders_match_the_subpackages():
    folders = {file.parent.name for file in (ROOT / "tests").glob("*/test_*.py")}
    assert folders - set(SUBPACKAGES) == {"grading", "house", "lessons", "tools"}
    assert set(SUBPACKAGES) - folders == set()


@whole
def test_test_file_names_are_unique():
    """Same-named modules shadow each other, which breaks pickling by module name."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@whole
def test_files_with_scheduling_rules_exist():
    there = {file.name for folder in ("tests", "notebooks") for file in (ROOT / folder).rglob("*.*")}
    assert {*LONGEST, *LESSONS_ALONE} - there == set()


@pytest.mark.parametrize("package", SUBPACKAGES)
def test_subpackages_name_the_lessons_they_serve(package):
    """Every module needs a docstring too: docs/library.md is generated from them."""
    words = ast.get_docstring(MODULES[f"dgc_lab.{package}"])
    assert LESSON.search(words), f"which lesson does dgc_lab.{package} serve?"
    assert [m for m in MODULES if part_of(m) == package and not (ast.get_docstring(MODULES[m]) or "").strip()] == []


@pytest.mark.parametrize("subpackage", [subpackage for subpackage in SUBPACKAGES if EXPORTS[subpackage]])
def test_public_names_resolve_and_hide_no_modules(subpackage):
    """A module of the same name would replace the public name once it is imported."""
    package = importlib.import_module(f"dgc_lab.{subpackage}")
    assert set(package.__all__) == set(EXPORTS[subpackage]) <= set(dir(package))
    for name, module in EXPORTS[subpackage].items():
        assert f"dgc_lab.{subpackage}.{name}" not in MODULES
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_subpackages_import_without_tensorflow():
    code = f"import sys, {', '.join(f'dgc_lab.{subpackage}' for subpackage in SUBPACKAGES)}\n"
    code += "print([name for name in ('tensorflow', 'keras', 'horovod', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr


# A quoted name of two parts belongs to a collective.
DOTTED = re.compile(r"""(?<![\w/."'])dgc_lab(?:_grading)?(?:\.\w+)+|(?<=["'])dgc_lab(?:_grading)?\.\w+(?:\.\w+)+""")
IMPORT = re.compile(r"from (dgc_lab[\w.]*) import (\w[\w, ]*)")
PATH = re.compile(r"(?<![\w/.])(?:dgc_lab|dgc_lab_grading|tests|tools|benchmarks)/[\w/]+\.\w+")
KEYS = {"dgc_lab.variant"}  # cell metadata
MEASURED = ROOT / "benchmarks" / "README.md"  # names processes as they were called during measurement
WRITTEN = {".py", ".md", ".yml", ".toml", ".txt", ""}  # notebooks are generated from their text


def resolves(dotted):
    """Return whether a dotted name is a module, a name in one, or a public name."""
    *path, last = dotted.split(".")
    for end in range(len(path), 0, -1):
        module, name = ".".join(path[:end]), [*path, last][end]
        if dotted in MODULES or name in EXPORTS.get(part_of(module), {}) or name.startswith("__"):
            return True
        if module in MODULES:
            return name in names_in(module)
    return False


def names_in(module):
    """Yield the names a module defines or imports at top level."""
    for node in ast.iter_child_nodes(MODULES[module]):
        for part in ast.walk(node):
            if isinstance(part, ast.FunctionDef | ast.ClassDef) and part is node:
                yield part.name
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif isinstance(part, ast.alias):
                yield part.asname or part.name


def test_names_in_texts_and_settings_resolve():
    """Catches outdated names and paths in docstrings, texts, commands, and settings."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    files = {ROOT / name for name in listed if Path(name).suffix in WRITTEN and (ROOT / name).is_file()} - {MEASURED}
    wrong = set()
    for file in files:
        text = file.read_text(encoding="utf-8")
        imports = [(module, name.split()[0]) for module, names in IMPORT.findall(text) for name in names.split(",")]
        dotted = {*DOTTED.findall(text), *map(".".join, imports)} - KEYS
        lost = {name for name in dotted if not resolves(name)}
        lost |= {path for path in PATH.findall(text) if not (ROOT / path.replace("NN_name", "01_aggregation")).exists()}
        wrong |= {f"{file.relative_to(ROOT)}: {name}" for name in lost}
    assert wrong == set()
