"""Parts of the gradebook that need no nbgrader: late days, similar answers and sheets for markers."""

import datetime as dt
import itertools
import json
import os
import re
import types
import zipfile

import nbformat
import pytest

from dgc_lab.common import LabError
from dgc_lab_grading.course import csv_text, files, submissions
from dgc_lab_grading.gradebook import answers, by_hand, late, ledger, overrides, pages, similar, statistics

ROW = {"student": "jane", "status": "graded", "score": 1, "most": 2, "seconds": 1, "remarks": []}
RULES = """
grace_minutes = 15
percent_a_day = 10
most_days = 3
[due]
04_masking = 2026-11-20 12:00:00
[[student]]
name = "Jane Doe"
exercise = "04_masking"
due = 2026-11-25 12:00:00
reason = "ill"
[[student]]
name = "kim"
exercise = "04_masking"
handed_in = 2026-11-20 13:00:00
"""


@pytest.mark.parametrize(
    ("student", "time", "points", "words"),
    [
        ("ann", "2026-11-20T12:15:00", None, ""),
        ("ann", "2026-11-20T12:15:01", 8, "1 day late: 2 points off"),
        ("ann", "2026-11-21T12:00:01", 6, "2 days late: 4 points off"),
        ("ann", "2026-11-24T11:00:00", 0, "4 days late: more than 3, so nothing counts"),
        ("ann", None, None, ""),
        ("ann", "late", 10, "late according to the platform"),
        ("Jane-Doe", "2026-11-24T11:00:00", None, ""),
        ("Jane-Doe", "2026-11-25T13:00:00", 8, r"1 day late \(ill\): 2 points off"),
        ("Jane-Doe", "late", None, ""),
        ("kim", "late", 8, "1 day late"),
    ],
)
def test_points_lost_for_lateness(tmp_path, student, time, points, words):
    (tmp_path / late.FILE).write_text(RULES)
    found = late.lateness(late.read_rules(tmp_path), student, "04_masking", time, 10, 20)
    assert (found and found.points) == points
    assert found is None or re.search(words, found.words)
    assert late.lateness(late.read_rules(tmp_path), student, "05_accumulation", time, 10, 20) is None


def test_a_deadline_may_be_the_last_possible_time():
    rules = late.Rules({"04": dt.datetime(9999, 12, 31, 23, 59)}, grace_minutes=15)
    assert late.lateness(rules, "ann", "04", "2026-11-25T01:00:00", 3, 20) is None


def test_lateness_costs_no_more_than_the_points_reached():
    rules = late.Rules({"04": dt.datetime(2026, 11, 20)}, percent_a_day=10)
    found = late.lateness(rules, "ann", "04", "2026-11-25T01:00:00", 3, 20)
    assert (found.points, found.words) == (0, "6 days late: 3 points off")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("due = ", "is not valid TOML"),
        ("penalty = 3", "unknown entry penalty; allowed are due, student, grace_minutes"),
        ("percent_a_day = -1", "percent_a_day must be .*, got -1"),
        ("percent_a_day = nan", "percent_a_day must be .*, got nan"),
        ("grace_minutes = true", "grace_minutes must be .*, got True"),
        ("[due]\n04 = 2026-11-20", "due.04 must be a time like .*, got 2026-11-20"),
        ("[due]\n04 = 2026-11-20 12:00:00Z", "due.04 must be a time like .*, got 2026-11-20 12:00:00"),
        ("[due]\nex = 2026-11-20 12:00:00\nEx = 2026-11-21 12:00:00", "an exercise twice"),
        ("[[student]]\nname = 'x'\nexercise = 'y'\n" * 2, r"x has two \[\[student\]\] for y"),
        ("[[student]]\nname = 'x'", r"\[\[student\]\] needs name, exercise .*, got {'name': 'x'}"),
        ("[[student]]\nname = 'x'\nexercise = 4", r"student\.exercise must be text in quotes, got 4"),
        ("due = 2026-11-20 12:00:00", r"deadlines go below \[due\]"),
        ("student = ['x']", r"\[\[student\]\] needs name, exercise .*, got 'x'"),
    ],
)
def test_invalid_late_rules_are_refused(tmp_path, text, words):
    (tmp_path / late.FILE).write_text(text)
    with pytest.raises(LabError, match=rf"late\.toml.*{words}"):
        late.read_rules(tmp_path)


