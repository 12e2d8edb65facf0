"""llama.cpp's sampler chain for one sequence, with a grammar before it where one is given.

Two paths pick the same token: the compiled picker (see slm/llama/pick.py), which looks at few candidates, and
llama.cpp's own chain over the whole vocabulary, which is there without a compiler, too. Only a plain draw by
temperature differs: both draw from the same distribution, but the same seed gives other tokens.

Everything is checked first: llama.cpp's samplers abort the process on
what they do not expect, and a grammar throws through C when it is handed a token that it forbids.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llama_cpp.llama_cpp as C
import numpy as np

from slm.llama.context import Context
from slm.llama.errors import GrammarDeadEndError, LlamaError, MisuseError
from slm.llama.log import clear_log, first_error
from slm.llama.model import Model, to_utf8, unfinished_character
from slm.llama.pick import LOOK_AT_ALL, NOT_NUMBERS, picker

_MAX_GRAMMAR_BYTES = 64 * 1024
_MAX_GRAMMAR_DEPTH = 64

_MAX_GRAMMAR_SECONDS = 2.0
"""For one token. An ambiguous grammar can take longer with every token; above this it is given up."""

_MIROSTAT_M = 100
"""Tokens from which Mirostat's first version estimates the distribution's slope: the paper's number."""

_NOT_NUMBERS = "the model gave logits that are not numbers"

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
if _CANDIDATE.itemsize != ctypes.sizeof(C.llama_token_data):
    raise MisuseError("llama-cpp-python's llama_token_data has another layout than this module expects")


