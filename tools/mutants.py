"""Mutation testing of `dgc_lab.compression`: insert one small fault at a time, which some test should catch.

python tools/mutants.py        goes on where it was stopped; mutants that survived are tried again

The mutants are cosmic-ray's, by all of its operators. Only the running is ours: each mutant is tried in a process that
is forked from this one, which has imported TensorFlow and nothing of the lab. It runs the tests that were seen to reach
the changed lines, the quickest first, in a copy of the tree. `mutants.toml` has the settings, and the survivors that no
test can catch.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = Path(__file__).with_suffix(".toml")
RESULTS = ROOT / "results" / "mutants.json"
WORK = ROOT / "build" / "mutants"
TREE, LOG = WORK / "tree", WORK / "log"
# By which tests each line is reached, the time that each took, and the files of that day.
COVERAGE, REACH, TIMES, SEEN = (WORK / name for name in ("coveragerc", "reach", "times.xml", "seen.json"))
COPIED = ("dgc_lab", "tests", "tools", "results", "pyproject.toml")
# What takes long to import and is not the lab's: once, before the forks. No operation of TensorFlow runs here.
IMPORTED = ("tensorflow", "keras", "hypothesis.strategies", "pytest", "IPython", "playwright.sync_api", "cosmic_ray")
OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-o", "timeout=0", "-m", "not long")
FAILED = (1, 2, 3, 4)  # pytest's: a test failed, was not collected, conftest.py found no name to import, or a file none


class Mutant(NamedTuple):
    """A file of the copy with one fault in it."""

    module: str  # its path
    line: int
    old: str  # the lines that differ, without their indentation
    new: str
    code: str  # all of the file

    @property
    def key(self) -> str:
        """What its fate is kept by: other files may change meanwhile."""
        return hashlib.sha256(f"{self.module}\0{self.code}".encode()).hexdigest()[:16]

    @property
    def spelled(self) -> str:
        """What it is known by in `mutants.toml`."""
        return spelled(Path(self.module).name, self.old, self.new)

    def told(self) -> dict:
        """As it is shown to people."""
        return {"module": Path(self.module).name, "line": self.line, "old": self.old, "new": self.new}


def mutants_table(file: Path = RESULTS) -> pd.DataFrame:
    """A line for each module and one for all: mutants tried, caught, known to change nothing, and survived.

    ``percent`` is the share that was caught of those that change something.

    Example:
        >>> list(mutants_table().columns)
        ['module', 'mutants', 'killed', 'equivalent', 'survived', 'percent']
    """
    table = pd.DataFrame(json.loads(file.read_text(encoding="utf-8"))["modules"])
    table = pd.concat([table, pd.DataFrame([{"module": "all", **table.sum(numeric_only=True)}])], ignore_index=True)
    return table.assign(percent=(100 * table.killed / (table.mutants - table.equivalent)).round(1))


def main() -> None:
    """Make the mutants, try those whose fate is not known, and write what became of all."""
    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    copy_tree()
    sys.path[:0] = [str(TREE), str(TREE / "tests"), str(TREE / "tools")]
    os.environ |= {"PYTHONPATH": os.pathsep.join(sys.path[:3]), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    for name in IMPORTED:
        importlib.import_module(name)
    drawn, made = mutants_of(settings)
    tests = Tests(settings)
    fates = json.loads(RESULTS.read_text(encoding="utf-8"))["fates"] if RESULTS.exists() else {}
    known = {spelled(each["module"], each["old"], each["new"]): each["reason"] for each in settings["equivalent"]}
    told = {"command": "make mutants", "made": made, "drawn": len(drawn), "seed": settings["seed"]}
    # Survivors last: there may be a test for them now.
    for number, mutant in sorted(enumerate(drawn, 1), key=lambda each: each[1].key in fates):
        if mutant.spelled not in known and fates.get(mutant.key) != "killed":
            fates[mutant.key] = "killed" if fails(mutant, tests.reaching(mutant), settings) else "survived"
            print(f"{number}/{len(drawn)} {fates[mutant.key]} {mutant.told()}", flush=True)
            write(told, drawn, fates, known)
    write(told, drawn, fates, known)
    print(mutants_table().to_string(index=False))


def write(told: dict, drawn: list[Mutant], fates: dict[str, str], known: dict[str, str]) -> None:
    """Write what became of the mutants that were tried; the next run goes on from it."""
    modules, kept = {}, {"survived": [], "equivalent": []}
    for mutant in drawn:
        reason = known.get(mutant.spelled)
        fate = "equivalent" if reason else fates.get(mutant.key)
        if fate is None:
            continue
        name = mutant.told()["module"]
        counts = modules.setdefault(name, {"module": name, "mutants": 0, "killed": 0, "equivalent": 0, "survived": 0})
        counts["mutants"] += 1
        counts[fate] += 1
        if fate in kept:
            kept[fate].append(mutant.told() | ({"reason": reason} if reason else {}))
    rows = {"modules": sorted(modules.values(), key=lambda counts: counts["module"]), **kept}
    rows["fates"] = {mutant.key: fates[mutant.key] for mutant in drawn if mutant.key in fates}
    unfinished = RESULTS.with_suffix(".new")
    unfinished.write_text(json.dumps(told | rows, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(RESULTS)


def spelled(*texts: str) -> str:
    """Texts without spaces, which cosmic-ray sets as it likes."""
    return "|".join("".join(text.split()) for text in texts)


def copy_tree() -> None:
    """A copy of what the tests need, to put mutants into; we stand in it from here on."""
    shutil.rmtree(TREE, ignore_errors=True)
    TREE.mkdir(parents=True)
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, TREE / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, TREE / name)
    os.chdir(TREE)


def mutants_of(settings) -> tuple[list[Mutant], int]:
    """Those of cosmic-ray's mutants that are drawn, in the order in which they are, and how many there are in all.

    They are drawn by a hash of where they stand, so that a changed file leaves those of others as they were, and the
    first hundred are a sample, too. What is no Python, or says the same but for an annotation, which nobody evaluates,
    is not drawn.
    """
    from cosmic_ray.commands import init
    from cosmic_ray.modules import find_modules
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator
    from cosmic_ray.work_db import use_db

    with use_db(":memory:") as work:
        init(sorted(find_modules([Path(settings["module-path"])])), work, {})
        every = [item.mutations[0] for item in work.work_items]

    def lot(spec):
        name = f"{settings['seed']} {spec.module_path} {spec.operator_name} {spec.occurrence}"
        return hashlib.sha256(name.encode()).digest()

    drawn = {}
    for spec in sorted(every, key=lot):
        if len(drawn) == settings["sample"]:
            break
        text = spec.module_path.read_text(encoding="utf-8")
        try:
            code = mutate_code(text, get_operator(spec.operator_name)(**spec.operator_args), spec.occurrence)
            if meaning(code) == meaning(text):
                continue
        except (AttributeError, SyntaxError):  # the first where an exception's name has a dot
            continue
        changed = [line for line in difflib.ndiff(text.splitlines(), code.splitlines()) if line[:2] in ("- ", "+ ")]
        old, new = (" ".join(line[2:].strip() for line in changed if line[0] == sign) for sign in "-+")
        mutant = Mutant(str(spec.module_path), spec.start_pos[0], old, new, code)
        drawn[mutant.key] = mutant  # two operators can make the same
    return list(drawn.values()), len(every)


def meaning(code: str) -> str:
    """The syntax tree without annotations."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        elif isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