def test_late_rules_ignore_case_and_unmatched_ones_are_listed(tmp_path):
    rules = RULES.replace("04_masking", "04_Masking").replace('"Jane Doe"', '"jane doe"')
    (tmp_path / late.FILE).write_text(rules)
    (tmp_path / "report.json").write_text(json.dumps({"04_masking": {"Jane-Doe": ROW, "kim": ROW}, "exercises": {}}))
    found = late.lateness(late.read_rules(tmp_path), "Jane-Doe", "04_masking", "2026-11-25T13:00:00", 10, 20)
    assert found.words == "1 day late (ill): 2 points off"
    assert late.unmatched(tmp_path) == []
    rules = rules.replace('"kim"', '"Kin"').replace("[due]", "[due]\n05_x = 2026-11-20 12:00:00")
    (tmp_path / late.FILE).write_text(rules)
    assert late.unmatched(tmp_path) == [
        "late.toml: no submission of 05_x has been graded",
        "late.toml: kin has no graded submission of 04_masking",
    ]


SUM = """def total(x):
    # my sum
    s = 0
    for value in x:
        s += value
    return s"""


@pytest.mark.parametrize(
    ("other", "alike"),
    [
        (SUM.replace("# my sum", '"""A sum."""'), True),
        (SUM.replace("s = 0", "s=(0)").replace("value", "each"), True),
        (SUM.replace("s = 0", "result = 0").replace("s +=", "result +=").replace("return s", "return result"), True),
        (SUM.replace("total(x)", "total(x: list) -> float"), True),
        (SUM.replace("s = 0", "s = 1"), False),
        (SUM.replace("total", "add"), False),  # a name given by the task
        (SUM.replace("+=", "-="), False),
        ("def total(x) return", False),
        ("def total(x):\n    return " + " + ".join(["x"] * 600), False),  # exceeds the recursion limit
        *(
            (f"y = {sign * 10_000}1{end * 10_000}", False)
            for sign, end in (("-", ""), ("(", ")"), ("[", "]"), ("not ", ""))
        ),
        ("x = 1\n" * 200_000, False),
    ],
)
def test_normal_form_ignores_style(other, alike):
    assert (answers.normal_form(SUM) == answers.normal_form(other)) == alike


def test_normal_form_keeps_the_names_of_a_task():
    assert answers.normal_form("a, b = 1, 2") != answers.normal_form("b, a = 1, 2")
    assert answers.normal_form("total: int = 1") != answers.normal_form("other: int = 1")


def test_only_unusual_answers_are_listed():
    """Answers like our solution, short, untouched or frequent ones are not listed."""
    odd = [
        f"def f(x):\n    a = [{n} * i * i - {n} for i in range(len(x))]\n    return sum(a) / (len(a) + {n})"
        for n in range(9)
    ]
    given = {f"s{number:02}": odd[5] for number in range(30)}
    given |= {"s30": odd[1], "s31": odd[1].replace("a", "b").replace("rbnge", "range"), "s32": odd[2], "s33": odd[3]}
    given |= {"s34": odd[4], "s35": odd[4], "s36": "x", "s37": "x", "s38": odd[6], "s39": odd[6]}
    assert list(similar.groups(given, odd[6], odd[4]).values()) == [["s30", "s31"]]


@pytest.fixture
def tested_twice(tmp_path, monkeypatch):
    """A grading folder of an exercise with an answer that two tests follow; two students have only the first right."""
    cells = {"first": SUM.replace("total", "first"), "marks-first": 1, "update": SUM, "marks-clip": 1, "marks-sum": 1}
    for place in ("source", "release"):
        written = nbformat.v4.new_notebook()
        for name, content in cells.items():
            kind = {"grade_id": name, "solution": content != 1, "grade": content == 1, "points": 1}
            text = "assert True" if content == 1 else content if place == "source" else "..."
            written.cells.append(nbformat.v4.new_code_cell(text, metadata={"nbgrader": kind}))
        (tmp_path / place / "05").mkdir(parents=True)
        nbformat.write(written, tmp_path / place / "05" / "05.ipynb")
    odd = SUM.replace("s = 0", "s = 0 * len(x)").replace("s += value", "s += 2 * value - value + value")
    tasks = {"marks-first": (0.0, 1), "marks-clip": (1.0, 1), "marks-sum": (0.0, 1)}
    marks = {name: types.SimpleNamespace(graded=True, tasks=tasks) for name in ("ann", "bo")}
    for module in (similar, statistics):
        monkeypatch.setattr(module, "marks_of", lambda *_: {"05": marks})
        monkeypatch.setattr(module, "answers_of", lambda *_: {name: {"first": "...", "update": odd} for name in marks})
    return tmp_path


