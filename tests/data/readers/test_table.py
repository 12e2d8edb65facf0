import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slm.data.bad_records import BadRecordError
from slm.data.readers import table
from slm.data.readers.reader import Reading


def read(data, reader=table.CSV, start=0, **options):
    reading = Reading(**options)
    stream = io.BytesIO(data)
    return [(reader.parse(raw, end, reading), end) for raw, end in reader.read(stream, "t.csv", start, reading)]


def texts(*args, **options):
    return [text for text, _ in read(*args, **options)]


def test_the_text_column():
    data = b'id,text\n1,"one, ""quoted""\nand a second line"\n2,two\n\n3,\n'
    assert texts(data) == ['one, "quoted"\nand a second line', "two", "", ""]
    assert texts(data.replace(b"text", b"body"), text_field="body")[1] == "two"


def test_all_columns_where_none_is_the_text(capsys):
    data = b"question,answer\nHow?,So.\nWhy?,\n"
    assert texts(data) == ["question: How?\nanswer: So.", "question: Why?"]
    assert "no column 'text'" in capsys.readouterr().err
    with pytest.raises(BadRecordError) as error:
        texts(data, text_field="anser")
    assert "did you mean 'answer'" in error.value.detail


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])  # CR alone: "CSV (Macintosh)"
def test_encodings_and_delimiters(encoding, delimiter, line_end):
    rows = [["id", "text"], ["1", "Schöne Grüße"], ["2", f'"a{delimiter} b"'], ["3", "Ende"]]
    data = line_end.join(delimiter.join(row) for row in rows).encode(encoding)
    assert texts(data) == ["Schöne Grüße", f"a{delimiter} b", "Ende"]


def test_tsv_divides_at_tabs_alone():
    assert texts(b"text\tid\na, b; c\t1\n", reader=table.TSV) == ["a, b; c"]


def test_bad_rows_are_named(monkeypatch):
    with pytest.raises(BadRecordError, match="more values than columns") as error:
        texts(b"id,text\n1,a\n2,b, c\n")
    assert error.value.offset is not None
    monkeypatch.setattr(table, "LONGEST_FIELD", 10_000)
    with pytest.raises(BadRecordError, match="quotation mark"):
        texts(b'id,text\n1,"' + b"never closed\n" * 2_000)
    assert texts(b"") == texts(b"id,text\n") == []


def test_a_quotation_mark_that_nothing_closes_takes_no_rows_with_it():
    """The csv module gives the rest of the file as the text of one row."""
    data = b'id,text\n1,one\n2,"never closed\n3,three\n4,four\n'
    rows = table.CSV.read(io.BytesIO(data), "t.csv", 0, Reading())
    assert next(rows)[0].values == ["1", "one"]
    with pytest.raises(BadRecordError, match="not closed") as error:
        next(rows)
    assert error.value.offset == data.index(b"2,")
    assert texts(b'id,text\n1,"closed"') == texts(b'id,text\n1,"closed"\n') == ["closed"]


cells = st.text(st.sampled_from('ab ä€\n\r",;\t'), max_size=8)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(cells, cells), max_size=12), st.sampled_from(["utf-8", "utf-16-le", "utf-16"]), st.data())
def test_reading_goes_on_from_any_position(rows, encoding, data):
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([("id", "text"), *rows])
    content = buffer.getvalue().encode(encoding)
    whole = read(content)
    assert [text for text, _ in whole if text.strip()] == [text for _, text in rows if text.strip()]
    number = data.draw(st.integers(0, len(whole)))
    start = whole[number - 1][1] if number else 0
    assert read(content, start=start) == whole[number:]
