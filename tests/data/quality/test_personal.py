"""Masks: what has the form of personal data goes, and what only looks a little like it stays."""

import json
import random
import time

import pytest

from slm.data.config import DataConfig
from slm.data.quality.personal import ADDRESS, CARD, EMAIL, KEY, TELEPHONE, luhn, mask
from slm.data.sources.documents import iter_documents, make_plans, open_stream
from tests.helpers.documents import local, take, write_jsonl

MASKED = [
    ("Write to jane.doe+news@mail.example.co.uk.", f"Write to {EMAIL}."),
    ("<jörg@exämple.de>", f"<{EMAIL}>"),
    ("mailto:a@b.org?subject=x", f"mailto:{EMAIL}?subject=x"),
    ("+49 30 1234567 or +1 (555) 123-4567", f"{TELEPHONE} or {TELEPHONE}"),
    ("+44 (0)20 7946 0958", TELEPHONE),
    ("0049-30-1234567", TELEPHONE),
    ("(555) 123-4567, 555-123-4567, 555.123.4567", f"{TELEPHONE}, {TELEPHONE}, {TELEPHONE}"),
    ("01 23 45 67 89", TELEPHONE),
    ("030/1234567", TELEPHONE),
    ("020 7946 0958", TELEPHONE),
    ("Tel.: 1234 5678", f"Tel.: {TELEPHONE}"),
    ("Phone number: 1234567", f"Phone number: {TELEPHONE}"),
    ("call me at 5551234567", f"call me at {TELEPHONE}"),
    ("4111 1111 1111 1111", CARD),
    ("card 5500-0000-0000-0004, thanks", f"card {CARD}, thanks"),
    ("3782 822463 10005", CARD),
    ("from 93.184.216.34:8080 on", f"from {ADDRESS}:8080 on"),
    ("2606:2800:220:1:248:1893:25c8:1946", ADDRESS),
    ("2606:2800:220::25c8:1946", ADDRESS),
    ("AKIAIOSFODNN7EXAMPLE", KEY),
    ("token=ghp_" + "a1B2" * 9, f"token={KEY}"),
    ("sk-proj-" + "abcDEF123_-" * 4, KEY),
    ("hf_" + "abcDEF1234" * 3 + "xyzz", KEY),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc=\n-----END RSA PRIVATE KEY-----\nrest", f"{KEY}\nrest"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.SflKxwRJSMeKKF2QT4", KEY),
]
KEPT = [
    "user@localhost and @handle and a @ b",
    "2020-12-31, 31.12.2020, 12:30:45, 1999-2004",
    "1,234,567.89 and 100 200 300 and 3.14159265358979",
    "4111 1111 1111 1112",  # its check digit is wrong
    "1234567890123456789",
    "0000 0000 0000 0000",
    "192.168.0.1, 10.0.0.1, 127.0.0.1, 300.1.2.3, 1.2.3.4",
    "section 3.2.1.4 of version 2.10.0.1",
    "::1 and 00:1A:2B:3C:4D:5E and fe80::1",
    "ISBN 978-3-16-148410-0",
    "sk-learn, ghp_short, a task-oriented-programming-language-for-people",
    "+1 for that, 2+2=4, a+1234",
    "phone 123, fax: none, mobile 2019-2020",
    "-----BEGIN CERTIFICATE-----\nMIIE\n-----END CERTIFICATE-----",
]


@pytest.mark.parametrize(("text", "expected"), MASKED)
def test_masked(text, expected):
    assert mask(text) == expected
    assert mask(f"Before {text} after") == f"Before {expected} after"


@pytest.mark.parametrize("text", KEPT)
def test_kept(text):
    assert mask(text) == text


def test_the_check_digit_of_every_number():
    chance = random.Random(1)
    for _ in range(200):
        digits = "".join(chance.choices("0123456789", k=15))
        assert sum(luhn(digits + last) for last in "0123456789") == 1


def test_twice_is_once_and_every_one_is_noted():
    found = []
    text = "; ".join(each for each, _ in MASKED)
    once = mask(text, lambda kind, stood: found.append((kind, stood)))
    assert mask(once) == once
    assert len(found) == sum(each.count(kind) for _, each in MASKED for kind in (EMAIL, TELEPHONE, CARD, ADDRESS, KEY))
    assert (EMAIL, "jane.doe+news@mail.example.co.uk") in found


@pytest.mark.parametrize("piece", ["0", "00", "+1", "a@", "1.", "1 ", "0-", ":", "f:", "(1)", "tel ", "x.", "sk-", "A"])
def test_no_text_takes_long(piece):
    """A pattern that tries every way to divide a text would take minutes on one of these."""
    start = time.process_time()
    mask(piece * (200_000 // len(piece)) + "!")
    assert time.process_time() - start < 2


def test_a_run_reads_marks_in_both_splits(tmp_path):
    rows = [f"Row {n}: mail a{n}@example.org." for n in range(60)]
    config = local(write_jsonl(tmp_path / "a.jsonl", rows), mask_personal=True)
    texts = [text for split in ("train", "validation") for text in iter_documents(config, split, 1)]
    assert sorted(texts) == sorted(f"Row {n}: mail {EMAIL}." for n in range(60))
    plain = local(tmp_path / "a.jsonl")
    assert make_plans(plain, "train")[0].fingerprint != make_plans(config, "train")[0].fingerprint


def test_conversations_keep_their_form(tmp_path):
    call = {"type": "function", "function": {"name": "send", "arguments": {"to": "b@example.org"}}}
    rows = [
        {
            "messages": [
                {"role": "user", "content": f'Say "{n}"\nto a@example.org'},
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "sent to b@example.org"},
                {"role": "assistant", "content": "Done."},
            ]
        }
        for n in range(20)
    ]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = DataConfig(kind="chat", files=[str(tmp_path / "c.jsonl")], mask_personal=True)
    (plan,) = make_plans(config, "train")
    documents = take(open_stream(plan, seed=1, wrap=lambda corpus: corpus))
    assert len(documents) > 15
    for document in documents:
        assert "@" not in document
        assert json.loads(document)["messages"][0]["content"].endswith(f"to {EMAIL}")
        assert document.count(EMAIL) == 3
