"""The house keeps its own rules: which room imports which, how large rooms and files are, what they say of themselves.

The tests read imports and do not run them: those inside functions too, and the public names in each `__init__.pyi`.
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
ROOMS = sorted(file.parent.name for file in LIBRARY.glob("*/__init__.py"))

FOUNDATION = ("compression", "workloads", "ui", "install")
MAY_IMPORT = {  # beside common, which all may, and itself
    "common": set(),
    **{room: set() for room in FOUNDATION},
    "cluster": {"install"},
    "distributed": {"compression", "install"},
    "aggregation": {"workloads", "ui"},
    "replicas": {"workloads", "ui"},
    "parameter_server": {"cluster", "workloads", "ui", "install"},
    "training": {"compression", "distributed", "cluster", "workloads", "ui"},
    "comparison": {"compression", "distributed", "cluster", "training", "scaling", "workloads", "ui"},
    "scaling": set(ROOMS) - {"cluster", "parameter_server", "comparison"},
    "exercises": set(ROOMS),  # they look over what any lesson makes
}
PICTURES = re.compile(r"figures|\w+_figures?|widget|\w+_widget|live_\w+")  # the files that may import ui
MOST_AT_THE_ROOT, MOST_LINES, MOST_LINES_OF_A_ROOM = 6, 300, 3600  # compression is two former rooms
whole = pytest.mark.skipif(
    not (ROOT / "notebooks" / "exercises" / "source").exists(), reason="a students' copy has no tests of grading"
)
LESSON = re.compile(r"lessons? \d|(all|every) lessons?|instructors", re.IGNORECASE)


def module_of(file):
    """dgc_lab/ui/charts.py to dgc_lab.ui.charts; a room's __init__ to the room."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


OURS = {LIBRARY.name, GRADING.name}
MODULES = {module_of(file): ast.parse(file.read_text(encoding="utf-8")) for file in FILES}


def room_of(module):
    """The subpackage, or the file at the root, that a module belongs to: "" for the library itself, or "grading"."""
    package, *rest = module.split(".")
    return "grading" if package == GRADING.name else ".".join(rest[:1])


