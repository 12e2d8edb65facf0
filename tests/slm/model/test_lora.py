"""PEFT directories, read and refused."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from slm.data.errors import UserError
from slm.model import lora
from slm.model.checkpoint import ADAPTER, take_snapshot
from slm.model.fingerprint import fingerprint

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


def test_an_adapter_names_its_base_by_a_fingerprint(directory):
    folder, pair = directory
    assert lora.read(folder).base_fingerprint == ""  # as from elsewhere
    base = {WEIGHT: torch.randn(6, 8), "norm": torch.randn(8)}
    taken = take_snapshot({}, {}, lora.peft_tensors({WEIGHT: pair}), base_fingerprint=fingerprint(base))
    taken.write_file(ADAPTER, folder / lora.WEIGHTS)
    assert lora.read(folder).base_fingerprint == fingerprint(base)
    assert all(torch.equal(a, b) for a, b in zip(lora.read(folder).pairs[WEIGHT], pair, strict=True))


def test_a_fingerprint_is_that_of_one_model_in_any_float_type():
    base = {WEIGHT: torch.randn(40, 8), "norm": torch.randn(8)}
    assert fingerprint({name: base[name].bfloat16() for name in reversed(base)}) == fingerprint(base)
    others = [{WEIGHT: base[WEIGHT], "other": base["norm"]}, {**base, WEIGHT: base[WEIGHT].view(80, 4)}]
    for name in base:
        others += [base | {name: base[name] * 1.01}]
    others += [base | {WEIGHT: torch.cat([base[WEIGHT][:-1], torch.zeros(1, 8)])}]
    assert len({fingerprint(each) for each in (base, *others)}) == len(others) + 1


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
