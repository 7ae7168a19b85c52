"""The explorers of the site in Chromium: numbers of the library, the keyboard, axe, and a phone.

The tests put them into pages of their own, with the site's style sheet; tests of the site cover the page that has both.
"""

import pytest
from playwright.sync_api import expect

import explorers
import moving_picture
from browser import ROOT, axe_complaints, opened_folder, screenshot
from dgc_lab.comparison import stored_study
from dgc_lab.comparison.scheme_names import family
from dgc_lab.scaling import GBIT, Link, Workload, step

PHONE = {"width": 390, "height": 844}
PAGE = """<!doctype html><html lang="en">
<head>
<meta charset="utf-8"><title>explorer</title><link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="../_static/site.css">
</head>
<body><article class="bd-article"><h1>Explorer</h1>{explorer}</article></body></html>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explorers")
    (folder / "_static").mkdir()
    (folder / "docs").mkdir()
    (folder / "_static" / "vega.js").write_text(moving_picture.script(), encoding="utf-8")
    (folder / "_static" / "site.css").write_text((ROOT / "docs" / "site" / "site.css").read_text())
    for name in ("schemes", "cost"):
        page = PAGE.format(explorer=getattr(explorers, name)())
        (folder / "docs" / f"{name}.html").write_text(page, encoding="utf-8")
    with opened_folder(folder) as page:
        yield page


def seconds(workers, gbit, compute, selection, ratio):
    """Return the modelled times of an uncompressed and of a compressed step."""
    work = Workload(explorers.ELEMENTS["ResNet-50"], compute=compute, selection=selection)
    link = Link(gbit * GBIT)
    return [step(work, link, workers, method, ratio).seconds for method in ("dense", "switching")]


def test_cost_explorer_starts_with_the_modelled_step(page):
    page.goto(f"{page.home}/docs/cost.html")
    dense, sent = seconds(32, 10, 0.1, 0.05, 0.001)
    expect(page.locator("#said-dense")).to_have_text(f"{1000 * dense:.0f} ms")
    expect(page.locator("#said-sent")).to_have_text(f"{1000 * sent:.0f} ms")
    expect(page.locator("#cost-said")).to_contain_text(f"{dense / sent:.2f} times as fast")


def test_keys_move_the_sliders_of_the_cost_explorer(page):
    page.goto(f"{page.home}/docs/cost.html")
    page.locator("#workers").press("End")
    page.locator("#gbit").press("ArrowRight")
    page.locator("#selection").press("Home")
    page.locator("#compute").press("ArrowRight")
    page.locator("#sent").select_option("1 %")
    dense, sent = seconds(1024, 25, 0.11, 0, 0.01)
    expect(page.locator("#said-workers")).to_have_text("1024")
    expect(page.locator("#said-dense")).to_have_text(f"{1000 * dense:.0f} ms")
    expect(page.locator("#cost-said")).to_contain_text("Compression does not pay")
    assert page.locator("#gbit").get_attribute("aria-valuetext") == "25 Gbit/s"
    row = [f"{d / s:.2f}" for d, s in (seconds(1024, gbit, 0.11, 0, 0.01) for gbit in explorers.GBITS)]
    assert page.locator("#cost td").all_inner_texts() == row
    assert sent == pytest.approx(dense)


def test_scheme_explorer_names_the_best_of_a_family(page):
    page.goto(f"{page.home}/docs/schemes.html")
    page.locator("#schemes-chart svg").wait_for()
    study = stored_study("schemes")
    assert page.locator("#schemes-chart path[aria-roledescription='point']").count() == len(study)
    page.locator("#family").select_option("low rank")
    own = study.loc[[name for name in study.index if family(name) == "low rank"]]
    error = f"{100 * (1 - own['accuracy'].max()):.2f}".rstrip("0")
    expect(page.locator("#schemes-said")).to_contain_text(f", {error} % errors")
    faded = page.locator("#schemes-chart path[aria-roledescription='point'][opacity='0.1']")
    expect(faded).to_have_count(len(study) - len(own))
    assert page.locator("tbody tr").count() == len(study)


@pytest.mark.parametrize("name", ["schemes", "cost"])
def test_explorers_are_accessible_and_fit_a_phone(page, name):
    page.goto(f"{page.home}/docs/{name}.html")
    page.locator("figure").wait_for()
    assert axe_complaints(page, of=["html"]) == []
    screenshot(page, f"explorer_{name}")
    before = page.viewport_size
    page.set_viewport_size(PHONE)
    page.reload()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    screenshot(page, f"explorer_{name}_phone")
    page.set_viewport_size(before)
    assert not page.complaints


def test_every_family_has_a_colour():
    assert len({family(name) for name in stored_study("schemes").index}) <= len(explorers.COLOURS)
