"""``tools/check_prose.py`` finds phrases that native speakers do not use, with their lines, and ignores code."""

from check_prose import check, main

PYTHON = '''"""Send the gradient.

The rest is
told to wait.

    >>> "whoever"
    'whoever'
"""

TEXT = "whoever"  # Vectors go
# whole, like `whoever`.
raise ValueError(
    f"{TEXT} must not come "
    f"to rest, got {TEXT}"
)
HELP = """
Vectors go whole.
"""
'''
MARKDOWN = """---
title: whoever
---

A network comes
to rest; ask `whoever`.

```
whoever
```

Two cases can be told apart. Whoever waits loses.
"""


def test_phrases_are_found_with_their_lines():
    found = [(3, "is told"), (10, "go whole"), (13, "come to rest"), (17, "go whole")]
    assert [each[:2] for each in check(PYTHON, python=True)] == found
    assert [found[:2] for found in check(MARKDOWN, python=False)] == [(5, "comes to rest"), (12, "Whoever")]


def test_findings_are_printed_and_fail_the_lint(tmp_path, capsys):
    (tmp_path / "good.md").write_text("Vectors are sent uncompressed.\n")
    (tmp_path / "bad.md").write_text("Vectors go whole.\n")
    assert main([str(tmp_path / "good.md")]) == 0
    assert main([str(tmp_path / "good.md"), str(tmp_path / "bad.md")]) == 1
    assert capsys.readouterr().out == f"{tmp_path / 'bad.md'}:1: go whole → is sent uncompressed\n"
