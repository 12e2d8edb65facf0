"""A byte-level BPE trained on the run's own text, with a pre-tokenizer that llama.cpp knows.

It has all bytes, so that it can spell every text. ``tokenizer.split`` says how text is cut before pairs are merged.
"""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from slm.data.config import Split
from slm.data.tokenizers.sample import Sample
from slm.data.tokenizers.splits import QWEN2
from slm.data.tokenizers.tokenizer import EOT, tokenizer_config


def _splitting(split: Split) -> pre_tokenizers.PreTokenizer:
    """What cuts text: by GPT-2's rule, by it and between digits as SmolLM, or for code as Qwen 2."""
    if split == "code":
        steps = [pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
        return pre_tokenizers.Sequence(steps)
    by_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if split == "digits":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), by_words])
    return by_words


def train(
    documents: Iterable[str],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    sample_bytes: int = 50_000_000,
    split: Split = "gpt2",
) -> dict[str, bytes]:
    """Tokenizer files of a BPE with up to ``vocab_size`` ids (fewer if the text has too few pairs).

    It reads documents up to ``sample_bytes`` bytes of UTF-8. The same documents give the same tokenizer. Id 0 is the
    end-of-text token. Raises UserError if there is no text at all.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _splitting(split)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(EOT, special=True, normalized=False)],
        show_progress=False,
    )
    # Text that spells a special token is ordinary text to learn from.
    tokenizer.encode_special_tokens = True
    sample = Sample(documents, sample_bytes)
    tokenizer.train_from_iterator(sample, trainer=trainer)
    sample.require_text()
    return {
        "tokenizer.json": tokenizer.to_str(pretty=False).encode(),
        "tokenizer_config.json": tokenizer_config(eot=EOT),
    }
