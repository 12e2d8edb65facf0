"""A checkpoint is a Hugging Face model directory, with the trainer's state next to it.

A new checkpoint is written under a temporary name, flushed, described by ``manifest.json`` (SHA-256 of every
file) and renamed into place last: a directory that has its final name is complete. Everything is safetensors or
JSON. From a pickled ``.bin`` from elsewhere only tensors are read (``stored_weights``).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from slm.data.errors import UserError
from slm.data.storage import fsync
from slm.data.wrong_download import wrong_download
from slm.model import lora
from slm.model.config import ModelConfig
from slm.model.layers.held import computed, held_of
from slm.model.quantized import BLOCKS, RECORD, QuantizedWeights
from slm.model.snapshot import Computed, Snapshot
from slm.model.stored_weights import HEAD, ROTARY, has_own_head, link_fault, note_own_head, with_table
from slm.model.stored_weights import WEIGHTS as WEIGHTS
from slm.model.stored_weights import load_weights as load_weights
from slm.model.transformer import LanguageModel, empty_model
from slm.report import atomic_write_json

OPTIMIZER = "optimizer.safetensors"
TRAINER_STATE = "trainer_state.json"
MANIFEST = "manifest.json"
ADAPTER = f"{lora.FOLDER}/{lora.WEIGHTS}"
TEMPORARY, REMOVED, REPLACED = ".tmp", ".old", ".replaced"
"""How hidden directories end: a checkpoint in the making, one being deleted. A kill leaves them behind."""

MARGIN_BYTES = 1 << 20
"""For everything in a checkpoint that is not a tensor."""
_TOGETHER = "use the weights and the config.json of one model"


def load_config(directory: str | Path) -> ModelConfig:
    """The model's shape from ``config.json``; untied where a head is stored that is not the embedding."""
    path = Path(directory) / "config.json"
    try:
        config = ModelConfig.from_hf(json.loads(path.read_text(encoding="utf-8-sig")))
    except FileNotFoundError:
        if fault := link_fault(path):
            raise UserError(fault) from None
        raise UserError(
            f"{path} does not exist: {directory} is not a model directory; give the folder that config.json and "
            f"{WEIGHTS} are in"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        if found := wrong_download(path.read_bytes()[:256]):
            raise UserError(f"{path} {found}") from None
        raise UserError(f"{path} is not valid JSON: {error}; download or save it again") from None
    except KeyError as error:
        raise UserError(
            f"{path} lacks {error}, which the shape of a model needs: give the config.json of a language model"
        ) from None
    if config.tie_embeddings and has_own_head(directory):
        note_own_head(directory)
        return replace(config, tie_embeddings=False)
    return config


def load_model(directory: str | Path, dtype: torch.dtype = torch.float32) -> LanguageModel:
    """The model of a checkpoint or of a downloaded directory, in eval mode, its weights as ``dtype``."""
    model = empty_model(load_config(directory))
    load_into(model, load_weights(directory), where=str(directory))
    return model.to(dtype).eval()


def load_into(model: LanguageModel, weights: dict[str, Tensor], where: str) -> None:
    """Copy ``weights`` into ``model``; UserError names the first tensor that is missing, unknown or misshapen."""
    weights = {name: tensor for name, tensor in weights.items() if not name.endswith(ROTARY)}
    if model.config.tie_embeddings:
        weights = with_table(weights)
    own = model.state_dict()
    check_complete(own, set(weights), where=where)
    for name in sorted(weights):
        check_tensor(own, name, weights[name], arch=model.config.arch, where=where)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def check_complete(own: Mapping[str, Tensor], found: Set[str], where: str) -> None:
    """UserError names the first of a model's ``own`` tensors that was not found."""
    if missing := [name for name in own if name not in found]:
        tie = "; where the head is the embedding, write tie_word_embeddings=true there" if missing == [HEAD] else ""
        raise UserError(f"{where} lacks the tensor {missing[0]}, which its config.json calls for{tie}; {_TOGETHER}")


def check_tensor(own: Mapping[str, Tensor], name: str, tensor: Tensor, *, arch: str, where: str) -> None:
    """UserError for a tensor that is not one of the model's ``own``, has another shape, or holds values that are not
    finite."""
    if name not in own:
        raise UserError(
            f"{where} holds the tensor {name}, which its config.json, a {arch} model's, does not call for; {_TOGETHER}"
        )
    if own[name].shape != tensor.shape:
        raise UserError(
            f"{where}: tensor {name} has shape {tuple(tensor.shape)}, but config.json calls for "
            f"{tuple(own[name].shape)}; {_TOGETHER}"
        )
    if tensor.numel() and not all(map(torch.isfinite, torch.aminmax(tensor))):  # NaN is the least of its tensor, too
        count = int((~torch.isfinite(tensor)).sum())
        raise UserError(
            f"{where}: tensor {name} holds {count:,} values that are no finite numbers, and with them every prediction "
            "would be none: download the model again, or take an earlier checkpoint of its training"
        )


def save_model(directory: Path, model: LanguageModel) -> None:
    """Write ``config.json``, ``generation_config.json`` and ``model.safetensors`` (f32) into ``directory``."""
    write_config(directory, model.config)
    if any(held_of(each) is not None for each in model.parameters()):
        Snapshot({WEIGHTS: computed(model)}).write_file(WEIGHTS, directory / WEIGHTS)
        return
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})


