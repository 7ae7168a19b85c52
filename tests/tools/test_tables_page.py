"""docs/published_tables.md and the README's table match the rows in results/."""

from pathlib import Path

from dgc_lab.training import two_node_rows
from write_tables_page import PAGE, accuracies, page, summary


def test_page_matches_the_rows():
    assert PAGE.read_text(encoding="utf-8") == page(), "run make docs"


def test_readme_shows_the_rows():
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    assert all(line in readme for line in summary())
    methods = ("masking_per_tensor", "dgc", "dgc_without_factor_masking")
    like_dgc, dgc, unmasked = (accuracies(two_node_rows(method)) for method in methods)
    assert f"masking reaches {like_dgc[0.001]:.4f} at 0.1 %" in readme
    behind = " and ".join(f"{100 * (dgc[1.0] - dgc[ratio]):.1f}" for ratio in (0.3, 0.1))
    assert f"complete DGC is {behind} points less accurate" in readme
    assert f"without factor masking, a run reaches {unmasked[0.3]:.4f}" in " ".join(readme.split())
