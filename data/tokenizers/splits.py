"""How llama.cpp splits text before its byte-level BPE, by the names of ``tokenizer.ggml.pre``.

A split is a list of regular expressions: each one cuts the pieces of the one before it into its matches and what lies
between them, as a ``tokenizer.json`` does with a sequence of isolating ``Split``. The expressions come from the
published tokenizers where llama.cpp has another spelling of the same split (llama-vocab.cpp).

What follows from a name in llama.cpp's code alone, without a regular expression, is not here: kimi-k2, afmoe, superbpe
and the like.

Tested in tests/slm/vocabulary/test_pretokenizer.py.
"""

from typing import Any

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDING = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SLASHED_ENDING = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{ENDING}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{ENDING}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = rf"{UPPER_LOWER}|{UPPER}|\p{{N}}|{SLASHED_ENDING}"
GPT4O = rf"{UPPER_LOWER}{CONTRACTIONS}?|{UPPER}{CONTRACTIONS}?|\p{{N}}{{1,3}}|{SLASHED_ENDING}"
_PUNCTUATION_WORD = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    _PUNCTUATION_WORD + r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"

_GROUPS: dict[tuple[str, ...], str] = {
    (GPT2,): "gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de a.x-4.0 mellum modern-bert mpt olmo jais "
    "trillion granite-docling exaone4",
    (r"\p{N}", GPT2): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    (LLAMA3,): "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano smaug-bpe dbrx "
    "chatglm-bpe glm4 glm5",
    (QWEN2,): "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    (QWEN35,): "qwen35",
    (TEKKEN,): "tekken",
    (GPT4O,): "gpt-4o llama4 kanana2 talkie minimax-m2",
    (r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")): "minicpm5",
    (r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O): "tiny_aya cohere2moe",
    ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"): "deepseek-coder",
    _DEEPSEEK3: "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    (_BLOOM,): "poro-chat bloom gpt3-finnish",
    (_BLOOM, r"\p{N}"): "viking",
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    ): "bailingmoe bailingmoe2 llada-moe",
    (
        rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    ): "seed-coder",
    (QWEN2.removeprefix(f"{CONTRACTIONS}|"),): "ufakzeka",
    (r"[^\n]+|[\n]+", QWEN2): "laguna",
    (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"): "falcon",
    (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): "default",
}
SPLITS: dict[str, tuple[str, ...]] = {name: split for split, names in _GROUPS.items() for name in names.split()}
"""The regular expressions of each name."""
WHOLE_WORDS = frozenset(
    name for name in _GROUPS[LLAMA3,].split() if name not in ("smaug-bpe", "dbrx", "chatglm-bpe")
) | {"minicpm5", "tekken"}
"""The names with which llama.cpp looks a piece up as a whole before it merges (a ``tokenizer.json``'s
``ignore_merges``)."""
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}


def section(name: str) -> dict[str, Any] | None:
    """The ``pre_tokenizer`` of a ``tokenizer.json`` that splits text as llama.cpp does under ``name``; None for a name
    that is not known."""
    split = SPLITS.get(name)
    if split is None:
        return None
    *before, last = split
    if last == GPT2:  # ByteLevel has this one built in
        steps, ending = [_isolating(each) for each in before], _BYTE_LEVEL | {"use_regex": True}
        steps = [{"type": "Digits", "individual_digits": True}] if before == [r"\p{N}"] else steps
    else:
        steps, ending = [_isolating(each) for each in split], _BYTE_LEVEL | {"use_regex": False}
    return {"type": "Sequence", "pretokenizers": [*steps, ending]} if steps else ending


def _isolating(regex: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
