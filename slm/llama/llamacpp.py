"""The one door to llama.cpp: model, context, batch, quantize (slm/llama_sampler.py has the sampler chain).

Thin wrappers over llama-cpp-python's low-level ctypes. Their point is what they refuse: an id out of range,
a batch over ``n_batch`` or a null pointer aborts the whole process inside llama.cpp, where Python cannot catch
it, so everything is checked here first. No torch; numpy arrays go out, plain ints and bytes go in.

llama.cpp's log is captured, not printed; ``SLM_LLAMA_LOG=1`` prints it to stderr.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import os
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import llama_cpp.llama_cpp as C
import numpy as np

from data.errors import UserError, nearest
from slm.llama.gguf_check import GGML_TYPES, read_header

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


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


def clear_log() -> None:
    """Forgets llama.cpp's lines, so that ``last_error`` speaks of what comes."""
    _log.clear()


def last_error() -> str:
    """The cause, not the consequence: the first error line since the log was last cleared."""
    errors = [text.strip() for level, text in _log if level == _ERROR and text.strip()]
    return errors[0] if errors else "no reason given"


def build_features() -> list[str]:
    """What llama.cpp was built with and finds on this processor, for example ``AVX2`` and ``AVX512_BF16``."""
    words = C.llama_print_system_info().decode().replace("|", ":").split(":")
    pairs = [word.split("=") for word in words if "=" in word]
    return [name.strip() for name, value in pairs if value.strip() not in ("", "0")]


def utf8(text: str) -> bytes:
    """UTF-8 of any Python text; what has none becomes U+FFFD."""
    # A lone surrogate (legal in JSON) has no UTF-8, and llama.cpp's tokenizer throws on invalid UTF-8.
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")


def utf8_rest(pending: bytes, piece: bytes) -> bytes | None:
    """The beginning of a character that is left over at the end of ``pending + piece``; None where that is no UTF-8."""
    decoder = _Utf8Decoder()
    try:
        decoder.decode(pending + piece)
    except UnicodeDecodeError:
        return None
    rest = decoder.getstate()[0]
    # The decoder sees that a half character is a surrogate only at its last byte, when nothing fits any more.
    return None if rest[:1] == b"\xed" and rest[1:2] >= b"\xa0" else rest


# -- model -------------------------------------------------------------------------------------------------


