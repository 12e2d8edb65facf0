"""JSON lines, and JSON arrays or values one after another: each record is an object with a text field, or a text.

Tested in tests/data/sources/test_files.py.
"""

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

from slm.data.bad_records import BadRecordError
from slm.data.errors import excerpt
from slm.data.readers import reader
from slm.data.readers.encodings import advice
from slm.data.readers.reader import BYTE_ORDER_MARK, Reading, addressed, pieces

_BETWEEN = re.compile(r"[\s,]*")
_SHORT = 16
"""Characters: an error so close to the end of what was read may be a token that is cut off, "\\ud83" or "tru"."""
TORN = "the file ends within this record: is it complete?"
TORN_LINE = "the line ends within its record: is the file complete?"


class Unreadable(NamedTuple):
    """A record that reading has found to be bad; parsing it says so."""

    reason: str
    size: int = 0
    """Its bytes."""


class JsonLines:
    """The reader of JSON lines. Positions are byte offsets."""

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[Any, int]]:
        stream.seek(start)
        position = start
        held: list[bytes] = []  # the parts of a line that has no end yet
        size = 0  # of all its parts, also of those that are not held any more
        for piece in pieces(stream):
            first, *lines = piece.split(b"\n")
            held.append(first)
            size += len(first)
            if size > reader.LONGEST_RECORD:
                held = []
            if not lines:
                continue
            position += size + 1
            yield _line(held, size), position
            rest = lines.pop()
            for line in lines:
                position += len(line) + 1
                yield line, position
            held, size = [rest], len(rest)
        if size:
            yield _line(held, size), position + size

    def parse(self, raw: Any, end: int, reading: Reading) -> str:
        if isinstance(raw, Unreadable):
            raise BadRecordError(raw.reason, offset=end - raw.size)
        if not raw.strip():
            return ""
        # The offset of the line's first byte, or of its second if a line end follows it: the same line.
        at = end - len(raw)
        if raw.count(b"\0") > len(raw) // 4:  # Python would read one such line, and the next by its other half
            raise BadRecordError("UTF-16 within other text", advice="correct it", offset=at)
        try:
            text = raw.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "surrogatepass")
            row = json.loads(text, object_pairs_hook=hook_once((reading.text_field,)))
        except RepeatedKeyError as error:
            raise BadRecordError(str(error), offset=at) from error
        except UnicodeDecodeError as error:
            raise BadRecordError(
                "not UTF-8",
                advice=advice(raw),
                offset=at,
            ) from error
        except (ValueError, RecursionError) as error:
            torn = getattr(error, "pos", 0) >= len(raw) - _SHORT or "Unterminated string" in str(error)
            torn = torn and "Extra data" not in str(error)  # behind a whole record
            raise BadRecordError(
                "not a line of JSON",
                detail=error,
                advice=TORN_LINE if torn else "JSON lines hold one object each",
                offset=at,
            ) from error
        return text_of(row, reading, offset=at)


def _line(held: list[bytes], size: int) -> bytes | Unreadable:
    if held:
        return b"".join(held)
    return Unreadable(f"longer than {reader.LONGEST_RECORD >> 20} MB", size)


class JsonValues:
    """The reader of a JSON array, over one line or several, and of values one after another. Positions are numbers of
    values. An array is never held as a whole."""

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[Any, int]]:
        for number, found in enumerate(values(stream, once=(reading.text_field,)), 1):
            if number > start:
                yield found.value, number

    def parse(self, raw: Any, end: int, reading: Reading) -> str:
        if isinstance(raw, Unreadable):
            raise BadRecordError(raw.reason, place=f"record {end}")
        return text_of(raw, reading, place=f"record {end}")


class RepeatedKeyError(ValueError):
    """An object has a key more than once, of which Python keeps the last."""


def hook_once(names: Collection[str] = ()) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    """An ``object_pairs_hook`` that raises RepeatedKeyError where an object, at any depth, has one of the ``names``
    more than once; without ``names`` any key."""

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next((key for key in found if keys.count(key) > 1 and (not names or key in names)), None)
            if twice is not None:
                raise RepeatedKeyError(f"the key {twice!r} stands more than once")
        return found

    return made


