"""Whether a text fits a grammar as the engine reads it, character by character."""

import re
from functools import cache

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from slm.data.chat.content_spans import grammar_name
from slm.serve.grammar.work import LIMITS, deep_thread
from slm.serve.tools.call_form import CHANNELS, NAMED

CONTROLS = tuple(dict.fromkeys(each for form in (*(each for _, each in NAMED), CHANNELS) for each in form.controls))
"""The control tokens of tool calls."""


class _Bytes:
    """A vocabulary of single bytes and of control tokens."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, tuple(range(256, 257 + len(CONTROLS)))
    tokens = (
        *(bytes([i]) for i in range(255)),
        b"\xff\xff",
        b"\xff<end>",
        *(b"\xff" + grammar_name(c).encode() for c in CONTROLS),
    )

    def __call__(self, text):
        return list(text.encode() if isinstance(text, str) else text)


@cache
def tokenizer():
    """Its token ids are bytes."""
    return LLTokenizer(TokenizerWrapper(_Bytes()))


@cache
def thread():
    """Where the engine compiles, too."""
    return deep_thread("fits")


def matcher(grammar):
    """A matcher of ``grammar``, as the engine gets it."""
    made = thread().submit(LLMatcher, tokenizer(), grammar, log_level=0, limits=LIMITS).result()
    assert not made.is_error(), made.get_error()
    return made


def fits(grammar, text, controls=()):
    """Whether ``text`` is whole in ``grammar``, with the names of ``controls`` as tokens."""
    made = matcher(grammar)
    parts = re.split(f"({'|'.join(map(re.escape, controls))})", text) if controls else [text]
    raw = []
    for part in parts:
        raw += [257 + CONTROLS.index(part)] if part in controls else list(part.encode())
    return made.try_consume_tokens(raw) == len(raw) and made.is_accepting()


def written(grammar, chance, most=4000):
    """A random text of ``grammar``, drawn byte by byte with ``chance`` (a ``random.Random``); None where it does not
    come to an end."""
    made, out = matcher(grammar), []
    while len(out) < most:
        mask = int.from_bytes(made.compute_bitmask(), "little")
        assert not made.is_error(), made.get_error()
        possible = [token for token in range(257) if mask >> token & 1]
        # Ends are drawn often, so that texts stay short.
        if 256 in possible and (len(possible) == 1 or chance.random() < 0.3):
            return bytes(out).decode()
        closing = [token for token in possible if chr(token) in '"]}' and chance.random() < 0.25]
        token = chance.choice(closing or [each for each in possible if each != 256])
        assert made.consume_token(token)
        out.append(token)
        if made.is_stopped():
            return bytes(out).decode()
    return None
