"""Which of llama.cpp's named pre-tokenizers splits text the way a ``tokenizer.json`` does.

llama.cpp does not read a tokenizer's own split rules: it has a list of them by name, and the GGUF holds the name
(``tokenizer.ggml.pre``). A wrong name changes token ids silently. Two ways lead to the name:

1. the fingerprint of a published vocabulary: llama.cpp's converter hashes the ids of one fixed string
   (``get_vocab_base_pre`` in its conversion/base.py; the string and the hashes below are that interface);
2. the structure of the pre-tokenizer: what a tokenizer trained here has, whatever its vocabulary.

Whatever name comes out, export compares token ids afterwards and refuses the file where they differ.
"""

import hashlib
from typing import Any

from slm.data.errors import UserError

FINGERPRINT_TEXT = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emojis concatenated) ✅ "
    "🦙🦙 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ "
    "------======= нещо на Български ''''''```````\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you "
    "sure? 'M not sure I'll make it, 'D you like some tea? We'Ve a'lL"
)

FINGERPRINTS = {
    "3ce83efda5659b07b1ad37ca97ca5797ea4285d9b9ab0dc679e4a720c9da7454": "gpt-2",
    "0fe1cf6eda062318a1af7270f3331a85c539a01778ff948e24388e949c5282f4": "gpt-2",
    "0ef9807a4087ebef797fc749390439009c3b9eda9ad1a097abbe738f486c01e5": "llama-bpe",
    "c136ed14d01c2745d4f60a9596ae66800e2b61fa45643e72436041855ad4089d": "smaug-bpe",
    "e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea": "qwen2",
    "d4540891389ea895b53b399da6ac824becc30f2fba0e9ddbb98f92e55ca0e97c": "qwen2",
    "b3f499bb4255f8ca19fccd664443283318f2fd2414d5e0b040fbdd0cc195d6c5": "deepseek-r1-qwen",
    "855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249": "smollm",
    "63b97e4253352e6f357cc59ea5b583e3a680eaeaf2632188c2b952de2588485e": "tekken",
    "ccc2ef013c104be7bae2965776d611e1d7a8a2a9c547dd93a682c9a9fc80352e": "gpt-4o",
    "049ecf7629871e3041641907f3de7c733e4dbfdc736f57d882ba0b0845599754": "deepseek-llm",
    "347715f544604f9118bb75ed199f68779f423cabb20db6de6f31b908d04d7821": "deepseek-coder",
    "9d032fcbd5501f4a38150912590928bfb36091efb5df11b8e2124b0390e3fb1e": "falcon3",
    "35d91631860c815f952d711435f48d356ebac988362536bed955d43bfa436e34": "starcoder",
    "6221ad2852e85ce96f791f476e0b390cf9b474c9e3d1362f53a24a06dc8220ff": "refact",
    "1431a23e583c97432bc230bff598d103ddb5a1f89960c8f1d1051aaa944d0b35": "minerva-7b",
    "d5f1dd6f980fec569fb218a81a7658ac45fc56b38c5a0adeb1c232fbe04ef5ec": "seed-coder",
    "7dec86086fcc38b66b7bc1575a160ae21cf705be7718b9d5598190d7c12db76f": "superbpe",
}
"""sha256 of the printed list of ids of FINGERPRINT_TEXT -> llama.cpp's name (Llama- and Qwen-shaped models)."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ENDING = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SLASHED_ENDING = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"

SPLIT_PATTERNS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt-2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt-2",
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+$|\s+(?!\S)|\s": "gpt-2",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_ENDING}": "llama-bpe",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_ENDING}": "qwen2",
    rf"{_UPPER_LOWER}|{_UPPER}|\p{{N}}|{_SLASHED_ENDING}": "tekken",
    rf"{_UPPER_LOWER}{_CONTRACTIONS}?|{_UPPER}{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SLASHED_ENDING}": "gpt-4o",
}
"""Regular expressions as tokenizer.json files spell them -> llama.cpp's name for the same split."""


def identify(tokenizer_json: dict[str, Any], fingerprint_ids: list[int], option: str = "pre") -> str:
    """The name for ``tokenizer.ggml.pre`` of a byte-level BPE tokenizer.

    ``fingerprint_ids`` are the tokenizer's ids of FINGERPRINT_TEXT, special tokens added as it usually adds them.
    Raises UserError that shows the unknown pre-tokenizer.
    """
    digest = hashlib.sha256(str(fingerprint_ids).encode()).hexdigest()
    if digest in FINGERPRINTS:
        return FINGERPRINTS[digest]
    found = by_structure(tokenizer_json.get("pre_tokenizer"))
    if found:
        return found
    shown = describe(tokenizer_json.get("pre_tokenizer"))
    raise UserError(
        f"the tokenizer splits text by a rule that is not known here ({shown}); if llama.cpp has the same rule, give "
        f"its name as {option}=NAME (gpt-2, llama-bpe, qwen2, smollm, ...): the file is kept only if its ids are equal"
    )


def by_structure(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """llama.cpp's name for a ``pre_tokenizer`` section, or None where the structure is not a known one."""
    steps = _steps(pre_tokenizer)
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return None
    *splits, byte_level = steps
    if byte_level.get("use_regex", True):
        if not splits:
            return "gpt-2"
        if len(splits) == 1 and splits[0].get("type") == "Digits" and splits[0].get("individual_digits"):
            return "smollm"
        return None
    if len(splits) != 1 or splits[0].get("type") != "Split":
        return None
    split = splits[0]
    # Keeping what matches, or removing what is between matches, is the same when every character matches.
    keeps = split.get("behavior") == "Isolated" and not split.get("invert")
    removes_rest = split.get("behavior") == "Removed" and split.get("invert")
    regex = (split.get("pattern") or {}).get("Regex")
    return SPLIT_PATTERNS.get(_plain(regex)) if regex and (keeps or removes_rest) else None


def describe(pre_tokenizer: dict[str, Any] | None) -> str:
    """A pre-tokenizer in one short line, for an error message."""
    parts = []
    for step in _steps(pre_tokenizer):
        pattern = step.get("pattern") or {}
        detail = pattern.get("Regex") or pattern.get("String") or ""
        parts.append(f"{step.get('type')}({detail[:60] + '...' if len(detail) > 60 else detail})")
    return " then ".join(parts) or "no pre-tokenizer"


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if not pre_tokenizer:
        return []
    if pre_tokenizer.get("type") == "Sequence":
        return list(pre_tokenizer.get("pretokenizers", []))
    return [pre_tokenizer]


def _plain(regex: str) -> str:
    """``regex`` without possessive quantifiers: in these patterns they save time and change no match."""
    return regex.replace("++", "+").replace("?+", "?").replace("*+", "*")