class Value(NamedTuple):
    """A value of a stream of JSON, and where it stands."""

    value: Any
    """``Unreadable`` where it is not UTF-8, or has a key more than once."""
    line: int
    """The number of its first line, from 1."""
    inside: bool
    """Whether it is an element of an array at the top level."""


def values(stream: BinaryIO, begun: bytes = b"", once: Collection[str] = ()) -> Iterator[Value]:
    """The elements of the arrays, and the other values, at the top level of the stream, which ``begun`` stands before.

    ``once``: keys that may not stand more than once in an object; empty: all of them.
    BadRecordError, with the line, where it is no JSON or ends within a value. What came before has been given then.
    """
    decode, again = json.JSONDecoder(object_pairs_hook=hook_once(once)).raw_decode, json.JSONDecoder().raw_decode
    # Bytes that are not UTF-8 become lone surrogates, so that the record that has them can be named.
    utf8 = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    text, at, line = utf8.decode(begun), 0, 1  # line: the number of the one that ``at`` is in
    inside = ended = False
    while True:
        start, at = at, _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        line += text.count("\n", start, at)
        problem: Exception | None = None
        if at < len(text):
            if text[at] == ("]" if inside else "["):
                inside, at = not inside, at + 1
                continue
            try:
                try:
                    value, end = decode(text, at)
                except RepeatedKeyError as error:
                    value, end = Unreadable(str(error)), again(text, at)[1]
            except (ValueError, RecursionError) as error:
                problem = error
            else:
                if end < len(text) or ended:
                    plain = text.isascii() or _is_well_formed(text[at:end])
                    yield Value(value if plain else Unreadable("not UTF-8"), line, inside)
                    line += text.count("\n", at, end)
                    at = end
                    continue
        if problem is not None and (ended or not _may_be_cut_off(problem, text)):
            torn = _may_be_cut_off(problem, text)  # then its beginning is the place, and else where it is wrong
            place = at if torn else min(getattr(problem, "pos", at), len(text))
            raise BadRecordError(
                "not valid JSON",
                detail=getattr(problem, "msg", problem),
                advice=TORN if torn else "correct it, or give JSON lines",
                line=line + text.count("\n", at, place),
            ) from problem
        if ended:
            if inside:
                raise BadRecordError("a JSON array without its end", advice=TORN, line=line)
            return
        if len(text) - at > reader.LONGEST_RECORD:
            raise BadRecordError(f"longer than {reader.LONGEST_RECORD >> 20} MB", line=line)
        # At least as much as there is, so that a long value is decoded only a few times.
        chunk = stream.read(max(reader.CHUNK, len(text) - at))
        ended = not chunk
        text, at = text[at:] + utf8.decode(chunk, final=ended), 0


def _may_be_cut_off(error: Exception, text: str) -> bool:
    """Whether the error may come from the end of what was read so far."""
    if not isinstance(error, json.JSONDecodeError):
        return False
    return error.pos >= len(text) - _SHORT or error.msg.startswith("Unterminated string")


def _is_well_formed(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def text_of(row: Any, reading: Reading, *, offset: int | None = None, place: str = "") -> str:
    """The text of a record; BadRecordError at the place where it has none."""
    if isinstance(row, str):
        return row
    field = reading.text_field
    if not isinstance(row, dict):
        raise BadRecordError(f"not a JSON object with a {field!r} key", detail=excerpt(row), offset=offset, place=place)
    if field not in row:
        raise BadRecordError(
            f"no key {field!r}",
            detail=f"its keys are {', '.join(map(repr, row))}",
            advice="set data.text_field",
            offset=offset,
            place=place,
        )
    text = row[field]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise BadRecordError(f"{field!r} is not text", detail=f"but {excerpt(text)}", offset=offset, place=place)
    if not reading.url_field:
        return text
    if reading.url_field not in row:
        raise BadRecordError(
            f"no key {reading.url_field!r} for data.blocked_urls",
            detail=f"its keys are {', '.join(map(repr, row))}",
            advice="set data.url_field",
            offset=offset,
            place=place,
        )
    return addressed(text, row[reading.url_field])
