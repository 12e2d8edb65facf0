"""Lists of a person's own: words that no document may hold, and domains and addresses that none may come from."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

from slm.data.errors import UserError
from slm.data.quality.words import normalized

_WORD = re.compile(r"\w+")
_CJK = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_NOWHERE = ("0.0.0.0", "127.0.0.1")
"""What a list in the form of a hosts file has before each domain."""


class Words:
    """Words and phrases. A text has one where it stands between other words, in any case; in Chinese and Japanese
    anywhere."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._single: set[str] = set()
        self._phrases: list[str] = []
        self._anywhere: list[str] = []
        for entry in entries:
            plain = normalized(entry)
            words = _WORD.findall(plain)
            if _CJK.search(plain):
                self._anywhere.append(plain)
            elif len(words) == 1:
                self._single.add(words[0])
            elif words:
                self._phrases.append(f" {' '.join(words)} ")

    def found(self, text: str) -> str | None:
        """One of them that the text has, None where it has none."""
        plain = normalized(text)
        words = _WORD.findall(plain)
        if single := self._single.intersection(words):
            return min(single)
        if self._phrases:
            spaced = f" {' '.join(words)} "
            if phrase := next((each for each in self._phrases if each in spaced), None):
                return phrase.strip()
        return next((each for each in self._anywhere if each in plain), None)


class Urls:
    """Domains, each with all its subdomains, and beginnings of addresses, up to a ``/``, ``?`` or ``#`` or the end."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._entries = {"/".join(_parts(entry)) for entry in entries}

    def found(self, url: str) -> str | None:
        """The entry that blocks an address, None where none does."""
        host, *path = _parts(url)
        labels = host.split(".")
        for start in range(len(labels)):
            at = ".".join(labels[start:])
            if at in self._entries:
                return at
            for part in path:
                at = f"{at}/{part}"
                if at in self._entries:
                    return at
        return None


def _parts(url: str) -> list[str]:
    """The host of an address without ``www.``, and the parts of its path and query."""
    host, *path = re.split(r"[/?#]", _SCHEME.sub("", url.strip()))
    host = host.rpartition("@")[2].partition(":")[0].lower().strip(".").removeprefix("www.")
    return [host, *(part for part in path if part)]


WORDS, URLS = "data.blocked_words", "data.blocked_urls"
"""The options that name a list."""


def read_words(path: str) -> Words:
    """The words of a list: a word or phrase a line. UserError where there is none."""
    return Words(_entries(path, WORDS, "a word or phrase"))


def read_urls(path: str) -> Urls:
    """The domains and addresses of a list, one a line. UserError where there is none, or one is no domain."""
    entries = []
    for line in _entries(path, URLS, "a domain or an address"):
        fields = line.split()
        entry = fields[-1] if fields[0] in _NOWHERE else line
        if len(entry.split()) > 1 or not _parts(entry)[0]:
            raise UserError(
                f"data.blocked_urls: {path} has the line {line[:80]!r}: write a domain (example.com) or the beginning "
                "of an address (example.com/news) a line"
            )
        entries.append(entry)
    return Urls(entries)


def identity(path: str, option: str) -> str:
    """Changes with what is in a list."""
    return hashlib.blake2b(_content(path, option), digest_size=8).hexdigest()


def _entries(path: str, option: str, what: str) -> list[str]:
    try:
        text = _content(path, option).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{option}: {path} is not UTF-8: name a file of text, one entry a line") from error
    found = [line for line in map(str.strip, text.splitlines()) if line and not line.startswith("#")]
    if not found:
        raise UserError(f"{option}: {path} is empty: write {what} a line")
    return found


def _content(path: str, option: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"{option}: {path} cannot be read ({error.strerror}): name a file of text") from error
