"""The site's pictures that move step by step in Chromium: slider, Play, reduced motion, axe, and a phone.

The tests put them into pages of their own, with the site's style sheet, like those of the explorers.
"""

import re

import pytest
from playwright.sync_api import expect
from test_site_explorers import PAGE, PHONE

import step_pictures
from browser import ROOT, axe_complaints, opened_folder, screenshot

LAST = {"ring": 6, "straggler": 18, "residual": 24, "buckets": 15}
PLAYS = [name for name in LAST if name != "straggler"]
by_day = pytest.mark.nightly_except("ring", "straggler", "ring-24", "straggler-57")  # the others take long to draw


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "docs").mkdir()
    (folder / "_static").mkdir()
    (folder / "_static" / "site.css").write_text((ROOT / "docs" / "site" / "site.css").read_text())
    with opened_folder(folder) as page:
        page.folder = folder
        yield page


def opened_series(page, name):
    """Open a series' page with a clock that only moves in tests, and return its slider."""
    file = page.folder / "docs" / f"{name}.html"
    if not file.exists():
        file.write_text(PAGE.format(explorer=step_pictures.explorer(name, page.folder)), encoding="utf-8")
    page.clock.install()
    page.goto(f"{page.home}/docs/{name}.html")
    return page.get_by_role("slider")


def place(page):
    """Return the number of the picture that is shown, which has been loaded."""
    picture = page.locator("figure img")
    expect(picture).to_have_js_property("complete", True)
    assert picture.evaluate("image => image.naturalWidth") > 600
    return int(re.search(r"_(\d+)\.png", picture.get_attribute("src"))[1])


@by_day
@pytest.mark.parametrize("name", LAST)
def test_every_position_has_its_own_picture_and_words(page, name):
    slider, seen = opened_series(page, name), []
    slider.press("Home")
    for step in range(LAST[name] + 1):
        assert place(page) == step
        said, value = page.locator("[role=status]").inner_text(), slider.get_attribute("aria-valuetext")
        assert page.locator("output").inner_text() == value
        assert page.locator("figure img").get_attribute("alt")
        seen.append((value, said))
        slider.press("ArrowRight")
    assert place(page) == LAST[name], "the slider has no further position"
    assert all(len(set(texts)) == len(seen) for texts in zip(*seen, strict=True))
    assert not page.complaints


@by_day
@pytest.mark.parametrize("name", PLAYS)
def test_play_moves_only_after_it_is_pressed(page, name):
    opened_series(page, name)
    start, play = place(page), page.get_by_role("button")
    page.clock.run_for(10_000)
    assert place(page) == start
    play.press("Enter")
    expect(play).to_have_text("Pause")
    page.clock.run_for(3_100)
    assert place(page) == start + 2
    play.press("Enter")
    page.clock.run_for(10_000)
    assert place(page) == start + 2
    play.press("Enter")
    page.clock.run_for(60_000)
    assert place(page) == LAST[name]
    expect(play).to_have_text("Play")
    play.press("Enter")
    assert place(page) == 0, "after the last picture, Play starts again"


def test_reduced_motion_hides_play_and_leaves_the_slider(page):
    page.emulate_media(reduced_motion="reduce")
    slider = opened_series(page, "ring")
    expect(page.locator("button")).to_be_hidden()
    slider.press("End")
    assert place(page) == 6
    page.emulate_media(reduced_motion="no-preference")
    expect(page.locator("button")).to_be_visible()


def test_a_slower_worker_costs_synchronous_updates(page):
    slider = opened_series(page, "straggler")
    expect(page.get_by_role("button")).to_have_count(0)
    slider.press("Home")
    expect(page.locator("[role=status]")).to_contain_text("synchronous 40, backup workers 30, asynchronous 40")
    slider.press("End")
    expect(page.locator("[role=status]")).to_contain_text("takes 10 times as long")
    expect(page.locator("[role=status]")).to_contain_text("synchronous 4.4, backup workers 30")


@by_day
@pytest.mark.parametrize(("name", "rows"), [("ring", 24), ("straggler", 57), ("residual", 24), ("buckets", 12)])
def test_table_has_all_steps(page, name, rows):
    opened_series(page, name)
    page.locator("summary").press("Enter")
    expect(page.locator("tbody tr")).to_have_count(rows)
    expect(page.locator("tbody tr").last).to_be_visible()


@by_day
@pytest.mark.parametrize("name", ["straggler", "buckets"])
def test_modelled_times_are_labelled_as_modelled(page, name):
    opened_series(page, name)
    expect(page.locator("figcaption")).to_contain_text("modelled, not measured")
    assert "modelled" in page.locator("figure img").get_attribute("alt")


@by_day
@pytest.mark.parametrize("name", LAST)
def test_pictures_are_accessible_and_fit_a_phone(page, name):
    opened_series(page, name)
    place(page)
    assert axe_complaints(page, of=["html"]) == []
    screenshot(page, f"pictures_{name}")
    before = page.viewport_size
    page.set_viewport_size(PHONE)
    page.reload()
    place(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert axe_complaints(page, of=["html"]) == []
    screenshot(page, f"pictures_{name}_phone")
    page.set_viewport_size(before)
    assert not page.complaints
