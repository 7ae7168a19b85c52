"""Submissions that break things on purpose, and a grading that is killed in the middle."""

import html
import re
import subprocess

import nbformat
import psutil

from dgc_lab_grading.course import sources
from instructor import EXERCISES, PYTHON, ROOT, answered, index
from kernels import until

FIRST = "04_masking"
DEEP = """import os
os.chdir(os.environ["JUPYTER_RUNTIME_DIR"])
for level in range(3000):
    os.mkdir("deeper than any function can remove")
    os.chdir("deeper than any function can remove")"""


def hostile(outside, port, variant=0, endless=True):
    """A solved exercise whose own cells try to leave the sandbox, and whose `split` ends its process.

    If `endless` is true, the cell of `fewest-elements` never ends and catches interrupts.
    """
    notebook = answered(FIRST, variant=variant)
    code = nbformat.v4.new_code_cell
    notebook.cells[4:4] = [
        code(f"import pathlib; pathlib.Path({str(outside / 'written')!r}).write_text('here')"),
        code(f"print(open({str(EXERCISES / 'source' / FIRST / 'text' / f'{FIRST}.md')!r}).read())"),
        code(f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"),
        code(f"import subprocess; subprocess.Popen(['sleep', '{outside.stat().st_ino}12345'], start_new_session=True)"),
        code("import numpy as np; np.ones(10**10)"),
        code(DEEP),
        code("while True:\n    print('x' * 1000)"),
    ]
    notebook.cells[index(notebook, "split")].source = "def split(gradient, mask):\n    import os\n    os._exit(0)"
    if endless:
        loop = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
        notebook.cells[index(notebook, "fewest-elements")].source = loop
    return notebook


def damaged():
    """A solved exercise with a deleted test, a changed test, a duplicate answer, shadowed names and no metadata."""
    notebook = answered(FIRST)
    del notebook.cells[index(notebook, "marks-split")]
    notebook.cells[index(notebook, "marks-top-k-mask")].source += "\npassed = True"
    place = index(notebook, "share-sent")
    notebook.cells.insert(place, nbformat.v4.new_code_cell(notebook.cells[place].source))
    for cell in notebook.cells:
        cell.metadata = {}
    notebook.cells.insert(place, nbformat.v4.new_code_cell("sum, np = 1, 2\nVARIANT = 7"))
    return notebook


CUNNING = """
import dgc_lab
dgc_lab.check = lambda *answer: True
# %%
import ast
class NoAssert(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()
get_ipython().ast_transformers.append(NoAssert())
# %%
get_ipython().events.register("pre_run_cell", lambda info: print(info.raw_cell))
# %%
get_ipython().showtraceback = lambda *error, **more: None
# %%
from IPython.display import HTML
HTML("<script>alert(1)</script><table><tr><td>kept</td></tr></table>")
# %%
import contextlib, json, os, pathlib
folder = pathlib.Path(os.environ["JUPYTER_RUNTIME_DIR"])
for spec in [*folder.rglob("kernel.json"), *folder.parent.rglob("kernel.json")]:
    with contextlib.suppress(OSError):
        spec.write_text(json.dumps({"argv": ["touch", "OUTSIDE/escaped"], "display_name": "x", "language": "python"}))
os._exit(0)
"""


# Exceeds the output limit; the interrupt is delayed by a second, as on a busy machine.
INTERRUPTED_LATE = """import time
kernel = get_ipython().kernel
send = kernel._send_interrupt_children
kernel._send_interrupt_children = lambda: (time.sleep(1), send())
print("x" * 30_000_000)"""


def interrupted_late():
    """A solved exercise with such a cell: the interrupt must not hit a later answer."""
    notebook = answered(FIRST)
    place = index(notebook, "fewest-elements")
    notebook.cells[place].source = f"time.sleep(2)\n{notebook.cells[place].source}"
    notebook.cells.insert(3, nbformat.v4.new_code_cell(INTERRUPTED_LATE))
    return notebook


# Prints the test that called it, and sets the result of the test's cell to 4.
FOUR_POINTS = """def top_k_mask(gradient, k):
    import linecache, sys
    frame = sys._getframe()
    while frame:
        if "/ipykernel_" in frame.f_code.co_filename:
            print("".join(linecache.getlines(frame.f_code.co_filename)))
        frame = frame.f_back
    get_ipython().displayhook(4)"""


def cunning(outside):
    """An untouched exercise whose own cells try to gain marks, to read the tests and to leave the sandbox."""
    notebook = answered(FIRST, {"top-k-mask": FOUR_POINTS}, solved=False)
    own = CUNNING.strip().replace("OUTSIDE", str(outside)).split("\n# %%\n")
    notebook.cells[3:3] = [nbformat.v4.new_code_cell(code) for code in own]
    # This answer replaces the functions that test it.
    notebook.cells[index(notebook, "share-sent")].source = (
        "def share_sent(gradients, ratio, whose):\n    import dgc_lab.exercises.masking as checks, numpy\n"
        "    checks.expect = lambda *words: None\n    numpy.isclose = lambda *numbers: True\n    return 0.5"
    )
    notebook.cells.append(nbformat.v4.new_code_cell("print(In)\n%history"))
    return notebook


def variant_of(notebook):
    return next(int(cell.source.split("= ")[1]) for cell in notebook.cells if cell.source.startswith("VARIANT ="))


def grade_and_kill(*arguments):
    """Grade from the command line, and kill the command after the first mark.

    Returns the output until then, and the command's processes that are still alive after a minute.
    """
    command = [PYTHON, "-m", "dgc_lab_grading", "grade", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    printed = []
    while " of 18" not in "".join(printed[-1:]):
        printed.append(process.stdout.readline())
        assert printed[-1], printed
    until(lambda: psutil.Process(process.pid).children(), 60)  # it grades the next submission
    family = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(family, timeout=60)
    return "".join(printed), alive


def assert_no_hidden_test(pages):
    """No page of feedback shows a line of the exercise's hidden tests that its source does not also show elsewhere."""
    source = sources.text_half(EXERCISES / "source", FIRST).read_text()
    blocks = r"(?s)### BEGIN HIDDEN TESTS\n(.*?)### END"
    shown = re.sub(blocks, "", source)
    tests = {line.strip() for block in re.findall(blocks, source) for line in block.splitlines()}
    tests = {line for line in tests if len(line) > 15 and line not in shown}
    assert len(tests) > 10
    for page in pages:
        text = html.unescape(re.sub(r"<[^>]*>", "", page))
        assert not [line for line in tests if line in text]
