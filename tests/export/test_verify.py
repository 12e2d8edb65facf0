"""Exported files against the sums in their record, through the command."""

import json
import shutil
import subprocess
import sys

import pytest

from slm.data.errors import UserError
from slm.export.config import ExportConfig
from slm.export.pipeline import export
from slm.export.staging import Staging
from slm.export.verify import main
from slm.exported import sha256
from tests.helpers import REPOSITORY
from tests.helpers.tiny_gguf import exported_run


@pytest.fixture
def run(exported, tmp_path):
    return shutil.copytree(exported[0], tmp_path / "my-run")


def test_an_export_records_the_sum_of_every_file(exported, run):
    folder = run / "gguf"
    assert exported[1]["sha256"] == {path.name: sha256(path) for path in folder.glob("*.gguf")}
    assert len(exported[1]["sha256"]) == 3
    before = exported[1]["sha256"]
    (folder / "my-run-1.4M-v1.0-F32.gguf").unlink()
    record = export(ExportConfig(threads=1, run=run, quant=["f16"]))
    assert record["sha256"] == {path.name: sha256(path) for path in folder.glob("*.gguf")}
    kept = "my-run-1.4M-v1.0-Q4_K_M.gguf"
    written = json.loads((folder / "export.json").read_text())
    files = written.pop("files")
    assert written == {name: value for name, value in record.items() if name != "files"}
    assert [each["file"] for each in files] == [kept, *(each["file"] for each in record["files"])]
    assert record["files"] == files[1:]
    assert record["sha256"][kept] == before[kept]


def test_whole_files(run, capsys):
    assert main([f"run={run}"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count(": as exported\n") == 3
    assert captured.err == ""
    shutil.copy(run / "gguf" / "imatrix.gguf", run / "gguf" / "mine.gguf")
    assert main([f"run={run / 'gguf'}"]) == 0
    assert "mine.gguf: not checked" in capsys.readouterr().out


def test_damaged_and_missing_files(run):
    damaged = run / "gguf" / "my-run-1.4M-v1.0-F32.gguf"
    content = bytearray(damaged.read_bytes())
    content[-100] ^= 1
    damaged.write_bytes(content)
    (run / "gguf" / "imatrix.gguf").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "slm.export.verify", f"run={run}"], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert done.returncode == 1
    missing, line = done.stderr.splitlines()
    assert missing.startswith(f"{run / 'gguf' / 'imatrix.gguf'} is missing")
    assert line.startswith(f"{damaged} is damaged: its SHA-256 is ")
    assert line.endswith(f"make export MODEL={run} QUANT=f32")
    assert "Q4_K_M.gguf: as exported" in done.stdout
    assert "2 of 3 files" in done.stdout


def test_a_record_without_sums_is_one_line(tmp_path):
    run = exported_run(tmp_path / "old", exported_at=3, trained_to=3)
    (run / "gguf" / "export.json").write_text('{"files": []}')
    with pytest.raises(UserError, match=r"holds no SHA-256 .* make export MODEL=\S*old QUANT=q4_k_m$"):
        main([f"run={run}"])
    with pytest.raises(UserError, match="does not exist"):
        main([f"run={tmp_path / 'none'}"])


def test_an_export_that_dies_before_its_record_leaves_no_false_sum(run, monkeypatch, capsys):
    publish = Staging.publish

    def dies(self, paths):
        publish(self, paths)
        raise KeyboardInterrupt

    monkeypatch.setattr(Staging, "publish", dies)
    with pytest.raises(KeyboardInterrupt):
        export(ExportConfig(threads=1, run=run, quant=["f32"], license="mit"))  # the licence makes it another file
    assert main([f"run={run}"]) == 0
    out = capsys.readouterr().out
    assert "my-run-1.4M-v1.0-F32.gguf: not checked" in out
    assert "Q4_K_M.gguf: as exported" in out
