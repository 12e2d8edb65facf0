"""A KV cache of a model, and the batches of tokens that run through it.

llama.cpp aborts the whole process on a token id out of range, a batch over ``n_batch`` or a null pointer, where
Python cannot catch it. So everything is checked here before it goes to native code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

import llama_cpp.llama_cpp as C
import numpy as np

from slm.llama import tiles
from slm.llama.adapter import Adapter
from slm.llama.errors import KvCacheFull, LlamaError, MisuseError
from slm.llama.gguf_check import ggml_type_id
from slm.llama.log import clear_log, first_error
from slm.llama.model import Model
from slm.machine.hardware import n_threads as default_threads


class Batch:
    """Up to ``capacity`` tokens, each with its position, its sequence and whether its logits are wanted."""

    def __init__(self, capacity: int, n_seq_max: int = 1) -> None:
        if capacity <= 0 or n_seq_max <= 0:
            raise MisuseError(f"a batch of {capacity} tokens and {n_seq_max} sequences")
        self.capacity, self.n_seq_max, self._n = capacity, n_seq_max, 0
        self.highest_token = -1
        """The highest token id in it; -1 while it is empty. ``Context.decode`` compares it with the vocabulary."""
        # numpy owns the memory, so that a prefill chunk is written as a slice and nothing needs freeing. Single
        # tokens go through the views, which take a third of the time.
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._flags = bytearray(capacity)
        self._logits = np.frombuffer(self._flags, np.int8)
        self._token_view = self._token.data
        self._pos_view = self._pos.data
        self._seq_view = self._seq.data
        self._seq_pointers = self._seq.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        self._filled = self._make_struct()  # the arrays stay where they are: only the count changes

    def clear(self) -> None:
        """Empties the batch."""
        self._n, self.highest_token = 0, -1

    def add(self, token: int, pos: int, seq_id: int, logits: bool) -> int:
        """Appends one token; returns its index, which ``Context.logits`` takes. ``LlamaError`` for a negative id."""
        i = self._n
        self._check(1, pos, seq_id)
        if token < 0:
            raise LlamaError(f"token id {token} is negative")
        self._token_view[i] = token
        self._pos_view[i] = pos
        self._seq_view[i] = seq_id
        self._flags[i] = logits
        if token > self.highest_token:
            self.highest_token = token
        self._n = i + 1
        return i

    def extend(self, tokens: Sequence[int], pos: int, seq_id: int, logits: bool, *, every: bool = False) -> int:
        """Appends consecutive tokens from position ``pos`` on; logits of the last one (or of ``every`` one).

        Returns the index of the last token. ``LlamaError`` for a negative id.
        """
        if len(tokens) == 1:
            return self.add(tokens[0], pos, seq_id, logits)
        start, stop = self._n, self._n + len(tokens)
        self._check(len(tokens), pos, seq_id)
        self._token[start:stop] = tokens
        # Read without a sign, a negative id is a large one.
        highest = int(self._token[start:stop].view(np.uint32).max())
        if highest >= 2**31:
            raise LlamaError("a token id is negative")
        self.highest_token = max(self.highest_token, highest)
        self._pos[start:stop] = np.arange(pos, pos + len(tokens))
        self._seq[start:stop] = seq_id
        self._logits[start:stop] = logits and every
        self._logits[stop - 1] = logits
        self._n = stop
        return stop - 1

    def _check(self, n: int, pos: int, seq_id: int) -> None:
        if not 0 < n <= self.capacity - self._n:
            raise MisuseError(f"a batch of {self.capacity} tokens that holds {self._n} cannot take {n} more")
        if not 0 <= seq_id < self.n_seq_max:
            raise MisuseError(f"sequence {seq_id} of {self.n_seq_max}")
        if pos < 0:
            raise MisuseError(f"position {pos} is negative")

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
    ``kv_type``: ggml type of the cache ("f16" is llama.cpp's own default; "f32" for the closest comparisons);
    ``kv_type_v``: of its values, where it is another.
    ``adapter``: all that is computed here is computed with it. ``embeddings``: ``decode`` also keeps the last layer's
    output of every token (see ``embeddings_all``). ``ranks``: ``decode`` keeps a reranking model's scores instead (see
    ``scores``).
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
        kv_unified: bool = True,
        flash_attn: bool | None = None,
        kv_type: str = "f16",
        kv_type_v: str | None = None,
        embeddings: bool = False,
        ranks: bool = False,
        adapter: Adapter | None = None,
    ) -> None:
        if n_ctx <= 0 or n_batch <= 0 or not 0 < n_seq_max <= C.llama_max_parallel_sequences():
            raise MisuseError(f"a context of {n_ctx} tokens, batches of {n_batch} and {n_seq_max} sequences")
        self.model = model
        self._ctx = None
        params = C.llama_context_default_params()
        params.n_ctx = n_ctx
        params.n_batch = min(n_batch, n_ctx)
        params.n_ubatch = min(n_ubatch, params.n_batch)
        params.n_seq_max = n_seq_max
        params.n_threads = n_threads or default_threads()
        params.n_threads_batch = params.n_threads
        params.kv_unified = kv_unified
        params.no_perf = True
        params.type_k, params.type_v = ggml_type_id(kv_type), ggml_type_id(kv_type_v or kv_type)
        params.embeddings = embeddings or ranks
        if ranks:
            params.pooling_type = C.LLAMA_POOLING_TYPE_RANK
        elif embeddings:
            # Pooling is the caller's: llama.cpp's own sees no further than one pass through the graph.
            params.pooling_type = C.LLAMA_POOLING_TYPE_NONE
        if flash_attn is not None:
            params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash_attn else C.LLAMA_FLASH_ATTN_TYPE_DISABLED
        clear_log()
        self._ctx = C.llama_init_from_model(model._open(), params)
        if not self._ctx:
            raise LlamaError(f"llama.cpp cannot make a context of {n_ctx} tokens: {first_error()}")
        if adapter is not None:
            self.set_adapters([(adapter, adapter.scale)])
        self._memory = C.llama_get_memory(self._ctx)
        self.has_memory: bool = bool(self._memory)
        """False for an encoder, which has no cache: every batch stands for itself."""
        self.n_ctx: int = C.llama_n_ctx(self._ctx)
        self.n_batch: int = C.llama_n_batch(self._ctx)
        self.n_seq_max: int = n_seq_max
        self.n_threads: int = params.n_threads
        self._wanted: Sequence[int] = b""
        """Per entry of the last batch, whether it asked for logits: 0 or 1."""
        self._address: int | None = None
        """Address of the last batch's logits, once they were requested."""
        self._view: tuple[tuple[int, int], np.ndarray] | None = None
        """The last view of logits, with its address and number of rows: most batches are like the one before."""
        self._number: list[int] = []
        """Per entry of the last batch, how many up to it asked for logits."""

    def set_adapters(self, scaled: Sequence[tuple[Adapter, float]]) -> None:
        """From now on computes with these adapters, each times its number, and no others. What the cache holds stays as
        it was computed."""
        self._check_open()
        if any(adapter.model is not self.model for adapter, _ in scaled):
            raise MisuseError("the adapter was loaded for another model")
        n = len(scaled)
        adapters = (C.llama_adapter_lora_p_ctypes * n)(*(adapter._open() for adapter, _ in scaled))
        scales = (ctypes.c_float * n)(*(scale for _, scale in scaled))
        clear_log()
        if C.llama_set_adapters_lora(self._ctx, adapters, n, scales) != 0:
            names = ", ".join(str(adapter.path) for adapter, _ in scaled)
            raise LlamaError(f"llama.cpp cannot use the adapter {names}: {first_error()}")

    def set_threads(self, n: int) -> None:
        """Computes with this many threads from the next batch on."""
        self._check_open()
        if n < 1:
            raise MisuseError(f"{n} threads")
        if n != self.n_threads:
            C.llama_set_n_threads(self._ctx, n, n)
            self.n_threads = n

    def decode(self, batch: Batch) -> None:
        """Runs the batch; its tokens are then in the cache.

        Raises ``KvCacheFull`` when the cache has no room (nothing changed), ``LlamaError`` for all else.
        """
        self._check_open()
        n = batch._n
        if batch.n_seq_max > self.n_seq_max:
            raise MisuseError(f"a batch of {batch.n_seq_max} sequences; this context takes {self.n_seq_max}")
        if n == 0 or n > self.n_batch:
            raise LlamaError(f"a batch of {n} tokens; this context takes 1 to {self.n_batch}")
        if batch.highest_token >= self.model.n_vocab:
            raise LlamaError(f"a token id outside the vocabulary (0 to {self.model.n_vocab - 1})")
        self._wanted, self._address = b"", None
        clear_log()
        tiles.set_again(self.n_threads)
        status = C.llama_decode(self._ctx, batch._struct())
        tiles.keep(self.n_threads)
        if status == 1:
            raise KvCacheFull(f"no room for {n} tokens in the KV cache of {self.n_ctx}")
        if status != 0:
            raise LlamaError(f"llama_decode returned {status}: {first_error()}")
        self._wanted = batch._flags[:n]

    def row(self, i: int) -> np.ndarray:
        """float32 [n_vocab]: a view of the logits of the last batch's ``i``-th entry, which must have asked; the next
        ``decode`` overwrites it."""
        address, number = self._locate(i)
        shape = (address, self._number[-1])
        if self._view is None or self._view[0] != shape:
            memory = (ctypes.c_float * (shape[1] * self.model.n_vocab)).from_address(shape[0])
            # numpy's stubs leave ctypes arrays out, which have the buffer protocol.
            rows = np.frombuffer(memory, np.float32)  # type: ignore[call-overload]
            self._view = shape, rows.reshape(shape[1], self.model.n_vocab)
        return self._view[1][number]

    def row_address(self, i: int) -> int:
        """Where that row is in memory."""
        address, number = self._locate(i)
        return address + 4 * number * self.model.n_vocab

    def _locate(self, i: int) -> tuple[int, int]:
        """The address of all rows, and which of them is the ``i``-th entry's."""
        if not 0 <= i < len(self._wanted):
            raise MisuseError(f"entry {i} of a batch of {len(self._wanted)}")
        if not self._wanted[i]:
            raise MisuseError(f"entry {i} did not ask for logits")
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
        """float32 [n, n_vocab]: logits of the last batch. All its ``n`` entries must have asked for them.

        ``copy=False`` gives a view that the next ``decode`` overwrites.
        """
        self._check_all_wanted(n)
        rows = C.llama_get_logits(self._ctx)
        if not rows:
            raise LlamaError("llama.cpp has no logits")
        view = np.ctypeslib.as_array(rows, shape=(n, self.model.n_vocab))
        return view.copy() if copy else view

    def embeddings_all(self, n: int) -> np.ndarray:
        """float32 [n, n_embd]: the normed output of the last layer for each of the last batch's ``n`` entries, a
        copy. The context must have been made with ``embeddings``, and every entry must have asked for logits."""
        self._check_all_wanted(n)
        rows = C.llama_get_embeddings(self._ctx)
        if not rows:
            raise LlamaError("llama.cpp has no embeddings")
        return np.ctypeslib.as_array(rows, shape=(n, self.model.n_embd)).copy()

    def scores(self, seq_id: int) -> np.ndarray:
        """float32 [n_scores]: a reranking model's scores of a sequence of the last batch, which must have held it
        whole; a copy. The context must have been made with ``ranks``."""
        self._check_seq(seq_id)
        found = C.llama_get_embeddings_seq(self._ctx, seq_id)
        if not found:
            raise LlamaError("llama.cpp has no scores")
        return np.ctypeslib.as_array(found, shape=(self.model.n_scores,)).copy()

    def _check_all_wanted(self, n: int) -> None:
        if n != len(self._wanted):
            raise MisuseError(f"{n} rows of a batch of {len(self._wanted)}")
        if not all(self._wanted):
            raise MisuseError("some entries of the batch did not ask for logits")

    def seq_rm(self, seq_id: int, p0: int = 0, p1: int = -1) -> bool:
        """Forgets positions p0 <= p < p1 of a sequence (-1: to the end). False where that is impossible."""
        self._check_seq(seq_id)
        return C.llama_memory_seq_rm(self._memory, seq_id, p0, p1)

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Makes ``dst`` share the cells of ``src`` for positions p0 <= p < p1 (no copy in a unified cache)."""
        self._check_seq(src)
        self._check_seq(dst)
        C.llama_memory_seq_cp(self._memory, src, dst, p0, p1)

    def seq_state(self, seq_id: int, *, partial: bool = False) -> bytes:
        """A sequence's keys and values, for ``set_seq_state`` of a context with a model of the same layers.
        ``partial``: only what cannot be cut back: a recurrent state, or the keys and values of a window."""
        self._check_seq(seq_id)
        flags = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if partial else C.LLAMA_STATE_SEQ_FLAGS_NONE
        size = C.llama_state_seq_get_size_ext(self._ctx, seq_id, flags)
        state = (ctypes.c_uint8 * size)()
        written = C.llama_state_seq_get_data_ext(self._ctx, state, size, seq_id, flags)
        if written != size:
            raise LlamaError(f"llama.cpp wrote {written} of the {size} bytes of a sequence's state")
        return bytes(state)

    def take_seq(self, other: Context, seq_id: int) -> None:
        """Copies a sequence from another context of the same model and options. ``LlamaError`` where that fails."""
        other._check_seq(seq_id)
        self._check_seq(seq_id)
        size = C.llama_state_seq_get_size(other._ctx, seq_id)
        state = (ctypes.c_uint8 * size)()
        written = C.llama_state_seq_get_data(other._ctx, state, size, seq_id)
        if written != size or not C.llama_state_seq_set_data(self._ctx, state, size, seq_id):
            raise LlamaError(f"llama.cpp cannot copy a sequence: {first_error()}")

    def set_seq_state(self, seq_id: int, state: bytes, *, partial: bool = False) -> None:
        """Puts what ``seq_state`` gave into the cache. ``LlamaError`` where it does not fit this model."""
        self._check_seq(seq_id)
        clear_log()
        source = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        flags = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY if partial else C.LLAMA_STATE_SEQ_FLAGS_NONE
        if not C.llama_state_seq_set_data_ext(self._ctx, source, len(state), seq_id, flags):
            raise LlamaError(f"llama.cpp cannot take a sequence's state: {first_error()}")

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
        self._check_open()
        # llama.cpp would take a negative id as "every sequence".
        if not 0 <= seq_id < self.n_seq_max:
            raise MisuseError(f"sequence {seq_id} of {self.n_seq_max}")

    def _check_open(self) -> None:
        if not self._ctx:
            raise MisuseError("the context is closed")

    def clear(self) -> None:
        """Forgets every sequence."""
        self._check_open()
        C.llama_memory_clear(self._memory, False)

    def close(self) -> None:
        """Frees the cache. Safe to call twice; call it before the model's ``close``."""
        if self._ctx:
            C.llama_free(self._ctx)
            self._ctx, self._wanted = None, b""  # its logits went with it

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
