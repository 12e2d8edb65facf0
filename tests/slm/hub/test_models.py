"""Models by name, from a Hub on this machine, through the real client: what is downloaded, and what can go wrong."""

import json

import pytest
import torch
from huggingface_hub import constants

from slm.data.errors import UserError
from slm.hub import models
from slm.hub.name import hub_name
from slm.model.checkpoint import load_config, load_weights
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.model_hub import Repository


def named(word):
    found = hub_name(word)
    assert found is not None
    return found


def test_a_checkpoint_is_downloaded_once_with_only_what_is_needed(hub, repository, capsys, tmp_path):
    run = models.resolve("org/tiny")
    assert run.name == "tiny"
    assert run.gguf_dir == tmp_path / "models" / "org" / "tiny" / "gguf"
    folder = run.checkpoint()
    assert folder.is_relative_to(tmp_path / "cache")
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= names
    assert not names & {"pytorch_model.bin", "onnx", "original"}
    assert (folder / "model.safetensors").read_bytes() == repository.files["model.safetensors"]
    assert load_config(folder).n_layers == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"org/tiny on {hub.address.split('//')[1]} (commit {repository.commit[:12]}): ")
    assert "licence apache-2.0" in line
    assert line.endswith(" MB")
    gets = [each for each in hub.asked if each.startswith("GET /org/")]
    assert models.resolve("org/tiny@v1").checkpoint() == folder
    assert [each for each in hub.asked if each.startswith("GET /org/")] == gets


def test_a_broken_download_goes_on_where_it_stopped(hub, repository, capsys):
    hub.cut.add("model.safetensors")
    folder = models.checkpoint(named("org/tiny"))
    assert (folder / "model.safetensors").read_bytes() == repository.files["model.safetensors"]
    half = len(repository.files["model.safetensors"]) // 2
    (asked,) = hub.ranges
    assert half - (1 << 16) < int(asked.removeprefix("model.safetensors bytes=").removesuffix("-")) <= half


