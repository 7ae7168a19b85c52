"""Feedback pages in a browser: nothing that a student puts there runs or loads anything."""

import base64
import http.server
import json
import threading
from contextlib import contextmanager

import nbformat
import pytest
from payloads import IN_METADATA, IN_OUTPUTS, IN_TEXT, IN_WORDS
from playwright.sync_api import sync_playwright

from browser import BROWSER, FLAGS
from dgc_lab_grading.course.feedback import safe_page
from instructor import answered, needs_instructor, write

NAME = "07_own_model"
PIXEL = base64.b64encode(
    base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
).decode()


@contextmanager
def server():
    """A server that records requests; yields its address and the requested paths."""
    asked = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}", asked
        listening.shutdown()


def filled(text, name, address):
    return json.loads(json.dumps(text).replace("NAME", name).replace("SERVER", address))


def hostile(address):
    """A submission with every payload, in its answers and in its own cells."""
    notebook = answered(NAME, texts=True)
    texts = [filled(text, name, address) for name, text in IN_TEXT.items()]
    places = [c for c in notebook.cells if c.cell_type == "markdown" and c.metadata.get("nbgrader", {}).get("solution")]
    for cell, text in zip(places, texts, strict=False):
        cell.source = f"An answer.\n\n{text}"
    own = [nbformat.v4.new_markdown_cell(text) for text in texts]
    picture = nbformat.v4.new_markdown_cell("![kept](attachment:a.png)")
    picture.attachments = {"a.png": {"image/png": PIXEL, "image/svg+xml": "PHN2Zy8+"}}
    show = "from IPython.display import display\ndisplay({}, raw=True, metadata={})"
    bundles = [(filled(data, name, address), {}) for name, data in IN_OUTPUTS.items()]
    bundles += [({"image/png": PIXEL}, filled(data, name, address)) for name, data in IN_METADATA.items()]
    own += [picture, *(nbformat.v4.new_code_cell(show.format(data, more)) for data, more in bundles)]
    own += [nbformat.v4.new_code_cell(filled(code, name, address)) for name, code in IN_WORDS.items()]
    own.append(nbformat.v4.new_code_cell("import pandas\npandas.DataFrame({'kept': ['in a table']})"))
    notebook.cells += own
    return notebook


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=BROWSER, args=FLAGS, timeout=180_000)
        yield opened
        opened.close()


def looked_at(chromium, path):
    """Open a page and press everything; return what ran or was requested, the address, the text and picture count."""
    seen = []
    with chromium.new_page() as page:
        page.on("dialog", lambda dialog: (seen.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: seen.append(request.url) if not request.url.startswith("file:") else None)
        page.goto(path.as_uri(), timeout=180_000)
        for press in page.locator("a, button").all()[:60]:
            if "press" in (press.text_content() or "") or "press" in (press.get_attribute("id") or ""):
                press.click(no_wait_after=True, force=True)
        page.wait_for_timeout(500)
        seen += page.evaluate("window.hits || []")
        where = page.url
        text = page.inner_text("body")
        pictures = page.evaluate("[...document.images].filter(each => each.naturalWidth > 0).length")
    return seen, where, text, pictures


pytestmark = [pytest.mark.nightly, pytest.mark.skipif(BROWSER is None, reason="no Chromium or Chrome")]


@needs_instructor
def test_nothing_on_a_feedback_page_runs_or_loads(tmp_path, course, chromium):
    folder = ("--folder", tmp_path / "grading")
    with server() as (address, asked):
        write(hostile(address), tmp_path / "in" / "eve.ipynb")
        course("grade", NAME, tmp_path / "in", *folder)
        course("feedback", *folder)
        path = tmp_path / "grading" / "feedback" / "eve" / NAME / f"{NAME}.html"
        seen, where, text, pictures = looked_at(chromium, path)
        assert (seen, asked) == ([], [])
    assert where.partition("#")[0] == path.as_uri()
    assert "in a table" in text
    assert pictures >= 2, "harmless content is shown"
    page = path.read_text()
    assert page.index("Content-Security-Policy") < page.index("<title>")


@pytest.mark.parametrize("name", IN_TEXT)
def test_the_text_is_harmless_without_the_policy(tmp_path, name, chromium):
    """Each defence holds by itself: here the browser would run anything left in the text."""
    with server() as (address, asked):
        made = safe_page(filled(IN_TEXT[name], name, address), name)
        path = tmp_path / "page.html"
        path.write_text(made.replace("Content-Security-Policy", "X-Nothing"))
        seen, where, _, _ = looked_at(chromium, path)
        assert (seen, asked) == ([], [])
    assert where.partition("#")[0] == path.as_uri()


def test_the_policy_alone_stops_scripts_and_requests(tmp_path, chromium):
    """The same payloads do run without the policy."""
    with server() as (address, asked):
        for policy in (True, False):
            body = "".join(filled(IN_TEXT[name], name, address) for name in ("script", "picture", "drawing", "frame"))
            made = safe_page("BODY", "x").replace("BODY", body)
            path = tmp_path / "page.html"
            path.write_text(made if policy else made.replace("Content-Security-Policy", "X-Nothing"))
            seen, *_ = looked_at(chromium, path)
            assert (asked == []) == policy
            assert ("script" in seen) == (not policy)
