"""A BPE over characters with byte fallback, trained on the run's own text: SentencePiece's form, as Llama 2's.

A character that the vocabulary lacks is spelled by the tokens of its bytes, ``<0x00>`` to ``<0xFF>``. The exported file
is of llama.cpp's type ``llama``, which knows no list of merges: it joins any two neighbours that make a token together,
the token with the best score first, of equal ones the left. So that a ``tokenizer.json``, which merges by listed pairs,
has the same ids,

- every way to make a token of two others is listed, by the token's rank;
- nothing that could be joined to the name of a special token or of a byte is a token.

Tested in tests/slm/vocabulary/test_trained_splits.py.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers, trainers

from slm.data.config import Split
from slm.data.tokenizers.from_sentencepiece import SPACE
from slm.data.tokenizers.sample import Sample
from slm.data.tokenizers.splits import GPT2, QWEN2
from slm.data.tokenizers.tokenizer import EOT, special_token, tokenizer_config

UNKNOWN = "<unk>"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
FIRST = [UNKNOWN, EOT, *BYTES]
"""The tokens that are there before any text is read."""
LEARN_FROM: dict[str, list[Any]] = {
    "gpt2": [pre_tokenizers.Split(Regex(GPT2), "isolated")],
    "digits": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Split(Regex(GPT2), "isolated")],
    "code": [pre_tokenizers.Split(Regex(QWEN2), "isolated")],
}
WORDS = rf"(?m:.)(?:[^{SPACE}]|(?<=[\s{SPACE}]){SPACE})*"
"""Cuts before a space that follows something else. No token reaches over that, so it changes no id and saves time."""


def train(
    documents: Iterable[str],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    sample_bytes: int = 50_000_000,
    split: Split = "gpt2",
) -> dict[str, bytes]:
    """Tokenizer files with up to ``vocab_size`` ids. It reads documents up to ``sample_bytes`` bytes of UTF-8.

    A quarter of the ids are left to single characters at most, the most frequent ones. Id 1 is the end-of-text token.
    ``split`` says what a token may reach over, while it is learned. Raises UserError if there is no text at all.
    """
    room = vocab_size - len(FIRST)
    learner = Tokenizer(models.BPE())
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=False)
    learner.pre_tokenizer = pre_tokenizers.Sequence([*LEARN_FROM[split], spaces])
    trainer = trainers.BpeTrainer(
        vocab_size=max(room, 1),
        min_frequency=min_frequency,
        limit_alphabet=max(room // 4, 1),
        initial_alphabet=[SPACE],
        special_tokens=list[AddedToken](),
        show_progress=False,
    )
    sample = Sample(documents, sample_bytes)
    # A text's own U+2581 is a space to every tokenizer of this form.
    learner.train_from_iterator((text.replace(SPACE, " ") for text in sample), trainer=trainer)
    sample.require_text()
    learned = sorted(learner.get_vocab(with_added_tokens=False).items(), key=lambda each: each[1])
    return of_pieces([piece for piece, _ in learned if can_be_token(piece)][:room])


def of_pieces(pieces: list[str]) -> dict[str, bytes]:
    """Tokenizer files with these tokens behind ``FIRST``, the best first; each is one that ``can_be_token``."""
    return files_of(_model(pieces), pre_tokenizer=isolated({"Regex": WORDS}), decoders=[{"type": "ByteFallback"}])


def isolated(pattern: dict[str, str]) -> dict[str, Any]:
    """A pre-tokenizer that makes each match of a pattern a piece."""
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def files_of(
    model: dict[str, Any], *, pre_tokenizer: dict[str, Any], decoders: Sequence[dict[str, Any]] = ()
) -> dict[str, bytes]:
    """Files of a tokenizer of SentencePiece's form: spaces are U+2581, id 0 is ``<unk>``, id 1 the end-of-text token.
    ``decoders``: what else its tokens need to become text again."""
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special_token(id, name) for id, name in enumerate((UNKNOWN, EOT))],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        "pre_tokenizer": pre_tokenizer,
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                *decoders,
                {"type": "Fuse"},
            ],
        },
        "model": model,
    }
    return {
        "tokenizer.json": json.dumps(spec, ensure_ascii=False, separators=(",", ":")).encode(),
        "tokenizer_config.json": tokenizer_config(eot=EOT, unk_token=UNKNOWN),
    }


def _model(pieces: list[str]) -> dict[str, Any]:
    """The ``model`` section: every pair that makes a piece, in the order of the pieces."""
    known = set(pieces)
    merges = [
        [piece[:cut], piece[cut:]]
        for piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": UNKNOWN,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": {piece: id for id, piece in enumerate([*FIRST, *pieces])},
        "merges": merges,
    }


def can_be_token(piece: str) -> bool:
    """Whether ``tokenizer.json`` and llama.cpp have the same ids with this token."""
    return len(piece) == 1 or not _IN_A_NAME.fullmatch(piece)


def _halves(name: str) -> set[str]:
    """The beginnings and ends of a name, at least half as long: each way to cut it in two has one of them."""
    least = (len(name) + 1) // 2
    return (
        {name} | {name[:size] for size in range(least, len(name))} | {name[-size:] for size in range(least, len(name))}
    )


_IN_A_NAME = re.compile("|".join(re.escape(half) for name in FIRST for half in sorted(_halves(name))))
