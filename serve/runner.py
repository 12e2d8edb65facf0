"""The only part of the engine that computes: carries a plan out on llama.cpp."""

from __future__ import annotations

import time

import numpy as np

from serve.config import DEFAULT_CONTEXT, EngineConfig
from serve.messages import ModelInfo
from serve.scheduler import Plan
from slm.hardware import n_threads
from slm.llama_sampler import Sampler
from slm.llamacpp import Batch, Context, LlamaError, Model


class Runner:
    """A model, its KV cache and one batch. Raises `UserError` or `LlamaError` when the file cannot be served."""

    def __init__(self, config: EngineConfig) -> None:
        started = time.perf_counter()
        self.model = Model(config.model_path, n_gpu_layers=config.n_gpu_layers)
        context = config.context or min(self.model.n_ctx_train, DEFAULT_CONTEXT)
        shared = config.kv_tokens > 0
        # A sequence must be able to finish when it is alone.
        kv_tokens = max(config.kv_tokens, context) if shared else config.slots * context
        threads = config.threads or n_threads()
        try:
            self._context = Context(
                self.model,
                n_ctx=kv_tokens,
                n_batch=config.batch,
                n_ubatch=config.ubatch,
                n_seq_max=config.slots,
                n_threads=threads,
                kv_unified=shared,
                kv_type=config.kv_type,
                flash_attn=config.flash_attn,
            )
        except BaseException:
            self.model.close()
            raise
        self.batch_limit = self._context.n_batch
        self._batch = Batch(self.batch_limit, config.slots)
        metadata = self.model.metadata()
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
            kv_tokens=self._context.n_ctx,
            threads=threads,
            bos=self._spelled(self.model.bos),
            eos=self._spelled(self.model.eos),
            add_bos=self.model.add_bos,
            chat_template=self.model.chat_template(),
            load_s=time.perf_counter() - started,
        )

    def _spelled(self, token: int) -> str:
        return self.model.token_to_piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def run(self, plan: Plan) -> list[int]:
        """Computes the batch; returns, per chunk, the batch index of its last token.

        Raises `KvCacheFull` when the cache has no room, and then nothing has changed.
        """
        for (_, slot), n_kept in zip(plan.admitted, plan.kept, strict=True):
            if not self._context.seq_rm(slot, n_kept):
                raise LlamaError(f"llama.cpp cannot cut slot {slot} back to {n_kept} tokens")
        self._batch.clear()
        last = {}
        # In the order of slots: llama.cpp computes together only those that follow each other.
        for chunk in sorted(plan.chunks, key=lambda chunk: chunk.slot):
            wanted, every = chunk.logits != "none", chunk.logits == "all"
            last[chunk.slot] = self._batch.extend(chunk.tokens, chunk.start, chunk.slot, wanted, every=every)
        self._context.decode(self._batch)
        return [last[chunk.slot] for chunk in plan.chunks]

    def logits(self, index: int) -> np.ndarray:
        """float32 [n_vocab] of a batch entry that asked for logits."""
        return self._context.logits(index)

    def sample(self, sampler: Sampler, index: int) -> int:
        """The chain's pick from the logits of a batch entry."""
        return sampler.sample(self._context, index)

    def holds(self, slot: int, n: int) -> bool:
        """Whether a slot holds exactly positions 0 to n - 1. Not so where llama.cpp keeps a window of them, or a
        state instead of cells."""
        return self._context.seq_pos_range(slot) == (0, n - 1)

    def forget(self, slot: int) -> None:
        """Frees a slot's cells."""
        self._context.seq_rm(slot)

    def forget_all(self) -> None:
        """Frees every cell."""
        self._context.clear()

    def close(self) -> None:
        """Frees the cache and the model."""
        self._context.close()
        self.model.close()
