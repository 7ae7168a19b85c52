"""docs/keras.md matches actual training: features work, are rejected, or differ as documented."""

import pytest

import write_keras_page


@pytest.mark.nightly
def test_page_matches_a_fresh_run():
    found = write_keras_page.page()
    assert write_keras_page.PAGE.read_text(encoding="utf-8") == found
    lines = [line for line in found.splitlines() if line.startswith("| ") and " | " in line][1:]
    assert len(lines) >= 25
    for line in lines:
        _, _, verdict, note, _ = line.split("|")
        assert verdict.strip() in ("works", "refused", "refused, as by Keras", "differs"), line
        assert verdict.strip() == "works" or len(note) > 20, f"no explanation: {line}"
