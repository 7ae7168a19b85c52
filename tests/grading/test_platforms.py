"""Files in each platform's format are filled, and only the fields of our marks change."""

import codecs
import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgc_lab.common import LabError
from dgc_lab_grading.course.csv_text import CsvText
from dgc_lab_grading.course.names import plain
from dgc_lab_grading.gradebook import commands
from dgc_lab_grading.gradebook.ledger import Mark
from dgc_lab_grading.gradebook.platforms import PLATFORMS, fill

EXERCISE = "04_masking"


def mark(points, number="", most=18.0, **more):
    nothing = {"late": None, "waiting": (), "overrides": (), "tasks": {}, "handed_in": "x.ipynb", "remarks": ()}
    return Mark(points=points, reached=points, most=most, **({"graded": True, "number": number} | nothing | more))


# PHP's fputcsv quotes fields with spaces; Moodle's headings and numbers are in the user's language.
MOODLE = """Identifier,"Full name","Email address",Status,Grade,"Maximum grade","Grade can be changed",\
"Last modified (submission)","Online text","Last modified (grade)","Feedback comments"
"Participant 4711","Jane Doe",jane.doe@example.org,"Submitted for grading - ",,18.00,Yes,\
"Saturday, 21 November 2026, 5:03 PM","a text, with a comma
and a second line, and ""quotes"" in it",-,
"Participant 4712","Jane Doe",jd2@example.org,"Submitted for grading - ",3.00,18.00,Yes,"22 November",,-,"old"
"Participant 4713","José O'Neill",jose@example.org,"No submission - ",,18.00,Yes,-,,-,
"Participant 4714","Kim Closed",kim@example.org,"Submitted for grading - ",,18.00,No,-,,-,
"Participant 4715","Ann Absent",ann@example.org,"No submission - ",,18.00,Yes,-,,-,
"""
GERMAN = """ID,"Vollständiger Name",E-Mail-Adresse,Status,Bewertung,Bestwertung,\
"Bewertung kann geändert werden","Zuletzt geändert (Abgabe)",\
"Zuletzt geändert (Bewertung)","Feedback als Kommentar"
Teilnehmer/in4711,"Jane Doe",jane.doe@example.org,"Zur Bewertung abgegeben",,"18,00",Ja,"Samstag, 21. November",-,
Teilnehmer/in4712,"Jörg Müßig",jm@example.org,"Zur Bewertung abgegeben","3,00","18,00",Ja,"Sonntag, 22. November",-,
"""
FRENCH = """Identifiant,"Nom complet","Adresse de courriel",Statut,Note,"Note maximale",\
"La note peut être modifiée","Dernière modification (note)"
Participant4711,"Jane Doe",jane.doe@example.org,"Remis pour évaluation",,"18,00",Oui,-
Participant4712,"François Lévêque",fl@example.org,"Remis pour évaluation","3,00","18,00",Oui,-
"""
SPANISH = """Identificador,"Nombre completo","Dirección de correo",Estado,Calificación,"Calificación máxima",\
"La calificación puede ser cambiada","Última modificación (calificación)"
Participante4711,"Jane Doe",jane.doe@example.org,"Enviado para calificar",,"18,00",Sí,-
Participante4712,"Íñigo Núñez",in@example.org,"Enviado para calificar","3,00","18,00",Sí,-
"""
SEMICOLONS = "".join(";".join(row) + "\n" for row in csv.reader(GERMAN.splitlines()))  # saved by a spreadsheet
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,\
Exercise 4: masking (8123),Exercise 5 (8124),Current Score,Final Score
,,,,,Manual Posting,,,
    Points Possible,,,,,18.0,20.0,(read only),(read only)
