"""A model directory's tensors under the names that a model here has, as other people's programs store them: in shards,
as safetensors or PyTorch's ``.bin``, with a wrapper's prefix before each name.

Tested in tests/slm/model/test_stored_weights.py.
"""

import contextlib
import functools
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from slm.data.errors import UserError, not_utf8, one_line, say_once
from slm.data.wrong_download import wrong_download
from slm.model.config import quantized_message
from slm.model.foreign.joined import is_joined, parted

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
_PART = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
_PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_PREFIXES = ("_orig_mod.", "module.", "base_model.model.", "language_model.")
"""Prefixes of torch.compile, DistributedDataParallel and PEFT, and of the text model in one that sees."""
ROTARY = "rotary_emb.inv_freq"
"""How a tensor's name ends that old Llama checkpoints hold and the configuration gives."""
_INNER = "model.language_model."
"""How such a text model's names begin otherwise, but for the head's."""
_WRAPPED = ".base_layer."
"""How PEFT calls a layer that has an adapter; the adapter's own tensors are refused."""
_NESTED = ("state_dict", "model_state_dict", "model", "module")
"""Keys under which training programs save the weights in a ``.bin``, next to their own state."""
_QUANTIZED = {
    ".absmax": "bitsandbytes",
    ".quant_state.bitsandbytes__nf4": "bitsandbytes",
    ".SCB": "bitsandbytes",
    ".qzeros": "GPTQ or AWQ",
    ".qweight": "GPTQ or AWQ",
    ".weight_packed": "compressed-tensors",
    ".weight_scale_inv": "FP8",
    ".W_q": "HQQ",
}
"""How names of tensors end that only quantized checkpoints hold."""


def load_weights(directory: str | Path) -> dict[str, Tensor]:
    """Every tensor of the model by its Hugging Face name, as stored; joined matrices as their parts.

    A ``.bin`` file is read as tensors alone: no code in it is run. Raises UserError where there are no weights, a file
    is damaged, and for a quantized checkpoint.
    """
    weights: dict[str, Tensor] = {}
    for path in _weight_files(Path(directory)):
        weights |= _load(path)
    for name, tensor in weights.items():
        _check(name, tensor, directory)
    names = plain_names(weights, str(directory))
    found = {names[name]: tensor for name, tensor in weights.items()}
    if is_joined(found):
        say_once(f"note: {directory}: its matrices that are joined are read as their parts (gate_proj and up_proj)")
        return parted(found)
    return found


def stream_weights(directory: str | Path, *, tied: bool) -> Iterator[tuple[str, Tensor]]:
    """``load_weights`` one tensor at a time, each given up before the next; of a ``tied`` model the one table.

    A ``.bin``, and a model with joined matrices, are read whole.
    """
    if (places := stored_places(directory, tied=tied)) is None:
        weights = load_weights(directory)
        found = with_table(weights) if tied else weights
        yield from ((name, tensor) for name, tensor in found.items() if not name.endswith(ROTARY))
        return
    for name, (path, stored) in places.items():
        tensor = _tensor(path, stored)  # opened anew: what was read before is given up
        _check(name, tensor, directory)
        yield name, tensor


def stored_places(directory: str | Path, *, tied: bool) -> dict[str, tuple[Path, str]] | None:
    """By a tensor's name, the safetensors file that holds it and its name there; of a ``tied`` model the one table.
    None where the weights are a ``.bin``, or joined."""
    files = _weight_files(Path(directory))
    if files[0].suffix != ".safetensors":
        return None
    places: dict[str, Path] = {}
    for path in files:
        with _opened(path) as file:
            places |= dict.fromkeys(file.keys(), path)
    names = plain_names(places, str(directory))
    if is_joined(names.values()):
        return None
    found = {}
    for each, path in places.items():
        name = names[each]
        if name.endswith(ROTARY):
            continue
        if tied and name == HEAD:
            if TABLE in names.values():
                continue
            name = TABLE
        found[name] = path, each
    return found


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; UserError where it cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> UserError:
    """A file of weights that cannot be read, with what to do."""
    if found := _wrong_download(path):
        return UserError(f"{path} {found}")
    if fault := not_utf8(path):  # which safetensors does not open
        return UserError(f"{fault}: rename the folder or the file")
    return UserError(f"{path} cannot be read: {one_line(error, 200)}; download or save it again")


