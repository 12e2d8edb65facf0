"""The one door to llama.cpp: model, context, batch, sampler chain, quantize.

Thin wrappers over llama-cpp-python's low-level ctypes. Their point is what they refuse: an id out of range,
a batch over `n_batch` or a null pointer aborts the whole process inside llama.cpp, where Python cannot catch
it, so everything is checked here first. No torch; numpy arrays go out, plain ints and bytes go in.

llama.cpp's log is captured, not printed; `SLM_LLAMA_LOG=1` prints it to stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import llama_cpp.llama_cpp as C
import numpy as np

from data.errors import UserError, nearest
from slm.ggufcheck import GGML_TYPES, read_header


class LlamaError(RuntimeError):
    """llama.cpp refused or failed; the message ends in its own last error line where there is one."""


class KvCacheFull(LlamaError):  # noqa: N818 (what happened, as the field calls it)
    """No room in the KV cache for this batch; nothing of it was computed. Recoverable."""


# -- log ---------------------------------------------------------------------------------------------------

_WARN, _ERROR, _CONT = 3, 4, 5
_log: deque[tuple[int, str]] = deque(maxlen=20_000)
_log_to_stderr = os.environ.get("SLM_LLAMA_LOG", "") not in ("", "0")


@C.llama_log_callback
def _on_log(level: int, text: bytes, _user: object) -> None:
    line = text.decode("utf-8", errors="replace")
    if _log_to_stderr:
        sys.stderr.write(line)
    if level == _CONT and _log:
        last_level, last = _log[-1]
        _log[-1] = (last_level, last + line)
    else:
        _log.append((level, line))


C.llama_log_set(_on_log, ctypes.c_void_p(0))
C.llama_backend_init()


def _last_error() -> str:
    """The cause, not the consequence: the first error line since the log was last cleared."""
    errors = [text.strip() for level, text in _log if level == _ERROR and text.strip()]
    return errors[0] if errors else "no reason given"


def system_info() -> str:
    """The instruction sets llama.cpp was built with and uses here, in its own words."""
    return C.llama_print_system_info().decode("utf-8", errors="replace").strip()


def _utf8(text: str) -> bytes:
    # A lone surrogate (legal in JSON) has no UTF-8, and llama.cpp's tokenizer throws on invalid UTF-8.
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


# -- model -------------------------------------------------------------------------------------------------


class Model:
    """A GGUF file's weights and vocabulary (memory-mapped: two processes share the pages).

    Raises `UserError` for a missing or damaged file, `LlamaError` where llama.cpp refuses a well-formed one.
    Close it after every `Context` and `Sampler` made from it.
    """

    def __init__(
        self, path: str | Path, *, vocab_only: bool = False, n_gpu_layers: int = 0, use_mmap: bool = True
    ) -> None:
        self.path = Path(path)
        self._model = None
        self.header = read_header(self.path)
        params = C.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = n_gpu_layers
        params.load_mode = C.LLAMA_LOAD_MODE_MMAP if use_mmap else C.LLAMA_LOAD_MODE_NONE
        _log.clear()
        self._model = C.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self._model:
            raise LlamaError(f"llama.cpp cannot load {self.path}: {_last_error()}")
        self._vocab = C.llama_model_get_vocab(self._model)
        self.n_vocab: int = C.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self._model)
        """Tokens of context the model was trained with."""
        self.n_embd: int = C.llama_model_n_embd(self._model)
        self.n_params: int = C.llama_model_n_params(self._model)
        self.size_bytes: int = C.llama_model_size(self._model)
        """Bytes of all tensors (the file is this plus its header)."""
        self.bos: int = C.llama_vocab_bos(self._vocab)
        """-1 where there is none; the same for `eos`."""
        self.eos: int = C.llama_vocab_eos(self._vocab)
        self.add_bos: bool = C.llama_vocab_get_add_bos(self._vocab)

    def _open(self) -> object:
        assert self._model, "the model is closed"
        return self._model

    def check_token(self, token: int) -> int:
        """Raises `LlamaError` unless `token` is an id of the vocabulary."""
        if not 0 <= token < self.n_vocab:
            raise LlamaError(f"token id {token} is outside the vocabulary (0 to {self.n_vocab - 1})")
        return token

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. `add_special` adds BOS where the file asks for it. `parse_special` reads text
        that spells a special token as that token: right for a rendered chat template, wrong for a user's text.
        """
        self._open()
        raw = _utf8(text)
        if len(raw) >= 2**31 - 8:
            raise LlamaError(f"a text of {len(raw)} bytes is too long to tokenize at once")
        capacity = len(raw) + 8
        for _ in range(2):
            buffer = (C.llama_token * capacity)()
            n = C.llama_tokenize(self._vocab, raw, len(raw), buffer, capacity, add_special, parse_special)
            if n >= 0:
                return buffer[:n]
            capacity = -n
        raise LlamaError(f"llama.cpp cannot tokenize a text of {len(raw)} bytes")

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """UTF-8 bytes of a token (maybe half a character); b"" for control tokens unless `special`."""
        self._open()
        self.check_token(token)
        size = 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(size)
            n = C.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n
        raise LlamaError(f"llama.cpp cannot spell token {token}")

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (end of text, end of turn)."""
        self._open()
        return C.llama_vocab_is_eog(self._vocab, self.check_token(token))

    def metadata(self) -> dict[str, str]:
        """The file's key-value pairs as llama.cpp prints them (long arrays are shortened)."""

        def read(function, *args: object) -> str:
            size = 256
            while True:
                buffer = ctypes.create_string_buffer(size)
                n = function(self._open(), *args, buffer, size)
                if n < size:
                    return buffer.raw[: max(n, 0)].decode("utf-8", errors="replace")
                size = n + 1

        count = C.llama_model_meta_count(self._open())
        return {
            read(C.llama_model_meta_key_by_index, i): read(C.llama_model_meta_val_str_by_index, i) for i in range(count)
        }

    def chat_template(self) -> str | None:
        """The Jinja chat template inside the file, untrusted text; None for a base model."""
        raw = C.llama_model_chat_template(self._open(), None)
        return raw.decode("utf-8", errors="replace") if raw else None

    def close(self) -> None:
        """Frees the weights. Safe to call twice."""
        if self._model:
            C.llama_model_free(self._model)
            self._model = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- batch and context -------------------------------------------------------------------------------------