"Doe, Jane",123,s-1001,jdoe,"Lab 1, Monday",,,0.0,0.0
"O'Neill, José",124,s-1002,joneill,Lab 2,7.5,12,37.5,37.5
"Excused, Eve",125,s-1003,eve,Lab 2,EX,12,60.0,60.0
"Student, Test",126,,abc123,Lab 1,,,,
"""
BRIGHTSPACE = """OrgDefinedId,Username,Last Name,First Name,Email,\
04 masking Points Grade <Numeric MaxPoints:18 Weight:10 Category:Labs CategoryWeight:50>,End-of-Line Indicator
#20067930,#jane.doe,Doe,Jane,jane.doe@example.org,,#
#20067931,#joneill,O'Neill,José,joneill@example.org,5.5,#
"""
BLACKBOARD = (
    '"Last Name"\t"First Name"\t"Username"\t"Student ID"\t"Availability"\t'
    '"Exercise 4 masking [Total Pts: 18 Score] |981722"\n'
    '"Doe"\t"Jane"\t"jdoe"\t"1001"\t"Yes"\t""\n'
    '"O\'Neill"\t"José"\t"joneill"\t"1002"\t"Yes"\t"Needs Grading"\n'
)
FORMS = {
    # platform, text, encoding, line ends; marks by student and number; replacements in the text
    "Moodle": (
        *("moodle", MOODLE, "utf-8-sig", "\n"),
        {("Jane-Doe-4711", "4711"): 15.5, ("Jane-Doe-4712", "4712"): 18, ("José-O-Neill", ""): 0},
        {'grading - ",,18': 'grading - ",15.5,18', "3.00,18": "18,18", '"No submission - ",,18.00,Yes': None},
    ),
    "Moodle in German": (
        *("moodle", GERMAN, "utf-8", "\r\n"),
        {("Jane-Doe", "4711"): 15.5, (plain("Jörg Müßig"), ""): 7},
        {'abgegeben",,': 'abgegeben","15,5",', '"3,00","18': '"7","18'},
    ),
    "Moodle by a spreadsheet": (
        *("moodle", SEMICOLONS, "cp1252", "\r\n"),
        {("Jane-Doe", "4711"): 15.5, (plain("Jörg Müßig"), "4712"): 7},
        {"abgegeben;;": "abgegeben;15,5;", ";3,00;18": ";7;18"},
    ),
    "Moodle in French": (
        *("moodle", FRENCH, "utf-8-sig", "\n"),
        {("Jane-Doe", "4711"): 15.5, (plain("François Lévêque"), ""): 7},
        {'évaluation",,': 'évaluation","15,5",', '"3,00","18': '"7","18'},
    ),
    "Moodle in Spanish": (
        *("moodle", SPANISH, "utf-8-sig", "\n"),
        {("Jane-Doe", "4711"): 15.5, (plain("Íñigo Núñez"), "4712"): 7},
        {'calificar",,': 'calificar","15,5",', '"3,00","18': '"7","18'},
    ),
    "Canvas": (
        *("canvas", CANVAS, "utf-8", "\n"),
        {("doejane", "123"): 15.5, ("joneill", ""): 9.25},
        {'Monday",,,0.0': 'Monday",15.5,,0.0', "7.5,12,37.5": "9.25,12,37.5"},
    ),
    "Brightspace": (
        *("brightspace", BRIGHTSPACE, "utf-8-sig", "\r\n"),
        {("Jane-Doe", ""): 15.5, ("José-O-Neill", ""): 1},
        {"jane.doe@example.org,,": "jane.doe@example.org,15.5,", "org,5.5,#": "org,1,#"},
    ),
    "Blackboard": (
        *("blackboard", BLACKBOARD, "utf-16", "\n"),
        {("jdoe", "jdoe"): 15.5, ("joneill", "joneill"): 4},
        {'"Yes"\t""': '"Yes"\t"15.5"', '"Needs Grading"': '"4"'},
    ),
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_filling_a_platforms_file_changes_only_marks(tmp_path, form):
    platform, text, encoding, ends, reached, changes = form
    original = text.replace("\n", ends).encode(encoding)
    (tmp_path / "file.csv").write_bytes(original)
    marks = {EXERCISE: {student: mark(points, number) for (student, number), points in reached.items()}}
    filled = fill(marks, tmp_path / "file.csv", platform)
    assert (filled.count, filled.left) == (len(reached), [])
    for old, new in changes.items():
        if new is None:  # the first of several
            old, new = old, old.replace(",,", ",0,")
        assert old in text
        text = text.replace(old, new, 1)
    assert filled.data.decode(encoding) == text.replace("\n", ends)
    assert filled.data == text.replace("\n", ends).encode(encoding)
    again = tmp_path / "again.csv"
    again.write_bytes(filled.data)
    assert fill(marks, again, platform).data == filled.data


def test_every_platform_has_a_command_and_an_example():
    assert set(PLATFORMS) == set(commands.PLATFORMS) == {platform for platform, *_ in FORMS.values()}


def left(tmp_path, marks, text=MOODLE, platform="moodle"):
    (tmp_path / "file.csv").write_text(text, encoding="utf-8")
    filled = fill({EXERCISE: marks}, tmp_path / "file.csv", platform)
    assert filled.data.decode() == text
    return filled.left


def test_students_without_a_clear_row_are_listed(tmp_path):
    assert left(tmp_path, {"Jane-Doe": mark(3)}) == ["Jane-Doe, 04_masking: several rows match"]
    assert left(tmp_path, {"Nobody": mark(3, "4799")}) == ["Nobody, 04_masking: no row matches"]
    [said] = left(tmp_path, {"Ann-Absent": mark(3, "4711")})
    assert "number 4711, which is somebody else's" in said
    [said] = left(tmp_path, {"Ann-Absent": mark(0, "4715", graded=False, remarks=("the file is empty",))})
    assert said == "Ann-Absent, 04_masking: not graded: the file is empty"
    [said] = left(tmp_path, {"Ann-Absent": mark(0, "4715", waiting=("bytes",))})
    assert "to be marked by hand: bytes" in said


@pytest.mark.parametrize(
    ("platform", "text", "student", "words"),
    [
        ("moodle", MOODLE, ("Kim-Closed", "4714"), "cannot be changed"),
        ("moodle", FRENCH.replace("Oui", "Non"), ("Jane-Doe", "4711"), "cannot be changed"),
        ("moodle", SPANISH.replace("Sí", "No"), ("Jane-Doe", "4711"), "cannot be changed"),
        ("canvas", CANVAS, ("eve", "125"), "the platform says EX"),
    ],
)
def test_fields_that_the_platform_keeps_are_no_omission(tmp_path, capsys, platform, text, student, words):
    (tmp_path / "file.csv").write_text(text, encoding="utf-8")
    filled = fill({EXERCISE: {student[0]: mark(3, student[1])}}, tmp_path / "file.csv", platform)
    assert (filled.left, filled.count, filled.data.decode()) == ([], 0, text)
    assert words in filled.kept[0]


def test_an_ungraded_submission_with_an_override_has_a_mark(tmp_path):
    (tmp_path / "file.csv").write_text(MOODLE, encoding="utf-8")
    ungraded = mark(3, "4715", graded=False, remarks=("the file is empty",), overrides=("split: 3 points by hand",))
    filled = fill({EXERCISE: {"Ann-Absent": ungraded}}, tmp_path / "file.csv", "moodle")
    assert (filled.count, filled.left) == (1, [])


def test_a_groups_number_matches_no_student(tmp_path):
    """Moodle names a group's folder by the group's number, which may also be a student's."""
    group = mark(3, "4714", handed_in="Team A_4714_assignsubmission_file_/x.ipynb")
    [said] = left(
        tmp_path, {"Team-A": group}, MOODLE.replace("Kim Closed,kim@example.org", "Kim").replace(",No,-", ",Yes,-")
    )
    assert "number 4714 has another name here: is it a group submission?" in said