def test_consecutive_tests_share_an_answer(tested_twice):
    tasks = {task.name: (list(task.stubs), list(task.solutions)) for task in answers.tasks_of(tested_twice, "05")}
    update = (["update"], ["update"])
    assert tasks == {"marks-first": (["first"], ["first"]), "marks-clip": update, "marks-sum": update}
    rows, wrong = statistics.statistics(tested_twice)
    assert [(row["task"], row["attempted"], row["right"]) for row in rows] == [
        *(("first", 0, 0), ("clip", 2, 2), ("sum", 2, 0))
    ]
    assert [(title, [count for _, count in given]) for title, given in wrong["05"].items()] == [
        *(("first", []), ("clip", []), ("sum", [2]))
    ]


def test_similar_counts_an_answer_with_two_tests_once(tested_twice):
    [row] = similar.similar(tested_twice)
    assert (row["first"], row["second"], row["answers"], row["of them wrong"]) == ("ann", "bo", "update", "update")


def test_the_most_frequent_wrong_answers_are_shown_as_written():
    given = [SUM, SUM.replace("value", "v"), "x = 1", "x=1", "x = 1 # one", "y = 2"]
    assert statistics.most_common(given) == [("x = 1", 3), (SUM, 2)]


def test_the_chart_of_a_class_has_a_text_alternative():
    import pandas

    from dgc_lab_grading.gradebook.figures import class_image

    rows = [("04", "split", 1, 10, 8, 5, 0.5), ("04", "top-k-mask", 4, 10, 10, 10, 4.0)]
    image = class_image(pandas.DataFrame(rows, columns=statistics.COLUMNS))
    assert image.startswith('<img alt="')
    assert "split: 5 right, 3 not, 2 not attempted, mean 0.5 of 1; top-k-mask: 10 right, 0 not, 0 not att" in image


def test_markers_get_equal_shares_and_keep_their_students():
    keys = [(f"s{number}", "07", answer) for number in range(10) for answer in "abc"]
    shared = by_hand.share_out(keys, {"ann": [], "ben": [], "eve": [{"student": "s9"}] * 3})
    assert sorted(map(len, shared.values())) == [9, 9, 12]
    assert sorted(itertools.chain(*shared.values())) == keys
    students = [{key[0] for key in every} for every in shared.values()]
    assert not any(one & other for one, other in itertools.combinations(students, 2))
    assert "s9" in students[2]


def test_invalid_points_are_refused_with_their_line(tmp_path):
    most_six = types.SimpleNamespace(max_score=6.0)
    for text in ("7", "-1", "five", "nan", "inf"):
        with pytest.raises(LabError, match=rf"line 3: points must be a number from 0 to 6, got '{text}'"):
            by_hand.points_of(text, most_six, "points.csv, line 3")
    assert by_hand.points_of("6", most_six, "") == 6
    (tmp_path / "points.csv").write_text("student;points\n")
    with pytest.raises(LabError, match=r"missing: exercise, answer, version, of, comment"):
        by_hand.read_sheet(tmp_path / "points.csv")


def test_versions_survive_spreadsheets_and_older_sheets_are_read(tmp_path):
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 1")]), tmp_path / "x.ipynb")
    made = by_hand.version(tmp_path / "x.ipynb")
    assert re.fullmatch("v[0-9a-f]{8}", made)
    rows = [
        dict(zip(by_hand.COLUMNS, ("jane", "07", "why", text, "6", "", ""), strict=True)) for text in (made, made[1:])
    ]
    by_hand.write_sheet(tmp_path / "points.csv", rows, ",")
    assert [row["version"] for row in by_hand.read_sheet(tmp_path / "points.csv")[0]] == [made, made]
    written = {**dict.fromkeys(overrides.COLUMNS, "x"), "points": "1", "version": made[1:]}
    (tmp_path / overrides.FILE).write_text(",".join(written) + "\n" + ",".join(written.values()) + "\n")
    assert overrides.read_overrides(tmp_path)[0]["version"] == made


