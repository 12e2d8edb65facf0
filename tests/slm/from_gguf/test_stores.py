"""Files by the names that Ollama and LM Studio give them, in stores as these programs lay them out."""

import json
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.from_gguf import stores


@pytest.fixture
def ollama(tmp_path, monkeypatch) -> Path:
    root = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return root


def pull(root: Path, place: str, *, content: bytes = b"GGUF", media: tuple[str, ...] = ("model",)) -> Path:
    """What ``ollama pull`` leaves behind."""
    digest = f"sha256:{len(content):064x}"
    manifest = root / "manifests" / place
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [{"mediaType": f"application/vnd.ollama.image.{each}", "digest": digest} for each in media]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    blob = root / "blobs" / digest.replace(":", "-")
    blob.parent.mkdir(exist_ok=True)
    blob.write_bytes(content)
    return blob


def test_ollamas_models_by_name(ollama, capsys):
    library = "registry.ollama.ai/library"
    small = pull(ollama, f"{library}/smollm2/135m", media=("model", "template", "license"))
    newest = pull(ollama, f"{library}/qwen3/latest", content=b"GGUF2")
    mine = pull(ollama, "registry.ollama.ai/me/mine/v1", content=b"GGUF33", media=("model", "adapter"))
    hub = pull(ollama, "hf.co/org/name/Q4_K_M", content=b"GGUF444")
    assert stores.find("ollama:smollm2:135m") == stores.Stored(path=small, name="smollm2-135m")
    assert stores.find("ollama:qwen3") == stores.Stored(path=newest, name="qwen3")
    assert stores.find("ollama:me/mine:v1") == stores.Stored(path=mine, name="mine-v1")
    assert "has a LoRA adapter, which is left out" in capsys.readouterr().out
    assert stores.find("ollama:hf.co/org/name:Q4_K_M") == stores.Stored(path=hub, name="name-Q4_K_M")
    assert stores.find(str(small)) == stores.Stored(path=small, name=small.name)  # as a card of studio has it
    with pytest.raises(UserError, match=r"Ollama has no model smollm2:130m here .* did you mean 'smollm2:135m'"):
        stores.find("ollama:smollm2:130m")
    small.unlink()
    with pytest.raises(UserError, match="is missing, the file of Ollama's smollm2:135m: `ollama pull smollm2:135m`"):
        stores.find("ollama:smollm2:135m")


def test_a_damaged_or_missing_store_is_named(ollama):
    with pytest.raises(UserError, match=r"Ollama has no model x here \(there is no such store .*set OLLAMA_MODELS"):
        stores.find("ollama:x")
    pull(ollama, "registry.ollama.ai/library/x/latest")
    manifest = ollama / "manifests/registry.ollama.ai/library/x/latest"
    manifest.write_text("{")
    with pytest.raises(UserError, match=r"cannot be read .*: `ollama pull x` writes it again"):
        stores.find("ollama:x")


def test_lm_studios_models_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"LM Studio has no model org/a here .there is no such folder"):
        stores.find("lmstudio:org/a")
    folder = tmp_path / ".lmstudio" / "models" / "org"
    for name in ("a/a-Q4_K_M.gguf", "a/a-Q8_0.gguf", "a/mmproj-a.gguf", "b/b-00001-of-00002.gguf"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "b/b-00002-of-00002.gguf").touch()
    assert stores.find("lmstudio:org/a:q8_0") == stores.Stored(path=folder / "a/a-Q8_0.gguf", name="a-Q8_0")
    assert stores.find("lmstudio:a-Q4_K_M.gguf") == stores.Stored(path=folder / "a/a-Q4_K_M.gguf", name="a-Q4_K_M")
    assert stores.find("lmstudio:org/b") == stores.Stored(path=folder / "b/b-00001-of-00002.gguf", name="b")
    with pytest.raises(UserError, match=r"2 files of org/a: add the type of one, as in lmstudio:org/a:Q4_K_M"):
        stores.find("lmstudio:org/a")
    with pytest.raises(UserError, match="LM Studio has no model org/c here"):
        stores.find("lmstudio:org/c")


def test_the_folder_that_was_chosen_in_lm_studio(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    home, chosen = tmp_path / ".lmstudio", tmp_path / "large disk"
    (chosen / "org/a").mkdir(parents=True)
    (chosen / "org/a/a-Q8_0.gguf").touch()
    home.mkdir()
    for settings in ("{", "[]", "{}", '{"downloadsFolder": null}'):
        (home / "settings.json").write_text(settings)
        with pytest.raises(UserError, match="LM Studio has no model org/a here"):
            stores.find("lmstudio:org/a")
    (home / "settings.json").write_text(json.dumps({"downloadsFolder": str(chosen)}))
    assert stores.find("lmstudio:org/a") == stores.Stored(path=chosen / "org/a/a-Q8_0.gguf", name="a-Q8_0")


def test_paths(tmp_path):
    path = tmp_path / "Model.Q8_0.gguf"
    path.touch()
    assert stores.find(str(path)) == stores.Stored(path=path, name="Model.Q8_0")
    assert stores.find("runs/mine") is None
    assert stores.find("org/name:Q8_0") is None
    (tmp_path / "folder.gguf").mkdir()
    assert stores.find(str(tmp_path / "folder.gguf")) is None
    with pytest.raises(UserError, match=r"does not exist; did you mean 'Model\.Q8_0\.gguf'"):
        stores.find(str(tmp_path / "Model.Q8.gguf"))