def test_ambiguous_names_match_nobody(tmp_path):
    """A first or last name alone, a number without a row, and a row that matches two students."""
    anna = '"Jordan"\t"Anna"\t"ajordan"\t"1003"\t"Yes"\t""\n'
    assert left(tmp_path, {"jordan": mark(3)}, BLACKBOARD + anna, "blackboard") == [
        "jordan, 04_masking: no row matches"
    ]
    assert left(tmp_path, {"Jane": mark(3)}, BRIGHTSPACE, "brightspace") == ["Jane, 04_masking: no row matches"]
    assert left(tmp_path, {"Ann-Absent": mark(3, "99")}) == ["Ann-Absent, 04_masking: no row matches"]
    assert left(tmp_path, {"doejane": mark(3, "99")}, CANVAS, "canvas") == ["doejane, 04_masking: no row matches"]
    both = {"Jane-Doe": mark(3, "4711"), "Jane-Doe-4711": mark(7, "4711")}
    assert left(tmp_path, both) == [f"{student}, 04_masking: its row matches another student, too" for student in both]


def test_brightspaces_number_in_a_file_name_matches_no_row(tmp_path):
    """It differs from OrgDefinedId, so a student with the same number there is somebody else."""
    text = "OrgDefinedId,Username,04 masking Points Grade <Numeric MaxPoints:18>\n#12,#jroe,\n#77,#jdoe3,\n"
    jane = mark(15.5, "12", handed_in="12-34 - Jane Doe - Nov 21, 2026 105 PM/x.ipynb")
    assert left(tmp_path, {"Jane-Doe": jane}, text, "brightspace") == ["Jane-Doe, 04_masking: no row matches"]
    (tmp_path / "file.csv").write_text(BRIGHTSPACE)
    other = {EXERCISE: {"Jane-Doe": mark(15.5, "20067931")}}
    assert b"jane.doe@example.org,15.5,#" in fill(other, tmp_path / "file.csv", "brightspace").data


def test_blackboards_username_takes_precedence_over_names(tmp_path):
    rows = '"Jordan"\t"Anna"\t"aj"\t"1003"\t"Yes"\t""\n"Roe"\t"Al"\t"annajordan"\t"1004"\t"Yes"\t""\n'
    (tmp_path / "file.csv").write_text(BLACKBOARD + rows)
    filled = fill({EXERCISE: {"annajordan": mark(3)}}, tmp_path / "file.csv", "blackboard")
    assert (filled.count, filled.left) == (1, [])
    assert '"annajordan"\t"1004"\t"Yes"\t"3"' in filled.data.decode()


