"""The keys that clients may use, each with a name for the access log and with limits where a file gives them.

Tested in tests/serve/test_keys.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slm.data.errors import UserError

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_LIMIT = re.compile(r"(parallel|requests_per_minute|tokens_per_minute)=(.*)")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a key may ask for. 0: without limit."""

    parallel: int = 0
    """Requests at a time."""
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Most tokens per minute, prompts and replies together; 0: no limit."""


@dataclass(frozen=True)
class Key:
    """A key. ``name``: its owner; "" where nothing says it."""

    secret: str
    name: str = ""
    limits: Limits = Limits()


def all_keys(listed: Sequence[str], path: str | None, of_environment: str | None) -> list[Key]:
    """The keys of ``serve.api_keys``, then those of ``serve.api_key_file``, then ``SLM_API_KEY``. Raises
    ``UserError``."""
    if of_environment and not of_environment.strip():
        raise UserError("SLM_API_KEY holds blanks only: give a key, or unset it for a server without one")
    # A key from a file often ends with a line end, which no header has.
    keys = [Key(key.strip()) for key in listed if key]
    if path is not None:
        keys += read_keys(Path(path))
    if of_environment:
        keys.append(Key(of_environment.strip()))
    return keys


def read_keys(path: Path) -> list[Key]:
    """A key per line, after its name and a space where it has one, and before its limits. Empty lines and those that
    begin with # are none.

    Raises ``UserError``: an empty file would make a server without keys.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"serve.api_key_file={path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    keys: list[Key] = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"serve.api_key_file={path}, line {number}"
        n_limits = next((n for n, word in enumerate(reversed(words[1:])) if not _LIMIT.fullmatch(word)), len(words) - 1)
        limits = _limits(words[len(words) - n_limits :], where)
        words = words[: len(words) - n_limits]
        if len(words) > 2:
            # No word of it is shown: any of them may be the key.
            raise UserError(
                f"{where} has {len(words)} words; write KEY, or NAME KEY, then limits such as parallel=2, "
                "requests_per_minute=30, tokens_per_minute=20000"
            )
        name = words[0] if len(words) == 2 else ""
        if name and not _NAME.fullmatch(name):
            raise UserError(f"{where}: the name may have letters, digits and . _ @ - only, at most 64 of them")
        if name and any(each.name == name for each in keys):
            raise UserError(f"{where}: there is a key named {name} already")
        keys.append(Key(words[-1], name, limits))
    if not keys:
        raise UserError(f"serve.api_key_file={path} holds no key; write one per line, or leave the option out")
    return keys


def _limits(words: Sequence[str], where: str) -> Limits:
    given: dict[str, int] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not value.isascii() or not value.isdigit() or not 0 < int(value) < 1 << 31:
            raise UserError(f"{where}: {name} is {value[:20]!r}; it must be a whole number above 0")
        if name in given:
            raise UserError(f"{where}: {name} is given twice")
        given[name] = int(value)
    return Limits(**given)
