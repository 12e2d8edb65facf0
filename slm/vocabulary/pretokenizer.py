"""Which of llama.cpp's named pre-tokenizers splits text the way a ``tokenizer.json`` does.

llama.cpp does not read a tokenizer's own split rules: it has a list of them by name, and the GGUF holds the name
(``tokenizer.ggml.pre``). A wrong name changes token ids silently. Two ways lead to the name:

1. the fingerprint of a published vocabulary: llama.cpp's converter hashes the ids of one fixed string
   (``get_vocab_base_pre`` in its conversion/base.py; the string and the hashes below are that interface);
2. the structure of the pre-tokenizer: what a tokenizer trained here has, whatever its vocabulary.

Where both know a name and these split otherwise, the structure is right. Whatever name comes out, export compares token
ids afterwards and refuses the file where they differ.
"""

import hashlib
from typing import Any

from slm.data.errors import UserError
from slm.data.tokenizers.splits import GPT2, SPLITS, WHOLE_WORDS
from slm.vocabulary.fingerprints import FINGERPRINTS

FINGERPRINT_TEXT = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emojis concatenated) ✅ "
    "🦙🦙 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ "
    "------======= нещо на Български ''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you "
    "sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL"
)

SPELLINGS = {
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": GPT2,
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+$|\s+(?!\S)|\s": GPT2,
}
"""Other ways in which tokenizer.json files spell a split."""
_KNOWN = frozenset(regex for split in SPLITS.values() for regex in split)


def identify(tokenizer_json: dict[str, Any], fingerprint_ids: list[int], option: str = "pre") -> str:
    """The name for ``tokenizer.ggml.pre`` of a byte-level BPE tokenizer.

    ``fingerprint_ids`` are the tokenizer's ids of FINGERPRINT_TEXT, special tokens added as it usually adds them.
    Raises UserError that shows the unknown pre-tokenizer.
    """
    named = FINGERPRINTS.get(hashlib.sha256(str(fingerprint_ids).encode()).hexdigest())
    model = tokenizer_json.get("model") or {}
    found = by_structure(tokenizer_json.get("pre_tokenizer"), whole_words=model.get("ignore_merges"))
    # Two splits may give one text the same ids: then what the tokenizer does is right.
    if named and (found is None or SPLITS.get(named) in (None, SPLITS[found])):
        return named
    if found:
        return found
    shown = describe(tokenizer_json.get("pre_tokenizer"))
    raise UserError(
        f"the tokenizer splits text by a rule that is not known here ({shown}); if llama.cpp has the same rule, give "
        f"its name as {option}=NAME (gpt-2, llama-bpe, qwen2, smollm, ...): the file is kept only if its ids are equal"
    )


def by_structure(pre_tokenizer: dict[str, Any] | None, *, whole_words: bool | None = None) -> str | None:
    """llama.cpp's name for a ``pre_tokenizer`` section, or None where the structure is not a known one.

    ``whole_words``: whether pieces are looked up whole before they are merged (``ignore_merges``), where that is known.
    If several names have one split, one that does so is taken.
    """
    steps = steps_of(pre_tokenizer)
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    *splits, byte_level = steps
    regexes = [_regex(each, only=len(splits) == 1) for each in splits]
    if byte_level.get("use_regex", True):
        regexes.append(GPT2)
    names = [name for name, split in SPLITS.items() if list(split) == regexes]
    fitting = [name for name in names if whole_words is None or (name in WHOLE_WORDS) == whole_words]
    return next(iter(fitting or names), None)


def _regex(step: dict[str, Any], *, only: bool) -> str | None:
    """What a step cuts out, in this module's spelling; None for one of another kind. ``only``: it is the only one."""
    if step.get("type") == "Digits":
        return r"\p{N}" if step.get("individual_digits") else None
    if step.get("type") != "Split":
        return None
    # Keeping what matches, or removing what is between matches, is the same when every character matches.
    keeps = step.get("behavior") == "Isolated" and not step.get("invert")
    removes_rest = step.get("behavior") == "Removed" and step.get("invert") and only
    regex = (step.get("pattern") or {}).get("Regex")
    if not regex or not (keeps or removes_rest):
        return None
    plain = regex if regex in _KNOWN else _plain(regex)
    return SPELLINGS.get(plain, plain)


def describe(pre_tokenizer: dict[str, Any] | None) -> str:
    """A pre-tokenizer in one short line, for an error message."""
    parts = []
    for step in steps_of(pre_tokenizer):
        pattern = step.get("pattern") or {}
        detail = pattern.get("Regex") or pattern.get("String") or ""
        parts.append(f"{step.get('type')}({detail[:60] + '...' if len(detail) > 60 else detail})")
    return " then ".join(parts) or "no pre-tokenizer"


def steps_of(section: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, those of sequences within sequences, too."""
    if not section:
        return []
    inner = section.get("normalizers", section.get("pretokenizers"))
    return [section] if inner is None else [step for each in inner for step in steps_of(each)]


def _plain(regex: str) -> str:
    """``regex`` without possessive quantifiers: in these patterns they save time and change no match."""
    return regex.replace("++", "+").replace("?+", "?").replace("*+", "*")
