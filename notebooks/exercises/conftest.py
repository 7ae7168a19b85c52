"""The sources run as notebooks; students' versions are only half of one. tests/test_exercises.py looks at them."""

collect_ignore = ["release"]
