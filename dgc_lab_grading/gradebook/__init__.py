"""From graded submissions to marks on the learning platform.

`ledger` computes everyone's marks from the tests (`grades`), manual marks (`by_hand`, `overrides`) and lateness
(`late`). `table` writes them as one table, `platforms` into the platform's own file, and `pages` zips the feedback for
it. `statistics` and `similar` analyse a class's answers (`answers`), and `contest` ranks its results. `solutions` and
`publish` make files for students, and `commands` defines the command line.
"""