class Tests:
    """The tests, by the lines that they reach, and the time that each took; they pass where nothing is changed.

    That is looked up anew when the library has changed. A file of tests that has changed since is run as a whole.
    """

    def __init__(self, settings):
        import coverage

        files = [*Path("dgc_lab").rglob("*.py"), *Path("tests").rglob("test_*.py")]
        now = {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
        then = json.loads(SEEN.read_text()) if SEEN.exists() else {}
        changed = {name for name in now if now[name] != then.get(name)}
        if any(name.startswith("dgc_lab") for name in changed):
            SEEN.unlink(missing_ok=True)
            REACH.unlink(missing_ok=True)
            measured = ["[run]", f"data_file = {REACH}", "dynamic_context = test_function", "source = dgc_lab"]
            COVERAGE.write_text("\n".join(measured))
            if status := forked(settings["tests"], settings, reach=True):
                sys.exit(f"The tests fail where nothing is changed: pytest ended with {status}; see {LOG}")
            SEEN.write_text(json.dumps(now))
            changed = set()
        self.changed = sorted(name for name in changed if name.startswith(tuple(settings["tests"])))
        self.data = coverage.CoverageData(str(REACH))
        self.data.read()
        self.times = {}
        for case in ElementTree.parse(TIMES).iter("testcase"):
            file, name = case.get("classname").replace(".", "/") + ".py", case.get("name").split("[")[0]
            if file not in changed:
                self.times[f"{file}::{name}"] = self.times.get(f"{file}::{name}", 0) + float(case.get("time"))

    def reaching(self, mutant: Mutant) -> list[str]:
        """The examples of the file itself, then tests that run a changed line; all tests where none was seen to."""
        reached = self.data.contexts_by_lineno(str(TREE / mutant.module))
        names = {name for line in statement_at(mutant) for name in reached.get(line, ())}
        there = [test for test in self.times if test.startswith("tests/")]
        chosen = [test for test in there if Path(test).name.replace(".py::", ".") in names] or there
        return [mutant.module, *self.changed, *sorted(chosen, key=self.times.get)]


def statement_at(mutant: Mutant) -> range:
    """The lines of the smallest statement around the changed line; of one that holds others, its head."""
    around = [
        node
        for node in ast.walk(ast.parse(Path(mutant.module).read_text(encoding="utf-8")))
        if isinstance(node, ast.stmt) and node.lineno <= mutant.line <= node.end_lineno
    ]
    if not around:
        return range(mutant.line, mutant.line + 1)
    inner = max(around, key=lambda node: node.lineno)
    return range(inner.lineno, (mutant.line if hasattr(inner, "body") else inner.end_lineno) + 1)


def fails(mutant: Mutant, tests, settings) -> bool:
    """Whether a test fails, or hangs, with the mutant in the file's place."""
    file = Path(mutant.module)
    text = file.read_text(encoding="utf-8")
    try:
        file.write_text(mutant.code, encoding="utf-8")
        status = forked(tests, settings)
    finally:
        file.write_text(text, encoding="utf-8")
    if status not in (0, 5, *FAILED) and status > 0:
        sys.exit(f"pytest ended with {status} on {mutant[:4]}; see {LOG}")
    return status in FAILED or status < 0


def forked(tests, settings, reach=False) -> int:
    """Run pytest in a process of its own, and give its status; a signal's number below zero where it was killed."""
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(tests, settings, reach))
    process.start()
    try:
        process.join(settings["clock_seconds"])
    finally:  # an interrupt, too
        process.kill()
        process.join()
    return process.exitcode


def run_tests(tests, settings, reach) -> None:
    """In the fork: pytest, and nothing left behind."""
    import pytest

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()  # an interrupt is the parent's
    out = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    if not reach:
        resource.setrlimit(resource.RLIMIT_CPU, (settings["cpu_seconds"],) * 2)
        os._exit(pytest.main([*OPTIONS, *tests]))
    import coverage

    measure = coverage.Coverage(config_file=str(COVERAGE))
    measure.start()
    status = pytest.main([*OPTIONS, f"--junitxml={TIMES}", "-o", "junit_family=xunit1", *tests])
    measure.stop()
    measure.save()
    os._exit(status)


if __name__ == "__main__":
    main()
