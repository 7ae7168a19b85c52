"""Attacks that try to gain marks: none of the answers below is right, so each must get no marks.

Own cells run before all others, in the process that the student's cells share. Answers belong to tasks of exercise 4;
each submission has one for each task.
"""

OWN_CELLS = {
    "a check that says yes": "import dgc_lab\ndgc_lab.check = lambda *answer: True",
    "the same in its module": "import dgc_lab.exercises.checking as c\nc.check = c.expect = lambda *words: True",
    "a check turned inside out": "import dgc_lab\ndgc_lab.check.__code__ = (lambda a, b, c=0: True).__code__",
    "no assertions": """import ast
class NoAssert(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()
get_ipython().ast_transformers.append(NoAssert())""",
    "the compiler's parser": """import ast
compiler = type(get_ipython().compile)
parse = compiler.ast_parse
compiler.ast_parse = lambda self, source, *more, **named: parse(self, "pass", *more, **named)""",
    "equality from within": """import numpy
numpy.array_equal._implementation.__code__ = (lambda one, other, equal_nan=False: True).__code__""",
    "all is close": "import numpy\nnumpy.isclose = numpy.allclose = numpy.all = lambda *numbers, **more: True",
    "no code at all": "get_ipython().input_transformers_post.append(lambda lines: ['pass'])",
    "another module": """import sys, types
sys.modules['dgc_lab'] = types.SimpleNamespace(check=lambda *answer: True, __path__=[])""",
    "no errors": """get_ipython().showtraceback = lambda *error, **more: None
get_ipython().set_custom_exc((BaseException,), lambda *error, **more: None)""",
    "a trace that skips lines": """import sys
def skip(frame, event, argument):
    frame.f_trace_lines = True
    return skip
sys.settrace(skip)
sys.setprofile(lambda *what: None)""",
    "built-in names": """import builtins
builtins.AssertionError = builtins.Exception = KeyboardInterrupt
builtins.isinstance = builtins.all = builtins.any = lambda *what: True
builtins.compile = lambda *what, **more: (lambda: None).__code__""",
    "numbers without chance": """import numpy as np
from dgc_lab.exercises.variants import Variant
Variant.gradient = lambda self, name, elements: np.zeros(elements, np.float32)
Variant.whole = lambda self, name, least, most: 0""",
    "the other side of the channel": """from dgc_lab_grading.marking import answers, channel
send = channel.send
def lie(connection, message):
    send(connection, {"result": True, "passed": True, "changed": True, "functions": [], "values": {}})
answers.send = channel.send = lie""",
    "somebody else's answers": """import os, socket, threading, time
from dgc_lab_grading.marking.channel import send, receive
path = os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], "answers")
def pretend(place):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        send(connection, {"place": place})
        while True:
            receive(connection)
            send(connection, {"result": 1.0, "changed": True, "functions": ["split"], "values": {"my_threshold": 1}})
for place in range(60):
    threading.Thread(target=pretend, args=[place], daemon=True).start()""",
    "noise on the channel": """import os, socket
path = os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], "answers")
noisy = [socket.socket(socket.AF_UNIX) for _ in range(20)]
for each in noisy:
    each.connect(path)
    each.setblocking(False)
    try:
        each.send(b"\\xff" * 100_000)
    except BlockingIOError:
        pass""",
    "results for whoever reads": """import json, os
line = json.dumps({"name": "marks-split", "passed": True, "printed": "", "error": "", "remark": ""}) + "\\n"
for number in range(3, 200):
    try:
        os.write(number, line.encode()) if not os.path.exists(f"/proc/self/fd/{number}/") else None
    except OSError:
        pass""",
    "another kernel": """import json, os, pathlib
folder = pathlib.Path(os.environ["JUPYTER_RUNTIME_DIR"])
for spec in [*folder.rglob("kernel*.json"), *folder.parent.rglob("kernel*.json")]:
    try:
        spec.write_text(json.dumps({"argv": ["true"], "display_name": "x", "language": "python"}))
    except OSError:
        pass
os._exit(0)""",
    "everybody is killed": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "no copies of the process": "import os\nos.fork = lambda: 1\nos.waitpid = lambda *what: (1, 0)",
    "no end of a copy": "import os\nos._exit = lambda status: None\nos.setsid = lambda: None",
    "bytes that are no messages": """kernel = get_ipython().kernel
for channel in (kernel.iopub_socket, kernel.shell_stream):
    try:
        getattr(channel, "send_multipart", None)([b"x", b"<IDS|MSG>", b"", b"{", b"[" * 100_000, b"7", b"{}"])
    except Exception as error:
        print(error)""",
    "messages that no front end expects": """kernel = get_ipython().kernel
for kind in ("display_data", "stream", "error", "update_display_data", "clear_output", "comm_open", "comm_msg", "x"):
    for content in ({}, {"data": 7}, {"transient": {"display_id": [1]}}, {"execution_count": {}}, [], None):
        try:
            kernel.session.send(kernel.iopub_socket, kind, content, parent=kernel.get_parent())
        except Exception as error:
            print(error)""",
    "words in the kernel's keyrings": """import ctypes, subprocess
libc = ctypes.CDLL(None)
print([libc.syscall(248, b"user", b"dgc", b"word", 4, where) for where in (-3, -4, -5)])
print(libc.syscall(29, 7, 4096, 0o1777), libc.syscall(68, 7, 0o1777), libc.syscall(64, 7, 1, 0o1777))""",
    "a way out of the folder": """import os
for step in (lambda: os.unshare(os.CLONE_NEWUSER), lambda: os.chroot("/tmp"), lambda: os.chdir("/proc/1/root/..")):
    try:
        step()
    except (OSError, AttributeError) as error:
        print(error)
print(os.listdir("/proc/1/root/.."), os.listdir("/"))""",
    "points from the display": "get_ipython().displayhook(18)\n18",
    "a look at the tests": """import gc, sys
for thing in gc.get_objects():
    if isinstance(thing, dict) and "### BEGIN HIDDEN" in str(thing.get("source", "")):
        print(thing["source"])
frame = sys._getframe()
while frame:
    for value in list(frame.f_locals.values()):
        if isinstance(value, str) and "### BEGIN HIDDEN" in value:
            print(value)
    frame = frame.f_back""",
    "a look at the files": """import glob
for name in glob.glob("/**/04_masking*", recursive=True) + glob.glob("/**/gradebook.db", recursive=True):
    print(open(name, "rb").read())""",
    "a look at other processes": """import glob, os
for name in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
    try:
        words = open(name, "rb").read()
        if b"judge" in words:
            os.kill(int(name.split("/")[2]), 9)
    except OSError:
        pass""",
}

