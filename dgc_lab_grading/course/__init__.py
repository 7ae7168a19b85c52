"""Release exercises to a class, and grade its submissions.

`sources` makes the students' versions, and `roster` gives each student a variant. `submissions` finds each student's
files by the names that platforms give (`downloads`, `unzip`, `names`), and `entries` reads them. `grading` runs
`marking` on each submission and keeps a `report`, and `feedback` writes a page for each student. `csv_text` reads
tables of spreadsheets and platforms. `scaffold` creates a new exercise.
"""
