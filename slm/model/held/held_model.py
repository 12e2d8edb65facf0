"""A model with matrices that are held in another form than f32: one tensor at a time is in memory as f32.

Tested in tests/slm/model/held/test_held_model.py, tests/train/lora/test_held_base.py.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

from slm.model.checkpoint import check_complete, check_tensor, load_config, load_model
from slm.model.config import ModelConfig
from slm.model.held.stored_matrix import stored_matrices
from slm.model.layers.held import Held, hold
from slm.model.stored_weights import stored_places, stream_weights
from slm.model.transformer import LanguageModel


def load_as_stored(directory: str | Path) -> LanguageModel:
    """``load_model`` with matrices that stay in their file; those of a ``.bin`` are loaded."""
    shape = load_config(directory)
    places = stored_places(directory, tied=shape.tie_embeddings)
    if places is None:
        return load_model(directory)
    files = {path: stored_matrices(path) for path in {path for path, _ in places.values()}}

    def place(name: str, tensor: Tensor) -> Held | None:
        path, stored = places[name]
        return files[path].get(stored)

    tensors = stream_weights(directory, tied=shape.tie_embeddings)
    return assemble(shape, tensors, place, where=str(directory)).eval()


def assemble(
    shape: ModelConfig, tensors: Iterable[tuple[str, Tensor]], hold_as: Callable[[str, Tensor], Held | None], where: str
) -> LanguageModel:
    """A model of these ``tensors``. A matrix is held as ``hold_as`` says; None, and everything else: as f32.

    UserError names the first tensor that is missing, unknown or misshapen.
    """
    with torch.device("meta"):
        model = LanguageModel(shape)
    modules = {
        f"{name}.weight": each for name, each in model.named_modules() if isinstance(each, nn.Linear | nn.Embedding)
    }
    own = model.state_dict()
    found: set[str] = set()
    for name, tensor in tensors:
        check_tensor(own, name, tensor, arch=shape.arch, where=where)
        found.add(name)
        held = hold_as(name, tensor) if name in modules else None
        if held is None:
            module, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(module), leaf, nn.Parameter(tensor.to(torch.float32, copy=True)))
        else:
            hold(modules[name], held)
    check_complete(own, found, where=where)
    return model
