"""What every lesson must look like; nbval (in the same pytest run) checks that its cells run."""

import re
from pathlib import Path

import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
LESSONS = sorted(FOLDER.glob("*.ipynb"))
README = (FOLDER.parent / "README.md").read_text()
SETUP = """\
# On Colab, get the lab from your copy and what else this lesson needs; elsewhere everything is there already.
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


def test_one_title_before_everything_else(path):
    lines = [line for line in text(path).splitlines() if line.startswith("# ")]
    assert len(lines) == 1
    first = next(line for line in text(path).splitlines() if line and not line.startswith("[!["))
    assert first == lines[0]
    sections = re.findall(r"^## .+$", text(path), re.MULTILINE)
    assert "## What we saw" in sections


def test_badges_point_at_this_file(path):
    file = f"notebooks/{path.name}"
    first = cells(path, "markdown")[0].source
    assert re.search(rf"colab\.research\.google\.com/github/[^/]+/[^/]+/blob/[^/]+/{re.escape(file)}\)", first)
    assert re.search(rf"mybinder\.org/v2/gh/[^/]+/[^/]+/[^/?]+\?urlpath=lab/tree/{re.escape(file)}\)", first)


def test_setup_cell_is_that_of_all_lessons(path):
    """Only what the lesson needs differs, and the address and release that ``tools/badges.py`` writes."""
    pattern = re.escape(SETUP).replace(r"\(address\)", r"[\w.-]+/[\w.-]+@\S+").replace(r"\(needs\)", "([a-z=, T]*)")
    found = re.fullmatch(pattern, cells(path, "code")[0].source)
    assert found
    needs = set(filter(None, found[1].split(", ")))
    code = "\n".join(cell.source for cell in cells(path, "code"))
    assert ("horovod=True" in needs) == ("HorovodRanks" in code)
    assert needs <= {"horovod=True", "gpu=True"}
    metadata = nbformat.read(path, as_version=4).metadata
    assert metadata.get("accelerator") == ("GPU" if "gpu=True" in needs else None)


def test_readme_lists_it(path):
    assert f"(notebooks/{path.name})" in README


def test_links_to_files_lead_somewhere(path):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text(path)):
        assert (FOLDER / target).exists(), target


def test_what_stored_rows_came_to_is_what_the_cell_shows(path):
    """Rows in ``results/`` are the same everywhere, and so is a table of them: nbval compares what this tag is on."""
    for cell in cells(path, "code"):
        if re.search(r"\b(single_node|two_node|link|worker|scheme)_rows\(", cell.source):
            assert cell.outputs, cell.source
            assert "nbval-check-output" in cell.metadata.get("tags", []), cell.source


def test_no_warning_is_stored(path):
    for cell in cells(path, "code"):
        for output in cell.outputs:
            assert "WARNING" not in output.get("text", ""), cell.source


def test_pictures_have_alternative_text(path):
    for target in re.findall(r"!\[\s*\]\(", text(path)):
        pytest.fail(f"an image without alternative text: {target}")
    for cell in cells(path, "code"):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                alt = output["metadata"].get("image/png", {}).get("alt")
                assert alt, cell.source
                assert "\u200b" not in alt, cell.source  # as ipywidgets has it in labels without words
            for tag in re.findall(r"<img[^>]*>", output.get("data", {}).get("text/html", "")):
                assert re.search(r'alt="[^"]+"', tag), cell.source


def test_where_a_widget_stands_a_picture_of_it_is_stored(path):
    """For readers without a kernel; `make notebooks` puts them in place of all widgets."""
    outputs = [output for cell in cells(path, "code") for output in cell.outputs]
    views = [output for output in outputs if any("widget-view" in kind for kind in output.get("data", {}))]
    pictures = [output for output in outputs if output.get("metadata", {}).get("widget")]
    assert not views
    assert pictures, "every lesson has a widget"
    said = [output.data["text/markdown"] for output in pictures if "text/markdown" in output.data]
    assert len(said) == sum("image/png" in output.data for output in pictures)
    assert all("To use it, run this lesson" in line for line in said)


def test_code_cells_are_short_and_were_run(path):
    for cell in cells(path, "code"):
        assert len(cell.source.splitlines()) <= 25, cell.source
        assert cell.execution_count is not None, cell.source


def test_cells_check_what_the_text_says(path):
    assert sum("assert " in cell.source for cell in cells(path, "code")) >= 3


def test_cells_that_only_check_are_folded_under_a_line_that_says_what(path):
    """JupyterLab shows the first line of a folded cell, the site too; on Colab and GitHub it stands above the rest."""
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
            assert output.get("name") != "stderr", f"stored messages of this machine: {cell.source}"
            assert "WARNING" not in output.get("text", ""), f"a stored warning: {cell.source}"


def test_text_pair_is_in_step(path):
    """What people edit is the .md file; the notebook must hold the same cells."""

    def body(document):
        return re.sub(r"\A---\n.*?\n---\n", "", document, flags=re.DOTALL).strip()

    made = jupytext.writes(nbformat.read(path, as_version=4), "md:myst")
    assert body(made) == body((FOLDER / "text" / f"{path.stem}.md").read_text())


def test_no_helper_code(path):
    """A lesson may define what it is about; classes and long functions belong to the library."""
    for cell in cells(path, "code"):
        assert not re.search(r"^class ", cell.source, re.MULTILINE), cell.source
        assert len(re.findall(r"^def ", cell.source, re.MULTILINE)) <= 1, cell.source
