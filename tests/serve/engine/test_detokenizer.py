import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slm.serve.engine.protocol import MessageHeaders
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


SHOWN = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")
HEAD, NEXT = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"


def in_messages(text, stop, size, *, opened=True, until=" to=functions."):
    """What comes out of a reply with headers, and the stop string that ended it."""
    detokenizer = Detokenizer(stop, until, MessageHeaders(end="<|message|>", opened=opened, lead=" to="))
    out = ""
    for part in re.split(f"({'|'.join(map(re.escape, SHOWN))})", text):
        if part in SHOWN:
            out += detokenizer.push_shown(part.encode())
        else:
            out += "".join(detokenizer.push(part[i : i + size].encode()) for i in range(0, len(part), size))
    out += detokenizer.finish()
    if not detokenizer.stopped:
        assert detokenizer.n_emitted == detokenizer.n_decoded == len(text)
    return out, detokenizer.stop_string


@pytest.mark.parametrize("size", [1, 3, 50])
@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        (f"{HEAD}hm{NEXT}so it is", "is", f"{HEAD}hm{NEXT}so it "),
        (f"{HEAD}an assistant{NEXT}x", "assistant", f"{HEAD}an "),
        (f"{HEAD}hm{NEXT}final<|", "final", f"{HEAD}hm{NEXT}"),
        # No word of a header, nor a mark, nor what two messages make together.
        *((f"{HEAD}hm{NEXT}x", each, None) for each in ("analysis", "assistant", "final", "<|", "|>", "mx")),
        (f"{HEAD}h{NEXT}m", "hm", None),
        # A call has no stop strings, in either order of its header.
        (f"{HEAD}hm<|end|><|start|>assistant<|channel|>commentary to=functions.f<|message|>{{}}", "}", None),
        (" to=functions.f<|channel|>commentary<|message|>{ to}", "to", None),
        # Reasoning that speaks of one is none.
        (f"{HEAD}hm to=functions.f}} x", "}", f"{HEAD}hm to=functions.f"),
        # A model that has not learned the format.
        ("to sum up", "sum", "to "),
        (" to sum up", "sum", " to "),
        (" to", "to", " "),
        ("x", "y", None),
    ],
)
def test_stop_strings_are_found_in_messages_alone(text, stop, expected, size):
    found = in_messages(text, (stop,), size)
    assert found == ((text, None) if expected is None else (expected, stop))


def test_a_prompt_may_end_in_a_message():
    assert in_messages(f"so is{NEXT}x", ("is",), 1, opened=False) == ("so ", "is")
    assert in_messages(f"so{NEXT}x", ("final", "assistant"), 1, opened=False) == (f"so{NEXT}x", None)


def test_a_character_that_a_control_token_cuts_off_is_replaced():
    detokenizer = Detokenizer(("x",), "", MessageHeaders(end="<|message|>", opened=False, lead=" to="))
    assert detokenizer.push("é".encode()[:1]) == ""
    assert detokenizer.push_shown(b"<|end|>") == "\ufffd<|end|>"


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
