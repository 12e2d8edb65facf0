"""Writing a checkpoint as one GGUF file: standard metadata, tokenizer, tensors, standard file name."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm.data.errors import UserError
from slm.export.config import Naming
from slm.export.gguf.tensors import encode, gguf_tensors, stored_type
from slm.export.target import is_target, parse_target
from slm.exported import CONFIG_KEY
from slm.hub.name import cached_name
from slm.llama.adapter_file import FINGERPRINT_KEY
from slm.llama.blocks.names import gguf_name
from slm.llama.blocks.shape import add_shape
from slm.llama.gguf_check import GGML_TYPES
from slm.model.config import ModelConfig
from slm.model.fingerprint import fingerprint
from slm.model.quantized import RECORD, QuantizedWeights
from slm.model.transformer import shapes
from slm.runs import ADAPTER_END, Run, saved_config
from slm.vocabulary.gguf_vocab import Vocab

FILE_TYPES = {"f32": 0, "f16": 1, "bf16": 32}
"""general.file_type (llama.cpp's LLAMA_FTYPE) of the types written here."""


PRIVATE = ("files", "val_files", "decontaminate", "sample_prompts", "cache_dir")
"""Options that a file's record leaves out, unless it is asked for them."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What a file is called, in its name and under ``general.*``."""

    metadata: Any
    """gguf.Metadata with name, basename, version and size_label set."""

    def file_name(self, encoding: str) -> str:
        """``BaseName-SizeLabel-Version-ENCODING.gguf``, after GGUF's naming convention. A goal's encoding is its own
        (``auto:4.5``: ``auto-4.5bpw``)."""
        import gguf

        m = self.metadata
        if is_target(encoding):  # gguf would write it in capitals
            stem = gguf.naming_convention(m.name, m.basename, m.finetune, m.version, m.size_label, None)
            return f"{stem}-{parse_target(encoding).encoding}.gguf"
        stem = gguf.naming_convention(m.name, m.basename, m.finetune, m.version, m.size_label, encoding)
        return f"{stem}.gguf"

    def adapter_name(self, encoding: str) -> str:
        """The same for a LoRA adapter: ``BaseName-SizeLabel-Version-ENCODING-LoRA.gguf``."""
        return self.file_name(encoding).removesuffix(".gguf") + ADAPTER_END


def identify_model(naming: Naming, run: Run, checkpoint: Path, n_params: int) -> Identity:
    """Names from the command line, else the run; a model from elsewhere keeps what its card and folder say."""
    import gguf
    import yaml

    if run.is_hf:
        try:
            metadata = gguf.Metadata.load(None, checkpoint, run.name if run.pinned else None, n_params)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise UserError(
                f"the header of {checkpoint / 'README.md'} is not valid YAML ({str(error).splitlines()[0]}); "
                "correct it or move it away"
            ) from error
        _as_text(metadata)
        if run.pinned:  # a download's folder has the name of a commit
            metadata.basename, metadata.finetune, metadata.version, metadata.size_label = run.name, None, None, None
        metadata.name = metadata.name or run.name
        metadata.basename = metadata.basename or metadata.name
    else:
        metadata = gguf.Metadata(name=run.name, basename=run.name)
    _set_sampling(metadata, checkpoint / "generation_config.json")
    if naming.name:
        metadata.name = metadata.basename = naming.name
        metadata.finetune = None
    metadata.version = naming.version or metadata.version or "v1.0"
    metadata.size_label = metadata.size_label or gguf.size_label(n_params, n_params, 0, 0)
    metadata.license = naming.license or metadata.license
    return Identity(metadata=metadata)


_SAMPLING: dict[str, tuple[str, type]] = {
    "temperature": ("temp", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "repetition_penalty": ("penalty_repeat", float),
}
"""What ``generation_config.json`` calls a value, and how ``general.sampling.*`` of a GGUF file has it."""


def _set_sampling(metadata: Any, file: Path) -> None:
    """The model's own way of sampling, as llama.cpp's converter writes it; that leaves out the repetition penalty.

    A model that is to be decoded greedily (``do_sample`` false) gets a temperature of 0.
    """
    try:
        given = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON ({error}); correct it or move it away") from error
    if not isinstance(given, dict):
        raise UserError(f"{file} holds no JSON object; correct it or move it away")
    for name, (key, kind) in _SAMPLING.items():
        value = given.get(name)
        usable = isinstance(value, int | float) and not isinstance(value, bool)
        setattr(metadata, f"sampling_{key}", kind(value) if usable else None)
    if given.get("do_sample") is False:
        metadata.sampling_temp = 0.0


def _as_text(metadata: Any) -> None:
    """A model card's header may hold numbers (``version: 1.0``) where GGUF wants text."""
    for field in fields(metadata):
        value = getattr(metadata, field.name)
        if isinstance(value, list) and all(not isinstance(each, dict) for each in value):
            setattr(metadata, field.name, [each for each in value if isinstance(each, str)] or None)
        elif value is not None and not isinstance(value, str | list) and "str" in str(field.type):
            setattr(metadata, field.name, str(value))


def run_record(run: Run, checkpoint: Path, *, private: bool = False) -> str:
    """The resolved configuration of the run as one JSON string; for a model from elsewhere its config.json.

    The file may go anywhere: names of data files and sample prompts are in it with ``private`` only, and then of paths
    out of the working directory the last part.
    """
    record: dict[str, Any] = {"run": run.name, "checkpoint": checkpoint.name}
    if (checkpoint / RECORD).is_file():
        record["trained_for"] = json.loads((checkpoint / RECORD).read_text(encoding="utf-8"))["file_type"]
    if config := saved_config(run.root):
        record["config"] = without_folders(config if private else without_private(config))
    record["model"] = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    return json.dumps(record, ensure_ascii=False, default=str)


def without_private(value: Any) -> Any:
    """A configuration without what tells of the person who trained: names of files, and prompts."""
    if isinstance(value, dict):
        return {key: without_private(each) for key, each in value.items() if key not in PRIVATE}
    return [without_private(each) for each in value] if isinstance(value, list) else value


def without_folders(value: Any) -> Any:
    """A configuration without the folders of this machine, and with the Hub's names of models in its cache."""
    if isinstance(value, dict):
        return {key: each if key == "sample_prompts" else without_folders(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    if not isinstance(value, str) or not value.startswith(("/", "~", "../", "file:")):
        return value
    return cached_name(value) or Path(value).name or value


def write_gguf(
    path: Path,
    encoding: str,
    *,
    model: ModelConfig,
    weights: Mapping[str, Tensor],
    vocab: Vocab,
    identity: Identity,
    record: str,
    quantized: QuantizedWeights | None = None,
    file_type: int | None = None,
) -> None:
    """Write ``weights`` (Hugging Face names) to ``path`` as f32, f16 or bf16. Not atomic: ``path`` is a staged file.

    ``quantized``: blocks that are written in place of the weights of their names; ``file_type`` is then the file's.
    UserError naming the path and the bytes where the disk refuses.
    """
    import gguf

    writer = gguf.GGUFWriter(None, arch=model.arch)
    name_of_weights = fingerprint(weights)
    kinds = {gguf_name(name, model.arch): kind for name, kind in quantized.types.items()} if quantized else {}
    blocks = quantized.blocks if quantized else None
    sizes = shapes(model)
    empty = {name: torch.empty(sizes[name], device="meta") for name in weights if name in sizes}
    try:
        needed = 0
        for name, tensor in gguf_tensors(model, empty, blocks):  # no value is read yet
            dtype: np.dtype[Any]
            if name in kinds:
                kind, n_bytes, dtype = kinds[name], tensor.numel(), np.dtype(np.uint8)
            else:
                kind, dtype = stored_type(name, tensor, encoding), np.dtype(np.float32)
                n_bytes = tensor.numel() * (4 if kind == "f32" else 2)
            number = gguf.GGMLQuantizationType(GGML_TYPES[kind][0])
            writer.add_tensor_info(name, tuple(tensor.shape), dtype, n_bytes, number)
            needed += n_bytes
        _add_metadata(writer, model, identity, FILE_TYPES[encoding] if file_type is None else file_type)
        vocab.write(writer)
        writer.add_string(CONFIG_KEY, record)
        writer.add_string(FINGERPRINT_KEY, name_of_weights)
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name, tensor in gguf_tensors(model, weights, blocks):
            as_is = name in kinds
            kind = stored_type(name, tensor, encoding)
            writer.write_tensor_data(tensor.contiguous().numpy() if as_is else encode(tensor, kind))
        writer.close()
    except OSError as error:
        raise UserError(
            f"{path.parent.parent / path.name} could not be written ({error.strerror or error}; "
            f"its tensors take {needed:,} bytes); "
            "nothing was left behind"
        ) from error


def _add_metadata(writer: Any, model: ModelConfig, identity: Identity, file_type: int) -> None:
    import gguf

    writer.add_type("model")
    identity.metadata.set_gguf_meta_model(writer)
    add_shape(writer, model)
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
