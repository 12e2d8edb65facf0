import io
import mailbox
from email.message import EmailMessage

import pytest

from slm.data.bad_records import BadRecordError
from slm.data.readers import mail
from slm.data.readers.reader import Reading


def read(data, start=0):
    reading = Reading()
    found = mail.READER.read(io.BytesIO(data), "m.mbox", start, reading)
    return [(mail.READER.parse(raw, end, reading), end) for raw, end in found]


def message(subject="A subject", text="Plain text.", html="", charset="utf-8"):
    made = EmailMessage()
    made["Subject"], made["From"], made["To"] = subject, "a@example.com", "b@example.com"
    made.set_content(text, charset=charset)
    if html:
        made.add_alternative(html, subtype="html")
    return made


def test_subject_and_plain_text():
    made = message("Grüße aus Köln " * 6, "Schöne Grüße, €\n" * 3, html="<p>other</p>")
    made.add_attachment(b"\0\1", maintype="application", subtype="pdf", filename="x.pdf")
    made.add_attachment("a,b", subtype="csv", filename="x.csv")
    (found, end), *rest = read(made.as_bytes())
    assert found == "Subject: " + " ".join(["Grüße aus Köln"] * 6) + "\n\n" + "\n".join(["Schöne Grüße, €"] * 3)
    assert (end, rest) == (1, [])
    assert read(made.as_bytes(), start=1) == []


def test_html_quoted_printable_and_character_sets():
    made = EmailMessage()
    made["Subject"] = "x"
    made.set_content(
        "<html><body><p>Sch\u00f6n: a &lt; b</p><script>bad()</script></body></html>",
        subtype="html",
        cte="quoted-printable",
    )
    assert b"=C3=B6" in made.as_bytes()
    assert read(made.as_bytes())[0][0] == "Subject: x\n\nSchön: a < b"
    raw = b"Subject: =?koi8-r?B?8NLJ18XU?=\nContent-Type: text/plain; charset=koi8-r\n\n" + "Привет".encode("koi8-r")
    assert read(raw)[0][0] == "Subject: Привет\n\nПривет"
    raw = b"Subject: =?x-unknown?Q?a?=\nContent-Type: text/plain; charset=x-unknown\n\nSch\xc3\xb6n"
    assert read(raw)[0][0].endswith("Schön")
    raw = b"Subject: s\nContent-Transfer-Encoding: base64\n\nSGVsbG8="
    assert read(raw)[0][0] == "Subject: s\n\nHello"


def test_forwarded_messages_are_read():
    outer = message("outer", "See below.")
    outer.add_attachment(message("inner", "The inner text."))
    assert read(outer.as_bytes())[0][0] == "Subject: outer\n\nSee below.\n\nThe inner text."


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_mailbox(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(mail, "CHUNK", chunk)
    monkeypatch.setattr(mail, "OVERLAP", 48)
    box = mailbox.mbox(tmp_path / "m.mbox")
    bodies = [f"Text {i}.\n\nFrom here on it is quoted.\n> From there, too\n" * (i % 3 + 1) for i in range(7)]
    for i, body in enumerate(bodies):
        box.add(mailbox.mboxMessage(message(f"number {i}", body)))
    box.flush()
    data = (tmp_path / "m.mbox").read_bytes()
    whole = read(data)
    assert [text for text, _ in whole] == [f"Subject: number {i}\n\n{body.strip()}" for i, body in enumerate(bodies)]
    for number in range(len(whole) + 1):
        start = whole[number - 1][1] if number else 0
        assert read(data, start) == whole[number:]


def test_what_is_no_mail():
    with pytest.raises(BadRecordError, match="without headers"):
        read(b"just some text\nand more\n")
    assert read(message(text="").as_bytes())[0][0].strip() == ""
