"""Ids of the parts of a text in which special tokens stand: as transformers gives them for the whole text.

A chat template writes one text. It is encoded in parts, since some contents must not be parsed (they spell special
tokens), and since a token never reaches over the end of a prompt. What a part's ids are depends on what stands before
it: a special token may swallow the white space behind it (``rstrip``), SentencePiece puts a space at the beginning of
a text and, in most vocabularies, behind each special token, and text that goes on gets none.

So a part is encoded behind the token that it follows, and the id of that token is dropped. This module itself encodes
only parts with spelled special tokens that must stay text: ``tokenizers`` can do so for a whole text only.
"""

import re
from collections.abc import Sequence
from typing import Any

from slm.data.tokenizers.tokenizer import Tokenizer
from slm.data.unicode_scripts import BLANKS

Span = tuple[int, int]
"""From the first character to behind the last."""

_BEFORE = "\n"
"""Stands for the text before a part."""


class PartEncoder:
    """Encodes texts with a tokenizer's special tokens in them, part by part."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = {token["content"]: token for token in tokenizer.spec.get("added_tokens") or [] if token["content"]}
        self.special_ids = {name: each["id"] for name, each in added.items() if each["id"] in tokenizer.special_ids}
        """The special tokens' ids by their text."""
        self._added = {name: each["id"] for name, each in added.items()}
        names = sorted(added, key=len, reverse=True)
        self._names = tuple(names)
        self._swallowing = tuple(name for name in names if added[name].get("rstrip"))
        swallowed = [name for name in names if added[name].get("lstrip") and name in self.special_ids]
        self._swallowed = re.compile("|".join(map(re.escape, swallowed)) or "(?!)")
        self._space = space_before(tokenizer.spec)

    def encode(self, text: str, cuts: Sequence[int], literal: Sequence[Span]) -> list[list[int]]:
        """The ids between one of ``cuts`` and the next: a list more than there are cuts.

        ``literal``: spans, in order, in which no special token is parsed. ``cuts`` may repeat themselves.
        """
        return [
            self._range(text, start, stop, literal) for start, stop in zip((0, *cuts), (*cuts, len(text)), strict=True)
        ]

    def _range(self, text: str, start: int, stop: int, literal: Sequence[Span]) -> list[int]:
        ids: list[int] = []
        at = start
        for begin, end in [*literal, (stop, stop)]:
            begin, end = min(max(begin, at), stop), min(max(end, at), stop)
            ids += self._part(text, at, begin, literal, parsed=True)
            ids += self._part(text, begin, end, literal, parsed=False)
            at = max(at, end)
        return ids

    def _part(self, text: str, start: int, stop: int, literal: Sequence[Span], *, parsed: bool) -> list[int]:
        part = text[start:stop]
        if part and self._swallowed.match(text, stop) and not _inside(stop, literal):
            part = part.rstrip(BLANKS)
        if not part:
            return []
        token, blanks = self._token_before(text, start, literal)
        if not parsed:
            return self._literal(part.lstrip(BLANKS) if token in self._swallowing else part, token, start)
        if token is not None:
            ids = self._tokenizer.encode_parsed(token + blanks + part)
            if ids and ids[0] == self._added[token]:
                return ids[1:]
        if start == 0 or self._space is None:
            return self._tokenizer.encode_parsed(part)
        before, both = self._tokenizer.encode(_BEFORE), self._tokenizer.encode_parsed(_BEFORE + part)
        return both[len(before) :] if both[: len(before)] == before else self._tokenizer.encode_parsed(part)

    def _literal(self, part: str, token: str | None, start: int) -> list[int]:
        """Ids of a part without parsing, behind ``token`` (None: behind text, or at the beginning)."""
        if self._space is None or start == 0 or (token is not None and self._space == "each"):
            return self._tokenizer.encode(part)
        before, both = self._tokenizer.encode(_BEFORE), self._tokenizer.encode(_BEFORE + part)
        return both[len(before) :] if both[: len(before)] == before else self._tokenizer.encode(part)

    def _token_before(self, text: str, at: int, literal: Sequence[Span]) -> tuple[str | None, str]:
        """The added token that a part at ``at`` follows, and the white space between them that it swallows."""
        behind = len(text[:at].rstrip(BLANKS)) if self._swallowing else at
        for end, names in ((at, self._names), (behind, self._swallowing)):
            if text.endswith(names, 0, end):
                token = next(name for name in names if text.endswith(name, 0, end))
                if token not in self.special_ids or not _inside(end - len(token), literal):
                    return token, text[end:at]
        return None, ""


def _inside(at: int, spans: Sequence[Span]) -> bool:
    return any(begin <= at < end for begin, end in spans)


def space_before(spec: dict[str, Any]) -> str | None:
    """Where a tokenizer puts a space before text (SentencePiece's way): ``first`` (at the beginning alone), ``each``
    (also behind each added token), or None."""
    normalizer, pre = spec.get("normalizer") or {}, spec.get("pre_tokenizer") or {}
    for each in [*(normalizer.get("normalizers") or [normalizer]), *(pre.get("pretokenizers") or [pre])]:
        if each.get("type") == "Prepend":
            return "each"
        if each.get("type") == "Metaspace" and each.get("prepend_scheme", "always") != "never":
            return "first" if each.get("prepend_scheme") == "first" else "each"
    return None


def has_odd_tokens(spec: dict[str, Any]) -> bool:
    """Whether what stands next to a special token changes its ids, or the token's own: cases in which runs of slm
    before 2026-12 had other ids than transformers."""
    special = [token for token in spec.get("added_tokens") or [] if token.get("special")]
    odd = any(token.get(key) for token in special for key in ("lstrip", "rstrip", "single_word"))
    changed = bool(spec.get("normalizer")) and any(token.get("normalized") for token in special)
    return odd or changed or space_before(spec) == "first"
