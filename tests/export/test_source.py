import os
from pathlib import Path

import gguf
import pytest
import torch

from slm.data.errors import UserError
from slm.export.config import ExportConfig
from slm.export.pipeline import export
from slm.llama.quantize import quantize
from tests.helpers import tiny_checkpoint as tiny


def test_the_importance_matrix_gives_llama_cpp_the_same_file(exported, tmp_path):
    """What was written as imatrix.gguf is what was used."""
    root, _ = exported
    tensors = {t.name: t.data for t in gguf.GGUFReader(root / "gguf" / "imatrix.gguf").tensors}
    matrix = {
        name.removesuffix(".in_sum2"): data / tensors[name.replace(".in_sum2", ".counts")]
        for name, data in tensors.items()
        if name.endswith(".in_sum2")
    }
    quantize(root / "gguf" / "my-run-1.4M-v1.0-F32.gguf", tmp_path / "again.gguf", "q4_k_m", imatrix=matrix)
    assert (tmp_path / "again.gguf").read_bytes() == (root / "gguf" / "my-run-1.4M-v1.0-Q4_K_M.gguf").read_bytes()
    quantize(root / "gguf" / "my-run-1.4M-v1.0-F32.gguf", tmp_path / "without.gguf", "q4_k_m")
    assert (tmp_path / "without.gguf").read_bytes() != (tmp_path / "again.gguf").read_bytes()


def change_weight(root: Path, name: str, value: float) -> None:
    from safetensors.torch import load_file, save_file

    path = root / "checkpoints" / "step-00000010" / "model.safetensors"
    weights = load_file(path)
    weights[name][1, 2] = value
    save_file(weights, path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_broken_weights_are_refused_by_name(tmp_path, value):
    root = tiny.run(tmp_path / "run")
    change_weight(root, "model.layers.1.mlp.up_proj.weight", value)
    with pytest.raises(UserError, match=r"model.layers.1.mlp.up_proj.weight"):
        export(ExportConfig(threads=1, run=root))
    assert not (root / "gguf").exists()


def test_a_pickle_is_refused_and_never_run(tmp_path):
    folder = tiny.checkpoint(tmp_path / "pickled")
    (folder / "model.safetensors").unlink()
    marker = tmp_path / "ran"

    class Evil:
        def __reduce__(self):
            return (os.system, (f"touch {marker}",))

    torch.save(Evil(), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickle"):
        export(ExportConfig(threads=1, run=folder))
    assert not marker.exists()