def write_config(directory: Path, config: ModelConfig) -> None:
    """Write ``config.json`` and ``generation_config.json`` into ``directory``."""
    atomic_write_json(directory / "config.json", config.to_hf())
    atomic_write_json(
        directory / "generation_config.json",
        {"bos_token_id": config.bos_id, "eos_token_id": config.eos_id, "do_sample": True, "temperature": 0.8},
    )


def also_stop_at(directory: Path, token: int) -> None:
    """Let other programs end a reply at ``token``, too: that which ends a turn in the chat template."""
    path = directory / "generation_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["eos_token_id"] = [each for each in (settings["eos_token_id"], token) if each is not None]
    atomic_write_json(path, settings)


def take_snapshot(
    weights: Mapping[str, Tensor | Computed],
    tensors: dict[str, Tensor],
    adapter: dict[str, Tensor] | None = None,
    quantized: QuantizedWeights | None = None,
    *,
    base_fingerprint: str = "",
) -> Snapshot:
    """The tensors of a checkpoint: the model's, the trainer's (optimizer moments, random states), an adapter's by
    PEFT's names, and the blocks of ``weights`` where they are a quantized type's values.

    ``base_fingerprint``: of the model that the adapter belongs to.

    They are shared with training until ``detach()`` is called on what is returned, which must be before they change.
    """
    more = ({ADAPTER: adapter} if adapter else {}) | ({BLOCKS: quantized.blocks} if quantized else {})
    metadata = {ADAPTER: {lora.FINGERPRINT: base_fingerprint}} if base_fingerprint else None
    return Snapshot({WEIGHTS: weights, OPTIMIZER: tensors} | more, metadata)


