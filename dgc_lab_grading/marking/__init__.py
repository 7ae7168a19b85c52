"""Run and test one submission safely.

`reading` reads a submitted file in a `limited` process, `repair` puts the student's answers back into the exercise, and
`worker` grades it in another process, under `supervision` and the limits of a `cgroup`. `execution` runs the student's
cells, and cleans their `outputs`, in a `kernel` in a `sandbox`, where some `system_calls` are refused. `judge` runs the
tests in another sandbox. Over a narrow `channel`, a `session` calls the student's functions in forks of the kernel
(`answers`). `nbgrader_api` wraps nbgrader, and `stubs` has modules that students import on Colab.
"""

import sys

# jsonschema, which validates notebooks for nbformat, compiles grammars for web addresses if it finds this module. That
# takes half of the import time of each submission's process, and the notebook schema has no such addresses.
sys.modules.setdefault("rfc3987_syntax", None)
