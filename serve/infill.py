"""The prompt for filling a gap in a text: what stands before it and behind it, with the model's own tokens between.

The form follows models trained to fill in the middle: prefix token, text before, suffix token, text behind, middle
token. Other files come first, each after a file token and its name where the model has that token.

Tested in tests/serve/test_infill.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slm.serve.engine.protocol import FimTokens

REPLY_PART = 4
"""Where no number of tokens is asked for, this part of the context stays free for the reply."""
SUFFIX_PART = 4
"""Where both sides of the gap are too long, this part of the room goes to the text behind it."""
NO_FIM = "This model has no tokens for filling in the middle (prefix, suffix and middle)."


@dataclass(frozen=True, kw_only=True)
class InfillPrompt:
    """The prompt's tokens."""

    tokens: tuple[int, ...]
    n_dropped: int
    """Tokens that had no room: of other files and of the text's beginning first, and of its end."""


def infill_prompt(
    fim: FimTokens,
    *,
    before: Sequence[int],
    behind: Sequence[int],
    others: Sequence[int] = (),
    bos: int | None = None,
    room: int,
) -> InfillPrompt:
    """``others``: other files, as ``other_file`` makes each. ``bos``: the token that begins every prompt, if any.
    ``room``: most tokens of the prompt.

    What is next to the gap stays: the text before loses its beginning, and the text behind its end.
    """
    space = max(room - 3 - (bos is not None), 0)
    n_behind = min(len(behind), max(space - len(before), space // SUFFIX_PART))
    n_before = min(len(before), space - n_behind)
    n_others = min(len(others), space - n_behind - n_before)
    n_dropped = len(others) + len(before) + len(behind) - n_others - n_before - n_behind
    tokens = [
        *(() if bos is None else (bos,)),
        *others[len(others) - n_others :],
        fim.prefix,
        *before[len(before) - n_before :],
        fim.suffix,
        *behind[:n_behind],
        fim.middle,
    ]
    return InfillPrompt(tokens=tuple(tokens), n_dropped=n_dropped)


def other_file(fim: FimTokens, name: Sequence[int], text: Sequence[int]) -> list[int]:
    """The tokens of another file. ``name``: those of its name and a line end."""
    return [*((fim.file,) if fim.file >= 0 else ()), *name, *text]


def room_for_prompt(context: int, max_tokens: int | None) -> int:
    """Most tokens of a prompt in a context of this many, for a reply of at most ``max_tokens``."""
    free = context // REPLY_PART if max_tokens is None else min(max_tokens, context // 2)
    return context - max(free, 1)
