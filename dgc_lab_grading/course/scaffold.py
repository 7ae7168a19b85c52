"""Create an exercise with everything that grading relies on: ``python -m dgc_lab_grading new NN_name``."""

from __future__ import annotations

import re
from pathlib import Path

import dgc_lab
from dgc_lab.common import LabError
from dgc_lab_grading.course.sources import text_half

TEXT = """---
jupytext:
  formats: ipynb,text//md:myst
  text_representation:
    extension: .md
    format_name: myst
    format_version: 0.13
kernelspec:
  display_name: Python 3 (ipykernel)
  language: python
  name: python3
---

# Exercise {number}: {title}

This exercise belongs to lesson {number}. Afterwards you can

- ... (list what the exercise teaches).

**Time:** 30 minutes. **Points:** 2.

Replace each `...` with your answer. The cell below it checks your answer and says what was expected; run it as often as
you like. For your own values, whose names begin with `my_`, it stops checking after three different wrong ones; restart
the kernel to continue. Your marks come from more tests than you see here. Don't delete or copy these cells; add your
own wherever you want.

```{{code-cell}} ipython3
# On Colab, install the lab and the packages that this exercise needs. Elsewhere they are already installed.
import importlib.util

if importlib.util.find_spec("dgc_lab") is None:
    %pip install --quiet "dgc_lab @ git+https://github.com/YOUR_NAME/YOUR_COPY@v{version}"
from dgc_lab.install import prepare
prepare()
```

```{{code-cell}} ipython3
---
nbgrader:
  cell_type: code
  grade: false
  grade_id: setup
  locked: true
  schema_version: 3
  solution: false
  task: false
---
import numpy as np

import dgc_lab
```

This number gives you your own version of some tasks.

```{{code-cell}} ipython3
---
deletable: false
dgc_lab:
  variant: true
---
VARIANT = 0
```

## Task 1: complete this line (2 points, 5 minutes)

**Goal:** state the purpose of this task in a few words.

Describe the arguments of `mean`, its result, and common mistakes.

```{{code-cell}} ipython3
---
nbgrader:
  cell_type: code
  grade: false
  grade_id: mean
  locked: false
  schema_version: 3
  solution: true
  task: false
---
def mean(values):
    ### BEGIN SOLUTION
    # Explain here why this solution is correct.
    return np.sum(values) / np.size(values)
    ### END SOLUTION
```

```{{code-cell}} ipython3
---
nbgrader:
  cell_type: code
  grade: true
  grade_id: marks-mean
  locked: true
  points: 2
  schema_version: 3
  solution: false
  task: false
---
print("expected 2, got", mean(np.array([1.0, 2.0, 3.0])))
### BEGIN HIDDEN TESTS
values = np.random.default_rng(VARIANT).normal(size=(4, 5))
assert np.isclose(mean(values), values.mean())
### END HIDDEN TESTS
```
"""


def new(source: Path, name: str) -> Path:
    """Write the text of a new exercise ``NN_name`` to the sources; LabError if it already exists."""
    if not re.fullmatch(r"\d\d_[a-z0-9_]+", name):
        raise LabError(f"an exercise's name must look like 08_my_idea, got {name!r}")
    path = text_half(source, name)
    if path.parents[1].exists():
        raise LabError(f"{path.parents[1]} already exists")
    path.parent.mkdir(parents=True)
    title = name[3:].replace("_", " ")
    path.write_text(TEXT.format(number=int(name[:2]), title=title, version=dgc_lab.__version__))
    return path
