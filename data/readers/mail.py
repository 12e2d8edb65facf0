"""Mail as text: a message's subject and body; of a mailbox (mbox) each message is a document."""

import email
import re
from collections.abc import Iterator
from email.header import decode_header, make_header
from email.message import Message
from typing import BinaryIO

from slm.data.bad_records import BadRecordError
from slm.data.errors import one_line
from slm.data.readers import html
from slm.data.readers.bounds import LARGEST_DOCUMENT, read_all
from slm.data.readers.reader import CHUNK, Reading, chunk_at

START = re.compile(rb"(?:\A|\r?\n\r?\n)(?=From \S+ .*\d{4})")
"""A message of a mailbox begins after a blank line with a line ``From ADDRESS DATE``."""
QUOTED = re.compile(rb"^>(>*From )", re.MULTILINE)
OVERLAP = 512
"""Bytes of a chunk in which a beginning may be cut off."""


class Mail:
    """The reader of mailboxes, where positions are bytes, and of single messages."""

    def read(self, stream: BinaryIO, path: str, start: int, reading: Reading) -> Iterator[tuple[bytes, int]]:
        """The messages from a position on, each with the position after it."""
        buffer = stream.read(CHUNK)
        if not buffer.startswith(b"From "):
            if start == 0:
                yield buffer + read_all(stream), 1
            return
        buffer, position = chunk_at(stream, buffer, start)
        if not buffer:
            return
        at = start - position  # where the message begins, in the buffer
        search = at + 1
        while True:
            found = START.search(buffer, search)
            if found:
                yield buffer[at : found.end()], position + found.end()
                at, search = found.end(), found.end() + 1
                continue
            chunk = stream.read(CHUNK)
            if not chunk:
                break
            search = max(1, len(buffer) - at - OVERLAP)
            buffer, position, at = buffer[at:] + chunk, position + at, 0
            if len(buffer) > LARGEST_DOCUMENT:
                raise BadRecordError(f"a mail of more than {LARGEST_DOCUMENT >> 20} MiB", offset=position)
        if buffer[at:].strip():
            yield buffer[at:], position + len(buffer)

    def parse(self, raw: bytes, end: int, reading: Reading) -> str:
        """The subject and the text of a message. The plain text is taken where there is one, else the HTML part."""
        if raw.startswith(b"From "):
            raw = QUOTED.sub(rb"\1", raw.partition(b"\n")[2])
        message = email.message_from_bytes(raw)  # of the old policy: the new one takes ten times as long
        if not message.keys():
            raise BadRecordError("a mail without headers", offset=max(0, end - len(raw)))
        body = "\n\n".join(filter(None, _bodies(message)))
        subject = _subject(message)
        return f"Subject: {subject}\n\n{body}" if subject and body else body


READER = Mail()


def _subject(message: Message) -> str:
    subject = message["subject"]
    try:
        return one_line(str(make_header(decode_header(subject)))) if subject else ""
    except (ValueError, LookupError):  # a character set that nobody knows, or damaged bytes
        return one_line(str(subject))


def _bodies(message: Message) -> Iterator[str]:
    """The texts of a message and of those it forwards; attachments are left out."""
    kind = message.get_content_type()
    payload = message.get_payload()
    parts = [part for part in payload if isinstance(part, Message)] if isinstance(payload, list) else []
    if kind == "multipart/alternative":
        found = [(part.get_content_type() != "text/plain", "\n\n".join(filter(None, _bodies(part)))) for part in parts]
        yield next((text for _, text in sorted(found, key=lambda each: each[0]) if text.strip()), "")
    elif parts:
        for part in parts:
            yield from _bodies(part)
    elif message.get_content_disposition() != "attachment":
        if kind == "text/html":
            yield html.plain(_content(message))
        elif kind == "text/plain":
            yield html.tidy(_content(message))


def _content(part: Message) -> str:
    """The characters of a part, by its transfer encoding and the character set that it states."""
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    charset = part.get_content_charset()
    if charset and not (charset in ("us-ascii", "ascii") and not data.isascii()):
        try:
            return data.decode(charset, "replace" if charset.startswith("utf-16") else "strict")
        except (LookupError, UnicodeDecodeError):
            pass
    return html.decode(data)