class Batch:
    """Up to `capacity` tokens, each with its position, its sequence and whether its logits are wanted."""

    def __init__(self, capacity: int, n_seq_max: int = 1) -> None:
        assert capacity > 0
        assert n_seq_max > 0
        self.capacity, self.n_seq_max, self._n = capacity, n_seq_max, 0
        # numpy owns the memory, so that a prefill chunk is written as a slice and nothing needs freeing.
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._logits = np.zeros(capacity, np.int8)
        self._seq_pointers = self._seq.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)

    def clear(self) -> None:
        """Empties the batch."""
        self._n = 0

    def add(self, token: int, pos: int, seq_id: int, logits: bool) -> int:
        """Appends one token; returns its index, which `Context.logits` takes."""
        return self.extend((token,), pos, seq_id, logits)

    def extend(self, tokens: Sequence[int], pos: int, seq_id: int, logits: bool, *, every: bool = False) -> int:
        """Appends consecutive tokens from position `pos` on; logits of the last one (or of `every` one).

        Returns the index of the last token.
        """
        start, stop = self._n, self._n + len(tokens)
        assert len(tokens) > 0
        assert stop <= self.capacity, f"a batch of {self.capacity} tokens cannot take {len(tokens)} more"
        assert 0 <= seq_id < self.n_seq_max, f"sequence {seq_id} of {self.n_seq_max}"
        assert pos >= 0
        self._token[start:stop] = tokens
        self._pos[start:stop] = range(pos, pos + len(tokens)) if len(tokens) > 1 else pos
        self._seq[start:stop] = seq_id
        self._logits[start:stop] = logits and every
        self._logits[stop - 1] = logits
        self._n = stop
        return stop - 1

    def __len__(self) -> int:
        return self._n

    def _struct(self) -> C.llama_batch:
        def pointer(array: np.ndarray, kind: type) -> object:
            return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

        return C.llama_batch(
            n_tokens=self._n,
            token=pointer(self._token, C.llama_token),
            embd=None,
            pos=pointer(self._pos, C.llama_pos),
            n_seq_id=pointer(self._n_seq, ctypes.c_int32),
            seq_id=pointer(self._seq_pointers, ctypes.POINTER(C.llama_seq_id)),
            logits=pointer(self._logits, ctypes.c_int8),
        )


