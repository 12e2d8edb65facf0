from slm.llama.utf8 import unfinished_character


def test_an_unfinished_character_goes_on_exactly_where_text_can():
    assert unfinished_character(b"", "é🙂".encode()) == b""
    assert unfinished_character(b"\xf0\x9f", b"\x99") == b"\xf0\x9f\x99"
    for pending, piece in (
        (b"", b"\x80"), (b"", b"\xc0"), (b"\xc3", b"a"), (b"\xe0", b"\x80"), (b"\xed", b"\xa0"), (b"\xf4", b"\x90"),
        (b"", b"\xff"),
    ):  # fmt: skip
        assert unfinished_character(pending, piece) is None
    # Whatever is left over can be completed.
    for first in range(0xC2, 0xF5):
        todo = [bytes([first])]
        while todo:
            rest = todo.pop()
            following = [unfinished_character(rest, bytes([byte])) for byte in range(0x80, 0xC0)]
            assert any(each is not None for each in following), rest
            todo += [each for each in following if each]
