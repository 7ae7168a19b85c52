"""docs/schemes.md matches the schemes' docstrings and the stored rows."""

from dgc_lab.compression import SCHEMES
from write_schemes_page import METHODS, PAGE, page


def test_page_matches_the_docstrings_and_rows():
    text = page()
    assert PAGE.read_text(encoding="utf-8") == text, "run make docs"
    assert all(f"`{name}(" in text for name in SCHEMES)


def test_every_scheme_has_a_row_beside_other_packages():
    here = {name.partition(":")[0] for _, names, *_ in METHODS for name in names.split()}
    assert here >= set(SCHEMES)


def test_graces_compressors_appear_once_each():
    """There are 18 files in its folder of TensorFlow compressors, apart from none.py and packing.py."""
    names = [name for _, _, names, *_ in METHODS for name in names.split() if name.islower()]
    assert len(names) == len(set(names)) == 18