def _wrong_download(path: Path) -> str | None:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return wrong_download(file.read(256))
    return None


def has_own_head(directory: str | Path) -> bool:
    """Whether a head is stored that is not the embedding. Both are read where both are there."""
    try:
        files = _weight_files(Path(directory))
        return _own_head(tuple((path, path.stat().st_mtime_ns) for path in files))
    except (UserError, OSError):
        return False  # loading says why


@functools.lru_cache(maxsize=32)
def _own_head(files: tuple[tuple[Path, int], ...]) -> bool:
    stored: dict[str, Callable[[], Tensor]] = {}
    for path, _ in files:
        stored |= _readers(path)
    names = {plain: name for name, plain in plain_names(stored, "").items()}
    if not {HEAD, TABLE} <= names.keys():
        return False
    return not torch.equal(stored[names[HEAD]](), stored[names[TABLE]]())


def _readers(path: Path) -> dict[str, Callable[[], Tensor]]:
    """By a tensor's name, what reads it. A pickled file, which has no list of its tensors, is loaded once."""
    if path.suffix != ".safetensors":
        weights = _load(path)
        return {name: functools.partial(weights.__getitem__, name) for name in weights}
    with _opened(path) as file:
        return {name: functools.partial(_tensor, path, name) for name in file.keys()}  # noqa: SIM118


def _tensor(path: Path, name: str) -> Tensor:
    with _opened(path) as file:
        tensor: Tensor = file.get_tensor(name)
    return tensor


def plain_names(names: Iterable[str], where: str) -> dict[str, str]:
    """The names without what a wrapper has put before each of them, by the names as stored. ``where``: of a line that
    says what was left out; "" for none."""
    found = {name: name for name in names}
    for prefix in [*_PREFIXES, *_PREFIXES]:
        if found and all(name.startswith(prefix) for name in found.values()):
            found = _without(prefix, found, where)
    if prefix := _outer(found.values()):
        found = _without(prefix, found, where)
    found = {stored: name.replace(_WRAPPED, ".") for stored, name in found.items()}
    if found and all(name.startswith(_INNER) or name == HEAD for name in found.values()):
        found = {stored: name.replace(_INNER, "model.", 1) for stored, name in found.items()}
        if where:
            say_once(f"note: {where}: the names of its tensors begin with {_INNER!r}, which is read as 'model.'")
    if "embed_tokens.weight" in found.values():  # the model was saved without its head, and without its outer name
        found = {stored: name if name == HEAD else f"model.{name}" for stored, name in found.items()}
    return found


def _without(prefix: str, names: dict[str, str], where: str) -> dict[str, str]:
    """The names, by the names as stored, without a prefix that all of them have."""
    if where:
        say_once(f"note: {where}: the names of its tensors begin with {prefix!r}, which is left out")
    return {stored: name.removeprefix(prefix) for stored, name in names.items()}


def _outer(names: Iterable[str]) -> str:
    """What stands before all names and before the embedding's (or the head's), the name of a program's own variable;
    "" for nothing."""
    found = list(names)
    ends = next((end for end in (TABLE, HEAD) for name in found if name.endswith(f".{end}")), "")
    prefix = next((name.removesuffix(ends) for name in found if ends and name.endswith(f".{ends}")), "")
    return prefix if all(name.startswith(prefix) for name in found) else ""


def note_own_head(directory: str | Path) -> None:
    """One line about a head that the configuration does not know of."""
    say_once(
        f"note: {directory}: config.json says that the head is the embedding (tie_word_embeddings), and the file holds "
        "an untied head: the model is read as untied"
    )


