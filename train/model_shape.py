"""The shape of a run's model from the configuration alone.

Tested in tests/train/tools/test_plan.py, tests/slm/test_presets.py.
"""

from dataclasses import replace
from pathlib import Path

from slm.model.config import ModelConfig
from slm.train.config import RunConfig
from slm.train.resolve import with_corpus_tokenizer

TIKTOKEN_IDS = {"gpt2": 50_257, "r50k_base": 50_257, "p50k_base": 50_281, "cl100k_base": 100_277, "o200k_base": 200_019}


def model_shape(config: RunConfig) -> ModelConfig:
    """The model of a configuration before its tokenizer exists: the settings give the vocabulary's size, or the model
    that the run starts from gives all.

    A tokenizer that is neither trained here nor listed in ``TIKTOKEN_IDS`` is loaded to count its ids.
    """
    if config.init_from:
        from slm.hub.models import directory
        from slm.model.checkpoint import load_config

        return replace(load_config(directory(config.init_from)), seq_len=config.train.seq_len)
    tokenizer = with_corpus_tokenizer(config).tokenizer
    if tokenizer.trained:
        ids = tokenizer.vocab_size
    elif tokenizer.kind == "tiktoken" and tokenizer.name in TIKTOKEN_IDS:
        ids = TIKTOKEN_IDS[tokenizer.name]
    else:
        from slm.data.tokenizers.make import load_tokenizer, make_tokenizer

        path = Path(tokenizer.path) if tokenizer.path else None
        ids = (load_tokenizer(path) if path else make_tokenizer(tokenizer, lambda: iter(()))).vocab_size
    return config.model.model_config(vocab_size=ids, seq_len=config.train.seq_len, eos_id=None)
