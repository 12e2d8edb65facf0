"""From a GGUF file to a Hugging Face model directory, kept in the cache so that a file is read back once.

Tested in tests/slm/from_gguf/test_convert.py.
"""

import json
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slm.data.errors import UserError, one_line
from slm.data.storage import cache_home, fingerprint, fsync, locked, stamps
from slm.exported import RECORD_FILE
from slm.from_gguf import proof
from slm.from_gguf.contents import Contents, open_contents
from slm.from_gguf.shape import read_shape
from slm.from_gguf.stores import stem
from slm.from_gguf.weights import write_weights
from slm.machine.memory import available_bytes
from slm.model.checkpoint import MARGIN_BYTES, WEIGHTS, also_stop_at, write_config
from slm.model.config import ModelConfig
from slm.report import atomic_write_json, change_text

_FORMAT = 1
"""Version of the written format. A higher number reads files again."""
RECORD = "gguf.json"
"""What a checkpoint was read back from, and how far it was compared."""
_LEAST_BITS = 4.5
"""A weight takes these in memory, with its share of a block's scale."""
_UNQUANTIZED = proof.UNQUANTIZED


def checkpoint(path: Path, log: Callable[[str], None] = print) -> Path:
    """The checkpoint of a GGUF file, made the first time; one line says what the file is. UserError where it cannot be
    read back, or would not fit into memory."""
    contents = open_contents(path)
    shape = read_shape(contents)
    _check_memory(contents, shape)
    folder = cache_home() / "from-gguf"
    mark = fingerprint((_FORMAT, stamps(map(str, contents.parts))))
    found = folder / f"{stem(path)[:60]}-{mark}"
    with locked(folder / f"{mark}.lock", without="XDG_CACHE_HOME=DIR"):
        if not (found / RECORD).is_file():
            _make(contents, shape, found, log)
        else:
            log(about(contents, shape))
    return found


def convert(path: Path, out: Path, log: Callable[[str], None] = print) -> dict[str, Any]:
    """Write the checkpoint of a GGUF file to ``out``. Returns its record. UserError where ``out`` is there already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is there already: name a new folder, or remove it first")
    contents = open_contents(path)
    shape = read_shape(contents)
    _check_memory(contents, shape)
    return _make(contents, shape, out, log)


def _make(contents: Contents, shape: ModelConfig, out: Path, log: Callable[[str], None]) -> dict[str, Any]:
    log(about(contents, shape))
    temporary = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        _check_room(contents, temporary)
        write_config(temporary, shape)
        eot = contents.metadata.get("tokenizer.ggml.eot_token_id")
        if isinstance(eot, int) and eot != shape.eos_id:
            also_stop_at(temporary, eot)
        for line in proof.write_tokenizer(contents.path, temporary):
            log(f"note: {line}")
        write_weights(contents, shape, temporary / WEIGHTS)
        _write_card(contents, temporary)
        compared = proof.compare_logits(contents.path, temporary)
        log(
            f"read back: the ids of {proof.TEXTS} texts are llama.cpp's, and so are the predictions (KL divergence "
            f"{compared['kl']:.1e} nats, the same top token at {compared['same_top']:.0%} of {compared['tokens']} "
            "positions)"
        )
        record = {"file": contents.path.name, "types": dict(types(contents)), "proof": compared}
        atomic_write_json(temporary / RECORD, record)
        for each in (*temporary.iterdir(), temporary):
            fsync(each)
        if out.is_dir():
            out.rmdir()
        os.replace(temporary, out)
        return record
    except UserError as error:  # of the folder that is given up
        raise UserError(one_line(error).replace(str(temporary), contents.path.name)) from error
    except OSError as error:
        raise UserError(f"{out} could not be written ({error.strerror or error}): nothing was left behind") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def types(contents: Contents) -> Counter[str]:
    """How many weights are stored as each type."""
    found: Counter[str] = Counter()
    for _, tensor in contents.tensors.values():
        found[tensor.type] += math.prod(tensor.shape)
    return found


def about(contents: Contents, shape: ModelConfig) -> str:
    """One line: what the file holds, and what its quantization has cost, where that is known."""
    name, stored = contents.path.name, types(contents)
    total = sum(stored.values())
    shares = ", ".join(f"{kind} {count / total:.0%}" for kind, count in stored.most_common() if count >= total / 200)
    size = f"{shape.n_params:,} parameters, {contents.bits_per_weight:.1f} bits per weight ({shares})"
    return f"{name}: {shape.arch}, {size}; {cost(contents, stored)}"


def cost(contents: Contents, stored: Counter[str]) -> str:
    """What the file's quantization has cost, in words."""
    if all(kind in _UNQUANTIZED for kind in stored):
        return "not quantized"
    for row in _export_record(contents.path):
        if row.get("file") == contents.path.name and "perplexity_change" in row and "kl" in row:
            change = change_text(row["perplexity_change"], row.get("perplexity_change_stderr"))
            return (
                f"its export measured {change} perplexity and a KL divergence of "
                f"{row['kl']:.2g} nats against the unquantized model"
            )
    original = original_of(contents)
    instead = f"; the unquantized model is {original}" if original else ""
    return f"what the quantization cost is not recorded, and tuning starts from it{instead}"


def _export_record(path: Path) -> list[dict[str, Any]]:
    try:
        rows = json.loads((path.parent / RECORD_FILE).read_text(encoding="utf-8"))["files"]
        return [row for row in rows if isinstance(row, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def original_of(contents: Contents) -> str | None:
    """The Hub's name of the model that the file was made from, where the file says it."""
    for key in ("general.base_model.0.repo_url", "general.source.url", "general.repo_url", "general.url"):
        found = contents.metadata.get(key)
        if isinstance(found, str) and found.startswith("https://huggingface.co/"):
            return "/".join(found.removeprefix("https://huggingface.co/").split("/")[:2])
    return None


def _write_card(contents: Contents, directory: Path) -> None:
    """What the file says of its licence and its original, as the header of a model card."""
    import yaml

    header = {"license": contents.metadata.get("general.license"), "base_model": original_of(contents)}
    header = {key: value for key, value in header.items() if isinstance(value, str)}
    if header:
        text = f"---\n{yaml.safe_dump(header)}---\nRead back from {contents.path.name}.\n"
        (directory / "README.md").write_text(text, encoding="utf-8")


def _check_memory(contents: Contents, shape: ModelConfig) -> None:
    """UserError where not even blocks of four bits fit, over which an adapter can be trained."""
    needed, free = int(_LEAST_BITS * shape.n_params / 8), available_bytes()
    if needed > free:
        raise UserError(
            f"{contents.path.name} has {shape.n_params:,} parameters: in blocks of four bits, which is the least that "
            f"training computes with (lora.base_bits=4), they take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of "
            "memory are free: take a smaller model, or free memory"
        )


def _check_room(contents: Contents, folder: Path) -> None:
    needed = MARGIN_BYTES + sum(
        count * (2 if kind in ("f16", "bf16") else 4) for kind, count in types(contents).items()
    )
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UserError(
            f"no room in {folder.parent}: the checkpoint of {contents.path.name} needs {needed / 1e9:.1f} GB, "
            f"{free / 1e9:.1f} GB are free: make room, or set XDG_CACHE_HOME to a folder on another disk"
        )
