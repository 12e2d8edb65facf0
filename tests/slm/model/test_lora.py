"""PEFT directories, read and refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from data.errors import UserError
from slm.model import lora

WEIGHT = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def directory(tmp_path):
    pair = (torch.randn(4, 8), torch.randn(6, 4))
    lora.write_config(tmp_path, rank=4, alpha=8, targets=("q_proj",), base="runs/base")
    save_file(lora.peft_tensors({WEIGHT: pair}), tmp_path / lora.WEIGHTS)
    return tmp_path, pair


def test_what_is_written_is_read(directory):
    folder, pair = directory
    assert lora.is_adapter(folder)
    assert set(load_file(folder / lora.WEIGHTS)) == {
        "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight",
        "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight",
    }
    found = lora.read(folder)
    assert (found.rank, found.alpha, found.scale, found.base) == (4, 8.0, 2.0, "runs/base")
    assert all(torch.equal(a, b) for a, b in zip(found.pairs[WEIGHT], pair, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"peft_type": "IA3"}, "only LORA"),
        ({"use_dora": True}, "use_dora"),
        ({"rank_pattern": {"q_proj": 8}}, "rank_pattern"),
        ({"r": 8}, "says rank 8"),
    ],
)
def test_other_kinds_are_one_line(directory, change, message):
    folder, _ = directory
    config = json.loads((folder / lora.CONFIG).read_text())
    (folder / lora.CONFIG).write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=message):
        lora.read(folder)


def test_missing_and_other_tensors_are_one_line(directory):
    folder, _ = directory
    tensors = load_file(folder / lora.WEIGHTS)
    name = next(iter(tensors)).replace("lora_A", "lora_B")
    save_file({key: each for key, each in tensors.items() if key != name}, folder / lora.WEIGHTS)
    with pytest.raises(UserError, match=r"lacks|other tensors"):
        lora.read(folder)
    save_file(tensors | {"base_model.model.lm_head.weight": torch.zeros(2)}, folder / lora.WEIGHTS)
    with pytest.raises(UserError, match="other tensors"):
        lora.read(folder)
    (folder / lora.WEIGHTS).unlink()
    with pytest.raises(UserError, match="holds no adapter"):
        lora.read(folder)