def test_without_a_network_the_cache_is_used(hub, repository, monkeypatch, capsys):
    folder = models.checkpoint(named("org/tiny"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(hub.asked)
    assert models.checkpoint(named("org/tiny")) == folder
    assert "taken from the Hub's cache" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"no folder org/other here.*HF_HUB_OFFLINE is set"):
        models.checkpoint(named("org/other"))
    with pytest.raises(UserError, match=r"the copy in the cache has no \*\*/\*\.gguf"):
        models.gguf(named("org/tiny"))
    assert len(hub.asked) == asked
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert models.checkpoint(named("org/tiny")) == folder
    with pytest.raises(UserError, match=r"no folder org/other here, and 127.0.0.1:9 could not be reached"):
        models.checkpoint(named("org/other"))


def test_what_is_missing_gated_or_of_another_kind_is_one_line(hub, repository):
    hub.repositories["org/gated"] = Repository(dict(repository.files), gated=True)
    hub.repositories["org/old"] = Repository({"config.json": b"{}", "model.onnx": b"x"})
    hub.repositories["org/quantized"] = Repository({"a-Q8_0.gguf": b"x"})
    for word, message in (
        ("org/nothing", r"there is no folder org/nothing here and no model org/nothing on 127.*hf auth login"),
        ("org/tiny@v9", r"org/tiny has no revision 'v9'"),
        ("org/gated", r"org/gated is gated: accept its terms at http.*/org/gated"),
        ("org/old", r"org/old holds no config.json with .safetensors or pytorch_model.bin"),
        ("org/quantized", r"org/quantized holds GGUF files only"),
        ("org/tiny:q8_0", r"org/tiny holds no GGUF file; make one with `make export MODEL=org/tiny`"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            models.resolve(word)
        assert "\n" not in str(caught.value)


FILES = ("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-f16.gguf", "mmproj-m-f16.gguf", "imatrix.gguf")


@pytest.mark.parametrize(
    ("word", "files", "expected"),
    [
        ("org/m", FILES, ["m-Q4_K_M.gguf"]),
        ("org/m:q8_0", FILES, ["m-Q8_0.gguf"]),
        ("org/m:F16", FILES, ["m-f16.gguf"]),
        ("org/m", ("m-IQ2_M.gguf", "m-f16.gguf"), ["m-IQ2_M.gguf"]),
        ("org/m:Q4_K_M", ("sub/m.Q4_K_M.gguf",), ["sub/m.Q4_K_M.gguf"]),
        (
            "org/m:q8_0",
            ("q8/m-Q8_0-00002-of-00002.gguf", "q8/m-Q8_0-00001-of-00002.gguf"),
            ["q8/m-Q8_0-00001-of-00002.gguf", "q8/m-Q8_0-00002-of-00002.gguf"],
        ),
        ("org/m", ("README.md",), []),
    ],
)
def test_which_file_of_a_repository(word, files, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert models.choose(list(files), named(word)) == expected


def test_a_gguf_file_by_its_type(hub):
    hub.repositories["org/m"] = Repository({name: name.encode() for name in FILES}, {"license": "other"})
    path = models.gguf(named("org/m:Q8_0"))
    assert path.name == "m-Q8_0.gguf"
    assert path.read_bytes() == b"m-Q8_0.gguf"
    assert [each.name for each in path.parent.iterdir()] == ["m-Q8_0.gguf"]
    with pytest.raises(UserError, match=r"has no GGUF file q4_k; did you mean 'Q4_K_M'\? it has: Q4_K_M, Q8_0, f16"):
        models.gguf(named("org/m:q4_k"))
    hub.repositories["org/bare"] = Repository({"config.json": json.dumps({}).encode()})
    assert models.gguf(named("org/bare")) is None


def test_a_run_stands_for_its_checkpoint(tmp_path, monkeypatch, capsys):
    """``init_from=runs/base``, as ``distill.teacher`` and every ``run=`` take it."""
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / f"runs/base/checkpoints/step-0000000{step}" for step in (1, 2)]
    for folder, loss in zip(folders, (2.0, 3.0), strict=True):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        validation = {"step": int(folder.name[-1]), "val_loss": loss}
        (folder / "trainer_state.json").write_text(json.dumps({"validation": validation}))
    assert models.directory("runs/base") == str(folders[0])
    assert "its validation loss is lower" in capsys.readouterr().out
    assert models.directory(str(folders[1])) == str(folders[1])
    assert models.directory("runs/none") == "runs/none"
    (tmp_path / "runs/new").mkdir()
    (tmp_path / "runs/new/config.yaml").write_text("")
    with pytest.raises(UserError, match="holds no checkpoint yet"):
        models.directory("runs/new")


def test_a_model_that_is_stored_the_old_way_only(hub, tmp_path):
    folder = tiny.checkpoint(tmp_path / "old", n_layers=1)
    weights = load_weights(folder)
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    hub.repositories["org/old"] = Repository({path.name: path.read_bytes() for path in folder.iterdir()})
    found = load_weights(models.resolve("org/old").checkpoint())
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


def test_a_gguf_file_stands_for_its_checkpoint(tmp_path, monkeypatch, hub, capsys):
    """A path, a name of Ollama's, and a file on the Hub: one checkpoint each, read back once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tiny.gguf_file(tmp_path / "m-F32.gguf", n_layers=1)
    run = models.resolve(file)
    assert (run.name, run.gguf_dir) == ("m-F32", tmp_path / "models/m-F32/gguf")
    assert load_config(run.checkpoint()) == load_config(file.with_suffix(".checkpoint"))
    assert models.directory(str(file)) == str(run.checkpoint())
    assert capsys.readouterr().out.count("read back:") == 1
    hub.repositories["org/m"] = Repository({"m-F32.gguf": file.read_bytes()})
    run = models.resolve("org/m:F32")
    assert (run.name, run.root) == ("m-F32", tmp_path / "models/org/m-F32")
    assert load_config(run.checkpoint()) == load_config(file.with_suffix(".checkpoint"))
    with pytest.raises(UserError, match="Ollama has no model m here"):
        models.directory("ollama:m")
    with pytest.raises(UserError, match=r"none\.gguf does not exist; "):
        models.resolve("none.gguf")