class Context:
    """A KV cache and the compute buffers of a model. Not thread-safe.

    `n_ctx`: tokens the cache holds, of all sequences together when `kv_unified`, else split evenly;
    llama.cpp rounds it up to a multiple of 256 (read `.n_ctx`). `n_batch`/`n_ubatch`: most tokens of one
    `decode` call and of one pass through the graph. `flash_attn`: None leaves the choice to llama.cpp.
    `kv_type`: ggml type of the cache ("f16" is llama.cpp's own default; "f32" for the closest comparisons).
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        kv_unified: bool = True,
        flash_attn: bool | None = None,
        kv_type: str = "f16",
    ) -> None:
        from slm.hardware import n_threads as default_threads

        assert n_ctx > 0
        assert n_batch > 0
        assert 0 < n_seq_max <= C.llama_max_parallel_sequences()
        self.model = model
        self._ctx = None
        params = C.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = min(n_batch, n_ctx)
        params.n_ubatch = min(n_ubatch, params.n_batch)
        params.n_seq_max = n_seq_max
        params.n_threads = n_threads or default_threads()
        params.n_threads_batch = n_threads_batch or params.n_threads
        params.kv_unified = kv_unified
        params.no_perf = True
        params.type_k = params.type_v = _ggml_type(kv_type)
        if flash_attn is not None:
            params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attn else C.LLAMA_FLASH_ATTN_TYPE_DISABLED
        _log.clear()
        self._ctx = C.llama_init_from_model(model._open(), params)
        if not self._ctx:
            raise LlamaError(f"llama.cpp cannot make a context of {n_ctx} tokens: {_last_error()}")
        self._memory = C.llama_get_memory(self._ctx)
        self.n_ctx: int = C.llama_n_ctx(self._ctx)
        self.n_batch: int = C.llama_n_batch(self._ctx)
        self.n_seq_max: int = n_seq_max
        self.n_threads: int = params.n_threads
        self._wanted = np.zeros(0, np.int8)

    def decode(self, batch: Batch) -> None:
        """Runs the batch; its tokens are then in the cache.

        Raises `KvCacheFull` when the cache has no room (nothing changed), `LlamaError` for all else.
        """
        assert self._ctx, "the context is closed"
        n = len(batch)
        assert batch.n_seq_max <= self.n_seq_max
        if n == 0 or n > self.n_batch:
            raise LlamaError(f"a batch of {n} tokens; this context takes 1 to {self.n_batch}")
        tokens = batch._token[:n]
        if tokens.min() < 0 or tokens.max() >= self.model.n_vocab:
            raise LlamaError(f"a token id outside the vocabulary (0 to {self.model.n_vocab - 1})")
        self._wanted = np.zeros(0, np.int8)
        _log.clear()
        status = C.llama_decode(self._ctx, batch._struct())
        if status == 1:
            raise KvCacheFull(f"no room for {n} tokens in the KV cache of {self.n_ctx}")
        if status != 0:
            raise LlamaError(f"llama_decode returned {status}: {_last_error()}")
        self._wanted = batch._logits[:n].copy()

    def logits(self, i: int) -> np.ndarray:
        """float32 [n_vocab]: a copy of the logits of the last batch's `i`-th entry, which must have asked."""
        assert 0 <= i < len(self._wanted), f"entry {i} of a batch of {len(self._wanted)}"
        assert self._wanted[i], f"entry {i} did not ask for logits"
        row = C.llama_get_logits_ith(self._ctx, i)
        if not row:
            raise LlamaError(f"llama.cpp has no logits for batch entry {i}")
        return np.ctypeslib.as_array(row, shape=(self.model.n_vocab,)).copy()

    def logits_all(self, n: int, *, copy: bool = True) -> np.ndarray:
        """float32 [n, n_vocab]: logits of the last batch, whose `n` entries must all have asked for them.

        `copy=False` gives a view that the next `decode` overwrites.
        """
        assert n == len(self._wanted), f"{n} rows of a batch of {len(self._wanted)}"
        assert self._wanted.all(), "some entries of the batch did not ask for logits"
        rows = C.llama_get_logits(self._ctx)
        if not rows:
            raise LlamaError("llama.cpp has no logits")
        view = np.ctypeslib.as_array(rows, shape=(n, self.model.n_vocab))
        return view.copy() if copy else view

    def seq_rm(self, seq_id: int, p0: int = 0, p1: int = -1) -> bool:
        """Forgets positions p0 <= p < p1 of a sequence (-1: to the end). False where that is impossible."""
        self._check_seq(seq_id)
        return C.llama_memory_seq_rm(self._memory, seq_id, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Makes `dst` share the cells of `src` for positions p0 <= p < p1 (no copy in a unified cache)."""
        self._check_seq(src)
        self._check_seq(dst)
        C.llama_memory_seq_cp(self._memory, src, dst, p0, p1)

    def seq_pos_max(self, seq_id: int) -> int:
        """The last position a sequence has in the cache; -1 when it has none."""
        self._check_seq(seq_id)
        return C.llama_memory_seq_pos_max(self._memory, seq_id)

    def _check_seq(self, seq_id: int) -> None:
        assert self._ctx, "the context is closed"
        # Not an assert with a range alone: llama.cpp takes a negative id as "every sequence".
        assert 0 <= seq_id < self.n_seq_max, f"sequence {seq_id} of {self.n_seq_max}"

    def clear(self) -> None:
        """Forgets every sequence."""
        assert self._ctx, "the context is closed"
        C.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Frees the cache. Safe to call twice; call it before the model's `close`."""
        if self._ctx:
            C.llama_free(self._ctx)
            self._ctx = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# -- sampler -----------------------------------------------------------------------------------------------

_MAX_GRAMMAR_BYTES = 64 * 1024
_MAX_GRAMMAR_DEPTH = 64


class Sampler:
    """A sampler chain; links apply in the order they are added, and the last must be `greedy` or `dist`."""

    def __init__(self, model: Model) -> None:
        params = C.llama_sampler_chain_default_params()
        params.no_perf = True
        self.model = model
        self._chain = C.llama_sampler_chain_init(params)
        self._picks = False

    def _add(self, link: object, what: str) -> Sampler:
        assert self._chain, "the sampler is closed"
        assert not self._picks, f"{what} after the link that picks the token"
        if not link:
            raise LlamaError(f"llama.cpp refused the sampler {what}")
        C.llama_sampler_chain_add(self._chain, link)
        return self

    def logit_bias(self, bias: Mapping[int, float]) -> Sampler:
        """Adds to the logits of token ids; -inf is allowed and bans."""
        if not bias:
            return self
        entries = (C.llama_logit_bias * len(bias))()
        for entry, (token, value) in zip(entries, bias.items(), strict=True):
            entry.token = self.model.check_token(token)
            entry.bias = _number(value, "logit_bias", low=-math.inf, high=1e9)
        link = C.llama_sampler_init_logit_bias(self.model.n_vocab, len(bias), entries)
        return self._add(link, "logit_bias")

    def penalties(self, *, last_n: int, repeat: float, frequency: float, presence: float) -> Sampler:
        """Over the last `last_n` tokens. repeat 1, frequency 0 and presence 0 do nothing."""
        _number(repeat, "repeat_penalty", low=1e-3, high=100)
        _number(frequency, "frequency_penalty", low=-100, high=100)
        _number(presence, "presence_penalty", low=-100, high=100)
        link = C.llama_sampler_init_penalties(self.model.n_vocab, last_n, repeat, frequency, presence)
        return self._add(link, "penalties")

    def top_k(self, k: int) -> Sampler:
        """Keeps the k likeliest; k <= 0 keeps all."""
        return self._add(C.llama_sampler_init_top_k(min(k, self.model.n_vocab)), "top_k")

    def typical(self, p: float) -> Sampler:
        """Locally typical sampling; 1 keeps all."""
        return self._add(C.llama_sampler_init_typical(_number(p, "typical_p", low=0, high=1), 1), "typical_p")

    def top_p(self, p: float) -> Sampler:
        """Nucleus sampling; 1 keeps all."""
        return self._add(C.llama_sampler_init_top_p(_number(p, "top_p", low=0, high=1), 1), "top_p")

    def min_p(self, p: float) -> Sampler:
        """Drops tokens less likely than p times the likeliest; 0 keeps all."""
        return self._add(C.llama_sampler_init_min_p(_number(p, "min_p", low=0, high=1), 1), "min_p")

    def temperature(self, t: float) -> Sampler:
        """Divides the logits by t > 0."""
        t = _number(t, "temperature", low=1e-6, high=1e6)
        return self._add(C.llama_sampler_init_temp(t), "temperature")

    def grammar(self, gbnf: str, root: str = "root") -> Sampler:
        """Constrains to a GBNF grammar. Raises `LlamaError` for one that is malformed, too long or too deep
        (llama.cpp's parser recurses: deep nesting overflows its stack)."""
        raw = _utf8(gbnf)
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
        _log.clear()
        link = C.llama_sampler_init_grammar(self.model._vocab, raw, root.encode())
        if not link:
            raise LlamaError(f"llama.cpp refused the grammar: {_last_error()}")
        return self._add(link, "grammar")

    def greedy(self) -> Sampler:
        """Picks the likeliest token."""
        self._add(C.llama_sampler_init_greedy(), "greedy")
        self._picks = True
        return self

    def dist(self, seed: int) -> Sampler:
        """Draws from what is left; `seed` below 2^32 - 1 (that value means "any" to llama.cpp)."""
        assert 0 <= seed < 2**32 - 1
        self._add(C.llama_sampler_init_dist(seed), "dist")
        self._picks = True
        return self

    def sample(self, context: Context, i: int) -> int:
        """Picks a token from the logits of the last batch's `i`-th entry and lets the chain remember it."""
        assert self._chain
        assert self._picks, "the chain does not end in greedy or dist"
        assert 0 <= i < len(context._wanted)
        assert context._wanted[i], f"entry {i} did not ask for logits"
        row = C.llama_get_logits_ith(context._ctx, i)
        # NaN logits make llama.cpp's sampler abort the process.
        if not row or math.isnan(float(np.ctypeslib.as_array(row, shape=(self.model.n_vocab,)).max())):
            raise LlamaError("the model gave logits that are not numbers")
        return C.llama_sampler_sample(self._chain, context._ctx, i)

    def accept(self, token: int) -> None:
        """Lets the chain remember a token that it did not pick (the prompt's, for the penalties)."""
        assert self._chain
        C.llama_sampler_accept(self._chain, self.model.check_token(token))

    def close(self) -> None:
        """Frees the chain and its links. Safe to call twice."""
        if self._chain:
            C.llama_sampler_free(self._chain)
            self._chain = None


def _number(value: float, name: str, *, low: float, high: float) -> float:
    if not low <= value <= high:  # false for NaN, too
        raise LlamaError(f"{name} is {value}; it must be between {low} and {high}")
    return value


# -- quantize ----------------------------------------------------------------------------------------------

_ALIASES = {"q3_k": "q3_k_m", "q4_k": "q4_k_m", "q5_k": "q5_k_m"}


def quant_types() -> dict[str, int]:
    """Lower-case name -> llama_ftype, for every type llama.cpp's quantize tool offers, aliases included."""
    prefix = "LLAMA_FTYPE_MOSTLY_"
    types = {"f32": C.LLAMA_FTYPE_ALL_F32}
    for name in dir(C):
        if name.startswith(prefix):
            types[name.removeprefix(prefix).lower()] = getattr(C, name)
    # Readable but not writable: llama_model_quantize has no default tensor type for it.
    types.pop("nvfp4", None)
    types |= {alias: types[name] for alias, name in _ALIASES.items()}
    return dict(sorted(types.items()))


def quantize(
    src: str | Path,
    dst: str | Path,
    type_name: str,
    *,
    imatrix: Mapping[str, np.ndarray] | None = None,
    tensor_types: Mapping[str, str] | None = None,
    output_type: str | None = None,
    token_embedding_type: str | None = None,
    pure: bool = False,
    n_threads: int | None = None,
    allow_requantize: bool = False,
) -> list[str]:
    """Quantizes a GGUF file into another with `llama_model_quantize`; returns llama.cpp's log lines.

    `imatrix`: tensor name -> float32 [row length], the importance of each input column. `tensor_types`:
    regular expression over tensor names -> ggml type. `pure`: every matrix gets the same type, no mixture.
    Raises `UserError` for an unknown type or equal paths, `LlamaError` with llama.cpp's reason when it
    fails; a partial `dst` is then removed. Not atomic: callers write to a temporary name and rename.
    """
    from slm.hardware import n_threads as default_threads

    src, dst = Path(src), Path(dst)
    types = quant_types()
    name = type_name.lower()
    if name not in types:
        raise UserError(f"unknown quantization type {type_name!r}; {nearest(name, list(types))}".rstrip("; "))
    if dst.exists() and src.exists() and os.path.samefile(src, dst):
        raise UserError(f"{src} would be overwritten by its own quantization; give another output path")
    read_header(src)
    params = C.llama_model_quantize_default_params()
    params.ftype = types[name]
    params.nthread = n_threads or default_threads()
    params.pure = pure
    params.allow_requantize = allow_requantize
    if output_type is not None:
        params.output_tensor_type = _ggml_type(output_type)
    if token_embedding_type is not None:
        params.token_embedding_type = _ggml_type(token_embedding_type)
    keep: list[object] = []  # what the structs point to must outlive the call
    if imatrix:
        entries = (C.llama_model_imatrix_data * (len(imatrix) + 1))()
        for entry, (tensor, values) in zip(entries, imatrix.items(), strict=False):
            row = np.ascontiguousarray(values, dtype=np.float32).ravel()
            if not np.isfinite(row).all():
                raise LlamaError(f"the importance matrix of {tensor} holds values that are not finite")
            keep.append(row)
            entry.name = tensor.encode()
            entry.data = row.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            entry.size = row.size
        params.imatrix = ctypes.cast(entries, ctypes.POINTER(C.llama_model_imatrix_data))
        keep.append(entries)
    if tensor_types:
        overrides = (C.llama_model_tensor_override * (len(tensor_types) + 1))()
        for override, (pattern, kind) in zip(overrides, tensor_types.items(), strict=False):
            override.pattern = pattern.encode()
            override.type = _ggml_type(kind)
        params.tt_overrides = ctypes.cast(overrides, ctypes.POINTER(C.llama_model_tensor_override))
        keep.append(overrides)
    _log.clear()
    status = C.llama_model_quantize(os.fsencode(src), os.fsencode(dst), ctypes.byref(params))
    del keep
    if status != 0:
        with contextlib.suppress(FileNotFoundError):
            dst.unlink()
        raise LlamaError(f"llama.cpp cannot quantize {src} to {name}: {_last_error()}")
    return list(_log_lines())


def _log_lines() -> Iterator[str]:
    for _, text in _log:
        yield from (line.rstrip() for line in text.splitlines() if line.strip())


def _ggml_type(name: str) -> int:
    key = name.lower()
    if key not in GGML_TYPES:
        raise UserError(f"unknown tensor type {name!r}; {nearest(key, list(GGML_TYPES))}".rstrip("; "))
    return GGML_TYPES[key][0]
