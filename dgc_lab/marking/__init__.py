"""How one hand-in is run and judged safely, for instructors: what `dgc_lab.course` calls for each.

`repair` puts a student's answers back into the exercise, and `worker` grades it in a process of its own, under
`supervision` and the limits of a `cgroup`. The student's cells run by `execution` in a kernel that `sandbox` fences in;
the tests run in another process behind a fence, by `judge`. It asks the student's functions in a `session` over a
narrow `channel`, at whose other end, in copies of the kernel, is `answers`. `nbgrader_api` is the door to nbgrader.
"""

import sys

# jsonschema, which nbformat checks notebooks with, compiles grammars for web addresses where it finds this: half of the
# time that a hand-in's process takes to import all it needs. A notebook's schema has no such address.
sys.modules.setdefault("rfc3987_syntax", None)