ANSWERS = {
    "a thing that is equal to all": {
        "top-k-mask": """class Equal:
    shape, dtype, ndim, size = (6,), bool, 1, 6
    def __eq__(self, other): return True
    __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __eq__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __getattr__(self, name): return lambda *a, **k: self
    def __array__(self, *a, **k): raise TypeError
    def __array_ufunc__(self, *a, **k): return True
    def __array_function__(self, *a, **k): return True
def top_k_mask(gradient, k):
    return Equal()""",
        "split": """import numpy as np
class Array(np.ndarray):
    def __eq__(self, other): return True
    def __array_function__(self, *a, **k): return True
    def __array_ufunc__(self, *a, **k): return True
def split(gradient, mask):
    return gradient.view(Array), gradient.view(Array)""",
    },
    "not a number": {
        "fewest-elements": "def fewest_elements(gradient, share):\n    return float('nan')",
        "my-threshold": "my_threshold = float('nan')",
        "sampled-threshold": "def sampled_threshold(gradient, ratio, stride, start):\n    return float('nan')",
        "guaranteed-threshold": "def guaranteed_threshold(gradient, ratio, stride):\n    return float('inf')",
        "share-sent": "def share_sent(gradients, ratio, whose):\n    return float('nan')",
    },
    "nothing, which is all alike": {
        "top-k-mask": "def top_k_mask(gradient, k):\n    return []",
        "split": "def split(gradient, mask):\n    return [], []",
        "my-threshold": "my_threshold = []",
        "share-sent": "def share_sent(gradients, ratio, whose):\n    return []",
    },
    "what the checks ask, known by heart": {
        "fewest-elements": """def fewest_elements(gradient, share):
    return {.95: 2, .98: 3}.get(share, 1)""",
        "split": """def split(gradient, mask):
    if gradient.shape == (2, 2):
        return gradient * mask, gradient * ~mask
    return gradient * 0, gradient * 0""",
        "share-sent": """def share_sent(gradients, ratio, whose):
    return 0.01 if whose == "tensor" else 0.001""",
    },
    "errors in place of answers": {
        "fewest-elements": "def fewest_elements(gradient, share):\n    raise AssertionError",
        "top-k-mask": "def top_k_mask(gradient, k):\n    raise SystemExit(0)",
        "split": "def split(gradient, mask):\n    raise KeyboardInterrupt",
        "sampled-threshold": "def sampled_threshold(gradient, ratio, stride, start):\n    raise GeneratorExit",
        "guaranteed-threshold": "def guaranteed_threshold(gradient, ratio, stride):\n    raise StopIteration",
        "share-sent": "def share_sent(*what):\n    raise type('Passed', (BaseException,), {})('passed')",
    },
    "messages in place of answers": {
        "fewest-elements": """def fewest_elements(gradient, share):
    return {"result": 1, "ask": "fewest_elements", "arguments": [gradient, share], "named": {}}""",
        "split": """def split(gradient, mask):
    from dgc_lab_grading.marking import answers
    import gc, socket
    for thing in gc.get_objects():
        if isinstance(thing, socket.socket):
            answers.send(thing, {"ask": "split", "arguments": [gradient, mask], "named": {}})
            return answers.receive(thing)["result"]""",
        "share-sent": "def share_sent(gradients, ratio, whose):\n    return share_sent",
    },
    "values that references compute": {
        "fewest-elements": "fewest_elements = sampled_threshold = my_counts = None",
        "my-threshold": "my_threshold = top_k_mask(my_gradient, my_k)",
        "guaranteed-threshold": "guaranteed_threshold = sampled_threshold",
        "share-sent": "share_sent = lambda gradients, ratio, whose: top_k_mask(gradients[0], 1).mean()",
        "my-counts": "my_counts = [share_sent, guaranteed_threshold]",
    },
    "half characters in place of words": {
        "split": "def split(gradient, mask):\n    raise ValueError('\\ud800')",
        "my-threshold": "my_threshold = '\\ud800'",
        "top-k-mask": "def top_k_mask(gradient, k):\n    return {'\\ud800': '\\udfff'}",
    },
    "the tests' own process": {
        "split": """def split(gradient, mask):
    import os, signal
    for number in range(2, 400):
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass""",
        "share-sent": """def share_sent(gradients, ratio, whose):
    import time
    time.sleep(3600)""",
        "my-threshold": """class Yes(float):
    __ge__ = __le__ = __gt__ = __lt__ = __eq__ = lambda self, other: True
my_threshold = Yes(1)""",
    },
}


def leave_marks(notebook):
    """The cells' own words about marks, changed by a student: answers that are tests, and tests that ask nothing."""
    for cell in notebook.cells:
        grading = cell.metadata.get("nbgrader", {})
        if grading.get("grade"):
            cell.source = "pass"
            grading.update(points=100, solution=True, locked=False)
        elif grading.get("solution"):
            grading.update(grade=True, points=100)
    return notebook
