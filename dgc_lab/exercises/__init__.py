"""What the exercises say to a student at once: `dgc_lab.check` looks an answer over. All lessons, a module each.

`checking` runs a check and words what came of it; `variants` gives every student numbers of their own; `masking`,
`accumulation` and the others hold the checks. Nothing in here needs nbgrader, and `checking` needs numpy alone.
"""
