"""UTF-8 at the edges of tokens: text that cannot be encoded, and characters that are split between tokens."""

from __future__ import annotations

import codecs

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


def to_utf8(text: str) -> bytes:
    """UTF-8 of any Python text; a lone surrogate, which has none, becomes U+FFFD."""
    # Lone surrogates are legal in JSON, and llama.cpp's tokenizer throws on invalid UTF-8.
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def unfinished_character(pending: bytes, piece: bytes) -> bytes | None:
    """The unfinished character at the end of ``pending + piece``, b"" where there is none. None for invalid UTF-8."""
    decoder = _Utf8Decoder()
    try:
        decoder.decode(pending + piece)
    except UnicodeDecodeError:
        return None
    rest = decoder.getstate()[0]
    # The decoder sees that a half character is a surrogate only at its last byte, when nothing fits any more.
    return None if rest[:1] == b"\xed" and rest[1:2] >= b"\xa0" else rest