class Sampler:
    """A sampler chain; samplers apply in the order they are added, and the last must be ``greedy`` or ``dist``.

    A grammar applies before all of them, whenever it is added.
    """

    def __init__(self, model: Model) -> None:
        params = C.llama_sampler_chain_default_params()
        params.no_perf = True
        self.model = model
        self._chain = C.llama_sampler_chain_init(params)
        self._grammar = None
        self._pending = b""
        """The beginning of a character at the end of what the grammar has seen."""
        self._picks = False
        self._samplers: list[tuple[str, float, object]] = []
        """Name, parameter and handle of each, the bias left out; the chain owns them."""
        self._bias: tuple[np.ndarray, np.ndarray] | None = None
        """Token ids and what is added to their logits."""
        self._picker: Callable[[int], int] | None = None

    def _add(self, sampler: object, name: str, parameter: float = 0.0) -> Sampler:
        self._check_open()
        if self._picks:
            raise MisuseError(f"{name} after the sampler that picks the token")
        if not sampler:
            raise LlamaError(f"llama.cpp refused the sampler {name}")
        C.llama_sampler_chain_add(self._chain, sampler)
        if name != "logit_bias":
            self._samplers.append((name, parameter, sampler))
        return self

    def _check_open(self) -> None:
        if not self._chain:
            raise MisuseError("the sampler is closed")

    def logit_bias(self, bias: Mapping[int, float]) -> Sampler:
        """Adds to the logits of token ids; -inf is allowed and bans."""
        if not bias:
            return self
        entries = (C.llama_logit_bias * len(bias))()
        for entry, (token, value) in zip(entries, bias.items(), strict=True):
            entry.token = self.model.check_token(token)
            entry.bias = _number(value, "logit_bias", low=-math.inf, high=1e9)
        if self._bias is not None or self._samplers:
            raise MisuseError("logit_bias comes first, and once")
        self._add(C.llama_sampler_init_logit_bias(self.model.n_vocab, len(bias), entries), "logit_bias")
        self._bias = np.fromiter(bias, np.int64), np.fromiter(bias.values(), np.float32)
        return self

    def penalties(self, *, last_n: int, repeat: float, frequency: float, presence: float) -> Sampler:
        """Over the last ``last_n`` tokens. repeat 1, frequency 0 and presence 0 do nothing."""
        _number(repeat, "repeat_penalty", low=1e-3, high=100)
        _number(frequency, "frequency_penalty", low=-100, high=100)
        _number(presence, "presence_penalty", low=-100, high=100)
        sampler = C.llama_sampler_init_penalties(self.model.n_vocab, last_n, repeat, frequency, presence)
        return self._add(sampler, "penalties")

    def top_k(self, k: int) -> Sampler:
        """Keeps the k likeliest; k <= 0 keeps all."""
        k = min(k, self.model.n_vocab)
        return self._add(C.llama_sampler_init_top_k(k), "top_k", k)

    def typical(self, p: float) -> Sampler:
        """Locally typical sampling; 1 keeps all."""
        return self._add(C.llama_sampler_init_typical(_number(p, "typical_p", low=0, high=1), 1), "typical_p")

    def top_p(self, p: float) -> Sampler:
        """Nucleus sampling; 1 keeps all."""
        return self._add(C.llama_sampler_init_top_p(_number(p, "top_p", low=0, high=1), 1), "top_p", p)

    def min_p(self, p: float) -> Sampler:
        """Drops tokens less likely than p times the likeliest; 0 keeps all."""
        return self._add(C.llama_sampler_init_min_p(_number(p, "min_p", low=0, high=1), 1), "min_p", p)

    def temperature(self, t: float) -> Sampler:
        """Divides the logits by t > 0."""
        t = _number(t, "temperature", low=1e-6, high=1e6)
        return self._add(C.llama_sampler_init_temp(t), "temperature", t)

    def dynamic_temperature(self, t: float, *, spread: float, exponent: float) -> Sampler:
        """Divides the logits by a temperature from ``t - spread`` (where the distribution is sure) to ``t + spread``
        (where it is even); ``exponent`` bends the way between."""
        _number(spread, "dynatemp_range", low=0, high=1e6)
        _number(exponent, "dynatemp_exponent", low=0, high=1e3)
        t = _number(t, "temperature", low=1e-6, high=1e6)
        return self._add(C.llama_sampler_init_temp_ext(t, spread, exponent), "dynamic_temperature", t)

    def top_n_sigma(self, n: float) -> Sampler:
        """Keeps logits within n standard deviations of the highest."""
        n = _number(n, "top_n_sigma", low=0, high=1e6)
        return self._add(C.llama_sampler_init_top_n_sigma(n), "top_n_sigma", n)

    def xtc(self, p: float, threshold: float, *, seed: int) -> Sampler:
        """With probability p, drops all tokens that have ``threshold`` or more, but the least likely of them."""
        _number(p, "xtc_probability", low=0, high=1)
        _number(threshold, "xtc_threshold", low=0, high=1)
        return self._add(C.llama_sampler_init_xtc(p, threshold, 1, seed), "xtc", p)

    def dry(
        self,
        *,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Sequence[str],
        history: Sequence[int] = (),
    ) -> Sampler:
        """Penalty of tokens that continue a repetition of more than ``allowed_length`` tokens of the last ``last_n``.
        No repetition reaches over one of the ``breakers``. ``history``: the tokens before the first that is drawn."""
        _number(multiplier, "dry_multiplier", low=0, high=1e3)
        _number(base, "dry_base", low=1, high=1e3)
        _number(allowed_length, "dry_allowed_length", low=0, high=1 << 20)
        _number(last_n, "dry_penalty_last_n", low=0, high=1 << 24)
        texts = (ctypes.c_char_p * len(breakers))(*[to_utf8(each) for each in breakers])
        vocab = self.model._vocab
        sampler = C.llama_sampler_init_dry(vocab, multiplier, base, allowed_length, last_n, texts, len(breakers))
        self._add(sampler, "dry", multiplier)
        for token in history[-last_n:] if last_n else ():
            C.llama_sampler_accept(sampler, self.model.check_token(token))
        return self

    def mirostat(self, version: int, *, tau: float, eta: float, seed: int) -> Sampler:
        """Draws with a surprise near ``tau``, in bits, which it learns at the rate ``eta``: the last sampler."""
        _number(tau, "mirostat_tau", low=0, high=1e3)
        _number(eta, "mirostat_eta", low=0, high=1e3)
        if version == 1:
            sampler = C.llama_sampler_init_mirostat(self.model.n_vocab, seed, tau, eta, _MIROSTAT_M)
        else:
            sampler = C.llama_sampler_init_mirostat_v2(seed, tau, eta)
        self._add(sampler, "mirostat")
        return self._ends()

    def grammar(self, gbnf: str, root: str = "root") -> Sampler:
        """Constrains to a GBNF grammar. Raises ``LlamaError`` for one that is malformed, too long or too deep
        (llama.cpp's parser recurses: deep nesting overflows its stack). Not checked here: endless left recursion
        and branching, which hang llama.cpp (serve/grammar/gbnf.py checks a stranger's grammar)."""
        self._check_open()
        if self._grammar is not None:
            raise MisuseError("one grammar is enough")
        raw = to_utf8(gbnf)
        depth = deepest = 0
        for byte in raw:
            depth += (byte == 0x28) - (byte == 0x29)
            deepest = max(deepest, depth)
        if not raw.strip():
            raise LlamaError("an empty grammar")
        if len(raw) > _MAX_GRAMMAR_BYTES or deepest > _MAX_GRAMMAR_DEPTH or b"\0" in raw:
            raise LlamaError(
                f"a grammar of {len(raw)} bytes nested {deepest} deep; at most {_MAX_GRAMMAR_BYTES} bytes "
                f"and {_MAX_GRAMMAR_DEPTH} levels are allowed"
            )
        clear_log()
        sampler = C.llama_sampler_init_grammar(self.model._vocab, raw, root.encode())
        if not sampler:
            raise LlamaError(f"llama.cpp refused the grammar: {first_error()}")
        self._grammar = sampler
        return self

    def greedy(self) -> Sampler:
        """Picks the likeliest token."""
        self._add(C.llama_sampler_init_greedy(), "greedy")
        return self._ends()

    def dist(self, seed: int) -> Sampler:
        """Draws from what is left; ``seed`` below 2^32 - 1 (that value means "any" to llama.cpp)."""
        if not 0 <= seed < 2**32 - 1:
            raise MisuseError(f"the seed {seed} is not below 2^32 - 1")
        self._add(C.llama_sampler_init_dist(seed), "dist")
        return self._ends()

    def _ends(self) -> Sampler:
        self._picks = True
        samplers = [(name, parameter, _address(sampler)) for name, parameter, sampler in self._samplers]
        self._picker = picker(samplers, self._bias, apply=C.llama_sampler_apply, n_vocab=self.model.n_vocab)
        return self

    def sample(self, context: Context, i: int) -> int:
        """Picks a token from the logits of the last batch's ``i``-th entry and lets the chain remember it."""
        self._check_open()
        if not self._picks:
            raise MisuseError("the chain does not end in greedy or dist")
        if self._picker is not None and self._grammar is None:
            token = self._picker(context.row_address(i))
            if token >= 0:
                return token
            if token == NOT_NUMBERS:
                raise LlamaError(_NOT_NUMBERS)
            assert token == LOOK_AT_ALL
        row = context.row(i)
        # NaN logits make llama.cpp's samplers abort the process. A row that holds one has NaN as its maximum.
        if math.isnan(row.max()):
            raise LlamaError(_NOT_NUMBERS)
        if self._grammar is not None:
            return self._sample_with_grammar(row)
        return C.llama_sampler_sample(self._chain, context._ctx, i)

    def _sample_with_grammar(self, logits: np.ndarray) -> int:
        """First the chain alone picks: most often its token fits the grammar. Only where it does not, the whole
        vocabulary is checked against the grammar, which takes far longer, and the chain picks among what fits.

        llama.cpp reads bytes that are not UTF-8 as characters (C0 A2 as a quotation mark), which the text would not
        show. So a token that breaks UTF-8 does not fit either.
        """
        began = time.perf_counter()
        candidates = np.zeros(len(logits), _CANDIDATE)
        candidates["id"] = np.arange(len(logits), dtype=np.int32)
        candidates["logit"] = logits
        candidates["logit"][self.model.grammar_banned] = -np.inf
        token, possible = self._pick(candidates[candidates["logit"] > -np.inf])
        if not possible or not len(self._fitting(np.array([(token, 0.0, 0.0)], _CANDIDATE))):
            # -inf in the middle of a chain makes NaN of some samplers' sums: what is forbidden is taken out.
            fitting = self._fitting(candidates)
            token, possible = self._pick(fitting) if len(fitting) else (-1, False)
            if not possible:
                raise GrammarDeadEndError("no token fits both the grammar and the other constraints (logit_bias)")
        rest = unfinished_character(self._pending, self.model.spellings[token])
        if rest is None:
            raise MisuseError(f"token {token} breaks UTF-8; llama.cpp's grammar would abort")
        self._pending = rest
        C.llama_sampler_accept(self._grammar, token)
        C.llama_sampler_accept(self._chain, token)
        if time.perf_counter() - began > _MAX_GRAMMAR_SECONDS:
            raise GrammarDeadEndError("the grammar takes too long; make it less ambiguous")
        return token

    def _pick(self, candidates: np.ndarray) -> tuple[int, bool]:
        """The chain's pick, and whether it is one: all that is left may be banned."""
        candidates = candidates.copy()  # the samplers sort, cut and overwrite it
        array = _array(candidates)
        C.llama_sampler_apply(self._chain, ctypes.byref(array))
        if not 0 <= array.selected < array.size:
            return -1, False
        picked = array.data[array.selected]  # XTC moves the array's beginning
        return int(picked.id), bool(picked.logit > -np.inf)

    def _fitting(self, candidates: np.ndarray) -> np.ndarray:
        candidates = candidates.copy()
        array = _array(candidates)
        C.llama_sampler_apply(self._grammar, ctypes.byref(array))
        fitting = candidates[candidates["logit"] > -np.inf]
        if not self._pending:
            return fitting[self.model.starts_character[fitting["id"]]]
        # Few are left: the grammar keeps only those that go on where the last token ended.
        return fitting[[self._completes(int(token)) for token in fitting["id"]]]

    def _completes(self, token: int) -> bool:
        return (
            not self.model.is_eog(token)
            and unfinished_character(self._pending, self.model.spellings[token]) is not None
        )

    def accept(self, token: int) -> None:
        """Lets the chain remember a token that it did not pick (the prompt's, for the penalties; a grammar does
        not see it)."""
        self._check_open()
        C.llama_sampler_accept(self._chain, self.model.check_token(token))

    def close(self) -> None:
        """Frees the chain and its samplers. Safe to call twice."""
        if self._chain:
            C.llama_sampler_free(self._chain)
            self._chain, self._picker = None, None
        if self._grammar:
            C.llama_sampler_free(self._grammar)
            self._grammar = None


def _address(sampler: Any) -> int:
    value = ctypes.cast(sampler, ctypes.c_void_p).value
    if value is None:
        raise MisuseError("a sampler without an address")
    return value


def _array(candidates: np.ndarray) -> C.llama_token_data_array:
    data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(C.llama_token_data))
    return C.llama_token_data_array(data=data, size=len(candidates), selected=-1, sorted=False)


def _number(value: float, name: str, *, low: float, high: float) -> float:
    if not low <= value <= high:  # false for NaN, too
        raise LlamaError(f"{name} is {value}; it must be between {low} and {high}")
    return value
