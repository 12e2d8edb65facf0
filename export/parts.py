"""The proof of a large f32 file that is not published, some layers at a time.

llama.cpp maps the whole file of a model, so a large one takes as much memory as its weights. Embedding, some of the
layers, final norm and head are a model, too: each such part is written, and its logits are compared with those of the
same layers of the checkpoint. Every weight is in one of the parts.

Tested in tests/export/test_parts.py.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from slm.export.proof import Comparison, Proof
from slm.export.source import Source
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel

MOST_BYTES = 2 * 10**9
"""A file that is compared as a whole has no more, and no part where its layers leave the choice."""


def layer_groups(config: ModelConfig) -> list[range]:
    """The layers of each part, of about the same number; one group where the file is small, or its layers differ."""
    n_layers = config.n_layers
    # llama.cpp knows layers that differ by their number, which is another one in a part.
    differ = any(config.local_layers) or any(config.conv_layers) or bool(config.rope_layers)
    if differ or 4 * config.n_params <= MOST_BYTES:
        return [range(n_layers)]
    layer = 4 * config.n_layer_matrix_params // n_layers
    ends = 4 * config.n_params - n_layers * layer
    most = max(1, (MOST_BYTES - ends) // layer)
    n_parts = -(-n_layers // most)
    bounds = [number * n_layers // n_parts for number in range(n_parts + 1)]
    return [range(start, stop) for start, stop in pairwise(bounds)]


def part_of(source: Source, layers: range) -> Source:
    """The source with some of the layers alone. The weights are the same ones."""
    whole = source.model
    with torch.device("meta"):
        model = LanguageModel(replace(whole.config, n_layers=len(layers)))
    for name, module in whole.model.named_children():
        if name != "layers":
            setattr(model.model, name, module)
    model.model.layers = nn.ModuleList(whole.model.layers[number] for number in layers)
    if not whole.config.tie_embeddings:
        model.lm_head = whole.lm_head
    return replace(source, model=model, scorer=source.scorer.of(model))


def compare_parts(source: Source, groups: list[range], path: Path, prove: Callable[[Source], Proof]) -> Comparison:
    """Write and compare each part in turn, in the folder of ``path``, by the proof that ``prove`` makes of it. The last
    part's comparison under the name of ``path``, with the failures of all."""
    failures: list[str] = []
    for layers in groups:
        part, file = part_of(source, layers), path.with_name(f"part-{path.name}")
        part.write(file, "f32")
        compared = prove(part).compare(file, "f32")
        file.unlink()
        failures += [f"layers {layers.start} to {layers.stop - 1}: {each}" for each in compared.failures]
    return replace(compared, file=path.name, failures=failures)
