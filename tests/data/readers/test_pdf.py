import io

import pytest
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import BaseDocTemplate, Frame, PageTemplate, Paragraph, Preformatted

from slm.data.bad_records import BadRecordError
from slm.data.readers import pdf

STYLES = getSampleStyleSheet()
SENTENCES = [f"Sentence {i} says something about the matter and is followed by another one." for i in range(12)]


def drawn(draw, **options):
    """A PDF whose pages ``draw(canvas)`` draws."""
    buffer = io.BytesIO()
    canvas = Canvas(buffer, pagesize=A4, **options)
    draw(canvas)
    canvas.save()
    return buffer.getvalue()


def in_columns(n_columns, flowables):
    buffer = io.BytesIO()
    document = BaseDocTemplate(buffer, pagesize=A4)
    width = document.width / n_columns - 6
    frames = [
        Frame(document.leftMargin + i * (width + 12), document.bottomMargin, width, document.height)
        for i in range(n_columns)
    ]
    document.addPageTemplates(PageTemplate(frames=frames))
    document.build(flowables)
    return buffer.getvalue()


@pytest.mark.parametrize("n_columns", [1, 2])
def test_lines_are_joined_to_paragraphs_in_reading_order(n_columns):
    first, second = " ".join(SENTENCES), " ".join(reversed(SENTENCES))
    flowables = [Paragraph(each, STYLES["BodyText"]) for each in [first, second] * 4]
    paragraphs = pdf.text(in_columns(n_columns, flowables)).split("\n\n")
    assert paragraphs.count(first) + paragraphs.count(second) >= 7  # one may be divided between two columns
    assert " ".join(paragraphs).replace("\n", " ") == " ".join([first, second] * 4)


def test_code_keeps_its_lines():
    code = "def f(x):\n    return x\nprint(f(1))"
    body = Paragraph(" ".join(SENTENCES), STYLES["BodyText"])
    found = pdf.text(in_columns(1, [body, Preformatted(code, STYLES["Code"]), body]))
    assert "def f(x):\nreturn x\nprint(f(1))" in found  # PDF has no spaces at the beginning of lines


def test_page_headers_and_numbers_are_left_out():
    def draw(canvas):
        for number in range(1, 5):
            canvas.drawString(72, 800, "The Book of Everything" if number % 2 else f"{number} Chapter One")
            canvas.drawString(72, 700, f"Only page {'abcd'[number - 1]} says this.")
            canvas.drawString(300, 30, str(number))
            canvas.showPage()

    found = pdf.text(drawn(draw))
    assert [line for line in found.splitlines() if line and "says this" not in line] == ["The Book of Everything"] * 2
    assert "Only page d says this." in found


@pytest.mark.parametrize("numbers", [("ii", "iii", "iv", "v"), ("1 / 9", "2 / 9", "3 / 9", "4 / 9")])
def test_headers_with_roman_numbers_or_how_many_pages_there_are_are_left_out(numbers):
    def draw(canvas):
        for at, number in enumerate(numbers):
            canvas.drawString(72, 800, f"A Brief History {number}")
            canvas.drawString(72, 760, f"Chapter {at + 1}")  # its number is not the page's
            canvas.drawString(72, 700, f"Only page {'abcd'[at]} says this.")
            canvas.showPage()

    found = "\n".join(f"Chapter {at + 1}\nOnly page {each} says this." for at, each in enumerate("abcd"))
    assert pdf.text(drawn(draw)).replace("\n\n", "\n") == found


def test_headings_that_are_numbered_stay():
    def draw(canvas):
        for number in range(1, 5):
            for part in range(2):
                canvas.drawString(72, 800, f"Chapter {number}" if part == 0 else f"More of {'abcd'[number - 1]}")
                canvas.drawString(72, 700, "Text")
                canvas.showPage()

    assert pdf.text(drawn(draw)).count("Chapter") == 4


def test_what_has_no_text_says_why():
    scan = drawn(lambda canvas: (canvas.rect(10, 10, 300, 300, fill=1), canvas.showPage()))
    secret = drawn(lambda canvas: canvas.drawString(72, 700, "hidden"), encrypt="password")
    whole = drawn(lambda canvas: canvas.drawString(72, 700, "Text of a page"))
    assert pdf.text(whole) == "Text of a page"
    for data, reason in (
        (scan, "a scan"),
        (secret, "encrypted"),
        (whole[:200], "damaged"),
        (b"%PDF-1.4\nnothing", "damaged"),
        (b"not a PDF", "damaged"),
        (b"", "damaged"),
    ):
        with pytest.raises(BadRecordError, match=f"PDF: {reason}"):
            pdf.text(data)


def test_an_owner_password_alone_is_no_hindrance():
    from reportlab.lib.pdfencrypt import StandardEncryption

    lock = StandardEncryption("", ownerPassword="owner")
    assert pdf.text(drawn(lambda canvas: canvas.drawString(72, 700, "Readable text"), encrypt=lock)) == "Readable text"
