from hypothesis import given
from hypothesis import strategies as st

from slm.serve.engine.tokenize import Detokenizer


def feed(pieces, stop=()):
    detokenizer = Detokenizer(stop)
    out = []
    for piece in pieces:
        out.append(detokenizer.push(piece))
        if detokenizer.stopped:
            return out, detokenizer
    out.append(detokenizer.finish())
    return out, detokenizer


def test_a_character_split_over_tokens_comes_whole():
    raw = "é🙂".encode()
    assert feed([raw[i : i + 1] for i in range(len(raw))])[0] == ["", "é", "", "", "", "🙂", ""]


def test_invalid_and_cut_off_bytes_are_replaced():
    assert "".join(feed([b"a\xff", b"b", "é".encode()[:1]])[0]) == "a\ufffdb\ufffd"


def test_a_stop_string_across_tokens_never_shows():
    out, detokenizer = feed([b"Hello EN", b"D of", b" it"], stop=("END",))
    assert out == ["Hello ", ""]
    assert detokenizer.stopped
    assert detokenizer.finish() == ""


def test_held_text_comes_out_when_it_is_no_stop():
    assert feed([b"a\n", b"\nUs", b"able"], stop=("\n\nUser:",))[0] == ["a", "", "\n\nUsable", ""]
    assert feed([b"maybe EN"], stop=("END",))[0] == ["maybe ", "EN"]


def test_the_earliest_of_several_stops_wins():
    out, _ = feed([b"one two three"], stop=("three", "two"))
    assert out == ["one "]


def test_from_a_mark_on_there_are_no_stop_strings():
    for size in (1, 2, 3, 50):
        for text, expected in (
            ("a END b", "a "),
            ("a <call> END", "a <call> END"),
            ("<call>END", "<call>END"),
            ("END<call>", ""),
            ("a <cal END", "a <cal "),
        ):
            detokenizer = Detokenizer(("END",), "<call>")
            raw = text.encode()
            out = [detokenizer.push(raw[i : i + size]) for i in range(0, len(raw), size)] + [detokenizer.finish()]
            assert "".join(out) == expected


@given(st.text(max_size=40), st.lists(st.text(min_size=1, max_size=4), max_size=3), st.data())
def test_any_cut_gives_the_same_text(text, stops, data):
    raw = text.encode()
    pieces, at = [], 0
    while at < len(raw):
        n = data.draw(st.integers(1, 5))
        pieces.append(raw[at : at + n])
        at += n
    out, detokenizer = feed(pieces, tuple(stops))
    joined = "".join(out)
    assert detokenizer.n_emitted == len(joined)
    assert text.startswith(joined)
    assert not any(stop in joined for stop in stops)
    if not any(stop in text for stop in stops):
        assert joined == text
        assert detokenizer.n_decoded == len(text)
    else:
        assert detokenizer.stopped
