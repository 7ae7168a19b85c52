"""Immediate feedback on answers to the exercises of all lessons.

`dgc_lab.check` checks an answer. `checking` runs a check and prints the result, `variants` gives each student
individual numbers, and the other modules hold the checks, one module per lesson. Nothing here needs nbgrader, and
`checking` needs only numpy.
"""
