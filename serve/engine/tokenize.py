"""Between text and tokens: of a text that is too long only a beginning is tokenized, the bytes of generated tokens
become text that may be shown, and log-probabilities come with the text of their tokens.

Tested in tests/serve/engine/test_tokenize.py, tests/serve/engine/test_detokenizer.py,
tests/serve/engine/test_engine.py, tests/serve/engine/test_sampling.py.
"""

from __future__ import annotations

import codecs

import numpy as np

from slm.llama.model import Model
from slm.serve.engine.protocol import MessageHeaders, TokenLogprob

_CHARACTERS_PER_TOKEN = 8
"""How much of a text is looked at first, per token that it may have."""
_SHORT = 16_384
"""Characters that are tokenized at once."""


def tokenize_within(
    model: Model,
    text: str,
    limit: int,
    *,
    add_special: bool,
    parse_special: bool,
    literal_spans: tuple[tuple[int, int], ...] = (),
) -> tuple[list[int], bool]:
    """The tokens of a text, and whether they are all of them.

    A text that has more than ``limit`` tokens may be cut: then the tokens of a beginning are returned, which alone are
    more than ``limit``, and False. ``literal_spans``: as in ``Generate``.
    """

    def tokens_of(n: int) -> list[int]:
        """Tokens of the first ``n`` characters."""
        spans = [(begin, min(end, n)) for begin, end in literal_spans if begin < n]
        return model.tokenize_parts(text[:n], spans, add_special=add_special, parse_special=parse_special)

    size = max(_CHARACTERS_PER_TOKEN * limit, _SHORT)
    while size < len(text):
        tokens = tokens_of(size)
        # Where the text is cut, a word may have other tokens than in the whole text, but not by this many.
        if len(tokens) > limit + limit // 4 + 64:
            return tokens, False
        size *= 4
    return tokens_of(len(text)), True


class Detokenizer:
    """Takes a sequence's token bytes one after the other, and returns text as soon as it may be shown.

    A character split over tokens waits for its last byte; invalid bytes become U+FFFD. Text that could be the beginning
    of a stop string is held back until that is decided. A stop string and what follows it never come out. From the text
    ``until`` on, where it comes, there are no stop strings any more. With ``headers`` none counts in a header, nor does
    one reach from one message into the next.
    """

    def __init__(self, stop: tuple[str, ...] = (), until: str = "", headers: MessageHeaders | None = None) -> None:
        assert all(stop), "an empty stop string would stop everything"
        self._stop = stop
        self._until = until
        self._before = ""
        """The end of what came out: ``until`` may begin in it."""
        self._headers = headers
        self._header: str | None = "" if headers is not None and headers.opened else None
        """The header so far; None: in a message."""
        self._lead = "" if headers is None or self._header is None else headers.lead
        """What the reply has to begin with, to go on with the prompt's header. "": this is decided."""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.n_emitted = 0
        """Characters that came out."""
        self.n_decoded = 0
        """Characters that were decoded."""
        self.stop_string: str | None = None
        """The stop string that was found."""

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found."""
        return self.stop_string is not None

    def push(self, piece: bytes) -> str:
        """The text that this token's bytes complete."""
        return self._release(self._decoder.decode(piece), last=False)

    def push_shown(self, name: bytes) -> str:
        """The same for a control token that comes out by its name."""
        headers, text = self._headers, name.decode()
        if headers is None or self.stopped:
            return self.push(name)
        out = ""
        if self._header is None or self._held:
            out = self._release(self._decoder.decode(b"", final=True), last=True)
            if self.stopped:
                return out
        if text != headers.end:
            self._header = (self._header or "") + text
        else:
            if self._until and self._until in (self._header or ""):
                self._stop = ()
            self._header = None
        self._lead = ""
        self.n_decoded += len(text)
        self.n_emitted += len(text)
        return out + text

    def finish(self) -> str:
        """The rest: there are no more tokens."""
        return self._release(self._decoder.decode(b"", final=True), last=True)

    def _release(self, text: str, *, last: bool) -> str:
        if self.stopped:
            return ""
        self.n_decoded += len(text)
        self._held += text
        if self._header is not None:
            if self._lead and not last and self._lead.startswith(self._held):
                return ""
            if self._held.startswith(self._lead):
                out, self._held, self._lead = self._held, "", ""
                self._header += out
                self.n_emitted += len(out)
                return out
            self._header = None  # a model that has not learned the format
        found = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        until = "" if self._headers is not None else self._until
        if self._stop and until:
            mark = (self._before + self._held).find(until) - len(self._before)
            if mark >= -len(self._before) and all(mark < at for at, _ in found):
                self._stop, found = (), []
        if found:
            at, self.stop_string = min(found, key=lambda each: each[0])
            out, self._held = self._held[:at], ""
        elif last:
            out, self._held = self._held, ""
        else:
            keep = self._n_undecided()
            out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self.n_emitted += len(out)
        if self._stop and until:
            self._before = (self._before + out)[-(len(until) - 1) :] if len(until) > 1 else ""
        return out

    def stop_at(self, name: str | None) -> str:
        """The rest: a token that ends the text came, and adds none. ``name``: the stop string that names it, if any."""
        rest = self.finish()
        self.stop_string = self.stop_string or name
        return rest

    def _n_undecided(self) -> int:
        """Length of the longest suffix of the held text that begins a stop string."""
        longest = 0
        for stop in self._stop:
            for n in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:n]):
                    longest = n
                    break
        return longest


class Vocabulary:
    """The bytes of a model's tokens; each is read from the model once."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pieces: dict[int, bytes] = {}

    def piece(self, token: int) -> bytes:
        """What the token adds to a text; nothing for a control token. Raises ``LlamaError`` for a bad token id."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._model.token_to_piece(token)
        return piece

    def label(self, token: int) -> bytes:
        """As ``piece``, but a control token shows its name."""
        return self.piece(token) or self._model.token_to_piece(token, special=True)

    def logprob(self, token: int, logprobs: np.ndarray, n_top: int, *, offset: int) -> TokenLogprob:
        """The entry of a token that was picked from a row of log-probabilities, float [n_vocab], with the ``n_top``
        most likely ones; ``offset``: characters of text before it."""
        top = tuple((each, self.label(each), float(logprobs[each])) for each in most_likely(logprobs, n_top))
        return TokenLogprob(
            token=token, piece=self.label(token), logprob=float(logprobs[token]), top=top, offset=offset
        )

    def first_logprob(self, token: int) -> TokenLogprob:
        """The entry of a prompt's first token, which nothing precedes."""
        return TokenLogprob(token=token, piece=self.label(token), logprob=None, top=(), offset=0)


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Logits, float32 [..., n_vocab], to natural log-probabilities in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def most_likely(logprobs: np.ndarray, n: int) -> list[int]:
    """Ids of the ``n`` highest entries of one row, float [n_vocab], highest first (equal ones by id)."""
    if n <= 0:
        return []
    n = min(n, len(logprobs))
    ids = np.argpartition(-logprobs, n - 1)[:n]
    return sorted((int(i) for i in ids), key=lambda i: (-logprobs[i], i))
