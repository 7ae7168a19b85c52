"""Required structure of every lesson; nbval (in the same pytest run) executes the cells."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
LESSONS = sorted(FOLDER.glob("*.ipynb"))
PAGES = [(FOLDER.parent / name).read_text() for name in ("README.md", "index.md")]
SETUP = """\
# On Colab, install the lab and the packages that this lesson needs. Elsewhere they are already installed.
import importlib.util

if importlib.util.find_spec("dgc_lab") is None:
    %pip install --quiet "dgc_lab @ git+https://github.com/(address)"
from dgc_lab.install import prepare
prepare((needs))"""
pytestmark = pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)


def cells(path, kind):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


def text(path):
    return "\n".join(cell.source for cell in cells(path, "markdown"))


def test_lesson_starts_with_its_only_title(path):
    lines = [line for line in text(path).splitlines() if line.startswith("# ")]
    assert len(lines) == 1
    first = next(line for line in text(path).splitlines() if line and not line.startswith("[!["))
    assert first == lines[0]
    sections = re.findall(r"^## .+$", text(path), re.MULTILINE)
    assert "## What we saw" in sections


def test_badges_point_to_this_file(path):
    file = f"notebooks/{path.name}"
    first = cells(path, "markdown")[0].source
    assert re.search(rf"colab\.research\.google\.com/github/[^/]+/[^/]+/blob/[^/]+/{re.escape(file)}\)", first)
    assert re.search(rf"mybinder\.org/v2/gh/[^/]+/[^/]+/[^/?]+\?urlpath=lab/tree/{re.escape(file)}\)", first)


def test_setup_cell_matches_the_template(path):
    """Only the lesson's requirements differ, and the address and release from ``tools/badges.py``."""
    pattern = re.escape(SETUP).replace(r"\(address\)", r"[\w.-]+/[\w.-]+@\S+").replace(r"\(needs\)", "([a-z=, T]*)")
    found = re.fullmatch(pattern, cells(path, "code")[0].source)
    assert found
    needs = set(filter(None, found[1].split(", ")))
    code = "\n".join(cell.source for cell in cells(path, "code"))
    assert ("horovod=True" in needs) == ("HorovodRanks" in code)
    assert needs <= {"horovod=True", "gpu=True"}
    metadata = nbformat.read(path, as_version=4).metadata
    assert metadata.get("accelerator") == ("GPU" if "gpu=True" in needs else None)


def test_readme_and_front_page_list_the_lesson_with_its_time(path):
    minutes = re.search(r"\*\*Time:\*\* (\d+) minutes", text(path))[1]
    for page in PAGES:
        (row,) = re.findall(rf"^\| \[.*\]\(notebooks/{re.escape(path.name)}\) \|.*$", page, re.MULTILINE)
        assert f"| {minutes} min |" in row


def test_linked_files_exist(path):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text(path)):
        assert (FOLDER / target).exists(), target


def test_outputs_from_stored_rows_are_checked_by_nbval(path):
    """Tables of rows in ``results/`` are reproducible; nbval compares the outputs of tagged cells."""
    for cell in cells(path, "code"):
        if re.search(r"\b(single_node|two_node|link|worker|scheme)_rows\(", cell.source):
            assert cell.outputs, cell.source
            assert "nbval-check-output" in cell.metadata.get("tags", []), cell.source


def test_no_warnings_are_stored(path):
    for cell in cells(path, "code"):
        for output in cell.outputs:
            assert "WARNING" not in output.get("text", ""), cell.source


def test_figures_have_alternative_text(path):
    for target in re.findall(r"!\[\s*\]\(", text(path)):
        pytest.fail(f"an image without alternative text: {target}")
    for cell in cells(path, "code"):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                alt = output["metadata"].get("image/png", {}).get("alt")
                assert alt, cell.source
                assert "\u200b" not in alt, cell.source  # ipywidgets uses it in empty labels
            for tag in re.findall(r"<img[^>]*>", output.get("data", {}).get("text/html", "")):
                assert re.search(r'alt="[^"]+"', tag), cell.source


def test_a_static_figure_replaces_each_widget(path):
    """`make notebooks` stores the figures for readers without a kernel."""
    outputs = [output for cell in cells(path, "code") for output in cell.outputs]
    views = [output for output in outputs if any("widget-view" in kind for kind in output.get("data", {}))]
    pictures = [output for output in outputs if output.get("metadata", {}).get("widget")]
    assert not views
    assert pictures, "every lesson must have a widget"
    said = [output.data["text/markdown"] for output in pictures if "text/markdown" in output.data]
    assert len(said) == sum("image/png" in output.data for output in pictures)
    assert all("To use it, run this lesson" in line for line in said)


def test_code_cells_are_short_and_executed(path):
    for cell in cells(path, "code"):
        assert len(cell.source.splitlines()) <= 25, cell.source
        assert cell.execution_count is not None, cell.source


def test_cells_check_claims_of_the_text(path):
    assert sum("assert " in cell.source for cell in cells(path, "code")) >= 3


def test_check_cells_are_folded_and_start_with_a_summary(path):
    """JupyterLab and the site show a folded cell's first line; Colab and GitHub show the whole cell."""
    for cell in cells(path, "code"):
        folded = cell.metadata.get("jupyter", {}).get("source_hidden", False)
        assert folded == ("assert " in cell.source and not cell.outputs), cell.source
        assert not folded or re.match(r"# Checked: \w.+\.\n", cell.source), cell.source


def test_no_errors_and_no_large_outputs_are_stored(path):
    for cell in cells(path, "code"):
        assert len(str(cell.outputs)) < 1_000_000, cell.source
        for output in cell.outputs:
            expected = "raises-exception" in cell.metadata.get("tags", [])
            assert output.output_type != "error" or expected, cell.source
            assert output.get("name") != "stderr", f"stored stderr output: {cell.source}"
            assert "WARNING" not in output.get("text", ""), f"a stored warning: {cell.source}"


def test_notebook_matches_its_text_file(path):
    """Authors edit the .md file; the notebook must contain the same cells."""

    def body(document):
        return re.sub(r"\A---\n.*?\n---\n", "", document, flags=re.DOTALL).strip()

    made = jupytext.writes(nbformat.read(path, as_version=4), "md:myst")
    assert body(made) == body((FOLDER / "text" / f"{path.stem}.md").read_text())


def test_lessons_contain_no_helper_code(path):
    """A lesson may define one function on its topic; classes belong in the library."""
    for cell in cells(path, "code"):
        assert not re.search(r"^class ", cell.source, re.MULTILINE), cell.source
        assert len(re.findall(r"^def ", cell.source, re.MULTILINE)) <= 1, cell.source
