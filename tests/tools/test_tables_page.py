"""docs/published_tables.md and the README's table match the rows in results/."""

from pathlib import Path

from dgc_lab.training import two_node_rows
from write_tables_page import PAGE, page, summary


def test_page_matches_the_rows():
    assert PAGE.read_text(encoding="utf-8") == page(), "run make docs"


def test_readme_shows_the_rows():
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
    assert all(line in readme for line in summary())
    like_dgc = {row["ratio"]: row["accuracy"] for row in two_node_rows("masking_per_tensor")}
    assert f"masking reaches {like_dgc[0.001]:.4f} at 0.1 %" in readme
    dgc, unmasked = (
        {row["ratio"]: row["accuracy"] for row in two_node_rows(method)}
        for method in ("dgc", "dgc_without_factor_masking")
    )
    behind = " and ".join(f"{100 * (dgc[1.0] - dgc[ratio]):.1f}" for ratio in (0.3, 0.1))
    assert f"complete DGC is {behind} points less accurate" in readme
    assert f"without factor masking, a run reaches {unmasked[0.3]:.4f}" in " ".join(readme.split())
