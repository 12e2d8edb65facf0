"""A LoRA adapter as a GGUF file, in the form that llama.cpp's ``--lora`` loads.

``general.type`` is ``adapter``; each weight W has two tensors, ``W.lora_a`` (A) and ``W.lora_b`` (B). llama.cpp adds
(alpha / rank) * B A. B's rows are a weight's rows, so they change places where those of W do; A's columns stay.

Tested in tests/export/test_adapter.py.
"""

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from slm.data.errors import UserError
from slm.export.gguf.tensors import in_gguf_order
from slm.export.gguf.writer import Identity, without_folders
from slm.exported import CONFIG_KEY
from slm.llama.adapter_file import BASE_FINGERPRINT_KEY, BASE_KEY
from slm.llama.blocks.names import gguf_name
from slm.model.config import ModelConfig
from slm.model.lora import Adapter


def adapter_tensors(config: ModelConfig, adapter: Adapter) -> Iterator[tuple[str, Tensor]]:
    """(GGUF name, f32 tensor) of everything the file holds."""
    for name, (a_RI, b_OR) in adapter.pairs.items():
        yield f"{gguf_name(name)}.lora_a", a_RI
        yield f"{gguf_name(name)}.lora_b", in_gguf_order(config, name, b_OR)


def write_adapter(path: Path, *, model: ModelConfig, adapter: Adapter, identity: Identity, record: str) -> None:
    """Write the adapter to ``path``, f32. Not atomic: ``path`` is a staged file. UserError where the disk refuses."""
    import gguf

    writer = gguf.GGUFWriter(path, arch=model.arch)
    try:
        writer.add_type("adapter")
        identity.metadata.set_gguf_meta_model(writer)
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", adapter.alpha)
        writer.add_string(CONFIG_KEY, record)
        if adapter.base_fingerprint:
            writer.add_string(BASE_FINGERPRINT_KEY, adapter.base_fingerprint)
            writer.add_string(BASE_KEY, without_folders(adapter.base))
        for name, tensor in adapter_tensors(model, adapter):
            writer.add_tensor(name, tensor.contiguous().numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    except OSError as error:
        raise UserError(
            f"{path.parent.parent / path.name} could not be written ({error.strerror or error}); "
            "nothing was left behind"
        ) from error
