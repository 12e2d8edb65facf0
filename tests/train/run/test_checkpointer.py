"""Checkpoints are written while training goes on, one at a time; the newest and the best are kept."""

import json
import os
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from slm.data.errors import UserError
from slm.model import checkpoint
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.runs import list_checkpoints
from slm.train.config import OptimConfig
from slm.train.optim.make import make_optimizer
from slm.train.optim.state import state_tensors
from slm.train.run import checkpointer as checkpointer_module
from slm.train.run.checkpointer import Checkpointer

SHAPE = ModelConfig(
    vocab_size=512, n_layers=2, d_model=256, n_heads=4, n_kv_heads=2, head_dim=64, ffn_dim=256, seq_len=32
)


class Training:
    """A model that really is updated, and a checkpointer."""

    def __init__(self, root, **options) -> None:
        torch.manual_seed(2)
        self.model = LanguageModel(SHAPE).train()
        self.optimizer = make_optimizer(self.model, OptimConfig(lr=1e-3))
        self.lines: list[str] = []
        self.gate: threading.Event | None = None
        options = {"keep_last": 2, "background": True} | options
        self.checkpointer = Checkpointer(root, SHAPE, self.save_tokenizer, log=self.log, **options)
        self.optimizer.register_step_pre_hook(lambda *_: self.checkpointer.before_update())

    def log(self, text: str) -> None:
        self.lines.append(text)
        if "waiting" in text and self.gate is not None:  # logged before the waiting, which may end now
            self.gate.set()

    def save_tokenizer(self, folder) -> None:
        if self.gate is not None:  # holds the writer, as a slow disk would
            assert self.gate.wait(30)

    def update(self) -> None:
        ids = torch.randint(0, 512, (2, 16))
        self.model.loss(ids, ids).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def save(self, step: int, val_loss: float | None = None, **options) -> None:
        snapshot = checkpoint.take_snapshot(self.model.state_dict(), state_tensors(self.model, self.optimizer))
        validation = {"step": step, "val_loss": val_loss} if val_loss is not None else {}
        self.checkpointer.save(step, snapshot, {"step": step, "validation": validation}, **options)


def names(root) -> list[str]:
    return [path.name for path in list_checkpoints(root)]


def test_updates_during_the_writing_are_not_in_the_checkpoint(tmp_path):
    training = Training(tmp_path)
    training.update()
    before = training.weights()
    moments = {k: v.clone() for k, v in state_tensors(training.model, training.optimizer).items()}
    training.gate = threading.Event()
    training.save(1)
    assert training.checkpointer.reads_live_tensors
    training.update()
    assert not training.checkpointer.reads_live_tensors
    training.update()
    assert training.checkpointer.busy
    training.gate.set()
    training.checkpointer.wait()
    (path,) = list_checkpoints(tmp_path)
    checkpoint.verify(path)
    for file, expected in (("model.safetensors", before), ("optimizer.safetensors", moments)):
        for name, tensor in load_file(path / file).items():
            assert torch.equal(tensor, expected[name]), name
    assert training.lines[-1].startswith("step 1: saved")


def test_the_next_save_waits_for_the_one_before_and_says_so(tmp_path):
    training = Training(tmp_path)
    training.gate = threading.Event()
    training.save(1)
    training.update()
    training.save(2)
    assert names(tmp_path)[0] == "step-00000001"
    assert any("waiting for the checkpoint before" in line for line in training.lines)
    training.checkpointer.wait()
    assert names(tmp_path) == ["step-00000001", "step-00000002"]


def test_where_memory_is_short_the_update_waits_instead_of_copying(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointer_module, "available_bytes", lambda: checkpointer_module.SPARE_BYTES + 1000)
    training = Training(tmp_path)
    before = training.weights()
    training.gate = threading.Event()
    training.save(1)
    training.update()
    assert any("too little memory for a copy" in line for line in training.lines)
    training.checkpointer.wait()
    for name, tensor in load_file(list_checkpoints(tmp_path)[0] / "model.safetensors").items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("background", [True, False])
def test_the_newest_and_the_best_are_kept(background, tmp_path):
    training = Training(tmp_path, background=background)
    for step, loss in enumerate((3.0, 2.0, 2.5, None, 2.6, 2.7), start=1):
        training.save(step, loss)
        training.checkpointer.wait()
    assert names(tmp_path) == ["step-00000002", "step-00000005", "step-00000006"]
    assert os.readlink(tmp_path / "best") == "checkpoints/step-00000002"
    training.save(7, 1.5)
    training.checkpointer.wait()
    assert names(tmp_path) == ["step-00000006", "step-00000007"]
    assert (tmp_path / "best").resolve().name == "step-00000007"


def test_a_writer_that_fails_is_told_at_the_next_step_and_removes_nothing(tmp_path, monkeypatch):
    training = Training(tmp_path, keep_last=1)
    training.save(1)
    training.checkpointer.wait()
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    training.save(2)
    training.checkpointer._thread.join()
    with pytest.raises(UserError, match=r"no room for the checkpoint .*step-00000002"):
        training.checkpointer.check()
    training.update()  # nothing waits for a writer that is gone
    training.checkpointer.check()
    assert names(tmp_path) == ["step-00000001"]
    training.save(3)
    training.checkpointer._thread.join()
    training.checkpointer.close()
    assert "warning: no room" in training.lines[-1]


def test_a_step_that_is_saved_is_not_written_again(tmp_path):
    training = Training(tmp_path)
    training.save(1)
    training.checkpointer.wait()
    stamp = (list_checkpoints(tmp_path)[0] / "manifest.json").stat().st_mtime_ns
    training.save(1)
    training.checkpointer.wait()
    assert (list_checkpoints(tmp_path)[0] / "manifest.json").stat().st_mtime_ns == stamp
    assert json.loads((list_checkpoints(tmp_path)[0] / "trainer_state.json").read_text())["step"] == 1
    training.save(1, replace=True)  # validated or quantized since
    training.checkpointer.wait()
    assert (list_checkpoints(tmp_path)[0] / "manifest.json").stat().st_mtime_ns > stamp


def test_where_links_are_refused_the_checkpoint_is_there_all_the_same(tmp_path, monkeypatch):
    def refuse(*_, **__) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    training = Training(tmp_path)
    for step in (1, 2):
        training.save(step)
        training.checkpointer.wait()
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    assert sum("was not set" in line for line in training.lines) == 1


def test_the_checkpoint_is_written_where_the_writers_priority_cannot_be_set(tmp_path, monkeypatch):
    """``nice -n 19 slm train`` as a user who is not root: nobody else may raise a priority."""

    def refuse(*_) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refuse)
    training = Training(tmp_path)
    training.save(1)
    training.checkpointer.wait()
    assert names(tmp_path) == ["step-00000001"]
