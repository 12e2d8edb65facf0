"""The text that is counted for a run's first weights.

Tested in tests/train/bigrams/test_first_weights.py.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from time import perf_counter

import numpy as np

from slm.data.config import DataConfig
from slm.data.stream.loader import EndOfTextError, Loader
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model.transformer import LanguageModel
from slm.train.bigrams.counts import count_bigrams
from slm.train.bigrams.first_weights import set_first_weights
from slm.train.config import RunConfig


def start_from_bigrams(config: RunConfig, tokenizer: Tokenizer, model: LanguageModel) -> str:
    """Give ``model`` the embedding and head of ``optim.init_bigrams`` pairs of the training text, or of all of it where
    it has fewer. Returns a line that says so."""
    began = perf_counter()
    bigrams = count_bigrams(_once(config, tokenizer), model.config.vocab_size, config.optim.init_bigrams)
    start = set_first_weights(model, bigrams, config.init.embed_std, config.train.seed)
    return (
        f"embedding and head begin as a model of {start.tokens:,} pairs of neighbouring tokens: {start.nats:.3f} nats "
        f"per token before the first step ({perf_counter() - began:.1f} s; optim.init_bigrams=0: random)"
    )


def _once(config: RunConfig, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The training text, read once; where it is shorter than a sequence, one that repeats it."""
    blocks = _sequences(config, replace(config.data, max_epochs=1), tokenizer)
    if (first := next(blocks, None)) is None:
        return islice(_sequences(config, config.data, tokenizer), 1)
    return chain([first], blocks)


def _sequences(config: RunConfig, data: DataConfig, tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """Sequences [1, seq_len + 1] of the text of ``data`` in the order of training, until it ends."""
    train = config.train
    with (
        Loader(
            data,
            tokenizer,
            seq_len=train.seq_len,
            micro_batch=1,
            seed=train.seed,
            workers=0,
            calibrates=config.calibrates_head,
        ) as loader,
        suppress(EndOfTextError),
    ):
        yield from loader
