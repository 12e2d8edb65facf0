"""Carries plans out on llama.cpp: the part of the engine that computes."""

from __future__ import annotations

import multiprocessing
import time

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
from slm.serve.engine.messages import ModelInfo


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
        # A sequence that runs alone must be able to finish.
        kv_tokens = max(config.kv_tokens, context) if shared else config.slots * context
        self._batch_invariant = config.exact
        threads = config.threads or compute_threads()
        self._thread_count = (
            ThreadCount(threads, free_cores) if config.adapt_threads and not config.exact and threads > 1 else None
        )
        try:
            self.adapter = Adapter(self.model, config.adapter) if config.adapter is not None else None
            self.context = Context(
                self.model,
                n_ctx=kv_tokens,
                n_batch=config.batch,
                n_ubatch=config.ubatch,
                n_seq_max=config.slots,
                n_threads=threads,
                kv_unified=shared,
                kv_type=config.kv_type,
                flash_attn=config.flash_attn,
                adapter=self.adapter,
            )
        except BaseException:
            self.model.close()
            raise
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
        self.batch_limit = self.context.n_batch
        self.batch = Batch(self.batch_limit, config.slots)
        metadata, chat_template = self.model.metadata(), self.model.chat_template()
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
            kv_tokens=self.context.n_ctx,
            threads=threads,
            bos=self.model.token_name(self.model.bos),
            eos=self.model.token_name(self.model.eos),
            add_bos=self.model.add_bos,
            chat_template=chat_template,
            control_tokens=self.model.control_names() if chat_template else (),
            load_s=time.perf_counter() - started,
        )

    @property
    def threads(self) -> int:
        """Threads of the next batch."""
        return self.context.n_threads

    def adapt_threads(self) -> None:
        """Computes with fewer threads while other programs use the cores, and with all again when they have ended."""
        if self._thread_count is not None:
            self.context.set_threads(self._thread_count.update())

    def run(self, plan: Plan) -> list[int]:
        """Computes the batch; returns, per chunk, the batch index of its last token.

        Raises ``KvCacheFull`` when the cache has no room, and then nothing has changed.
        """
        for (_, slot), n_cached, source in zip(plan.admitted, plan.n_cached, plan.copied_from, strict=True):
            if source is not None:
                self.context.seq_rm(slot)
                # A cache per slot can only be copied as a whole; the copy is then cut back.
                self.context.seq_cp(source, slot)
            if not self.context.seq_rm(slot, n_cached):
                raise LlamaError(f"llama.cpp cannot cut slot {slot} back to {n_cached} tokens")
        self.batch.clear()
        last = {}
        # llama.cpp computes sequences together only where they follow each other in the order of slots. Backwards, each
        # is computed by itself.
        for chunk in sorted(plan.chunks, key=lambda chunk: chunk.slot, reverse=self._batch_invariant):
            wanted, every = chunk.logits != "none", chunk.logits == "all"
            last[chunk.slot] = self.batch.extend(chunk.tokens, chunk.start, chunk.slot, wanted, every=every)
        self.context.decode(self.batch)
        return [last[chunk.slot] for chunk in plan.chunks]

    def logits(self, index: int) -> np.ndarray:
        """float32 [n_vocab] of a batch entry that asked for logits."""
        return self.context.logits(index)

    def sample(self, sampler: Sampler, row: int | np.ndarray, mask: np.ndarray | None = None) -> int:
        """The token that a sampler picks from the logits of a batch entry, or from a copy of some (then with a mask).
        See ``Sampler.sample``."""
        if isinstance(row, int):
            return sampler.sample(self.context, row, mask)
        assert mask is not None
        return sampler.sample_row(row, mask)

    def truncate(self, slot: int, n: int) -> bool:
        """Cuts a slot back to its first ``n`` positions; returns whether it then holds exactly those. It does not where
        llama.cpp keeps only a window of them, or a state instead of cells."""
        return self.context.seq_rm(slot, n) and self.context.seq_pos_range(slot) == (0, n - 1)

    def free_slot(self, slot: int) -> None:
        """Frees a slot's cells."""
        self.context.seq_rm(slot)

    def free_all(self) -> None:
        """Frees every cell."""
        self.context.clear()

    def close(self) -> None:
        """Frees the cache and the model."""
        self.context.close()
        self.model.close()