def write_checkpoint(
    directory: Path,
    config: ModelConfig,
    snapshot: Snapshot,
    save_tokenizer: Callable[[Path], None],
    *,
    state: dict[str, Any],
) -> None:
    """Write a whole checkpoint so that ``directory`` either appears complete or does not appear.

    ``save_tokenizer`` writes the tokenizer's files into a folder, and those that describe an adapter. ``state`` is the
    trainer's JSON part; its ``qat``, where there is one, is the record of the blocks. Raises UserError naming path and
    bytes where the disk has no room; what was there before stays as it was.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    needed = snapshot.nbytes + MARGIN_BYTES
    free = shutil.disk_usage(directory.parent).free
    if free < needed:
        raise UserError(
            f"no room for the checkpoint {directory}: it needs {needed:,} bytes, {free:,} are free; "
            "free some, or keep fewer (train.keep_last)"
        )
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}{TEMPORARY}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        write_config(temporary, config)
        save_tokenizer(temporary)
        for name in snapshot.files:
            (temporary / name).parent.mkdir(exist_ok=True)
        hashes = {name: snapshot.write_file(name, temporary / name) for name in snapshot.files}
        atomic_write_json(temporary / TRAINER_STATE, state)
        if BLOCKS in snapshot.files:
            atomic_write_json(temporary / RECORD, state["qat"])
        for path in sorted(temporary.rglob("*")):
            if path.is_file() and (name := path.relative_to(temporary).as_posix()) not in hashes:
                path.chmod(0o644)
                hashes[name] = sha256(path)
            fsync(path)
        atomic_write_json(temporary / MANIFEST, {"sha256": dict(sorted(hashes.items()))})
        fsync(temporary)
        aside = directory.with_name(f".{directory.name}{REPLACED}")
        shutil.rmtree(aside, ignore_errors=True)
        replaces = directory.exists()
        if replaces:
            os.replace(directory, aside)  # ``sweep`` brings it back where this process is killed here
        try:
            os.replace(temporary, directory)
        except OSError:
            if replaces:
                os.replace(aside, directory)
            raise
        fsync(directory.parent)
        shutil.rmtree(aside, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"the checkpoint {directory} could not be written ({reason}; it needs {needed:,} bytes); "
            "earlier checkpoints are untouched: make room, or give the right to write there, then resume"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def verify(directory: Path, *, training: bool = True) -> None:
    """Compare every file with the manifest. UserError names the first that differs or is missing.

    ``training=False`` leaves out the optimizer's state, which is twice the model's size and which only a resumed run
    reads.
    """
    path = directory / MANIFEST
    try:
        hashes = dict(json.loads(path.read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{path} is missing or damaged: the checkpoint {directory.name} cannot be trusted") from None
    for name in sorted({"config.json", WEIGHTS, OPTIMIZER, TRAINER_STATE} - set(hashes)):
        raise UserError(f"{path} does not list {name}: the checkpoint {directory.name} cannot be trusted")
    for name, expected in hashes.items():
        file = directory / name
        if not file.is_file():
            raise UserError(f"{file} is missing: the checkpoint {directory.name} is damaged")
        if (training or name != OPTIMIZER) and sha256(file) != expected:
            raise UserError(f"{file} does not match its SHA-256: the checkpoint {directory.name} is damaged")


def load_trainer_state(directory: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The trainer's tensors and JSON state of a verified checkpoint. UserError where it has none (a bare model)."""
    try:
        state = json.loads((directory / TRAINER_STATE).read_text(encoding="utf-8"))
        with safe_open(directory / OPTIMIZER, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError as error:
        raise UserError(
            f"{directory} holds a model but no trainer state ({Path(error.filename or TRAINER_STATE).name}): "
            f"to start a new run from its weights use init_from={directory}"
        ) from None
    except (SafetensorError, ValueError) as error:
        raise UserError(
            f"the trainer state in {directory} cannot be read: {error}; resume from an earlier checkpoint "
            f"(resume=DIR), or start a new run from its weights with init_from={directory}"
        ) from None
    return tensors, state


def remove(directory: Path) -> None:
    """Delete a checkpoint. It loses its name first, so that a half-deleted one is never taken for a whole one."""
    doomed = directory.with_name(f".{directory.name}{REMOVED}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.replace(directory, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def sweep(folder: Path) -> list[str]:
    """Delete what killed saves and removals left in ``folder``, and bring back a checkpoint if its successor did not
    come; only for whoever holds the run's lock."""
    for aside in folder.glob(f".step-*{REPLACED}"):
        own = aside.with_name(aside.name[1 : -len(REPLACED)])
        if not own.exists():
            os.replace(aside, own)
    left = [path for path in folder.glob(".step-*") if path.name.endswith((TEMPORARY, REMOVED, REPLACED))]
    for path in left:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in left]


def sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
