"""Whole runs that end in quantization-aware training: resumed, averaged, by several processes, and exported."""

import json
import shutil

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from slm.model.quantized import load_quantized
from slm.runs import list_checkpoints
from tests.helpers.small_run import SmallRun, differences, losses, newest_step, records, write_corpus

STEPS = 40


@pytest.fixture(scope="module")
def common(tmp_path_factory) -> list[str]:
    corpus = write_corpus(tmp_path_factory.mktemp("text") / "text.jsonl", 300)
    return [
        f"data.files=[{corpus}]",
        "optim=muon",
        f"train.max_steps={STEPS}",
        "+components.quantization.share=0.5",
        "+components.quantization.least_steps=0",
    ]


@pytest.fixture(scope="module")
def whole(common, tmp_path_factory) -> SmallRun:
    """A run that ends in training for Q4_K, with one checkpoint. Tests of Q4_0 are below."""
    folder = tmp_path_factory.mktemp("whole")
    return SmallRun(folder, "name=whole", "train.checkpoint_every=1000", *common, "train.qat=q4_k").finish()


def test_killed_and_resumed_it_is_the_same_to_the_bit(whole, common, tmp_path):
    options = ("name=parts", "train.checkpoint_every=3", *common, "train.qat=q4_k")
    run = SmallRun(tmp_path, *options)
    run.wait_for_checkpoint(21)
    run.kill()
    assert newest_step(run.root) < STEPS, "it was killed too late to prove anything"
    parts = SmallRun(tmp_path, *options).finish()
    last = f"checkpoints/step-{STEPS:08d}"
    assert differences(whole.root / last, parts.root / last) == []
    assert losses(whole.root) == losses(parts.root)
    (began,) = (each for each in records(whole.root) if each.get("event") == "quantized")
    assert began["step"] == STEPS // 2
    stored, weights = load_quantized(whole.root / last), load_file(whole.root / last / "model.safetensors")
    state = load_file(whole.root / last / "optimizer.safetensors")
    for name, kind in stored.types.items():
        assert len(weights[name].unique()) > 1
        assert not torch.equal(weights[name], state[f"{name}.unquantized"])
        assert f"{name}.blocks.{kind}" in state
        assert f"{name}.importance" in state
        assert (f"{name}.compensation" in state) == (".layers." in name)
    assert (whole.root / last / "qat.json").is_file()
    assert "qat.json" in json.loads((whole.root / last / "manifest.json").read_text())["sha256"]


def test_with_few_steps_left_the_weights_are_rounded_once_at_the_end(common, tmp_path):
    """The run's steps are those without quantization, and its last validation is of the rounded weights."""
    options = (*common[:-1], "train.eval_every=20", "train.checkpoint_every=10", "train.calibrate_head=false")
    plain = SmallRun(tmp_path, "name=plain", *(word for word in options if "quantization" not in word)).finish()
    again = SmallRun(tmp_path, "name=plain", "train.qat=q4_0", *options).finish()
    assert "is finished" in again.out  # its weights stay as they are
    run = SmallRun(tmp_path, "name=rounded", "train.qat=q4_0", *options).finish()
    assert "train.qat=q4_0 would hold for 20 of 40 steps, fewer than components.quantization.least_steps=50" in run.out
    assert losses(run.root) == losses(plain.root)
    (began,) = (each for each in records(run.root) if each.get("event") == "quantized")
    assert began["step"] == STEPS
    assert not (run.root / "checkpoints/step-00000030/qat.json").exists()
    last = f"checkpoints/step-{STEPS:08d}"
    state, before = (
        load_file(run.root / last / "optimizer.safetensors"),
        load_file(plain.root / last / "model.safetensors"),
    )
    stored, weights = load_quantized(run.root / last), load_file(run.root / last / "model.safetensors")
    for name in stored.types:
        assert torch.equal(state[f"{name}.unquantized"], before[name])
        assert not torch.equal(weights[name], before[name])
    own, others = (
        [each["val_loss"] for each in records(root) if "val_loss" in each] for root in (run.root, plain.root)
    )
    assert len(own) == len(others) == 2
    assert own[0] == others[0]
    assert own[1] != others[1]


def test_a_run_that_patience_ends_at_a_saved_step_is_rounded_there(common, tmp_path):
    """The checkpoint of that step is there already, unquantized: it is written again."""
    early = ("train.eval_every=4", "train.checkpoint_every=4", "train.patience=1")
    early += ("optim.lr=1.0", "optim.schedule=linear")
    run = SmallRun(tmp_path, "train.qat=q4_0", *common[:-2], "+components.quantization.share=0.1", *early).finish()
    assert "stopped early" in run.out
    (began,) = (each for each in records(run.root) if each.get("event") == "quantized")
    assert began["step"] == newest_step(run.root) < STEPS
    (*_, last) = list_checkpoints(run.root)
    assert (last / "qat.json").is_file()
    state = json.loads((last / "trainer_state.json").read_text())
    assert state["validation"]["step"] == state["step"] == began["step"]
    assert (
        "is finished"
        in SmallRun(tmp_path, "train.qat=q4_0", *common[:-2], "+components.quantization.share=0.1", *early).finish().out
    )


def test_what_is_exported_is_what_it_was_trained_with(whole, tmp_path):
    """Bit for bit; and what is validated is what the file computes."""
    from slm.export.config import ExportConfig
    from slm.export.pipeline import export

    root = tmp_path / "mine"
    shutil.copytree(whole.root, root, symlinks=True)
    (*_, last) = list_checkpoints(root)
    lines: list[str] = []
    record = export(ExportConfig(threads=1, run=root, quant=["q4_k_m", "q8_0"]), lines.append)
    assert record["published"]
    assert record["trained_for"] == "q4_k_m"
    assert "writing q4_k_m as it was trained" in lines
    (note,) = (line for line in lines if line.startswith("note:"))
    assert "trained for q4_k_m; q8_0 is quantized from its weights" in note
    small, _ = record["files"]
    assert small["kl"] < 2e-3  # what llama.cpp rounds in activations
    reader = gguf.GGUFReader(root / "gguf" / small["file"])
    stored, weights = load_quantized(last), load_file(last / "model.safetensors")
    config = json.loads(bytes(reader.fields["slm.config"].parts[-1]))
    assert config["trained_for"] == "q4_k_m"
    from slm.llama.blocks.names import gguf_name

    found = {tensor.name: tensor for tensor in reader.tensors}
    kinds = set()
    for name, weight in weights.items():
        tensor = found[gguf_name(name)]
        if name not in stored.types:
            assert np.array_equal(tensor.data.reshape(weight.shape), weight.numpy())
            continue
        kinds.add(tensor.tensor_type.name)
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        rows = lambda array: sorted(map(bytes, np.ascontiguousarray(array)))  # noqa: E731 - llama orders rows of heads
        assert rows(tensor.data) == rows(stored.blocks[name].numpy())
        np.testing.assert_allclose(np.sort(values, axis=None), np.sort(weight.numpy(), axis=None), rtol=1e-6)
    assert kinds == {"Q4_K", "Q6_K"}
    # Weights that something else has changed are not exported as if they were trained so.
    from safetensors.torch import save_file

    from slm.data.errors import UserError
    from slm.export.source import open_source
    from slm.runs import Run

    name = next(iter(stored.types))
    save_file(weights | {name: weights[name] + 1e-3}, last / "model.safetensors", metadata={"format": "pt"})
    (last / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"they were changed after the training for q4_k_m: remove qat.json"):
        open_source(Run(root=root), ("q4_k_m",))
