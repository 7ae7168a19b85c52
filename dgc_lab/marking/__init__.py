"""How one hand-in is run and judged safely, for instructors: what `dgc_lab.course` calls for each.

`repair` puts a student's answers back into the exercise; each one is run in a process of its own (`worker`, which runs
the cells by `execution` in a kernel that `sandbox` fences in, under `supervision`, with tests that `guard` looks
after). `nbgrader_api` is the door to nbgrader.
"""
