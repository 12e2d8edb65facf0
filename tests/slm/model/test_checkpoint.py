"""A checkpoint appears whole or not at all, and damage is found before use."""

import json
import os
import pickle
import random
import resource
import subprocess
import sys
from collections import Counter

import pytest
import torch

from slm.data.errors import UserError
from slm.model import checkpoint
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel
from slm.train.run.resume import newest_intact

SHAPE = ModelConfig(vocab_size=64, n_layers=1, d_model=32, n_heads=2, n_kv_heads=1, head_dim=16, ffn_dim=48, seq_len=32)


def save(directory, check_room=True, **changes):
    torch.manual_seed(3)
    model = LanguageModel(SHAPE)
    arguments = {"tensors": {"moment": torch.arange(4.0)}, "state": {"step": 7}} | changes
    snapshot = checkpoint.take_snapshot(model.state_dict(), arguments["tensors"])
    with pytest.MonkeyPatch.context() as patch:
        if not check_room:  # so that the writes themselves meet the end of the disk
            patch.setattr(checkpoint.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 40})())
        checkpoint.write_checkpoint(
            directory,
            model.config,
            snapshot,
            lambda folder: (folder / "tokenizer.json").write_text("{}"),
            state=arguments["state"],
        )
    return model


@pytest.fixture
def small_disk(tmp_path):
    """A separate file system of 4 MB; without the right to mount one the test is skipped."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "slm-test", folder], capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip("a tmpfs can only be mounted by root; the test with a file size limit covers a part")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_loading_imports_no_compiler(tmp_path):
    save(tmp_path / "model")
    code = "import sys, torch\nfrom slm.model.checkpoint import load_model\n"
    code += f"before = set(sys.modules)\nload_model({str(tmp_path / 'model')!r})\n"
    code += "print({'torch._dynamo', 'torch._inductor', 'sympy'} & set(sys.modules) - before)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"  # it takes two seconds


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


def flip(path, chance) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
    path.write_bytes(damaged)


def test_a_thousand_flipped_bits_are_all_found_and_the_one_before_is_used(tmp_path):
    """In any file of a checkpoint, the manifest too, and before anything of it is used."""
    old, new = (tmp_path / "checkpoints" / f"step-{step:08d}" for step in (1, 2))
    save(old, state={"step": 1})
    save(new, state={"step": 2})
    chance, hits, told = random.Random(5), Counter(), []
    files = sorted(new.iterdir())
    names = {path.name for path in files}
    assert {"model.safetensors", "optimizer.safetensors", "trainer_state.json", "config.json"} <= names
    assert {"manifest.json", "tokenizer.json"} <= names
    assert newest_intact(tmp_path, told.append).checkpoint == new
    sizes = [path.stat().st_size for path in files]
    for number in range(1000):
        # Half of them anywhere (most in the weights), half in a file drawn first: small files get their share.
        path = chance.choices(files, sizes)[0] if number % 2 else chance.choice(files)
        whole = path.read_bytes()
        flip(path, chance)
        told.clear()
        start = newest_intact(tmp_path, told.append)
        assert start.checkpoint == old, (number, path.name)
        assert start.state == {"step": 1}
        assert len(told) == 1
        assert new.name in told[0]
        assert "trying the one before" in told[0]
        hits[path.name] += 1
        path.write_bytes(whole)
    assert set(hits) == names
    assert newest_intact(tmp_path, told.append).checkpoint == new


def test_missing_bytes_are_found(tmp_path):
    folder = tmp_path / "step-00000001"
    save(folder)
    chance = random.Random(6)
    for path in sorted(folder.iterdir()):
        whole = path.read_bytes()
        last = len(whole.rstrip()) - 1  # a manifest's line end is not missed
        for size in (0, last, chance.randrange(last)):
            path.write_bytes(whole[:size])
            with pytest.raises(UserError, match=r"does not match its SHA-256|cannot be trusted"):
                checkpoint.verify(folder)
        path.write_bytes(whole)
    checkpoint.verify(folder)


def test_a_manifest_that_leaves_a_file_out_is_not_trusted(tmp_path):
    folder = tmp_path / "step-00000001"
    save(folder)
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    del manifest["sha256"]["optimizer.safetensors"]
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=r"does not list optimizer\.safetensors"):
        checkpoint.verify(folder)


def test_where_all_are_damaged_the_run_does_not_start_anew_by_itself(tmp_path):
    chance, told = random.Random(7), []
    for step in (1, 2):
        save(tmp_path / "checkpoints" / f"step-{step:08d}")
        flip(tmp_path / "checkpoints" / f"step-{step:08d}" / "model.safetensors", chance)
    with pytest.raises(UserError, match=r"every checkpoint in .* is damaged: start anew with resume=never"):
        newest_intact(tmp_path, told.append)
    assert len(told) == 2


class Malice:
    """Unpickled, it leaves a file behind."""

    def __init__(self, mark) -> None:
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


def test_a_pickle_is_refused_under_any_name_and_not_executed(tmp_path):
    mark = tmp_path / "executed"
    malice = pickle.dumps(Malice(mark))
    pickle.loads(malice).close()
    assert mark.exists()  # it would
    mark.unlink()
    torch.save({"weight": Malice(mark)}, tmp_path / "malice.pt")
    zipped = (tmp_path / "malice.pt").read_bytes()

    folder = tmp_path / "model"
    save(folder)
    (folder / "training_state.pt").write_bytes(malice)  # next to the real ones: not looked at
    (folder / "pytorch_model.bin").write_bytes(malice)
    checkpoint.load_model(folder)
    checkpoint.load_trainer_state(folder)
    for content in (malice, zipped):
        for name in ("model.safetensors", "optimizer.safetensors"):
            whole = (folder / name).read_bytes()
            (folder / name).write_bytes(content)
            with pytest.raises(UserError, match="does not match its SHA-256"):
                checkpoint.verify(folder)
            if name == "optimizer.safetensors":
                checkpoint.verify(folder, training=False)
            else:
                with pytest.raises(UserError, match="does not match its SHA-256"):
                    checkpoint.verify(folder, training=False)
            load = checkpoint.load_weights if name == "model.safetensors" else checkpoint.load_trainer_state
            with pytest.raises(UserError, match="cannot be read"):
                load(folder)
            (folder / name).write_bytes(whole)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"pytorch_model\.bin holds more than tensors"):
        checkpoint.load_model(folder)
    assert not mark.exists()


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


@pytest.mark.parametrize("again", [False, True])
def test_a_rename_that_fails_is_told_with_its_reason(tmp_path, monkeypatch, again):
    """Also in a first save, which replaces nothing."""
    path, rename = tmp_path / "checkpoints" / "step-00000001", os.replace
    if again:
        save(path)

    def fails(source, target):
        if os.fspath(target) == str(path) and os.fspath(source).endswith(checkpoint.TEMPORARY):
            raise PermissionError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(UserError, match=r"step-00000001 could not be written \(Permission denied"):
        save(path)
    assert path.exists() == again


def test_on_a_full_disk_a_save_is_whole_or_told_whatever_it_stopped_at(small_disk):
    """A tmpfs with less and less room: every write of a save meets the end of the disk once."""
    first, second = (small_disk / "checkpoints" / f"step-{step:08d}" for step in (1, 2))
    save(first)
    size = sum(path.stat().st_size for path in first.iterdir())
    ballast, outcomes = small_disk / "ballast", Counter()
    free = os.statvfs(small_disk)
    most = size + 12 * free.f_frsize
    for room in range(most, -1, -free.f_frsize):
        ballast.unlink(missing_ok=True)
        spare = os.statvfs(small_disk).f_bavail * free.f_frsize
        ballast.write_bytes(b"x" * max(0, spare - room))
        told = ""
        try:
            save(second, check_room=False)
        except UserError as error:
            told = str(error)
        if told:
            assert str(second) in told
            assert "bytes" in told
            assert "No space left" in told
            assert not second.exists()
            outcomes["told"] += 1
        else:
            checkpoint.verify(second)
            checkpoint.remove(second)
            outcomes["whole"] += 1
        assert [path.name for path in first.parent.iterdir()] == [first.name], "debris"
        checkpoint.verify(first)
    assert outcomes["whole"] >= 1
    assert outcomes["told"] > size // free.f_frsize


def test_no_room_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(UserError, match=r"no room for the checkpoint .* 10 are free"):
        save(tmp_path / "step-00000002")
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_behind_is_swept_and_nothing_else(tmp_path):
    save(tmp_path / "step-00000001")
    for name in (".step-00000002.77.tmp", ".step-00000001.old", ".mine", "step-00000003.1"):
        (tmp_path / name).mkdir()
    assert sorted(checkpoint.sweep(tmp_path)) == [".step-00000001.old", ".step-00000002.77.tmp"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine", "step-00000001", "step-00000003.1"]


@pytest.mark.parametrize("content", [b"", b'{"weight_map": ', b"[]", b'{"weight_map": 5}', b"\xff\xfe"])
def test_a_damaged_index_of_a_download_is_named(tmp_path, content):
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"index\.json cannot be read .*: download it again"):
        checkpoint.load_weights(tmp_path)


def test_a_checkpoint_whose_successor_did_not_come_is_brought_back(tmp_path):
    (tmp_path / ".step-00000003.replaced").mkdir()
    (tmp_path / ".step-00000003.replaced" / "config.json").write_text("{}")
    (tmp_path / "step-00000004").mkdir()
    (tmp_path / ".step-00000004.replaced").mkdir()
    assert checkpoint.sweep(tmp_path) == [".step-00000004.replaced"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]
    assert (tmp_path / "step-00000003" / "config.json").is_file()


@pytest.mark.parametrize(("known", "stops"), [(5, [5, 7]), (None, [7])])
def test_other_programs_stop_where_a_turn_ends(known, stops, tmp_path):
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({"eos_token_id": known, "do_sample": True}))
    checkpoint.also_stop_at(tmp_path, 7)
    assert json.loads(path.read_text()) == {"eos_token_id": stops, "do_sample": True}
