"""From an exercise's source to a list of marks, for instructors: ``python -m dgc_lab.course``.

`sources` makes the students' versions, `roster` gives each student a variant, `submissions` finds out what came from
whom, `entries` reads it, `repair` puts a student's answers back into the exercise, `grading` has each one run in a
process of its own (`worker`, which runs the cells by `execution` in a kernel that `sandbox` fences in, under
`supervision`, with tests that `guard` looks after) and keeps a `report`, `by_hand` enters what a person marks, and
`marks` writes feedback and the table for the learning platform. `scaffold` begins a new exercise; `nbgrader_api` is the
door to nbgrader.

Needs the extra ``course`` (nbgrader) for all but the help; never install that where students work.
"""