def test_anonymous_students_are_matched_by_number(tmp_path):
    text = 'Identifier,Status,Grade,"Maximum grade"\nParticipant 4711,x,,18.00\nParticipant 4712,x,,18.00\n'
    (tmp_path / "file.csv").write_text(text)
    marks = {
        "Participant-4711": mark(3, "4711", handed_in="Participant_4711_assignsubmission_file_/x.ipynb"),
        "by-roster": mark(4, "4712", handed_in="Participant_4712_assignsubmission_file_/x.ipynb"),
    }
    filled = fill({EXERCISE: marks}, tmp_path / "file.csv", "moodle")
    assert (filled.count, filled.left) == (2, [])
    assert filled.data.decode() == text.replace("4711,x,", "4711,x,3").replace("4712,x,", "4712,x,4")


def test_exercises_find_their_columns_or_use_the_named_one(tmp_path):
    (tmp_path / "file.csv").write_text(CANVAS)
    marks = {EXERCISE: {"doejane": mark(15.5, "123")}, "05_accumulation": {"doejane": mark(20, "123", 20.0)}}
    assert b'Monday",15.5,,0.0' in fill(marks, tmp_path / "file.csv", "canvas").data
    only = {"05_accumulation": marks["05_accumulation"]}
    with pytest.raises(LabError, match=r"no column matches 05_accumulation; choose one with --column: Exer"):
        fill(only, tmp_path / "file.csv", "canvas")
    assert b'Monday",,20,0.0' in fill(only, tmp_path / "file.csv", "canvas", "Exercise 5 (8124)").data


def test_another_maximum_is_refused_or_scaled_to(tmp_path):
    (tmp_path / "file.csv").write_text(MOODLE.replace("18.00", "100.00"))
    marks = {EXERCISE: {"Jane-Doe-4711": mark(15.5, "4711")}}
    with pytest.raises(LabError, match=r"'Grade' has a maximum of 100 points, 04_masking has 18\."):
        fill(marks, tmp_path / "file.csv", "moodle")
    assert b'grading - ",86.11,100.00' in fill(marks, tmp_path / "file.csv", "moodle", scale=True).data


def test_scaling_needs_the_platforms_maximum(tmp_path):
    (tmp_path / "file.csv").write_text(CANVAS.replace("18.0", ""))
    marks = {EXERCISE: {"doejane": mark(15.5, "123")}}
    with pytest.raises(LabError, match=r"file\.csv: 'Exercise 4: masking \(8123\)' has no maximum"):
        fill(marks, tmp_path / "file.csv", "canvas", scale=True)
    assert fill(marks, tmp_path / "file.csv", "canvas").count == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b'ID,"Grade\n7,1\n', "opens a quote that is never closed"),
        (b"Name,Grade\nJane,1\n", "no column Identifier or ID or Identifiant or Identificador in its first row"),
        (MOODLE.encode("utf-16-le").replace(b"\x00", b"\x81"), "neither UTF-8"),
    ],
)
def test_a_file_that_is_no_worksheet_is_refused(tmp_path, data, words):
    (tmp_path / "file.csv").write_bytes(data)
    with pytest.raises(LabError, match=rf"file\.csv.*{words}"):
        fill({EXERCISE: {"x": mark(1)}}, tmp_path / "file.csv", "moodle")


FIELD = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), max_size=8)
ENCODINGS = {"utf-8": b"", "utf-8-sig": codecs.BOM_UTF8, "utf-16-le": codecs.BOM_UTF16_LE}


@given(
    st.lists(st.lists(FIELD, min_size=2, max_size=3), min_size=1, max_size=4),
    st.sampled_from(",;\t"),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(sorted(ENCODINGS)),
)
def test_csv_files_round_trip_like_the_csv_module(rows, delimiter, ends, quoting, encoding):
    rows = [["a", "b"], *rows]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator=ends, quoting=quoting).writerows(rows)
    data = text.getvalue().encode(encoding)
    data = data if encoding == "utf-8-sig" else ENCODINGS[encoding] + data
    table = CsvText(data)
    assert table.delimiter == delimiter
    assert table.rows == list(csv.reader(io.StringIO(text.getvalue(), newline=""), delimiter=delimiter))
    assert table.data() == data
    table.put(0, 1, 'x"y')
    assert CsvText(table.data()).rows == [["a", 'x"y'], *table.rows[1:]]
