"""From marks to the learning platform, for instructors: what `dgc_lab.course` calls once a class has been graded.

`ledger` says what everybody has: what tests gave (`grades`), what a person gave (`by_hand`, `overrides`), and what
being `late` costs. `table` writes it as one table, `platforms` into the platform's own file, and `pages` packs the
feedback for it. `statistics` and `similar` look at what a class has answered (`answers`), `contest` who came out best,
`solutions` and `publish` make what students get, `commands` are the words on the command line.
"""
