"""Files of an export: older than the run's newest checkpoint, or changed since they were written."""

import hashlib
import json
import shutil

import gguf
import pytest

from slm.exported import damage, recorded_sums, sha256, stale_lines
from tests.helpers.tiny_gguf import exported_run


@pytest.fixture
def run(tmp_path):
    """Exported at step 3, trained to 60."""
    return exported_run(tmp_path / "w1", exported_at=3, trained_to=60)


def test_a_file_older_than_the_newest_checkpoint_is_named(run, monkeypatch):
    monkeypatch.chdir(run.parent)
    (path,) = (run / "gguf").glob("*.gguf")
    expected = (
        "note: w1-1M-v1.0-Q4_K_M.gguf is from step 3, but w1 has been trained to step 60; "
        "renew with: make export MODEL=w1 QUANT=q4_k_m"
    )
    assert stale_lines([path]) == [expected]
    second = path.with_name("w1-1M-v1.0-F32.gguf")
    shutil.copy(path, second)
    (line,) = stale_lines([path, second])
    assert line.startswith("note: w1-1M-v1.0-Q4_K_M.gguf, w1-1M-v1.0-F32.gguf are from step 3, ")
    assert line.endswith("QUANT=q4_k_m,f32")


def test_a_link_to_the_run_and_the_best_checkpoint(run):
    (run / "best").symlink_to("checkpoints/step-00000003")
    link = run.parent / "latest"
    link.symlink_to("w1")
    (line,) = stale_lines([next((link / "gguf").glob("*.gguf"))])
    assert "from step 3 (the best checkpoint)," in line
    assert f"MODEL={run}" in line


def test_a_file_of_the_checkpoint_that_export_takes_is_not_stale(run):
    for step, loss in ((3, 1.0), (60, 2.0)):
        state = {"validation": {"step": step, "val_loss": loss}}
        (run / "checkpoints" / f"step-{step:08d}" / "trainer_state.json").write_text(json.dumps(state))
    assert stale_lines((run / "gguf").glob("*.gguf")) == []


def test_files_that_are_not_stale(run, tmp_path):
    (path,) = (run / "gguf").glob("*.gguf")
    elsewhere = shutil.copy(path, tmp_path / path.name)
    assert stale_lines([elsewhere]) == []
    fresh = exported_run(tmp_path / "w2", exported_at=60, trained_to=60)
    assert stale_lines((fresh / "gguf").glob("*.gguf")) == []
    writer = gguf.GGUFWriter(run / "gguf" / "other.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (run / "gguf" / "broken.gguf").write_bytes(b"GGUF")
    assert stale_lines([run / "gguf" / "other.gguf", run / "gguf" / "broken.gguf", run / "gguf" / "none.gguf"]) == []


def test_damage(run):
    (path,) = (run / "gguf").glob("*.gguf")
    good = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sha256(path) == good
    assert damage(path, good) is None
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    line = damage(path, good)
    assert line.startswith(f"{path} is damaged: its SHA-256 is ")
    assert line.endswith("QUANT=q4_k_m")
    assert "is missing" in damage(path.with_name("gone.gguf"), good)
    copy = shutil.copy(path, run.parent / path.name)
    assert damage(copy, good).endswith("; export or copy it again")


@pytest.mark.parametrize("content", ["{", "[]", '{"files": []}', '{"sha256": 3}'])
def test_a_record_without_sums(tmp_path, content):
    assert recorded_sums(tmp_path) == {}
    (tmp_path / "export.json").write_text(content)
    assert recorded_sums(tmp_path) == {}
    (tmp_path / "export.json").write_text(json.dumps({"sha256": {"a.gguf": "00"}}))
    assert recorded_sums(tmp_path) == {"a.gguf": "00"}
