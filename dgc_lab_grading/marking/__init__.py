"""Run and test one submission safely.

`repair` puts a student's answers back into the exercise, and `worker` grades it in its own process, under `supervision`
and the limits of a `cgroup`. `execution` runs the student's cells in a kernel in a `sandbox`, and `judge` runs the
tests in another sandbox. Over a narrow `channel`, a `session` calls the student's functions in forks of the kernel
(`answers`). `nbgrader_api` wraps nbgrader.
"""

import sys

# jsonschema, which validates notebooks for nbformat, compiles grammars for web addresses if it finds this module. That
# takes half of the import time of each submission's process, and the notebook schema has no such addresses.
sys.modules.setdefault("rfc3987_syntax", None)
