"""A GGUF file's vocabulary as the Hugging Face tokenizer that it was made from: real vocabularies for tests.

Pre-tokenizers are written as the published ``tokenizer.json`` files have them; what a file does not say (which token
begins a text, what swallows white space) is written here by family.
"""

import json
import struct
from pathlib import Path

from slm.data.tokenizers import from_sentencepiece
from slm.data.tokenizers.splits import QWEN35
from slm.data.tokenizers.tokenizer import Tokenizer, special_token, token_first, tokenizer_config

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
_LLAMA3 = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def split(regex: str) -> dict:
    return {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False},
            _BYTES | {"use_regex": False},
        ],
    }


PRE_TOKENIZERS = {
    "gpt-2": _BYTES,
    "llama-bpe": split(_LLAMA3),
    "qwen2": split(_LLAMA3.replace("{1,3}", "")),
    "qwen35": split(QWEN35),
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTES]},
}
"""As published tokenizers have them, by llama.cpp's name."""


def read(path: Path) -> dict:
    """The metadata under ``tokenizer`` and ``general``, arrays as lists (gguf's own reader takes minutes for these)."""
    raw, at = path.read_bytes(), 24
    scalars = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def number(code: str, count: int = 1) -> tuple:
        nonlocal at
        found = struct.unpack_from(f"<{count}{code}", raw, at)
        at += struct.calcsize(f"<{count}{code}")
        return found

    def string() -> str:
        nonlocal at
        (size,) = struct.unpack_from("<Q", raw, at)
        at += 8 + size
        return raw[at - size : at].decode("utf-8")

    found: dict = {}
    for _ in range(struct.unpack_from("<Q", raw, 16)[0]):
        key = string().removeprefix("tokenizer.").removeprefix("ggml.")
        (kind,) = number("I")
        if kind == 9:
            ((kind,), (count,)) = number("I"), number("Q")
            found[key] = [string() for _ in range(count)] if kind == 8 else list(number(scalars[kind], count))
        else:
            found[key] = string() if kind == 8 else number(scalars[kind])[0]
    return found


def convert(path: Path, *, template: str | None = None, rstrip: tuple[str, ...] = ()) -> Tokenizer:
    """The tokenizer of a GGUF. ``template``: in place of the file's chat template. ``rstrip``: tokens that swallow the
    white space behind them."""
    found = read(path)
    tokens, types = found["tokens"], found["token_type"]
    sentencepiece = found["model"] == "llama"
    adds_bos = found.get("add_bos_token", sentencepiece or found.get("pre") == "llama-bpe")
    bos, eos = tokens[found.get("bos_token_id", found["eos_token_id"])], tokens[found["eos_token_id"]]
    added = [
        special_token(id, token) | {"special": types[id] != USER_DEFINED, "rstrip": token in rstrip}
        for id, token in enumerate(tokens)
        if types[id] in (UNKNOWN, CONTROL, USER_DEFINED) and not token.startswith("[PAD")
    ]
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    if sentencepiece:
        spec |= _sentencepiece(found)
    elif found["model"] == "gemma4":
        spec |= _gemma(found)
    else:
        spec |= _byte_level(found)
    if adds_bos:
        template_of = token_first(bos, {bos: found["bos_token_id"]})
        plain = spec["post_processor"]
        spec["post_processor"] = {"type": "Sequence", "processors": [plain, template_of]} if plain else template_of
    more = {"chat_template": template or found.get("chat_template")}
    settings = json.loads(tokenizer_config(eot=eos, bos=bos, **more)) | {"add_bos_token": bool(adds_bos)}
    files = {"tokenizer.json": json.dumps(spec).encode(), "tokenizer_config.json": json.dumps(settings).encode()}
    return Tokenizer(files, name=path.stem.removeprefix("ggml-vocab-"))


def _byte_level(found: dict) -> dict:
    last = max(id for id, kind in enumerate(found["token_type"]) if kind == NORMAL)
    vocab = {token: id for id, token in enumerate(found["tokens"][: last + 1])}  # some have special tokens first
    return {
        "normalizer": {"type": "NFC"} if found["pre"] in ("qwen2", "qwen35") else None,
        "pre_tokenizer": PRE_TOKENIZERS[found["pre"]],
        "post_processor": _BYTES,
        "decoder": _BYTES,
        "model": {
            **{"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None},
            **{"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False},
            **{"ignore_merges": found["pre"] == "llama-bpe", "vocab": vocab, "merges": found["merges"]},
        },
    }


def _sentencepiece(found: dict) -> dict:
    pieces = list(zip(found["tokens"], found["scores"], found["token_type"], strict=True))
    n = next((id for id, (_, score, _) in enumerate(pieces) if id >= 32000 and score <= -1000.0), len(pieces))
    model = from_sentencepiece.Model(
        pieces=[(piece, score, NORMAL if kind == USER_DEFINED else kind) for piece, score, kind in pieces[:n]],
        model_type=from_sentencepiece.BPE,
        byte_fallback=True,
        bos_id=1,
        eos_id=2,
        charsmap=b"",
        add_dummy_prefix=True,
        remove_extra_whitespaces=False,
    )
    return {
        "normalizer": {"type": "Sequence", "normalizers": from_sentencepiece._normalizers(model)},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": from_sentencepiece._decoder(model),
        "model": from_sentencepiece._bpe(model, "<unk>"),
    }


def _gemma(found: dict) -> dict:
    space = {"String": " "}
    return {
        "normalizer": {"type": "Replace", "pattern": space, "content": "\u2581"},
        "pre_tokenizer": {"type": "Split", "pattern": space, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": None,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            **{"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None},
            **{"end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False},
            "vocab": {token: id for id, token in enumerate(found["tokens"])},
            "merges": found["merges"],
        },
    }