def exports(room):
    """The module that defines each public name: from the stub, or from the `__init__` of a room that loads at once."""
    stub = LIBRARY / room / "__init__.pyi"
    tree = ast.parse(stub.read_text(encoding="utf-8")) if stub.exists() else MODULES[f"dgc_lab.{room}"]
    return {
        alias.name: f"dgc_lab.{room}.{node.module.rpartition('.')[2]}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


EXPORTS = {room: exports(room) for room in ROOMS}
OPENINGS = {f"dgc_lab.{room}" for room in ROOMS}


def imports_of(module):
    """All modules of the lab that a module imports, wherever in it; a public name of a room is its module's."""
    package = module if module in OPENINGS else module.rpartition(".")[0]
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
    if module in OPENINGS:
        yield from EXPORTS[room_of(module)].values()


def home_of(source, name):
    """The module that ``from source import name`` needs."""
    if f"{source}.{name}" in MODULES:
        return f"{source}.{name}"
    return EXPORTS.get(room_of(source), {}).get(name, source) if source.count(".") == 1 else source


IMPORTS = {module: sorted(set(imports_of(module))) for module in MODULES}


def test_imports_are_of_modules_that_are_there():
    assert [(module, name) for module, every in IMPORTS.items() for name in every if name not in MODULES] == []


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(room):
    allowed = MAY_IMPORT[room] | {room} | (set() if room == "common" else {"common", ""})
    wrong = {
        f"{module} imports {name}"
        for module, every in IMPORTS.items()
        for name in every
        if room_of(module) == room and room_of(name) not in allowed
    }
    assert wrong == set()


def test_the_library_knows_nothing_of_its_grader():
    assert [m for m, every in IMPORTS.items() if room_of(m) != "grading" and "grading" in map(room_of, every)] == []


@pytest.mark.parametrize(("part", "above"), [("marking", ("course", "gradebook")), ("course", ("gradebook",))])
def test_the_grader_is_built_in_layers(part, above):
    """One hand-in is marked without knowing of a class, and a class is graded without knowing of a gradebook."""
    below = {m: every for m, every in IMPORTS.items() if m.startswith(f"{GRADING.name}.{part}")}
    others = tuple(f"{GRADING.name}.{each}" for each in above)
    assert [f"{m} imports {name}" for m, every in below.items() for name in every if name.startswith(others)] == []


def test_only_pictures_import_what_they_share():
    plain = [m for m in MODULES if room_of(m) not in ("ui", "grading") and not PICTURES.fullmatch(m.rpartition(".")[2])]
    assert [f"{m} imports {name}" for m in plain for name in IMPORTS[m] if room_of(name) == "ui"] == []


def test_every_room_has_a_rule():
    assert set(ROOMS) == set(MAY_IMPORT) - {"common"}


def test_files_import_each_other_in_no_circle():
    """Without the rooms' stubs, which load a module only when someone uses its name."""
    files = {module: every for module, every in IMPORTS.items() if module not in OPENINGS}
    try:
        TopologicalSorter({module: set(every) - {module} for module, every in files.items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_few_files_lie_at_the_root():
    assert len(list(LIBRARY.glob("*.py"))) <= MOST_AT_THE_ROOT


def lines_of(file):
    return len(file.read_text(encoding="utf-8").splitlines())


def test_no_file_is_too_long_to_read():
    assert {module_of(file): lines_of(file) for file in FILES if lines_of(file) > MOST_LINES} == {}


def test_no_room_is_too_large():
    sizes = {room: sum(map(lines_of, (LIBRARY / room).rglob("*.py"))) for room in ROOMS}
    assert {room: lines for room, lines in sizes.items() if lines > MOST_LINES_OF_A_ROOM} == {}


@whole
def test_tests_have_the_same_rooms():
    rooms = {file.parent.name for file in (ROOT / "tests").glob("*/test_*.py")}
    assert rooms - set(ROOMS) == {"grading", "house", "lessons", "tools"}
    assert set(ROOMS) - rooms == set()


@whole
def test_no_two_files_of_tests_have_one_name():
    """A process imports the first one, and what is pickled by its name is then looked for in the other."""
    names = [file.name for file in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@whole
def test_files_that_run_first_or_alone_are_there():
    there = {file.name for folder in ("tests", "notebooks") for file in (ROOT / folder).rglob("*.*")}
    assert {*LONGEST, *LESSONS_ALONE} - there == set()


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for(room):
    """Every module, too: docs/library.md is made of these words."""
    words = ast.get_docstring(MODULES[f"dgc_lab.{room}"])
    assert LESSON.search(words), f"which lesson does dgc_lab.{room} serve?"
    assert [m for m in MODULES if room_of(m) == room and not (ast.get_docstring(MODULES[m]) or "").strip()] == []


@pytest.mark.parametrize("room", [room for room in ROOMS if EXPORTS[room]])
def test_a_public_name_is_there_and_no_modules(room):
    """`from dgc_lab.compression import thresholds` would give a module of that name, once anybody has imported it."""
    package = importlib.import_module(f"dgc_lab.{room}")
    assert set(package.__all__) == set(EXPORTS[room]) <= set(dir(package))
    for name, module in EXPORTS[room].items():
        assert f"dgc_lab.{room}.{name}" not in MODULES
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_rooms_open_without_tensorflow():
    code = f"import sys, {', '.join(f'dgc_lab.{room}' for room in ROOMS)}\n"
    code += "print([name for name in ('tensorflow', 'keras', 'horovod', 'numpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr


# A name of two parts between quotes is a collective's.
DOTTED = re.compile(r"""(?<![\w/."'])dgc_lab(?:_grading)?(?:\.\w+)+|(?<=["'])dgc_lab(?:_grading)?\.\w+(?:\.\w+)+""")
IMPORT = re.compile(r"from (dgc_lab[\w.]*) import (\w[\w, ]*)")
PATH = re.compile(r"(?<![\w/.])(?:dgc_lab|dgc_lab_grading|tests|tools|benchmarks)/[\w/]+\.\w+")
KEYS = {"dgc_lab.variant"}  # in a cell's metadata
MEASURED = ROOT / "benchmarks" / "README.md"  # names processes as they were called when they were measured
WRITTEN = {".py", ".md", ".yml", ".toml", ".txt", ""}  # notebooks are made of their text


def leads_somewhere(dotted):
    """Whether a dotted name, as texts and commands have it, is a module, a name in one, or a public name of a room."""
    *path, last = dotted.split(".")
    for end in range(len(path), 0, -1):
        module, name = ".".join(path[:end]), [*path, last][end]
        if dotted in MODULES or name in EXPORTS.get(room_of(module), {}) or name.startswith("__"):
            return True
        if module in MODULES:
            return name in names_in(module)
    return False


def names_in(module):
    """What a module defines or imports at its top."""
    for node in ast.iter_child_nodes(MODULES[module]):
        for part in ast.walk(node):
            if isinstance(part, ast.FunctionDef | ast.ClassDef) and part is node:
                yield part.name
            elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif isinstance(part, ast.alias):
                yield part.asname or part.name


def test_names_that_are_written_somewhere_lead_to_something():
    """In docstrings, texts, commands and settings: what has moved or has another name now is found by this."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    files = {ROOT / name for name in listed if Path(name).suffix in WRITTEN and (ROOT / name).is_file()} - {MEASURED}
    wrong = set()
    for file in files:
        text = file.read_text(encoding="utf-8")
        imports = [(module, name.split()[0]) for module, names in IMPORT.findall(text) for name in names.split(",")]
        dotted = {*DOTTED.findall(text), *map(".".join, imports)} - KEYS
        lost = {name for name in dotted if not leads_somewhere(name)}
        lost |= {path for path in PATH.findall(text) if not (ROOT / path.replace("NN_name", "01_aggregation")).exists()}
        wrong |= {f"{file.relative_to(ROOT)}: {name}" for name in lost}
    assert wrong == set()
