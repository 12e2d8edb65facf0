"""The model that a run begins with.

Tested in tests/train/test_main.py, tests/train/lora/test_lora_run.py, tests/train/beginning/test_model.py.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from slm.data.errors import UserError
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.kernels.fused import unsupported_shape
from slm.model import checkpoint, resize
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.train.backend import attention_bytes
from slm.train.bigrams.start import start_from_bigrams
from slm.train.config import RunConfig
from slm.train.distributed.ranks import Ranks
from slm.train.environment import Environment
from slm.train.lora import held_base
from slm.train.lora.base import base_directory, keep_base, kept_base, new_ids
from slm.train.memory import check_memory


@dataclass(frozen=True, kw_only=True)
class FirstModel:
    """A model with its first weights, the same on every rank."""

    model: LanguageModel
    notes: tuple[str | None, ...]
    """Lines: where memory may be too small, how a base is held, which tokens it has no rows for, and what weights
    begin as bigrams."""


def new_model(
    config: RunConfig, tokenizer: Tokenizer, ranks: Ranks, root: Path, environment: Environment, *, new: bool
) -> FirstModel:
    """The model. ``new``: no checkpoint will take the place of its weights. UserError where memory is too small."""
    train, directory = config.train, base_directory(config, root)
    if directory:
        chat = tokenizer if config.data.has_chat else None
        shape = ranks.broadcast_from_main(lambda: starting_shape(directory, train.seq_len, chat, config.lora.rank))
    else:
        shape = config.model.model_config(
            vocab_size=tokenizer.vocab_size, seq_len=train.seq_len, eos_id=tokenizer.eot_id
        )
    frozen = config.preference.loss == "dpo" or config.distill.teacher == "self"
    masked = train.mask_documents or config.data.has_chat or any(shape.local_layers)
    attention = attention_bytes(shape, train, environment, masked=masked)
    kernels, base = environment.kernels, held_base.choose(config, shape, environment, processes=ranks.size)
    warning = check_memory(
        shape,
        train,
        optimizer=config.optim.name,
        rank=config.lora.rank,
        base_bits=base.bits,
        frozen=frozen,
        attention=attention,
        value_bytes=2 if environment.precision == "bf16" else 4,
        packed=kernels is not None
        and unsupported_shape(shape, kernels) is None
        and train.recompute == "none"
        and not config.lora.rank  # kept only where there is room
        and not config.optim.within_backward,
    )
    torch.manual_seed(train.seed)
    if directory and ranks.main:
        added = new_ids(directory, tokenizer) if config.lora.rank else range(0)
        held = base.bits < 32
        if held:
            model = held_base.load(directory, shape, base.bits, spread=added)
        else:
            model = resize.load_model(directory, shape, spread=added)
        if (added or held) and not kept_base(root):
            keep_base(root, model, tokenizer)
    else:
        model = LanguageModel(shape, config.init)
    first = None
    rows = without_rows(directory, tokenizer, shape) if directory and ranks.main else None
    if new and ranks.main and config.optim.init_bigrams:
        first = start_from_bigrams(config, tokenizer, model)
    model.train()
    ranks.broadcast(list(model.parameters()))
    return FirstModel(model=model, notes=(warning, base.line, rows, first))


def without_rows(directory: str, tokenizer: Tokenizer, shape: ModelConfig) -> str | None:
    """A line where the tokenizer in ``directory`` has more ids than the model there has rows, so that the ``shape`` of
    the run has more."""
    stored = checkpoint.load_config(directory).vocab_size
    if shape.vocab_size == stored or (known := new_ids(directory, tokenizer).start) <= stored:
        return None
    return (
        f"the tokenizer of {directory} has {known:,} ids, and the model {stored:,} rows (vocab_size in config.json): "
        f"the other {known - stored:,} tokens begin as the mean of all; is it this model's tokenizer?"
    )


def starting_shape(directory: str, seq_len: int, chat: Tokenizer | None, rank: int = 0) -> ModelConfig:
    """The shape of the Hugging Face model in ``directory``; UserError where ``seq_len`` tokens exceed its context, or
    an adapter of this ``rank`` its width.

    With ``chat``, the tokenizer of a model that is tuned on conversations, the vocabulary has a row for each of its ids
    and a turn ends with its end-of-text token. The context is then at least ``seq_len``: a sequence holds several
    conversations that do not see each other.
    """
    shape = checkpoint.load_config(directory)
    if rank > shape.d_model:
        raise UserError(
            f"a LoRA rank of {rank:,} is over the width of {directory} ({shape.d_model:,}), so the adapter would be "
            "larger than the weights: use for example 16"
        )
    if chat is not None:
        bos_id = shape.eos_id if shape.bos_id is None else shape.bos_id
        grown = resize.with_vocabulary(shape, chat.vocab_size, bos_id=bos_id, eos_id=chat.eot_id)
        return replace(grown, seq_len=max(seq_len, shape.seq_len))
    if seq_len > shape.seq_len:
        raise UserError(
            f"train.seq_len={seq_len} is longer than the context of {directory}: "
            f"use train.seq_len={shape.seq_len} or less"
        )
    return shape
