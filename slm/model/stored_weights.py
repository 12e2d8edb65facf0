"""A model directory's tensors under the names that a model here has, as other people's programs store them: in shards,
as safetensors or PyTorch's ``.bin``, with a wrapper's prefix before each name.

Tested in tests/slm/model/test_stored_weights.py.
"""

import contextlib
import functools
import json
import pickle
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from slm.data.errors import UserError, one_line
from slm.model.config import quantized_message

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_PREFIXES = ("_orig_mod.", "module.", "base_model.model.")
"""Prefixes of torch.compile, DistributedDataParallel and PEFT."""
_QUANTIZED = {
    ".absmax": "bitsandbytes",
    ".quant_state.bitsandbytes__nf4": "bitsandbytes",
    ".SCB": "bitsandbytes",
    ".qzeros": "GPTQ or AWQ",
    ".qweight": "GPTQ or AWQ",
    ".weight_packed": "compressed-tensors",
    ".weight_scale_inv": "FP8",
}
"""How names of tensors end that only quantized checkpoints hold."""
_FP8 = {dtype for name in ("float8_e4m3fn", "float8_e5m2") if (dtype := getattr(torch, name, None))}


def load_weights(directory: str | Path) -> dict[str, Tensor]:
    """Every tensor of the model by its Hugging Face name, as stored.

    A ``.bin`` file is read as tensors alone: no code in it is run. Raises UserError where there are no weights, a file
    is damaged, and for a quantized checkpoint.
    """
    weights: dict[str, Tensor] = {}
    for path in _weight_files(Path(directory)):
        weights |= _load(path)
    for name, tensor in weights.items():
        if kind := _quantized_by(name, tensor.dtype):
            raise UserError(f"{directory}: {quantized_message(kind)}")
    names = plain_names(weights, str(directory))
    return {names[name]: tensor for name, tensor in weights.items()}


def stream_weights(directory: str | Path, *, tied: bool) -> Iterator[tuple[str, Tensor]]:
    """``load_weights`` one tensor at a time, each given up before the next; of a ``tied`` model the one table.

    A ``.bin`` is read whole.
    """
    files = _weight_files(Path(directory))
    if files[0].suffix != ".safetensors":
        weights = load_weights(directory)
        yield from (with_table(weights) if tied else weights).items()
        return
    places: dict[str, Path] = {}
    for path in files:
        with _opened(path) as file:
            places |= dict.fromkeys(file.keys(), path)
    names = plain_names(places, str(directory))
    for each, path in places.items():
        name = names[each]
        if name.endswith("rotary_emb.inv_freq"):
            continue
        if tied and name == HEAD:
            if TABLE in names.values():
                continue
            name = TABLE
        with _opened(path) as file:  # opened anew: what was read before is given up
            tensor = file.get_tensor(each)
        if kind := _quantized_by(name, tensor.dtype):
            raise UserError(f"{directory}: {quantized_message(kind)}")
        yield name, tensor


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; UserError where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error, 200)}; download or save it again") from None


def has_own_head(directory: str | Path) -> bool:
    """Whether a head is stored that is not the embedding. Only safetensors are looked at, and read where both are
    there."""
    try:
        files = [path for path in _weight_files(Path(directory)) if path.suffix == ".safetensors"]
    except UserError:
        return False  # loading says why
    return _own_head(tuple((str(path), path.stat().st_mtime_ns) for path in files))


@functools.lru_cache(maxsize=32)
def _own_head(files: tuple[tuple[str, int], ...]) -> bool:
    found: dict[str, Tensor] = {}
    try:
        places: dict[str, str] = {}
        for path, _ in files:
            with safe_open(path, framework="pt") as file:
                places |= dict.fromkeys(file.keys(), path)
        names = {plain: name for name, plain in plain_names(places, "").items()}
        if not {HEAD, TABLE} <= names.keys():
            return False
        for plain in (HEAD, TABLE):
            with safe_open(places[names[plain]], framework="pt") as file:
                found[plain] = file.get_tensor(names[plain])
    except (SafetensorError, OSError):
        return False  # loading says why
    return not torch.equal(found[HEAD], found[TABLE])


def plain_names(names: Iterable[str], where: str) -> dict[str, str]:
    """The names without what a wrapper has put before each of them, by the names as stored. ``where``: of a line that
    says what was left out; "" for none."""
    found = {name: name for name in names}
    for prefix in [*_PREFIXES, *_PREFIXES]:
        if found and all(name.startswith(prefix) for name in found.values()):
            found = {stored: name.removeprefix(prefix) for stored, name in found.items()}
            if where:
                _say(f"note: {where}: the names of its tensors begin with {prefix!r}, which is left out")
    if "embed_tokens.weight" in found.values():  # the model was saved without its head, and without its outer name
        found = {stored: name if name == HEAD else f"model.{name}" for stored, name in found.items()}
    return found


@functools.cache
def _say(line: str) -> None:
    """Print a line, once in a process."""
    print(line, flush=True)


def note_own_head(directory: str | Path) -> None:
    """One line about a head that the configuration does not know of."""
    _say(
        f"note: {directory}: config.json says that the head is the embedding (tie_word_embeddings), and the file holds "
        "a head of its own: the model is read as untied"
    )


def with_table(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a tied model with its one matrix as the embedding, whatever it is called."""
    found = dict(weights)
    head = found.pop(HEAD, None)  # some savers store the tied matrix twice, and some as the head alone
    if head is not None:
        found.setdefault(TABLE, head)
    return found


def _quantized_by(name: str, dtype: torch.dtype) -> str | None:
    return "FP8" if dtype in _FP8 else next((kind for end, kind in _QUANTIZED.items() if name.endswith(end)), None)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds more than tensors, which would have to be run: it is refused; save the model with "
            "safe_serialization=True"
        ) from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {one_line(error, 200)}; download or save it again") from None
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise UserError(f"{path} does not hold a model's tensors by name: give the model as safetensors")
    return found


def _weight_files(directory: Path) -> list[Path]:
    for single, index in ((WEIGHTS, INDEX), _PICKLED):
        if (directory / single).is_file():
            return [directory / single]
        if (directory / index).is_file():
            return _shards(directory, index)
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))
    if others:
        raise UserError(
            f"{directory} holds {others[0]} but no {WEIGHTS}: only {WEIGHTS} and {_PICKLED[0]} are read; save the "
            "model with save_pretrained"
        )
    raise UserError(
        f"{directory} holds no {WEIGHTS}: name the folder that it is in, or download the model again if it is not "
        "complete"
    )


def _shards(directory: Path, index: str) -> list[Path]:
    path = directory / index
    try:
        names = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}): download it again") from None
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise UserError(f"{directory} lacks {missing[0]}, which its {index} names; download it again")
    return [directory / name for name in names]
