"""Operate every control of a widget like a student would: by mouse, then by keyboard only.

The tests compare the control's value in the kernel, not on the page.
"""

import ast
import re
import time

from playwright.sync_api import expect

from browser import control, end_animations, kernel_says

# Values of all nested controls of a widget, by label.
VALUES = """(lambda walk, top: repr(walk(walk, top)))(
    lambda walk, w: {k: v for child in getattr(w, "children", ()) for k, v in walk(walk, child).items()}
    or ({w.description: w.value} if getattr(w, "description", "") and hasattr(w, "value") else {}), %s)"""
CHANGED = "input:not([readonly]), select, .noUi-handle"
TAB_STOPS = f"{CHANGED}, button, [contenteditable=true]"
LABEL = """element => [...element.closest(".widget-inline-hbox").querySelectorAll(".widget-label, .widget-label-basic")]
    .at(-1).innerText.trim()"""
# The styles of an element and its parent that can indicate focus.
LOOKS = """element => JSON.stringify([element, element.parentElement].map(e => {
    const look = getComputedStyle(e), outline = look.outlineStyle == "none" ? "" : look.outline;
    return [outline, look.boxShadow, look.borderColor, look.borderWidth, look.backgroundColor];
}))"""


def widget_with(page, part):
    """Locate the first widget that contains a selector and scroll it into view."""
    found = page.locator(f".widget-vbox:has({part})").first
    found.wait_for(timeout=180_000)  # a lesson run from the top takes a while to reach it
    found.scroll_into_view_if_needed()
    return found


def message_of(widget, words):
    """Wait until a widget's message or error matches a pattern, and return it."""
    line = widget.locator("[role=status], [role=alert]")
    expect(line).to_contain_text(re.compile(words), timeout=60_000)
    return line


def widget(page):
    """Locate the first widget with a Run button."""
    return widget_with(page, "button:has-text('Run')")


def rows(page):
    """Locate the rows of the widget's table."""
    return widget(page).locator("table tbody tr")


def press(page, name):
    """Press a button of the widget."""
    widget(page).get_by_role("button", name=name).click()


def wait_for_message(page, words, seconds=120):
    """Wait until the widget shows text matching a pattern."""
    widget(page).get_by_text(re.compile(words)).first.wait_for(timeout=1000 * seconds)


def wait_for_pictures(page, number):
    """Wait until the widget has shown ``number`` different figures."""
    seen, end = set(), time.monotonic() + 60
    while len(seen) < number:
        assert time.monotonic() < end, "the picture does not move"
        seen.add(widget(page).locator("img[alt^='Training loss']").get_attribute("src"))
        time.sleep(0.1)


def fill(page, values):
    """Fill in fields by label, leaving each with Tab."""
    for label, value in values.items():
        control(page, label).fill(value)
        control(page, label).press("Tab")


def kernel_values(page, name):
    """Return the values of widget ``name``'s controls in the kernel, by label."""
    said = ast.literal_eval(kernel_says(page, VALUES % name))
    return ast.literal_eval(said)


def change_all_by_mouse(page, widget, name):
    """Change every visible control by mouse and check that its value in widget ``name`` changes."""
    for element in widget.locator(CHANGED).all():
        if element.is_visible() and element.is_enabled():
            label, before = element.evaluate(LABEL), kernel_values(page, name)
            by_mouse(page, element)
            wait_for_another(page, name, label, before)


def change_all_by_keyboard(page, widget, name):
    """Tab through a widget: every stop must show focus, and its keys must change widget ``name``."""
    assert widget.locator("label[title=null]:visible").count() == 0, "a tooltip that says null"
    page.mouse.move(0, 0)
    stops = [stop for stop in widget.locator(TAB_STOPS).all() if stop.is_visible() and stop.is_enabled()]
    page.evaluate("() => document.activeElement.blur()")
    page.wait_for_timeout(300)  # the previous focus style fades out slowly
    end_animations(page)
    looks = [stop.evaluate(LOOKS) for stop in stops]
    stops[0].focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")  # Chromium shows focus only for keyboard navigation
    for stop, unfocused in zip(stops, looks, strict=True):
        handle = stop.element_handle()
        page.wait_for_function("stop => stop === document.activeElement", arg=handle, timeout=30_000)
        page.wait_for_function(f"([stop, looks]) => ({LOOKS})(stop) !== looks", arg=[handle, unfocused], timeout=30_000)
        if handle.evaluate(f"stop => stop.matches('{CHANGED}')"):
            label, before = stop.evaluate(LABEL), kernel_values(page, name)
            by_keys(page, stop)
            page.keyboard.press("Tab")
            wait_for_another(page, name, label, before)
        else:
            page.keyboard.press("Tab")


def wait_for_another(page, name, label, before):
    """Wait until the labelled control's value in the kernel has changed."""
    end = time.monotonic() + 60
    while (now := kernel_values(page, name))[label] == before[label]:
        assert time.monotonic() < end, f"{label} is still {now[label]!r} in the kernel"
        time.sleep(0.05)


def by_mouse(page, element):
    """Click a slider's other half, a number's arrow, a list option, or a checkbox, or retype a text."""
    element.scroll_into_view_if_needed()
    kind = element.evaluate("e => e.tagName == 'INPUT' ? e.type : e.tagName")
    if kind == "DIV":
        box = element.locator("xpath=ancestor::*[contains(@class, 'noUi-target')]").bounding_box()
        middle = box["x"] + box["width"] / 2
        share = 0.25 if element.bounding_box()["x"] > middle else 0.75
        page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
    elif kind == "SELECT":
        places = element.locator("option").count()
        element.select_option(index=(element.evaluate("e => e.selectedIndex") + 1) % places)
    elif kind == "checkbox":
        element.click()
    elif kind == "number":
        box = element.bounding_box()
        element.hover()
        page.mouse.click(box["x"] + box["width"] - 8, box["y"] + box["height"] / 4)
        page.evaluate("() => document.activeElement.blur()")
    else:
        element.click(click_count=3)
        page.keyboard.type("0.3, 0.03")
        page.evaluate("() => document.activeElement.blur()")


def by_keys(page, element):
    """Use arrows for sliders and numbers, Space and arrows for lists, Space for checkboxes, typing for text."""
    kind = element.evaluate("e => e.tagName == 'INPUT' ? e.type : e.tagName")
    if kind == "checkbox":
        page.keyboard.press("Space")
    elif kind == "text":
        page.keyboard.press("Control+A")
        page.keyboard.type("0.5, 0.05")
    elif kind == "SELECT":
        # While a list is closed, JupyterLab uses the arrow keys to move between cells.
        for key in ("Space", "ArrowUp" if element.evaluate("e => e.selectedIndex") else "ArrowDown", "Enter"):
            page.keyboard.press(key)
    elif kind == "DIV":
        at_end = element.evaluate("e => e.getAttribute('aria-valuenow') == e.getAttribute('aria-valuemax')")
        page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
    else:
        page.keyboard.press("ArrowUp")
