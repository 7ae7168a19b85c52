"""Lesson 2's widget with real replicas in JupyterLab and Chromium, operated like a student would."""

import re

import pytest

from browser import (
    BADGES,
    ROOT,
    all_outputs,
    axe_complaints,
    control,
    errors_of_all_cells,
    run_all,
    run_cell,
    screenshot,
)
from controls import change_all_by_keyboard, change_all_by_mouse, fill, widget_with

LESSON = "02_variable_aggregation.ipynb"
pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("screenshot_of_a_failure")]


def widget(page):
    return widget_with(page, "img[alt^='assign']")


def wait_for(page, words, seconds=60):
    widget(page).locator("[role=status], [role=alert]").get_by_text(re.compile(words)).wait_for(timeout=1000 * seconds)


def fields(page):
    """List the visible labels of the replicas' value fields."""
    labels = widget(page).locator("label", has_text=re.compile(r"^Replica \d$"))
    return [labels.nth(place).inner_text() for place in range(labels.count()) if labels.nth(place).is_visible()]


def test_run_all_shows_all_outputs(page):
    assert page.get_by_role("heading", name="VariableAggregation", exact=True).count() == 1
    run_all(page)
    wait_for(page, "Copies after: 1, 2, 3, 4. A read outside the replicas gives 10")
    outputs = all_outputs(page)
    errors = errors_of_all_cells(page)
    assert len(errors) == 1, "only the call the lesson expects to fail"
    assert "distributed_training_variables" in errors[0]
    pictures = [output["metadata"] for _, output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 3
    assert all(metadata["image/png"]["alt"] for metadata in pictures)
    screenshot(page, "lesson2_run_all")


def test_controls_change_the_replica_values(page):
    control(page, "Synchronization").select_option("AUTO")
    wait_for(page, "Copies after: 10, 10, 10, 10")
    control(page, "Aggregation").select_option("MEAN")
    wait_for(page, r"Copies after: 2\.5, 2\.5, 2\.5, 2\.5")
    control(page, "Call").select_option("assign_sub")
    wait_for(page, r"Copies after: -2\.5, -2\.5, -2\.5, -2\.5")
    fill(page, {"Before": "10"})
    wait_for(page, r"Copies before: 10, 10, 10, 10. Copies after: 7\.5, 7\.5, 7\.5, 7\.5")
    fill(page, {"Replica 3": "8"})
    wait_for(page, r"assigned 1, 2, 3, 8\. .* Copies after: 6\.5")
    widget(page).screenshot(path=ROOT / "artefacts" / "replica_explorer.png")


def test_slider_shows_a_field_per_replica(page):
    assert len(fields(page)) == 4
    widget(page).locator(".noUi-handle").first.focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    wait_for(page, "assigned 1, 2, 3, 8, 5, 6, 7, 8")
    assert fields(page) == [f"Replica {place}" for place in range(8)]
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    wait_for(page, r"assigned 1, 2\. .* Copies after: 8\.5, 8\.5")
    assert fields(page) == ["Replica 0", "Replica 1"]


def test_rejected_combinations_are_reported(page):
    control(page, "Synchronization").select_option("NONE")
    wait_for(page, "TensorFlow refused to create the variable")
    control(page, "Synchronization").select_option("ON_READ")
    control(page, "Aggregation").select_option("NONE")
    wait_for(page, "TensorFlow refused to read it outside the replicas")
    widget(page).screenshot(path=ROOT / "artefacts" / "replica_explorer_refused.png")


def test_every_control_works_by_mouse_and_keyboard(page):
    change_all_by_mouse(page, widget(page), "explorer")
    change_all_by_keyboard(page, widget(page), "explorer")


def test_the_lesson_is_accessible(page):
    assert not axe_complaints(page)


def test_rerunning_the_cell_creates_a_working_widget(page):
    run_cell(page, "explorer = ReplicaExplorer(")
    wait_for(page, "Copies after: 1, 2, 3, 4. A read outside the replicas gives 10")
    control(page, "Aggregation").select_option("MEAN")
    wait_for(page, r"A read outside the replicas gives 2\.5")


@pytest.mark.nightly
def test_restart_and_run_all_works(page):
    run_all(page, restart=True)
    wait_for(page, "A read outside the replicas gives 10")
    assert [kind for kind, _ in all_outputs(page)].count("error") == 1, "creating devices must not fail"


def test_console_shows_no_complaints(page):
    assert not [complaint for complaint in page.complaints if complaint[1] not in BADGES]