def test_lines_are_counted_as_an_editor_counts_them(tmp_path):
    """Blank rows count, and so do line breaks in quoted fields."""
    (tmp_path / "report.json").write_text(json.dumps({"04": {"jane": ROW}}))
    file, sheet = tmp_path / overrides.FILE, tmp_path / "points.csv"
    rows = ["jane,04,split,1,ok,v1,", ",,,,,,", "", 'kim,04,split,1,"a list,\r\nfor now",v1,', "lee,04,split,{},x,v1,"]
    text = "\r\n".join([",".join(overrides.COLUMNS), *rows]) + "\r\n"
    file.write_text(text.format(1), newline="")
    assert [words.partition(" has ")[0] for words in overrides.unmatched(tmp_path)] == [
        *("overrides.csv, line 5: kim", "overrides.csv, line 7: lee")
    ]
    file.write_text(text.format(-1), newline="")
    with pytest.raises(LabError, match=r"overrides\.csv, line 7: points must be"):
        overrides.read_overrides(tmp_path)
    sheet.write_text(",".join(by_hand.COLUMNS) + '\n\njane,04,why,v1,3,2,"right,\nbut"\n,,,v,,,\nkim,04,why,v1,3,9,\n')
    assert [row.line for row in by_hand.read_sheet(sheet)[0]] == [3, 6]


def test_a_failure_keeps_the_old_table(tmp_path):
    csv_text.write_rows(tmp_path / "marks.csv", ["student"], [{"student": "jane"}])
    before = (tmp_path / "marks.csv").read_bytes()
    with pytest.raises(UnicodeEncodeError):
        csv_text.write_rows(tmp_path / "marks.csv", ["student"], [{"student": "kim"}, {"student": "\ud800"}])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"marks.csv": before}


@pytest.mark.parametrize(("task", "answer"), [("\ud800", "x"), ("split", "\ud800")])
def test_a_failure_keeps_the_old_statistics(tmp_path, monkeypatch, task, answer):
    row = dict(zip(statistics.COLUMNS, ("04", task, 1, 2, 2, 0, 0.0), strict=True))
    monkeypatch.setattr(statistics, "statistics", lambda *_: ([row], {"04": {task: [(answer, 2)]}}))
    name = "statistics.csv" if answer == "x" else "statistics.html"
    (tmp_path / name).write_text("old")
    with pytest.raises(UnicodeEncodeError):
        statistics.write_statistics(tmp_path)
    assert (tmp_path / name).read_text() == "old"
    assert not list(tmp_path.glob("*.new"))


def test_replacing_a_link_keeps_it(tmp_path):
    (tmp_path / "marks.csv").symlink_to(tmp_path / "elsewhere.csv")
    with files.replacing(tmp_path / "marks.csv") as new:
        new.write_text("x")
    assert (tmp_path / "marks.csv").is_symlink()
    assert (tmp_path / "elsewhere.csv").read_text() == "x"


def test_sheets_keep_extra_columns_and_have_a_byte_order_mark(tmp_path):
    """Without the mark, a spreadsheet reads the file as Windows-1252, and shows an umlaut as two characters."""
    columns, fields = (*by_hand.COLUMNS, "my notes"), ("jane", "07", "why", "v1", "6", "", "schön", "ask her")
    path = tmp_path / "points.csv"
    path.write_text(";".join(columns) + "\n" + ";".join(fields) + "\n", encoding="cp1252")
    rows, delimiter = by_hand.read_sheet(path)
    by_hand.write_sheet(path, [*rows, {"student": "john"}], delimiter)
    assert path.read_bytes().decode("utf-8").splitlines() == [
        "\ufeff" + ";".join(columns),
        ";".join(fields),
        "john" + ";" * 7,
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
@pytest.mark.parametrize("delimiter", ";\t,")
def test_points_and_overrides_from_spreadsheets_are_read(tmp_path, encoding, delimiter):
    def saved(name, columns, *fields):
        text = "".join(delimiter.join(f'"{field}"' for field in row) + "\r\n" for row in (columns, fields))
        (tmp_path / name).write_text(text, encoding=encoding, newline="")

    saved("points.csv", by_hand.COLUMNS, "jane", "07", "why", "v1", "6", "2,5", "schön")
    [row], found = by_hand.read_sheet(tmp_path / "points.csv")
    assert (found, row["points"], row["comment"]) == (delimiter, "2,5", "schön")
    saved(overrides.FILE, overrides.COLUMNS, "jane", "04", "split", "0,5", "für alle", "v1", "")
    [row] = overrides.read_overrides(tmp_path)
    assert (row["points"], row["reason"]) == ("0.5", "für alle")


def test_the_platforms_file_name_is_kept(tmp_path):
    names = ("class/Al Ba_71_assignsubmission_file_/x.ipynb", "class/Eve_72_assignsubmission_file_/work.zip")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / names[0]).write_text("{}")
    with zipfile.ZipFile(tmp_path / names[1], "w") as file:
        file.writestr("04_masking.ipynb", "{}")
    found, _ = submissions.find(tmp_path, "04_masking", tmp_path / "unpacked")
    assert [(each.student, each.number, each.handed_in) for each in found] == [
        ("Al-Ba", "71", "Al Ba_71_assignsubmission_file_/x.ipynb"),
        ("Eve", "72", "Eve_72_assignsubmission_file_/work.zip"),
    ]
    assert [each.time for each in found] == [None, None], "the zip has only the time of the download"


