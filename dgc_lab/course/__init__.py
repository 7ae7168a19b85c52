"""From an exercise's source to a list of marks, for instructors: ``python -m dgc_lab.course``.

`sources` makes the students' versions, `roster` gives each student a variant, `submissions` finds out what came from
whom, `entries` reads it, `grading` has each one marked by `dgc_lab.marking` and keeps a `report`, `by_hand` enters what
a person marks, and `marks` writes feedback and the table for the learning platform. `scaffold` begins a new exercise.

Needs the extra ``course`` (nbgrader) for all but the help; never install that where students work.
"""
