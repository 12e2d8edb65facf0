"""Carries plans out on llama.cpp: the part of the engine that computes."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait

import numpy as np

from slm.llama.adapter import Adapter
from slm.llama.context import Batch, Context
from slm.llama.errors import LlamaError
from slm.llama.model import Model
from slm.llama.sampler import Sampler
from slm.machine.free_cores import FreeCores, ThreadCount
from slm.machine.hardware import compute_threads
from slm.serve.engine.batch_plan import MIN_CACHED, MIN_COPIED, Plan
from slm.serve.engine.config import DEFAULT_CONTEXT, EngineConfig
from slm.serve.engine.kv_growth import KvGrowth, first_length
from slm.serve.engine.protocol import FimTokens, ModelInfo, RankForm
from slm.serve.engine.states.checkpoints import Checkpoints
from slm.serve.engine.states.displaced import Displaced


class SlotTooShortError(LlamaError):
    """There is no memory for longer slots than of ``length`` tokens."""

    def __init__(self, length: int, reason: str) -> None:
        super().__init__(f"there is no memory for more than {length} tokens of a sequence ({reason})")
        self.length = length


class ModelRunner:
    """A model, the adapter on it where one is configured, its KV cache and one batch.

    Raises ``UserError`` or ``LlamaError`` where a file cannot be served.
    """

    def __init__(self, config: EngineConfig) -> None:
        started = time.perf_counter()
        server = multiprocessing.parent_process()
        free_cores = FreeCores([server.pid] if server is not None and server.pid is not None else [])
        self.model = Model(config.model_path, n_gpu_layers=config.n_gpu_layers)
        context = config.context or min(self.model.n_ctx_train, DEFAULT_CONTEXT)
        shared = config.kv_tokens > 0
        self._batch_invariant = config.exact
        threads = config.threads or compute_threads()
        self._thread_count = (
            ThreadCount(threads, free_cores) if config.adapt_threads and not config.exact and threads > 1 else None
        )

        # In one cache for all, slots have no length; a state or a window takes the same whatever is written into it.
        grows = not shared and self.model.keeps_cells and self.model.causal
        length = first_length(context, config.slots * config.slot_bytes) if grows else context

        def make_context(length: int) -> Context:
            return Context(
                self.model,
                # A sequence that runs alone must be able to finish.
                n_ctx=max(config.kv_tokens, context) if shared else config.slots * length,
                n_batch=config.batch,
                n_ubatch=config.ubatch,
                n_seq_max=config.slots,
                n_threads=threads,
                kv_unified=shared,
                kv_type=config.kv_type,
                kv_type_v=config.kv_type_v,
                flash_attn=config.flash_attn,
                adapter=self.adapter,
            )

        try:
            loaded = {each: Adapter(self.model, each, scale=config.adapter_scale) for each in config.adapter_files}
            self.adapter = loaded[config.adapter] if config.adapter is not None else None
            self._adapters = [loaded[each] for each in config.adapters]
            self.context = make_context(length)
        except BaseException:
            self.model.close()
            raise
        self._own_adapters = tuple(config.adapter_scale if each == config.adapter else 0.0 for each in config.adapters)
        """By what each adapter is multiplied where a request chooses none."""
        self._applied: tuple[float, ...] = ()
        """Those that the context computes with at the moment; (): its own."""
        self._growth = KvGrowth(make_context, now=length, most=context)
        self.mixes = shared
        """Whether one pass takes different numbers of tokens of the sequences."""
        # With one cache, a copy is a mark on the cells. With a cache per slot, the slot's whole cache is copied, which
        # takes about as long as computing a hundredth of its tokens.
        self.min_copied = MIN_CACHED if shared else max(MIN_COPIED, context // 32)
        if not self.model.keeps_cells:
            self.min_copied = 0
        self.keeps_prefixes = self.model.keeps_cells or not shared
        """Whether what a slot holds after a request stays as it is. In one cache for all, the next requests may get the
        cells that a sliding window has left behind."""
        self.keeps_states = self.keeps_prefixes and not self.model.keeps_cells and not config.exact
        """Whether slots go back to states that are kept, and not to any of their tokens."""
        self._checkpoints = Checkpoints()
        self._cut_anywhere: set[int] = set()
        """Slots of such a model that have lost nothing: a window is not full yet."""
        self.batch_limit = self.context.n_batch
        self.batch = Batch(self.batch_limit, config.slots)
        metadata, chat_template = self.model.metadata(), config.chat_template or self.model.chat_template()
        self.info = ModelInfo(
            path=str(config.model_path),
            architecture=metadata.get("general.architecture", "?"),
            n_params=self.model.n_params,
            size_bytes=self.model.size_bytes,
            n_vocab=self.model.n_vocab,
            n_embd=self.model.n_embd,
            n_ctx_train=self.model.n_ctx_train,
            context=context,
            slots=config.slots,
            kv_tokens=self.context.n_ctx if length == context else config.slots * context,
            threads=threads,
            bos=self.model.token_name(self.model.bos),
            eos=self.model.token_name(self.model.eos),
            add_bos=self.model.add_bos,
            chat_template=chat_template,
            control_tokens=self.model.control_names() if chat_template else (),
            load_s=time.perf_counter() - started,
            bos_id=self.model.bos,
            endings=tuple(self.model.eog_tokens),
            ranking=_rank_form(self.model, metadata.get("tokenizer.chat_template.rerank", "")),
            fim=_fim_tokens(self.model),
            sampling=config.sampling.over(metadata),
            adapters=tuple(zip(map(str, config.adapters), self._own_adapters, strict=True)),
        )

    @property
    def threads(self) -> int:
        """Threads of the next batch."""
        return self.context.n_threads

    @property
    def generates(self) -> bool:
        """Whether the model can continue a text: an encoder cannot."""
        return self.context.has_memory

    def grow(self, n: int) -> int:
        """A sequence has ``n`` tokens: longer slots are made in time, in a thread, and taken when they are there.
        Returns the tokens of a slot, or a large number in one cache for all."""
        if self.mixes:
            return 1 << 30
        self._growth.expect(n)
        if self._growth.pending is not None and self._growth.pending.done():
            with contextlib.suppress(SlotTooShortError):
                self._make_long(0)
        return self._growth.length

    @property
    def no_growth(self) -> str | None:
        """Why slots cannot be longer; None where nothing is known against it."""
        failure = self._growth.failure
        return None if failure is None else str(SlotTooShortError(self._growth.length, failure))

    def wait_for_growth(self) -> None:
        """Waits a moment for the slots that are being made."""
        if self._growth.pending is not None:
            wait([self._growth.pending], timeout=0.05)

    def _make_long(self, n: int) -> None:
        """Makes slots long enough for ``n`` tokens. Raises ``SlotTooShortError`` where there is no memory for it."""
        try:
            longer = self._growth.take(n)
            if longer is None:
                return
            for slot in range(longer.n_seq_max):
                if self.context.seq_pos_max(slot) >= 0:
                    longer.take_seq(self.context, slot)
        except LlamaError as error:
            raise SlotTooShortError(self._growth.length, str(error)) from None
        self.context.close()
        self.context, self._applied = longer, ()

    def adapt_threads(self) -> None:
        """Computes with fewer threads while other programs use the cores, and with all again when they have ended."""
        if self._thread_count is not None:
            self.context.set_threads(self._thread_count.update())

    def run(self, plan: Plan) -> list[int]:
        """Computes the batch; returns, per chunk, the batch index of its last token.

        Raises ``KvCacheFull`` when the cache has no room, and ``SlotTooShortError``; then nothing has changed.
        """
        for (_, slot), n_cached, source in zip(plan.admitted, plan.n_cached, plan.copied_from, strict=True):
            if source is not None:
                self.context.seq_rm(slot)
                # A cache per slot can only be copied as a whole; the copy is then cut back.
                self.context.seq_cp(source, slot)
            self._cut(slot, n_cached)
        if not self.mixes:
            self._make_long(max(chunk.start + len(chunk.tokens) for chunk in plan.chunks))
        if plan.adapters != self._applied:
            self._apply(plan.adapters)
        self.batch.clear()
        last = {}
        # llama.cpp computes sequences together only where they follow each other in the order of slots. Backwards, each
        # is computed by itself.
        for chunk in sorted(plan.chunks, key=lambda chunk: chunk.slot, reverse=self._batch_invariant):
            wanted, every = chunk.logits != "none", chunk.logits == "all"
            last[chunk.slot] = self.batch.extend(chunk.tokens, chunk.start, chunk.slot, wanted, every=every)
        self.context.decode(self.batch)
        for chunk in plan.chunks:
            if chunk.keeps_state:
                state = self.context.seq_state(chunk.slot, partial=True)
                self._checkpoints.keep(chunk.slot, chunk.start + len(chunk.tokens), state)
        return [last[chunk.slot] for chunk in plan.chunks]

    def _apply(self, scales: tuple[float, ...]) -> None:
        """Computes with these adapters from now on; (): with the engine's own."""
        chosen = zip(self._adapters, scales or self._own_adapters, strict=True)
        self.context.set_adapters([(adapter, scale) for adapter, scale in chosen if scale])
        self._applied = scales

    def logits(self, index: int) -> np.ndarray:
        """float32 [n_vocab] of a batch entry that asked for logits."""
        return self.context.logits(index)

    def sample(
        self, sampler: Sampler, row: int | np.ndarray, mask: np.ndarray | None = None, held_back: Sequence[int] = ()
    ) -> int:
        """The token that a sampler picks, none of ``held_back``, from the logits of a batch entry, or from a copy of
        some (then with a mask). See ``Sampler.sample``."""
        if held_back:
            logits, ids = self.context.row(row) if isinstance(row, int) else row, np.array(held_back)
            kept = logits[ids]
            logits[ids] = -np.inf
            try:
                return self.sample(sampler, row, mask)
            finally:
                logits[ids] = kept  # log-probabilities are the model's own
        if isinstance(row, int):
            return sampler.sample(self.context, row, mask)
        assert mask is not None
        return sampler.sample_row(row, mask)

    def truncate(self, slot: int, n: int) -> bool:
        """Cuts a slot back to its first ``n`` positions; returns whether it then holds exactly those. It does not where
        llama.cpp keeps only a window of them, or a state instead of cells."""
        return self.context.seq_rm(slot, n) and self.context.seq_pos_range(slot) == (0, n - 1)

    def settle(self, slot: int, n: int) -> bool:
        """Cuts a slot back to its first ``n`` positions at the end of its sequence; returns whether it can serve
        another with the same prefix."""
        if not self.keeps_states:
            return self.truncate(slot, n)
        if not self.context.seq_rm(slot, n):
            return False
        first, last = self.context.seq_pos_range(slot)
        self._cut_anywhere.discard(slot)
        if first == 0:
            self._cut_anywhere.add(slot)
        return last == n - 1

    def kept(self, slots: Sequence[int]) -> Mapping[int, Sequence[int]]:
        """For slots that cannot be cut back everywhere: the token counts after which a state is kept."""
        if not self.keeps_states:
            return {}
        return self._checkpoints.positions([slot for slot in slots if slot not in self._cut_anywhere])

    def _cut(self, slot: int, n: int) -> None:
        if self.keeps_states:
            state = self._checkpoints.get(slot, n)
            if n and slot not in self._cut_anywhere and self.context.seq_pos_max(slot) != n - 1 and state is not None:
                self.context.set_seq_state(slot, state, partial=True)
            self._checkpoints.drop(slot, after=n)
        if not self.context.seq_rm(slot, n) or (n and self.context.seq_pos_max(slot) != n - 1):
            raise LlamaError(f"llama.cpp cannot cut slot {slot} back to {n} tokens")

    def slot_state(self, slot: int, n: int) -> bytes:
        """The keys and values of a free slot's first ``n`` tokens, to which it is cut back: with fixed chunks there may
        be more."""
        if self.context.seq_pos_max(slot) != n - 1:
            self._cut(slot, n)
        return self.context.seq_state(slot)

    def displaced(self, slot: int, tokens: tuple[int, ...]) -> Displaced:
        """What a free slot holds, to be put back later."""
        return Displaced(tokens, self.slot_state(slot, len(tokens)), self._checkpoints.of(slot))

    def put_slot(self, slot: int, state: bytes, n: int, kept: Mapping[int, bytes] | None = None) -> None:
        """Puts what ``slot_state`` gave for ``n`` tokens into a slot, in place of what it holds, and the states that
        were ``kept``. Raises ``LlamaError`` where it does not fit; the slot is then empty."""
        self.free_slot(slot)
        if not self.mixes:
            self._make_long(n)
        try:
            self.context.set_seq_state(slot, state)
            if self.context.seq_pos_max(slot) != n - 1:
                raise LlamaError(f"a state of {self.context.seq_pos_max(slot) + 1} tokens, not of {n}")
        except LlamaError:
            self.free_slot(slot)
            raise
        self._cut_anywhere.discard(slot)
        for position, each in (kept or {}).items():
            self._checkpoints.keep(slot, position, each)

    def free_slot(self, slot: int) -> None:
        """Frees a slot's cells."""
        self.context.seq_rm(slot)
        self._checkpoints.drop(slot)

    def free_all(self) -> None:
        """Frees every cell."""
        self.context.clear()
        self._checkpoints.clear()

    def close(self) -> None:
        """Frees the cache and the model."""
        self._growth.close()
        self.context.close()
        self.model.close()


def _rank_form(model: Model, template: str) -> RankForm | None:
    if model.pooling != "rank":
        return None
    end = model.eos if model.eos >= 0 else model.separator
    begin, end_of_text = (model.bos,) if model.add_bos else (), (end,) if model.add_eos else ()
    between = (*end_of_text, *((model.separator,) if model.add_separator else ()))
    parts = (tuple(each for each in part if each >= 0) for part in (begin, between, end_of_text))
    before, middle, behind = parts
    return RankForm(before=before, between=middle, behind=behind, template=template)


def _fim_tokens(model: Model) -> FimTokens | None:
    if min(model.fim_prefix, model.fim_suffix, model.fim_middle) < 0:
        return None
    return FimTokens(
        prefix=model.fim_prefix,
        suffix=model.fim_suffix,
        middle=model.fim_middle,
        repository=model.fim_repository,
        file=model.fim_file,
    )
