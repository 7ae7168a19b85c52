"""From an exercise's source to marks on the learning platform, for instructors: ``python -m dgc_lab.course``.

`sources` makes the students' versions, `roster` gives each student a variant, `submissions` finds out what came from
whom and when (`clock`), `entries` reads it, `grading` has each one marked by `dgc_lab.marking` and keeps a `report`,
`feedback` writes a page for each student. `csv_text` reads tables that spreadsheets and platforms have written. What
becomes of the marks is in `dgc_lab.gradebook`. `scaffold` begins a new exercise.

Needs the extra ``course`` (nbgrader) for all but the help; never install that where students work.
"""
