"""A Hub on this machine, and huggingface_hub's client turned to it."""

from pathlib import Path

import pytest

from tests.helpers.model_hub import ModelHub, Repository


@pytest.fixture
def hub(monkeypatch, tmp_path) -> ModelHub:
    """An empty Hub; the current folder and the Hub's cache are the test's own."""
    from huggingface_hub import constants

    server = ModelHub({})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)  # what a broken download keeps is in such pieces
    monkeypatch.setenv("HF_TOKEN", server.token)
    yield server
    server.stop()


@pytest.fixture
def repository(hub, tmp_path_factory) -> Repository:
    """``org/tiny``: a checkpoint with its card, and files that nobody needs."""
    from tests.helpers import tiny_checkpoint as tiny

    folder: Path = tiny.checkpoint(tmp_path_factory.mktemp("model") / "tiny", n_layers=1)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files |= {"README.md": b"---\nlicense: apache-2.0\n---\n# Tiny\n", "onnx/model.onnx": b"x" * 1000}
    files |= {"pytorch_model.bin": b"x" * 1000, "original/model.safetensors": b"x" * 1000}
    hub.repositories["org/tiny"] = Repository(files, {"license": "apache-2.0"}, revisions=("main", "v1"))
    return hub.repositories["org/tiny"]
