"""The model's loss on held-out text, and samples of what it writes.

Shape suffixes: N validation blocks, T positions, V vocabulary.

Tested in tests/train/test_main.py, tests/train/test_reliability.py.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from slm.data.chat.template import TemplateRefusesError
from slm.data.chat.tokens import ChatEncoder, own_template
from slm.data.errors import UserError
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model.cross_entropy import IGNORED
from slm.model.generate import generate
from slm.model.transformer import LanguageModel
from slm.train.backend import Backend
from slm.train.distributed.ranks import SINGLE_PROCESS, Ranks
from slm.train.objective.batch import split
from slm.train.objective.objective import CROSS_ENTROPY, Objective


@dataclass(frozen=True)
class Validation:
    """Held-out loss."""

    loss: float
    """Mean cross-entropy, nats per token, over every scored target (in a plain text that is every target); or the mean
    loss of pairs of answers."""
    bits_per_byte: float
    """Bits spent on ordinary tokens over the UTF-8 bytes they stand for (end-of-text tokens are in neither)."""
    tokens: int
    """Targets scored, or pairs."""
    figures: dict[str, float] = field(default_factory=dict)
    """The objective's further figures: means over what is scored."""


class Validator:
    """Scores the same blocks each time, in batches of training's own shape."""

    def __init__(
        self,
        blocks_NT1: np.ndarray,
        tokenizer: Tokenizer,
        vocab_size: int,
        micro_batch: int,
        objective: Objective = CROSS_ENTROPY,
    ) -> None:
        self.blocks, self.micro_batch, self._objective = blocks_NT1, micro_batch, objective
        lengths = np.zeros(vocab_size, dtype=np.int64)
        lengths[: tokenizer.vocab_size] = tokenizer.byte_lengths()
        self.byte_lengths_V = torch.from_numpy(lengths)

    @torch.no_grad()
    def __call__(
        self,
        backend: Backend,
        stopped: Callable[[], bool] = lambda: False,
        ranks: Ranks = SINGLE_PROCESS,
        progress: Callable[[float], None] = lambda share: None,
    ) -> Validation | None:
        """Score the model, each rank its share of the blocks; None where ``stopped`` became true on one of them.

        ``progress`` is told the share that is done."""
        nats, text_nats, n_bytes, n_tokens = 0.0, 0.0, 0, 0
        sums = dict.fromkeys(self._objective.held_out_figures, 0.0)
        interrupted = False
        starts = range(0, len(self.blocks), self.micro_batch)
        for start in starts[ranks.rank :: ranks.size]:
            if interrupted := stopped():
                break
            progress(start / len(self.blocks))
            batch = split(self.blocks[start : start + self.micro_batch])
            losses_BT = self._losses(backend, start)
            part = self._objective.held_out(batch, losses_BT)
            text_BT = self._objective.text(batch)
            scored_BT = text_BT != IGNORED
            lengths_N = self.byte_lengths_V[text_BT[scored_BT]]
            text_nats += losses_BT[scored_BT][lengths_N > 0].double().sum().item()
            n_bytes += int(lengths_N.sum())
            nats += part.loss
            n_tokens += part.count
            sums = {name: total + part.sums[name] for name, total in sums.items()}
        own = [nats, text_nats, n_bytes, n_tokens, interrupted, *sums.values()]
        nats, text_nats, all_bytes, all_tokens, any_interrupted, *summed = ranks.all_reduce_sum(own)
        if any_interrupted:
            return None
        bits = text_nats / math.log(2)
        return Validation(
            loss=nats / max(1, all_tokens),
            bits_per_byte=bits / max(1, all_bytes),
            tokens=int(all_tokens),
            figures={name: total / max(1, all_tokens) for name, total in zip(sums, summed, strict=True)},
        )

    def _losses(self, backend: Backend, start: int) -> Tensor:
        """The loss of each position [B, T] of the micro-batch that begins at block ``start``, the last one's B may be
        smaller.

        A compiled step is made for one shape, so the last micro-batch is filled up with its last block.
        """
        blocks_BT1 = self.blocks[start : start + self.micro_batch]
        missing = min(self.micro_batch, len(self.blocks)) - len(blocks_BT1)
        filled_BT1 = np.concatenate([blocks_BT1, np.repeat(blocks_BT1[-1:], missing, axis=0)])
        return backend.losses(*split(filled_BT1))[: len(blocks_BT1)]


def sample(model: LanguageModel, tokenizer: Tokenizer, prompt: str, *, max_tokens: int, temperature: float) -> str:
    """The prompt and the model's continuation, as text. The same weights give the same text.

    A model with a chat template answers the prompt instead.
    """
    stop_ids: set[int | None] = {tokenizer.eot_id}
    ids, given = [*tokenizer.document_start, *tokenizer.encode(prompt)], prompt
    if own_template(tokenizer):
        with suppress(UserError, TemplateRefusesError):  # a template that does not render: the prompt is continued
            chat = ChatEncoder(tokenizer)
            ids, given = chat.prompt([{"role": "user", "content": prompt}]), f"> {prompt}\n"
            stop_ids.add(chat.end_of_turn)
    new = generate(
        model,
        ids,
        max_tokens=max_tokens,
        temperature=temperature,
        stop_ids=tuple(each for each in stop_ids if each is not None),
        seed=len(prompt),
    )
    return given + tokenizer.decode(new)