def with_table(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a tied model with its one matrix as the embedding, whatever it is called."""
    found = dict(weights)
    head = found.pop(HEAD, None)  # some savers store the tied matrix twice, and some as the head alone
    if head is not None:
        found.setdefault(TABLE, head)
    return found


def _check(name: str, tensor: Tensor, directory: str | Path) -> None:
    """UserError for a tensor that shows that these are no plain weights."""
    if ".lora_A." in name or ".lora_B." in name:
        raise UserError(
            f"{directory} holds an adapter beside the weights ({name}), which is not merged into them: merge it "
            "(PEFT's merge_and_unload) and save the model again"
        )
    if kind := _quantized_by(name, tensor.dtype):
        raise UserError(f"{directory}: {quantized_message(kind)}")


def _quantized_by(name: str, dtype: torch.dtype) -> str | None:
    if not dtype.is_floating_point and name.endswith(".weight"):
        return "another program"  # as floating-point numbers, these integers would be other weights
    if dtype.is_floating_point and dtype.itemsize < 2:
        return "FP8"
    return next((kind for end, kind in _QUANTIZED.items() if name.endswith(end)), None)


def _load(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        if _wrong_download(path):
            raise _unreadable(path, error) from None
        raise UserError(
            f"{path} holds more than tensors, which would have to be run: it is refused; save the model with "
            "safe_serialization=True"
        ) from error
    except (SafetensorError, OSError, RuntimeError, EOFError, ValueError) as error:
        raise _unreadable(path, error) from None
    for key in _NESTED:
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise UserError(f"{path} does not hold a model's tensors by name: give the model as safetensors")
    return found


def _weight_files(directory: Path) -> list[Path]:
    for single, index in ((WEIGHTS, INDEX), _PICKLED):
        if (directory / single).is_file():
            return [directory / single]
        if (directory / index).is_file():
            return _shards(directory, index)
    if shards := _shards_without_index(directory):
        return shards
    for path in (directory / name for name in (WEIGHTS, INDEX, *_PICKLED)):
        if fault := link_fault(path):
            raise UserError(fault)
        if path.is_dir():
            raise UserError(f"{path} is a folder, and no file of weights: download the model again")
    others = sorted(path.name for path in directory.glob("*.safetensors") if not path.name.startswith("adapter_"))
    if len(others) == 1:
        raise UserError(
            f"{directory} holds {others[0]} and no {WEIGHTS}: if these are the model's weights, rename the file to "
            f"{WEIGHTS}"
        )
    if others:
        raise UserError(
            f"{directory} holds {', '.join(others[:3])} and neither {WEIGHTS} nor {INDEX}: download the model again, "
            "whole"
        )
    others = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in directory.glob(pattern))
    if others:
        raise UserError(
            f"{directory} holds {others[0]} but no {WEIGHTS}: only {WEIGHTS} and {_PICKLED[0]} are read; save the "
            "model with save_pretrained"
        )
    if (directory / "adapter_config.json").is_file():
        raise UserError(
            f"{directory} holds an adapter and no model: merge it into its base (PEFT's merge_and_unload) and save that"
        )
    raise UserError(
        f"{directory} holds no {WEIGHTS}: name the folder that it is in, or download the model again if it is not "
        "complete"
    )


def link_fault(path: Path) -> str | None:
    """One line where the path is a link to nothing, as a folder of the Hub's cache has them when it was copied without
    the files that its links name; else None."""
    if not path.is_symlink() or path.exists():
        return None
    return (
        f"{path} is a link to {os.readlink(path)}, where there is no file: copy the folder with what its links name "
        "(cp -rL), or download the model again"
    )


def _shards_without_index(directory: Path) -> list[Path]:
    """All parts of the weights where they are there and their index is not; else none."""
    found = {path: match for path in directory.glob("model-*.safetensors") if (match := _PART.fullmatch(path.name))}
    counts = {int(match[2]) for match in found.values()}
    if len(counts) != 1 or {int(match[1]) for match in found.values()} != set(range(1, 1 + next(iter(counts)))):
        return []
    return sorted(found)


def _shards(directory: Path, index: str) -> list[Path]:
    path = directory / index
    try:
        names = sorted(set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}): download it again") from None
    # A model from elsewhere is not to have other files of this machine read.
    if outside := [name for name in names if not isinstance(name, str) or Path(name).name != name]:
        raise UserError(f"{path} names {outside[0]!r}, which is no file of its folder: download the model again")
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        fault = link_fault(directory / missing[0])
        raise UserError(fault or f"{directory} lacks {missing[0]}, which its {index} names; download it again")
    return [directory / name for name in names]