def test_a_note_gives_the_points_and_why():
    mark = ledger.Mark(
        6.0, 10.0, 20.0, True, late.Lateness(2, 6.0, "2 days late: 4 points off"), (), ("split: 1",), {}, "", "", ()
    )
    assert ledger.note(mark) == "**6 of 20 points.** 2 days late: 4 points off. Split: 1."


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("Jane Doe_4711_assignsubmission_file_/my work.ipynb", "Jane Doe_4711_assignsubmission_file_/my work.html"),
        ("Jane Doe_4711_assignsubmission_file_work.zip", "Jane Doe_4711_assignsubmission_file_work.html"),
        ("doejane_LATE_123_456_04_masking-1.ipynb", "doejane_LATE_123_456_04_masking-1.html"),
        (
            "12345-67890 - Jane Doe - 21 November, 2026 1003 AM/x.ipynb",
            "12345-67890 - Jane Doe - 21 November, 2026 1003 AM/x.html",
        ),
    ],
)
def test_pages_are_zipped_under_the_submissions_name(tmp_path, given, wanted):
    report = {"04_masking": {"jane": ROW | {"handed_in": given}}}
    (tmp_path / "report.json").write_text(json.dumps(report))
    page = tmp_path / "feedback" / "jane" / "04_masking" / "04_masking.html"
    page.parent.mkdir(parents=True)
    page.write_text("<p>Well done.</p>")
    [packed], missing = pages.pack(tmp_path)
    assert missing == []
    with zipfile.ZipFile(packed) as file:
        assert {name: file.read(name) for name in file.namelist()} == {wanted: b"<p>Well done.</p>"}


def test_a_name_in_latin_1_does_not_stop_the_zip_of_pages(tmp_path):
    """A name from an old zip, unpacked on Linux, has bytes that are no text."""
    report = {"04_masking": {"jane": ROW | {"handed_in": "M\udcfcller.ipynb"}}}
    (tmp_path / "report.json").write_text(json.dumps(report))
    (tmp_path / "feedback" / "jane" / "04_masking").mkdir(parents=True)
    (tmp_path / "feedback" / "jane" / "04_masking" / "04_masking.html").write_text("x")
    [packed], missing = pages.pack(tmp_path)
    assert (zipfile.ZipFile(packed).namelist(), missing) == (["Mller.html"], [])


def test_missing_pages_are_named_and_a_failure_keeps_the_old_zip(tmp_path):
    row = {"status": "graded", "remarks": [], "score": 1, "most": 1, "seconds": 1}
    rows = {name: {**row, "student": name, "handed_in": f"{name}.ipynb"} for name in ("ann", "bo", "cy", "dee")}
    del rows["dee"]["handed_in"]
    (tmp_path / "report.json").write_text(json.dumps({"04_masking": rows}))
    for name in ("ann", "bo"):
        (tmp_path / "feedback" / name / "04_masking").mkdir(parents=True)
        (tmp_path / "feedback" / name / "04_masking" / "04_masking.html").write_text(name)
    [packed], missing = pages.pack(tmp_path)
    assert [words.partition(":")[0] for words in missing] == ["cy, 04_masking", "dee, 04_masking"]
    whole = packed.read_bytes()
    assert sorted(zipfile.ZipFile(packed).namelist()) == ["ann.html", "bo.html"]
    (tmp_path / "feedback" / "ann" / "04_masking" / "04_masking.html").write_text("another")
    os.utime(tmp_path / "feedback" / "bo" / "04_masking" / "04_masking.html", (0, 0))
    with pytest.raises(ValueError, match="before 1980"):
        pages.pack(tmp_path)
    assert packed.read_bytes() == whole
