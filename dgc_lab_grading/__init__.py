"""Grading for instructors: ``python -m dgc_lab_grading``, separate from the library that students install.

`course` makes the students' versions of the exercises and grades a class's submissions. `marking` runs and tests one
submission safely. `gradebook` exports the marks to the learning platform. Students get their immediate feedback from
`dgc_lab.exercises`.

``make course`` creates the environment for this package, with nbgrader. Never install nbgrader where students work.
"""
