"""The slides: ten per lesson, quoted from it, complete in a browser and on paper, and without a network."""

import re
import tomllib
from urllib.parse import urlsplit

import pytest

import build_slides
from browser import ROOT, axe_complaints, opened_folder, screenshot

LESSONS = sorted(file.stem for file in (ROOT / "notebooks").glob("[0-9]*.ipynb"))
LESSON = "04_dgc_masking"
SMALLEST = 250  # pixels, height of a picture that is readable on a slide of 720
# A slide's title, whether anything reaches beyond its edges, and the height of its picture, if it has one.
MEASURE = """() => {
    const slide = Reveal.getCurrentSlide(), picture = slide.querySelector("figure");
    const edges = slide.getBoundingClientRect();
    const parts = [...slide.children].filter(part => part.tagName !== "ASIDE");
    const outside = parts.some(part => part.getBoundingClientRect().bottom > edges.bottom - 20
        || part.scrollWidth > part.clientWidth + 1 || part.getBoundingClientRect().right > edges.right);
    return {title: slide.firstChild.textContent, overflows: outside || slide.scrollHeight > slide.clientHeight,
            picture: picture ? picture.clientHeight : null};
}"""


@pytest.fixture(scope="module")
def slides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slides")
    build_slides.build(folder)
    return folder


@pytest.fixture(scope="module")
def page(slides):
    with opened_folder(slides) as page:
        page.set_viewport_size({"width": 1280, "height": 720})
        yield page


def show(page, lesson):
    page.goto(f"{page.home}/{lesson}.html")
    page.locator(".reveal.ready").wait_for()


@pytest.mark.parametrize("lesson", LESSONS)
def test_each_lesson_has_ten_slides_with_questions(slides, lesson):
    text = (slides / f"{lesson}.html").read_text(encoding="utf-8")
    sections = re.findall(r"<section.*?</section>", text, re.DOTALL)
    assert len(sections) == 10
    notes = [re.search(r'<aside class="notes">(.+)</aside>', section)[1] for section in sections]
    assert [note for note in notes[:-1] if not re.search(r"<b>Ask:</b> [^<]+\?", note)] == []
    assert len(set(notes)) == 10
    assert notes[-1].count("<b>Right.</b>") == 1


@pytest.mark.parametrize("lesson", LESSONS)
def test_slides_quote_the_text_half_of_the_lesson(lesson):
    """The build reads the stored lesson; its text half may be newer."""
    text = build_slides.in_line((ROOT / "notebooks" / "text" / f"{lesson}.md").read_text(encoding="utf-8"))
    chosen = tomllib.loads((build_slides.SELECTIONS / f"{lesson}.toml").read_text(encoding="utf-8"))
    assert [sentence for slide in chosen["slide"] for sentence in slide["text"] if sentence not in text] == []


def test_a_sentence_that_the_lesson_lacks_is_an_error():
    lesson = build_slides.read_lesson(LESSON)
    with pytest.raises(build_slides.SlidesError, match=r"04_dgc_masking: the lesson has no sentence 'Signs\.'"):
        build_slides.sentence_of(lesson, "Signs.")
    with pytest.raises(build_slides.SlidesError, match="no cell with the line 'import inspect' has a picture"):
        build_slides.output_of(lesson, "import inspect")


@pytest.mark.nightly_except(LESSON)
@pytest.mark.parametrize("lesson", LESSONS)
def test_no_slide_overflows_and_pictures_are_large(page, lesson):
    show(page, lesson)
    measured = []
    for place in range(10):
        page.evaluate("place => Reveal.slide(place)", place)
        measured.append(page.evaluate(MEASURE))
    assert len({slide["title"] for slide in measured}) == 10
    assert [slide["title"] for slide in measured if slide["overflows"]] == []
    assert [slide for slide in measured if slide["picture"] is not None and slide["picture"] < SMALLEST] == []
    assert sum(slide["picture"] is not None for slide in measured) >= 2


def test_slides_load_nothing_from_elsewhere(page):
    loaded = []
    page.on("request", lambda request: loaded.append(urlsplit(request.url)))
    show(page, LESSON)
    page.goto(f"{page.home}/index.html")
    assert len(loaded) >= 6
    assert {address.netloc for address in loaded if address.scheme != "data"} == {urlsplit(page.home).netloc}
    assert not page.complaints


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_slides_and_their_index_are_accessible(page, scheme):
    page.emulate_media(color_scheme=scheme)
    for name in (LESSON, "index"):
        page.goto(f"{page.home}/{name}.html")
        page.locator("h1").first.wait_for()
        assert axe_complaints(page, of=["html"]) == []
        screenshot(page, f"slides_{name}_{scheme}")


def test_slides_print_one_page_each(page):
    page.emulate_media(color_scheme="dark")
    page.goto(f"{page.home}/{LESSON}.html?print-pdf")
    page.locator(".pdf-page").nth(9).wait_for()
    printed = page.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) == 10
    (ROOT / "artefacts" / "slides.pdf").write_bytes(printed)
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.querySelector('section')).padding") == "40px 64px 52px"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