class Model:
    """A GGUF file's weights and vocabulary (memory-mapped: two processes share the pages).

    Raises ``UserError`` for a missing or damaged file, ``LlamaError`` where llama.cpp refuses a well-formed one.
    Close it after every ``Context`` and ``Sampler`` made from it.
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
            raise LlamaError(f"llama.cpp cannot load {self.path}: {last_error()}")
        self._vocab = C.llama_model_get_vocab(self._model)
        self.n_vocab: int = C.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self._model)
        """Tokens of context the model was trained with."""
        self.n_embd: int = C.llama_model_n_embd(self._model)
        self.n_params: int = C.llama_model_n_params(self._model)
        self.size_bytes: int = C.llama_model_size(self._model)
        """Bytes of all tensors (the file is this plus its header)."""
        self.keeps_cells: bool = not (
            C.llama_model_is_recurrent(self._model)
            or C.llama_model_is_hybrid(self._model)
            or C.llama_model_n_swa(self._model) > 0
        )
        """Whether a cache keeps keys and values of every position, so that it can be cut back to any of them: not so
        where there is a state instead, or a sliding window."""
        self.bos: int = C.llama_vocab_bos(self._vocab)
        """-1 where there is none; the same for ``eos``."""
        self.eos: int = C.llama_vocab_eos(self._vocab)
        self.add_bos: bool = C.llama_vocab_get_add_bos(self._vocab)

    def _open(self) -> object:
        assert self._model, "the model is closed"
        return self._model

    def check_token(self, token: int) -> int:
        """Raises ``LlamaError`` unless ``token`` is an id of the vocabulary."""
        if not 0 <= token < self.n_vocab:
            raise LlamaError(f"token id {token} is outside the vocabulary (0 to {self.n_vocab - 1})")
        return token

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``. ``add_special`` adds BOS where the file asks for it. ``parse_special`` reads text
        that spells a special token as that token: right for a rendered chat template, wrong for a user's text.
        """
        self._open()
        raw = utf8(text)
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
        """UTF-8 bytes of a token (maybe half a character); b"" for control tokens unless ``special``."""
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

    @cached_property
    def spellings(self) -> list[bytes]:
        """Bytes of every token, control tokens by their names. Takes a moment the first time."""
        return [self.token_to_piece(token, special=True) for token in range(self.n_vocab)]

    @cached_property
    def begins_text(self) -> np.ndarray:
        """bool [n_vocab]: whether a token's bytes may follow a whole character in UTF-8."""
        return np.array([utf8_rest(b"", piece) is not None for piece in self.spellings])

    @cached_property
    def unspeakable(self) -> np.ndarray:
        """int32 ids of tokens that a grammar must not pick: it reads their names, which the text does not show
        (control tokens), or it does not read them to their end (those that hold a NUL). No end-of-text tokens."""
        self._open()
        ids = [
            token
            for token, piece in enumerate(self.spellings)
            if not C.llama_vocab_is_eog(self._vocab, token)
            and (C.llama_vocab_is_control(self._vocab, token) or b"\0" in piece)
        ]
        return np.array(ids, np.int32)

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
    """Up to ``capacity`` tokens, each with its position, its sequence and whether its logits are wanted."""

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
        self._filled = self._make_struct()  # the arrays stay where they are: only the count changes

    def clear(self) -> None:
        """Empties the batch."""
        self._n = 0

    def add(self, token: int, pos: int, seq_id: int, logits: bool) -> int:
        """Appends one token; returns its index, which ``Context.logits`` takes."""
        return self.extend((token,), pos, seq_id, logits)

    def extend(self, tokens: Sequence[int], pos: int, seq_id: int, logits: bool, *, every: bool = False) -> int:
        """Appends consecutive tokens from position ``pos`` on; logits of the last one (or of ``every`` one).

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

    def _make_struct(self) -> C.llama_batch:
        def pointer(array: np.ndarray, kind: type) -> object:
            return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))

        return C.llama_batch(
            n_tokens=0,
            token=pointer(self._token, C.llama_token),
            embd=None,
            pos=pointer(self._pos, C.llama_pos),
            n_seq_id=pointer(self._n_seq, ctypes.c_int32),
            seq_id=pointer(self._seq_pointers, ctypes.POINTER(C.llama_seq_id)),
            logits=pointer(self._logits, ctypes.c_int8),
        )

    def _struct(self) -> C.llama_batch:
        self._filled.n_tokens = self._n
        return self._filled


class Context:
    """A KV cache and the compute buffers of a model. Not thread-safe.

    ``n_ctx``: tokens the cache holds, of all sequences together when ``kv_unified``, else split evenly;
    llama.cpp rounds it up to a multiple of 256 (read ``.n_ctx``). ``n_batch``/``n_ubatch``: most tokens of one
    ``decode`` call and of one pass through the graph. ``flash_attn``: None leaves the choice to llama.cpp.
    ``kv_type``: ggml type of the cache ("f16" is llama.cpp's own default; "f32" for the closest comparisons).
    ``embeddings``: ``decode`` also keeps the last layer's output of every token (see ``embeddings_all``).
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
        embeddings: bool = False,
    ) -> None:
        from slm.machine.hardware import n_threads as default_threads

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
        params.embeddings = embeddings
        if embeddings:
            # Pooling is the caller's: llama.cpp's own sees no further than one pass through the graph.
            params.pooling_type = C.LLAMA_POOLING_TYPE_NONE
        if flash_attn is not None:
            params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attn else C.LLAMA_FLASH_ATTN_TYPE_DISABLED
        _log.clear()
        self._ctx = C.llama_init_from_model(model._open(), params)
        if not self._ctx:
            raise LlamaError(f"llama.cpp cannot make a context of {n_ctx} tokens: {last_error()}")
        self._memory = C.llama_get_memory(self._ctx)
        self.n_ctx: int = C.llama_n_ctx(self._ctx)
        self.n_batch: int = C.llama_n_batch(self._ctx)
        self.n_seq_max: int = n_seq_max
        self.n_threads: int = params.n_threads
        self._wanted: Sequence[int] = b""
        """Per entry of the last batch, whether it asked for logits: 0 or 1."""
        self._address: int | None = None
        """Of the last batch's logits, when somebody has asked for them."""
        self._view: tuple[tuple[int, int], np.ndarray] | None = None
        """The last view of logits, with its address and number of rows: most batches are like the one before."""
        self._number: list[int] = []
        """Per entry of the last batch, how many up to it asked for logits."""

    def decode(self, batch: Batch) -> None:
        """Runs the batch; its tokens are then in the cache.

        Raises ``KvCacheFull`` when the cache has no room (nothing changed), ``LlamaError`` for all else.
        """
        assert self._ctx, "the context is closed"
        n = len(batch)
        assert batch.n_seq_max <= self.n_seq_max
        if n == 0 or n > self.n_batch:
            raise LlamaError(f"a batch of {n} tokens; this context takes 1 to {self.n_batch}")
        # Read without a sign, a negative id is a large one.
        if batch._token[:n].view(np.uint32).max() >= self.model.n_vocab:
            raise LlamaError(f"a token id outside the vocabulary (0 to {self.model.n_vocab - 1})")
        self._wanted, self._address = b"", None
        _log.clear()
        status = C.llama_decode(self._ctx, batch._struct())
        if status == 1:
            raise KvCacheFull(f"no room for {n} tokens in the KV cache of {self.n_ctx}")
        if status != 0:
            raise LlamaError(f"llama_decode returned {status}: {last_error()}")
        self._wanted = batch._logits[:n].tobytes()

    def row(self, i: int) -> np.ndarray:
        """float32 [n_vocab]: a view of the logits of the last batch's ``i``-th entry, which must have asked; the next
        ``decode`` overwrites it."""
        address, number = self._locate(i)
        shape = (address, self._number[-1])
        if self._view is None or self._view[0] != shape:
            memory = (ctypes.c_float * (shape[1] * self.model.n_vocab)).from_address(shape[0])
            self._view = shape, np.frombuffer(memory, np.float32).reshape(shape[1], self.model.n_vocab)
        return self._view[1][number]

    def row_address(self, i: int) -> int:
        """Where that row is in memory."""
        address, number = self._locate(i)
        return address + 4 * number * self.model.n_vocab

    def _locate(self, i: int) -> tuple[int, int]:
        """The address of all rows, and which of them is the ``i``-th entry's."""
        assert 0 <= i < len(self._wanted), f"entry {i} of a batch of {len(self._wanted)}"
        assert self._wanted[i], f"entry {i} did not ask for logits"
        if self._address is None:
            # Once per batch, and in plain Python: numpy's first calls after a batch, which has emptied the caches,
            # take longer than picking a token.
            pointer = C.llama_get_logits(self._ctx)
            if not pointer:
                raise LlamaError("llama.cpp has no logits")
            self._address = ctypes.addressof(pointer.contents)
            self._number = list(accumulate(self._wanted))
        return self._address, self._number[i] - 1

    def logits(self, i: int) -> np.ndarray:
        """float32 [n_vocab]: a copy of the logits of the last batch's ``i``-th entry, which must have asked."""
        return self.row(i).copy()

    def likeliest(self, i: int) -> int:
        """The token with the highest logit of the last batch's ``i``-th entry, which must have asked (of equals, the
        first)."""
        return int(self.row(i).argmax())

    def logits_all(self, n: int, *, copy: bool = True) -> np.ndarray:
        """float32 [n, n_vocab]: logits of the last batch, whose ``n`` entries must all have asked for them.

        ``copy=False`` gives a view that the next ``decode`` overwrites.
        """
        assert n == len(self._wanted), f"{n} rows of a batch of {len(self._wanted)}"
        assert all(self._wanted), "some entries of the batch did not ask for logits"
        rows = C.llama_get_logits(self._ctx)
        if not rows:
            raise LlamaError("llama.cpp has no logits")
        view = np.ctypeslib.as_array(rows, shape=(n, self.model.n_vocab))
        return view.copy() if copy else view

    def embeddings_all(self, n: int) -> np.ndarray:
        """float32 [n, n_embd]: the normed output of the last layer for each of the last batch's ``n`` entries, a
        copy. The context must have been made with ``embeddings``, and every entry must have asked for logits."""
        assert n == len(self._wanted), f"{n} rows of a batch of {len(self._wanted)}"
        assert all(self._wanted), "some entries of the batch did not ask for logits"
        rows = C.llama_get_embeddings(self._ctx)
        if not rows:
            raise LlamaError("llama.cpp has no embeddings")
        return np.ctypeslib.as_array(rows, shape=(n, self.model.n_embd)).copy()

    def seq_rm(self, seq_id: int, p0: int = 0, p1: int = -1) -> bool:
        """Forgets positions p0 <= p < p1 of a sequence (-1: to the end). False where that is impossible."""
        self._check_seq(seq_id)
        return C.llama_memory_seq_rm(self._memory, seq_id, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Makes ``dst`` share the cells of ``src`` for positions p0 <= p < p1 (no copy in a unified cache)."""
        self._check_seq(src)
        self._check_seq(dst)
        C.llama_memory_seq_cp(self._memory, src, dst, p0, p1)

    def seq_pos_max(self, seq_id: int) -> int:
        """The last position a sequence has in the cache; -1 when it has none."""
        self._check_seq(seq_id)
        return C.llama_memory_seq_pos_max(self._memory, seq_id)

    def seq_pos_range(self, seq_id: int) -> tuple[int, int]:
        """The first and the last position a sequence has in the cache, all between them included; (-1, -1) when
        it has none."""
        self._check_seq(seq_id)
        return C.llama_memory_seq_pos_min(self._memory, seq_id), C.llama_memory_seq_pos_max(self._memory, seq_id)

    def _check_seq(self, seq_id: int) -> None:
        assert self._ctx, "the context is closed"
        # Not an assert with a range alone: llama.cpp takes a negative id as "every sequence".
        assert 0 <= seq_id < self.n_seq_max, f"sequence {seq_id} of {self.n_seq_max}"

    def clear(self) -> None:
        """Forgets every sequence."""
        assert self._ctx, "the context is closed"
        C.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Frees the cache. Safe to call twice; call it before the model's ``close``."""
        if self._ctx:
            C.llama_free(self._ctx)
            self._ctx = None

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    """Quantizes a GGUF file into another with ``llama_model_quantize``; returns llama.cpp's log lines.

    ``imatrix``: tensor name -> float32 [row length], the importance of each input column. ``tensor_types``:
    regular expression over tensor names -> ggml type. ``pure``: every matrix gets the same type, no mixture.
    Raises ``UserError`` for an unknown type or equal paths, ``LlamaError`` with llama.cpp's reason when it
    fails; a partial ``dst`` is then removed. Not atomic: callers write to a temporary name and rename.
    """
    from slm.machine.hardware import n_threads as default_threads

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
        raise LlamaError(f"llama.cpp cannot quantize {src} to {name}: {last_error()}")
    return list(_log_lines())


def _log_lines() -> Iterator[str]:
    for _, text in _log:
        yield from (line.rstrip() for line in text.splitlines() if line.strip())


def _ggml_type(name: str) -> int:
    key = name.lower()
    if key not in GGML_TYPES:
        raise UserError(f"unknown tensor type {name!r}; {nearest(key, list(GGML_TYPES))}".rstrip("; "))
    return GGML_TYPES[key][0]
