"""llama.cpp's sampler chain for one sequence. A mask before it leaves only the tokens that a grammar allows.

Two paths pick the same token: the compiled picker (see slm/llama/pick.py), which looks at few candidates, and
llama.cpp's own chain over the whole vocabulary, which is there without a compiler, too. Only a plain draw by
temperature differs: both draw from the same distribution, but the same seed gives other tokens.

Everything is checked first: llama.cpp's samplers abort the process on what they do not expect.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llama_cpp.llama_cpp as C
import numpy as np

from slm.llama.context import Context
from slm.llama.errors import GrammarDeadEndError, LlamaError, MisuseError
from slm.llama.model import Model, to_utf8
from slm.llama.pick import LOOK_AT_ALL, NOT_NUMBERS, NOTHING_FITS, picker

_MIROSTAT_M = 100
"""Tokens from which Mirostat's first version estimates the distribution's slope: the paper's number."""

_NOT_NUMBERS = "the model gave logits that are not numbers"
_NOTHING_FITS = "no token fits both the grammar and the other constraints (logit_bias)"

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
if _CANDIDATE.itemsize != ctypes.sizeof(C.llama_token_data):
    raise MisuseError("llama-cpp-python's llama_token_data has another layout than this module expects")


class Sampler:
    """A sampler chain; samplers apply in the order they are added, and the last must be ``greedy`` or ``dist``."""

    def __init__(self, model: Model) -> None:
        params = C.llama_sampler_chain_default_params()
        params.no_perf = True
        self.model = model
        self._chain = C.llama_sampler_chain_init(params)
        self._picks = False
        self._samplers: list[tuple[str, float, object]] = []
        """Name, parameter and handle of each, the bias left out; the chain owns them."""
        self._bias: tuple[np.ndarray, np.ndarray] | None = None
        """Token ids and what is added to their logits."""
        self._banned: np.ndarray | None = None
        """Token ids with a bias of -inf."""
        self._picker: Callable[[int, int | None], int] | None = None

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
        if np.isneginf(self._bias[1]).any():
            self._banned = self._bias[0][np.isneginf(self._bias[1])]
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

    def sample(self, context: Context, i: int, mask: np.ndarray | None = None) -> int:
        """Picks a token from the logits of the last batch's ``i``-th entry and lets the chain remember it.

        ``mask``: uint32, a bit for each token, the lowest first; only tokens with a set bit are picked. Raises
        ``GrammarDeadEndError`` where none is left, ``LlamaError`` for logits that are not numbers.
        """
        self._check_open()
        token = self._compiled_pick(context.row_address(i), mask)
        if token is not None:
            return token
        if mask is not None:
            return self._pick(context.row(i), mask)
        # NaN logits make llama.cpp's samplers abort the process. A row that holds one has NaN as its maximum.
        if math.isnan(context.row(i).max()):
            raise LlamaError(_NOT_NUMBERS)
        return C.llama_sampler_sample(self._chain, context._ctx, i)

    def sample_row(self, row: np.ndarray, mask: np.ndarray) -> int:
        """As ``sample``, from a row that was copied: float32 [n_vocab]."""
        self._check_open()
        if len(row) != self.model.n_vocab:
            raise MisuseError(f"a row of {len(row)} logits for {self.model.n_vocab} tokens")
        token = self._compiled_pick(row.ctypes.data, mask)
        return self._pick(row, mask) if token is None else token

    def _compiled_pick(self, row: int, mask: np.ndarray | None) -> int | None:
        """The compiled picker's token from the row at an address; None where llama.cpp's chain has to pick."""
        if not self._picks:
            raise MisuseError("the chain does not end in greedy or dist")
        if mask is not None and 32 * len(mask) < self.model.n_vocab:
            raise MisuseError(f"a mask of {len(mask)} words for {self.model.n_vocab} tokens")
        if self._picker is None:
            return None
        token = self._picker(row, None if mask is None else mask.ctypes.data)
        if token >= 0:
            return token
        if token == NOT_NUMBERS:
            raise LlamaError(_NOT_NUMBERS)
        if token == NOTHING_FITS:
            raise GrammarDeadEndError(_NOTHING_FITS)
        assert token == LOOK_AT_ALL
        return None

    def _pick(self, row: np.ndarray, mask: np.ndarray) -> int:
        """llama.cpp's own chain picks among the tokens that the mask allows."""
        ids = allowed(mask, len(row))
        logits = row[ids]
        if len(logits) and math.isnan(logits.max()):
            raise LlamaError(_NOT_NUMBERS)
        # -inf in the middle of a chain makes NaN of some samplers' sums: what is forbidden is taken out.
        possible = logits > -np.inf
        if self._banned is not None:
            possible &= ~np.isin(ids, self._banned)
        candidates = np.zeros(int(possible.sum()), _CANDIDATE)
        if not len(candidates):
            raise GrammarDeadEndError(_NOTHING_FITS)
        candidates["id"], candidates["logit"] = ids[possible], logits[possible]
        array = _array(candidates)
        C.llama_sampler_apply(self._chain, ctypes.byref(array))
        if not 0 <= array.selected < array.size:
            raise LlamaError("llama.cpp's samplers picked no token")
        token = int(array.data[array.selected].id)  # XTC moves the array's beginning
        C.llama_sampler_accept(self._chain, token)
        return token

    def accept(self, token: int) -> None:
        """Lets the chain remember a token that it did not pick (the prompt's and those that a grammar forced, for the
        penalties)."""
        self._check_open()
        C.llama_sampler_accept(self._chain, self.model.check_token(token))

    def close(self) -> None:
        """Frees the chain and its samplers. Safe to call twice."""
        if self._chain:
            C.llama_sampler_free(self._chain)
            self._chain, self._picker = None, None


def allowed(mask: np.ndarray, n_vocab: int) -> np.ndarray:
    """Ids of the tokens with a set bit in a mask."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:n_vocab])


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
