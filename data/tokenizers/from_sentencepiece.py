"""A SentencePiece ``.model`` as a Hugging Face tokenizer with the same ids.

The file is a protocol buffer (``sentencepiece_model.proto``). The few fields that matter are parsed here, so a model
can be used without protobuf and without the sentencepiece library.
"""

import base64
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slm.data.errors import UserError
from slm.data.tokenizers.tokenizer import special_token, tokenizer_config

SPACE = "\u2581"
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")
"""The first line of a tiktoken vocabulary: a token in base64 and its rank."""
UNIGRAM, BPE = 1, 2
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True, kw_only=True)
class Model:
    """The contents of a SentencePiece model."""

    pieces: list[tuple[str, float, int]]
    """(piece, score, type), by id."""
    model_type: int
    byte_fallback: bool
    bos_id: int
    eos_id: int
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def parse(content: bytes, name: str) -> Model:
    """Read a model file. Raises UserError where it is not one, or of a type other than BPE and Unigram."""
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    normalizer: dict[int, Any] = {}
    try:
        for field, value in _fields(content):
            if field == 1:
                piece = dict(_fields(value))
                score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
                pieces.append((piece[1].decode("utf-8"), score, piece.get(3, NORMAL)))
            elif field == 2:
                trainer = dict(_fields(value))
            elif field == 3:
                normalizer = dict(_fields(value))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        if _TIKTOKEN.match(content):
            raise UserError(
                f"{name} is a list of tokens of tiktoken, which does not say how text is split: download the same "
                "model's tokenizer.json, or write it with transformers' AutoTokenizer and save_pretrained"
            ) from error
        raise UserError(f"{name} is not a SentencePiece model: give a .model file that sentencepiece wrote") from error
    model_type = trainer.get(3, UNIGRAM)
    if not pieces or model_type not in (UNIGRAM, BPE):
        raise UserError(f"{name} is not a SentencePiece model of type bpe or unigram: train it with one of these")
    return Model(
        pieces=pieces,
        model_type=model_type,
        byte_fallback=bool(trainer.get(35, 0)),
        bos_id=_signed(trainer.get(41, 1)),
        eos_id=_signed(trainer.get(42, 2)),
        charsmap=normalizer.get(2, b""),
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
    )


def convert(content: bytes, *, name: str, eot_token: str = "") -> tuple[dict[str, bytes], str]:
    """Tokenizer files of the model, and its end-of-text token (usually ``</s>``).

    The ids differ from SentencePiece's in two cases, which ``tokenizer.json`` cannot express: in runs of one repeated
    character, SentencePiece merges from the left where a piece has several rules; and a ``tokenizer.json`` of a
    Unigram model encodes text that spells a control or byte piece (``<s>``, ``<0x41>``) as that piece.
    """
    model = parse(content, name)
    by_id = [piece for piece, _, _ in model.pieces]
    if not eot_token and 0 <= model.eos_id < len(by_id):
        eot_token = by_id[model.eos_id]
    if not eot_token:
        raise UserError(f"{name} has no end-of-sentence piece: set tokenizer.eot_token to one of its control pieces")
    unknown = next((piece for piece, _, kind in model.pieces if kind == UNKNOWN), None)
    special = [
        special_token(id, piece) for id, (piece, _, kind) in enumerate(model.pieces) if kind in (UNKNOWN, CONTROL)
    ]
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "post_processor": None,
        **sections(model),
    }
    bos = by_id[model.bos_id] if 0 <= model.bos_id < len(by_id) else None
    more = {"unk_token": unknown} if unknown else {}
    files = {
        "tokenizer.json": json.dumps(spec, ensure_ascii=False, separators=(",", ":")).encode(),
        "tokenizer_config.json": tokenizer_config(eot=eot_token, bos=bos, **more),
        "tokenizer.model": content,
    }
    return files, eot_token


def sections(model: Model) -> dict[str, Any]:
    """How a ``tokenizer.json`` normalizes, splits, merges and decodes as the model does."""
    unknown = next((piece for piece, _, kind in model.pieces if kind == UNKNOWN), None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": _symbols(model),
        "decoder": _decoder(model),
        "model": _bpe(model, unknown) if model.model_type == BPE else _unigram(model, unknown),
    }


def _bpe(model: Model, unknown: str | None) -> dict[str, Any]:
    vocab = {piece: id for id, (piece, _, _) in enumerate(model.pieces)}
    mergeable = {piece for piece, _, kind in model.pieces if kind == NORMAL}
    rules = []
    for piece, score, kind in model.pieces:
        if kind != NORMAL:
            continue
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in mergeable and right in mergeable:
                rules.append((-score, vocab[left], vocab[right], [left, right]))
    rules.sort(key=lambda rule: rule[:3])
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        # A user-defined symbol, which the pre-tokenizer sets apart, is looked up whole.
        "ignore_merges": any(kind == USER_DEFINED for _, _, kind in model.pieces),
        "vocab": vocab,
        "merges": [rule[3] for rule in rules],
    }


def _unigram(model: Model, unknown: str | None) -> dict[str, Any]:
    names = [piece for piece, _, _ in model.pieces]
    return {
        "type": "Unigram",
        "unk_id": names.index(unknown) if unknown else None,
        "vocab": [[piece, score] for piece, score, _ in model.pieces],
        "byte_fallback": model.byte_fallback,
    }


def _symbols(model: Model) -> dict[str, Any] | None:
    """A pre-tokenizer that isolates user-defined symbols, the longest first.

    They cannot be added tokens: the text between added tokens is normalized piece by piece, so each piece would get a
    space before it.
    """
    symbols = sorted((piece for piece, _, kind in model.pieces if kind == USER_DEFINED), key=len, reverse=True)
    if not symbols:
        return None
    pattern = "|".join(re.escape(symbol) for symbol in symbols)
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _normalizers(model: Model) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Replace", "pattern": {"Regex": r"\A +| +\z"}, "content": ""})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return steps


def _decoder(model: Model) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if model.add_dummy_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": steps}


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """(field number, value) of a protocol buffer message: varints as int, everything else as bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        else:
            size = {1: 8, 5: 4}[kind]
        if at + size > len(message):
            raise ValueError("a field runs past the end")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _signed(value: int) -> int:
    """The signed number of a varint: -1, which means "none", is written as a 64-bit number."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >= 1 << 63 else value
