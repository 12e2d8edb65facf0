"""An adapter's GGUF: base and adapter in llama.cpp give the merged checkpoint, or nothing is published."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from slm.data.errors import UserError
from slm.export.config import ExportConfig
from slm.export.gguf.adapter import write_adapter
from slm.export.gguf.writer import Identity
from slm.export.pipeline import export
from slm.llama.adapter import Adapter
from slm.llama.adapter_file import adapter_header, check_fits
from slm.llama.context import Batch, Context
from slm.llama.model import Model
from slm.model import lora
from slm.model.architectures import LINEAR_LAYERS
from slm.model.checkpoint import WEIGHTS, load_weights
from slm.model.fingerprint import fingerprint
from slm.runs import resolve
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers import tiny_gguf

IDENTITY = Identity(metadata=gguf.Metadata(name="other", basename="other", version="v1.0", size_label="1M"))


def lora_run(root: Path, *, rank: int = 4, known: bool = True, **changes) -> Path:
    """A run as training leaves it: the base, and a checkpoint with the merged model and the adapter.

    ``known``: the adapter has the fingerprint of its base; without, it is like one from elsewhere.
    """
    tiny.run(root, **changes)
    checkpoint = root / "checkpoints" / "step-00000010"
    tiny.checkpoint(root / "base", **changes)
    weights = load_weights(checkpoint)
    chance = torch.Generator().manual_seed(5)
    pairs = {}
    for name in lora.target_weights(weights, LINEAR_LAYERS):
        rows, columns = weights[name].shape
        a_RI = torch.randn(rank, columns, generator=chance) * columns**-0.5
        b_OR = torch.randn(rows, rank, generator=chance) * 0.3
        pairs[name] = (a_RI, b_OR)
        weights[name] = weights[name] + 2 * b_OR @ a_RI
    save_file(weights, checkpoint / WEIGHTS, metadata={"format": "pt"})
    folder = checkpoint / lora.FOLDER
    folder.mkdir()
    lora.write_config(folder, rank=rank, alpha=2 * rank, targets=LINEAR_LAYERS, base=str(root / "base"))
    metadata = {lora.FINGERPRINT: fingerprint(load_weights(root / "base"))} if known else None
    save_file(lora.peft_tensors(pairs), folder / lora.WEIGHTS, metadata)
    return root


@pytest.mark.parametrize("changes", [{"arch": "llama"}, {"arch": "qwen3", "tie_embeddings": True}])
def test_base_and_adapter_give_the_merged_checkpoint(tmp_path, changes):
    root = lora_run(tmp_path / "mine", n_layers=1, **changes)
    record = export(ExportConfig(threads=1, run=root, quant=["f16", "q4_k_m"]))
    assert record["published"], record["files"]
    by_type = {each["type"]: each for each in record["files"]}
    assert list(by_type) == ["f16", "lora", "q4_k_m"]
    own = by_type["lora"]
    assert own["file"].endswith("-v1.0-F32-LoRA.gguf")
    assert own["kl"] < 1e-8  # as close as a merged f32 file
    assert own["size_mb"] == pytest.approx((root / "gguf" / own["file"]).stat().st_size / 1e6)
    assert own["file"] in record["sha256"]
    run = resolve(root)
    assert [path.name for path in run.adapters()] == [own["file"]]
    assert own["file"] not in [path.name for path in run.ggufs()]
    assert not (root / "gguf" / "base-of-the-adapter.gguf").exists()
    for merged in run.ggufs():  # of the same shape, and quantized
        with pytest.raises(UserError, match=r"-LoRA.gguf belongs to another model than .*exported from base$"):
            check_fits(run.adapters()[0], merged)
    if changes["arch"] == "llama":
        base = export(ExportConfig(threads=1, run=root / "base", out=tmp_path, quant=["f32"]))
        check_fits(run.adapters()[0], tmp_path / base["files"][0]["file"])


def test_an_adapter_that_gives_something_else_is_not_published(tmp_path):
    root = lora_run(tmp_path / "mine", n_layers=1)
    folder = root / "checkpoints" / "step-00000010" / lora.FOLDER
    tensors = load_file(folder / lora.WEIGHTS)
    name = next(name for name in tensors if "q_proj.lora_B" in name)
    tensors[name] = tensors[name].flip(0)  # rows in another order: what a forgotten permutation does
    save_file(tensors, folder / lora.WEIGHTS)
    record = export(ExportConfig(threads=1, run=root, quant=["f16"]))
    assert not record["published"]
    (failed,) = [each for each in record["files"] if each["failures"]]
    assert failed["type"] == "lora"
    assert not list((root / "gguf").glob("*.gguf"))


def test_without_its_base_only_the_merged_model_is_exported(tmp_path):
    root = lora_run(tmp_path / "mine", n_layers=1)
    (root / "base").rename(tmp_path / "elsewhere")
    said = []
    record = export(ExportConfig(threads=1, run=root, quant=["f16"]), said.append)
    assert [each["type"] for each in record["files"]] == ["f16"]
    assert any("the adapter's base" in line for line in said)


def test_on_another_base_only_the_merged_model_is_exported(tmp_path):
    root = lora_run(tmp_path / "mine", n_layers=1)
    weights = load_weights(root / "base")
    save_file({name: 1.1 * each for name, each in weights.items()}, root / "base" / WEIGHTS, {"format": "pt"})
    said = []
    record = export(ExportConfig(threads=1, run=root, quant=["f16"]), said.append)
    assert [each["type"] for each in record["files"]] == ["f16"]
    assert any("holds another model than the adapter was trained on" in line for line in said)


def test_a_file_that_does_not_fit_is_one_line(tmp_path):
    root = lora_run(tmp_path / "mine", n_layers=1, ffn_dim=256, known=False)
    record = export(ExportConfig(threads=1, run=root, quant=["f32"]))
    merged, adapter = (root / "gguf" / each["file"] for each in record["files"])
    with pytest.raises(UserError, match="does not fit"):
        check_fits(adapter, tiny_gguf.write(tmp_path / "narrow.gguf"))
    found = lora.read(root / "checkpoints" / "step-00000010" / lora.FOLDER)
    other = replace(tiny.config(), arch="qwen3")
    write_adapter(tmp_path / "other.gguf", model=other, adapter=found, identity=IDENTITY, record="{}")
    with pytest.raises(UserError, match="qwen3 model, and"):
        check_fits(tmp_path / "other.gguf", merged)
    with pytest.raises(UserError, match="is no LoRA adapter"):
        adapter_header(merged)
    with Model(merged) as model, Context(model, n_ctx=256) as plain:
        batch = Batch(8)
        batch.extend([1, 2, 3], 0, 0, True)
        plain.decode(batch)
        before = plain.logits(2)
        with Context(model, n_ctx=256, adapter=Adapter(model, adapter)) as changed:
            changed.decode(batch)
            assert np.abs(changed.logits(2) - before).max() > 0.1
        plain.clear()
        plain.decode(batch)
        assert np.array_equal(plain.logits(2), before)  # an adapter belongs to one context
