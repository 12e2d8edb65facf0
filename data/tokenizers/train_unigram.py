"""A Unigram tokenizer trained on the run's own text: SentencePiece's other kind, as T5's and XLM-R's.

The most probable of all ways to make a text of tokens is taken. The exported file is of llama.cpp's type ``t5``, which
has no byte fallback: a character that the sample never had is ``<unk>`` there, so it is here, too, and is lost. So that
llama.cpp, transformers and training have the same ids,

- scores are multiples of 1/64, so that every sum of them is exact, in any order;
- ``<`` is a token alone, so that no token spells ``<unk>`` or the end of a text;
- no token has a space behind a letter or sign. Text may be cut there: what follows begins with a known character.

Tested in tests/slm/vocabulary/test_trained_splits.py.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from slm.data.config import Split
from slm.data.tokenizers.from_sentencepiece import SPACE
from slm.data.tokenizers.sample import Sample
from slm.data.tokenizers.tokenizer import EOT
from slm.data.tokenizers.train_characters import LEARN_FROM, UNKNOWN, WORDS, files_of, isolated

FIRST = [UNKNOWN, EOT]
"""The tokens that are there before any text is read."""
_ALONE = "<"
_ALWAYS = [SPACE, "\n", "\t", *map(chr, range(ord("!"), 127))]
"""Characters that are tokens whatever the text has: chat templates and questions have them."""
_CUT = re.compile(rf"[^\s{SPACE}]{SPACE}")
_STEP = 64
"""Scores are multiples of 1 / ``_STEP``."""
_LEAST = 2
"""Nats below the rarest token: the score of the characters that are tokens for the sake of having them."""


def train(
    documents: Iterable[str],
    *,
    vocab_size: int,
    min_frequency: int = 2,
    sample_bytes: int = 50_000_000,
    split: Split = "gpt2",
) -> dict[str, bytes]:
    """Tokenizer files with up to ``vocab_size`` ids. Half of them are left to single characters at most, the most
    frequent ones.

    It reads documents up to ``sample_bytes`` bytes of UTF-8. Id 0 is ``<unk>``, id 1 the end-of-text token. ``split``
    says what a token may reach over. ``min_frequency`` counts for nothing: likelihood decides. Raises UserError if
    there is no text at all.
    """
    del min_frequency
    room = vocab_size - len(FIRST)
    sample = Sample(documents, sample_bytes)
    # A text's own U+2581 is a space to every tokenizer of this form.
    texts = [text.replace(SPACE, " ") for text in sample]
    sample.require_text()
    learner = Tokenizer(models.Unigram())
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="never", split=False)
    apart = pre_tokenizers.Split(_ALONE, "isolated")
    learner.pre_tokenizer = pre_tokenizers.Sequence([*LEARN_FROM[split], apart, spaces])
    trainer = trainers.UnigramTrainer(
        vocab_size=room,
        unk_token=UNKNOWN,
        special_tokens=list[AddedToken](),
        show_progress=False,
    )
    learner.train_from_iterator(_with_characters(texts, room // 2), trainer=trainer)
    learned: list[tuple[str, float]] = json.loads(learner.to_str())["model"]["vocab"]
    # The library adds characters that it has not chosen at the end, in no order, each by a ten thousandth further up.
    last = min(score for _, score in learned)
    added = last + 1e-4 * len(learned)
    found = sorted((last - score if score > added else 0.0, piece) for piece, score in learned)
    pieces = [(piece, last - cost) for cost, piece in found if piece not in FIRST and _can_be_token(piece)]
    others = [each for each in pieces if each[0] not in _ALWAYS][: room - len(_ALWAYS)]
    return of_pieces(dict([*others, *(each for each in pieces if each[0] in _ALWAYS)]))


def _with_characters(texts: list[str], most: int) -> list[str]:
    """The texts with their most frequent characters alone, and spaces in place of others: the trainer makes each
    character a token, however many there are."""
    counts = Counter[str]()
    for text in texts:
        counts.update(text)
    if rare := sorted(counts, key=lambda each: (-counts[each], each))[most:]:
        table = str.maketrans(dict.fromkeys(rare, " "))
        texts = [text.translate(table) for text in texts]
    return texts


def of_pieces(scores: dict[str, float]) -> dict[str, bytes]:
    """Tokenizer files with these tokens behind ``FIRST``, the most probable first, by their logarithms."""
    kept = {piece: round(score * _STEP) / _STEP for piece, score in scores.items()}
    least = min(kept.values(), default=0.0) - _LEAST
    kept |= {each: least for each in _ALWAYS if each not in kept}
    pieces = sorted(kept.items(), key=lambda each: (-each[1], each[0]))
    model = {
        "type": "Unigram",
        "unk_id": 0,
        "byte_fallback": False,
        "vocab": [*([name, 0.0] for name in FIRST), *map(list, pieces)],
    }
    apart = [isolated({"Regex": WORDS}), isolated({"String": _ALONE})]
    return files_of(model, pre_tokenizer={"type": "Sequence", "pretokenizers": apart})


def _can_be_token(piece: str) -> bool:
    """Whether it holds ``<`` alone, and no space behind a letter or sign."""
    return len(piece) == 1 or (_ALONE not in piece and not _CUT.search(piece))
