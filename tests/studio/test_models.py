"""The cards of the first page, from files as training, export and other programs leave them."""

import json

from slm.studio.models import models
from slm.studio.places import Places
from tests.helpers import tiny_gguf


def test_runs_files_and_other_programs_models_are_cards(tmp_path):
    root, other = tmp_path / "work", tmp_path / "ollama"
    run = root / "runs" / "mine-chat"
    (run / "gguf").mkdir(parents=True)
    upload = root / "runs" / ".studio" / "uploads" / "7"
    upload.mkdir(parents=True)
    (upload / "qa.csv").write_text("")
    (run / "config.yaml").write_text("init_from: runs/mine\ndata: {files: [runs/.studio/uploads/7]}\n")
    gguf = tiny_gguf.write(run / "gguf" / "mine-chat-Q8_0.gguf")
    row = {"file": gguf.name, "type": "q8_0", "perplexity_change": 0.01, "same_top": 0.97}
    (run / "gguf" / "export.json").write_text(json.dumps({"files": [row]}))
    (root / "runs" / "latest").symlink_to("mine-chat")
    (root / "models").mkdir()
    (root / "models" / "torn.gguf").write_bytes(gguf.read_bytes()[:100])
    (other / "blobs").mkdir(parents=True)
    (other / "blobs" / "sha256-ab").write_bytes(gguf.read_bytes())
    manifest = other / "manifests" / "registry" / "library" / "tiny" / "latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:ab"}
    manifest.write_text(json.dumps({"layers": [layer]}))

    cards = {card["name"]: card for card in models(Places(root, [other]))}
    assert set(cards) == {"mine-chat", "torn.gguf", "tiny:latest"}
    tuned, torn, theirs = cards["mine-chat"], cards["torn.gguf"], cards["tiny:latest"]
    assert (tuned["kind"], tuned["base"], tuned["files"]) == ("tuned", "runs/mine", ["qa.csv"])
    assert [(each["type"], each["same_top"]) for each in tuned["ggufs"]] == [("q8_0", 0.97)]
    assert (theirs["kind"], theirs["own"], theirs["n_params"] > 0) == ("gguf", False, True)
    assert "torn.gguf" in torn["fault"]


def test_of_lm_studios_folder_only_what_a_person_can_load_is_a_card(tmp_path):
    """Its folder is called models, as ours is; a split model is one, and a projector of images is none."""
    theirs = tmp_path / "lmstudio" / "models" / "someone" / "gguf"
    theirs.mkdir(parents=True)
    gguf = tiny_gguf.write(theirs / "whole.gguf")
    for name in ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf", "big-mmproj-f16.gguf", "imatrix.gguf"):
        (theirs / name).write_bytes(gguf.read_bytes())
    found = models(Places(tmp_path / "work", [tmp_path / "lmstudio" / "models"]))
    assert sorted(card["name"] for card in found) == ["big-00001-of-00002.gguf", "whole.gguf"]
