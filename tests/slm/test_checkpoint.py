"""A checkpoint appears whole or not at all, and damage is found before use."""

import json
import random
import resource

import pytest
import torch

from data.errors import UserError
from slm import checkpoint
from slm.config import ModelConfig
from slm.model import LanguageModel
from slm.runs import list_checkpoints, point_latest, resolve

SHAPE = ModelConfig(vocab_size=64, n_layers=1, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=32)


def save(directory, **changes):
    torch.manual_seed(3)
    model = LanguageModel(SHAPE)
    arguments = {"tensors": {"moment": torch.arange(4.0)}, "state": {"step": 7}} | changes
    checkpoint.save_checkpoint(
        directory, model, lambda folder: (folder / "tokenizer.json").write_text("{}"), **arguments
    )
    return model


def test_what_is_saved_is_what_is_loaded(tmp_path):
    model = save(tmp_path / "checkpoints" / "step-00000007")
    folder = tmp_path / "checkpoints" / "step-00000007"
    checkpoint.verify(folder)
    loaded = checkpoint.load_model(folder)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, loaded.state_dict()[name])
    tensors, state = checkpoint.load_trainer_state(folder)
    assert state == {"step": 7}
    assert torch.equal(tensors["moment"], torch.arange(4.0))
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_flipped_bits_are_all_found(tmp_path):
    folder = tmp_path / "step-00000001"
    save(folder)
    chance = random.Random(5)
    names = sorted(json.loads((folder / checkpoint.MANIFEST).read_text())["sha256"])
    assert {"model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json"} <= set(names)
    for _ in range(60):
        path = folder / chance.choice(names)
        whole = path.read_bytes()
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="does not match its SHA-256"):
            checkpoint.verify(folder)
        path.write_bytes(whole)
    checkpoint.verify(folder)


def test_a_missing_file_and_a_missing_manifest_are_found(tmp_path):
    folder = tmp_path / "step-00000001"
    save(folder)
    (folder / "optimizer.safetensors").unlink()
    with pytest.raises(UserError, match=r"optimizer\.safetensors is missing"):
        checkpoint.verify(folder)
    (folder / checkpoint.MANIFEST).unlink()
    with pytest.raises(UserError, match="cannot be trusted"):
        checkpoint.verify(folder)


def test_a_write_that_fails_leaves_the_old_checkpoints_and_no_debris(tmp_path):
    folder = tmp_path / "checkpoints"
    save(folder / "step-00000001")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # every file stops at 4 KiB, as on a full disk
    try:
        with pytest.raises(UserError, match=r"step-00000002 could not be written"):
            save(folder / "step-00000002")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, previous)
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]
    checkpoint.verify(folder / "step-00000001")


def test_no_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(UserError, match=r"no room for the checkpoint .* 10 are free"):
        save(tmp_path / "step-00000002")
    assert list(tmp_path.iterdir()) == []


def test_runs_are_found_by_directory_checkpoint_and_latest(tmp_path):
    run = tmp_path / "runs" / "mine"
    for step in (5, 100):
        save(run / "checkpoints" / f"step-{step:08d}")
    (run / "checkpoints" / ".step-00000200.77.tmp").mkdir()
    point_latest(run)
    assert [path.name for path in list_checkpoints(run)] == ["step-00000005", "step-00000100"]
    assert resolve(tmp_path / "runs" / "latest").root == run
    assert resolve(run).checkpoint().name == "step-00000100"
    assert resolve(run / "checkpoints" / "step-00000005").checkpoint().name == "step-00000005"
    elsewhere = resolve(run / "checkpoints" / "step-00000100").pinned
    assert elsewhere.name == "step-00000100"
    copied = tmp_path / "downloaded"
    (run / "checkpoints" / "step-00000100").rename(copied)
    assert resolve(copied).is_hf
    assert resolve(copied).checkpoint() == copied


def test_a_wrong_run_names_the_near_ones(tmp_path):
    (tmp_path / "runs" / "stories").mkdir(parents=True)
    with pytest.raises(UserError, match="did you mean 'stories'"):
        resolve(tmp_path / "runs" / "storys")
    with pytest.raises(UserError, match="neither a run"):
        resolve(tmp_path / "runs" / "stories")
    with pytest.raises(UserError, match="no run yet"):
        resolve(tmp_path / "nothing" / "latest")
