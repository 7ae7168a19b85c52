"""Immediate feedback on answers to the exercises of all lessons.

`dgc_lab.check` checks an answer. `checking` runs a check and prints the result, `variants` gives each student
individual numbers, `Questions` asks the questions at the end of a lesson, and the other modules hold the checks, one
module per lesson. Nothing here needs nbgrader, and `checking` needs only numpy.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
