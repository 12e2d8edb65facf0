"""What a slot holds, in a file: its tokens, and their keys and values as llama.cpp gives them.

A file is for one model, adapter and kind of cache; another's is refused, because its numbers would mean nothing.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from slm.data.errors import UserError
from slm.data.storage import DIGEST_BYTES, read_checked, write_checked
from slm.llama.errors import LlamaError
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.states.displaced import Displaced

_MARK = b"slm-slot-1\n"
_MOST_HEAD = 1 << 16
"""Bytes of the line that describes the rest."""
_SAMPLES = 16
_SAMPLE_BYTES = 4096


def cache_mark(config: EngineConfig) -> str:
    """Says what the numbers in an engine's cache belong to: the file of the model (by samples of its bytes), the
    adapter's, and the types of keys and values."""
    digest = hashlib.sha256()
    for path in (config.model_path, config.adapter):
        if path is not None:
            size = path.stat().st_size
            digest.update(f"{size} {config.adapter_scale}".encode())
            with path.open("rb") as file:
                for i in range(_SAMPLES):
                    file.seek(max(0, size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE_BYTES))
    return f"{digest.hexdigest()} {config.kv_type} {config.kv_type_v or config.kv_type}"


def write_slot(path: Path, mark: str, slot: Displaced) -> int:
    """Writes the file; returns its bytes. Raises ``LlamaError`` where the disk has no room."""
    kept = [(n, len(state)) for n, state in slot.kept.items()]
    head = json.dumps({"mark": mark, "tokens": len(slot.tokens), "kept": kept}).encode() + b"\n"
    content = b"".join([_MARK, head, np.array(slot.tokens, "<i4").tobytes(), *slot.kept.values(), slot.state])
    try:
        write_checked(path, content, without="")
    except UserError:
        raise LlamaError(f"{path.parent} has no room for {len(content) / 2**20:.0f} MiB, or is read-only") from None
    return path.stat().st_size


def read_slot(path: Path, mark: str) -> Displaced:
    """What the slot held. Raises ``LlamaError`` for a file that is missing, damaged or another model's."""
    if not path.is_file():
        raise LlamaError(f"there is no saved slot {path.name}")
    content = read_checked(path)
    if content is None or not content.startswith(_MARK):
        raise LlamaError(f"{path.name} is damaged, or no slot that was saved here")
    tokens, sizes, at = _head(path, mark, content)
    kept = {}
    for n, size in sizes:
        kept[n] = content[at : at + size]
        at += size
    return Displaced(tokens, content[at:], kept)


def read_head(path: Path, mark: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens, and after how many of them there is a state, without reading more. Raises as ``read_slot``."""
    with path.open("rb") as file:
        begin = file.read(DIGEST_BYTES + len(_MARK))[DIGEST_BYTES:] + file.readline(_MOST_HEAD)
        try:
            begin += file.read(4 * json.loads(begin[len(_MARK) :])["tokens"])
        except (ValueError, KeyError, TypeError):
            begin = b""
    if not begin.startswith(_MARK):
        raise LlamaError(f"{path.name} is damaged, or no slot that was saved here")
    tokens, sizes, _ = _head(path, mark, begin)
    return tokens, tuple(n for n, _ in sizes)


def _head(path: Path, mark: str, content: bytes) -> tuple[tuple[int, ...], list[tuple[int, int]], int]:
    """The tokens, the tokens and bytes of the states that were kept, and where these begin."""
    end = content.index(b"\n", len(_MARK))
    head = json.loads(content[len(_MARK) : end])
    if head["mark"] != mark:
        raise LlamaError(f"{path.name} was saved with another model, adapter or type of cache")
    begin, n_bytes = end + 1, 4 * head["tokens"]
    tokens = np.frombuffer(content[begin : begin + n_bytes], "<i4")
    return tuple(tokens.tolist()), head.get("kept", []), begin + n_bytes
