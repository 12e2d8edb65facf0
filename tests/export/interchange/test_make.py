"""ONNX and torch.export of tiny models: equal logits, the cache in and out, names that optimum knows."""

import json

import numpy as np
import pytest

from slm.data.errors import UserError
from slm.export.__main__ import EXIT_NOT_PROVEN, main
from slm.export.interchange import make
from slm.model.checkpoint import load_model
from slm.runs import resolve
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny.run(tmp_path_factory.mktemp("run") / "run", n_layers=1)  # tracing takes seconds per layer


def exported(run, capsys, *options: str, status: int = 0) -> dict:
    assert main([f"run={run}", "threads=1", *options]) == status
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.parametrize(
    ("form", "shape"),
    [
        ("onnx", dict(arch="gemma2", n_layers=2, sliding_window=16, tie_embeddings=True)),
        ("pt2", dict(arch="phi3", n_layers=1, rotary_dim=48)),
    ],
    ids=["onnx-gemma2", "pt2-phi3"],
)
@pytest.mark.slow
def test_other_architectures(form, shape, tmp_path, capsys):
    if form == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    record = exported(tiny.run(tmp_path / "run", **shape), capsys, f"format={form}")
    assert record["published"]
    assert record["max_abs"] <= record["allowed"]


def test_short_convolutions_are_named(tmp_path):
    run = tiny.run(tmp_path / "run", arch="lfm2", n_layers=2, tie_embeddings=True)
    with pytest.raises(UserError, match=r"format=pt2 takes models with attention in all layers, and an lfm2 model has"):
        main([f"run={run}", "format=pt2"])


@pytest.mark.slow
def test_onnx_in_onnxruntime(run, capsys):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    record = exported(run, capsys, "format=onnx")
    assert record["published"]
    assert record["max_abs"] <= record["allowed"]
    assert record["same_top"] == 1
    folder = run / "onnx"
    assert {"model.onnx", "config.json", "tokenizer.json", "export.json"} <= {each.name for each in folder.iterdir()}
    assert record["sha256"].keys() >= {"model.onnx", "tokenizer.json"}
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    shapes = {each.name: each.shape for each in session.get_inputs()}
    assert shapes["input_ids"] == ["batch_size", "sequence_length"]
    assert shapes["past_key_values.0.value"] == ["batch_size", 2, "past_sequence_length", 64]
    caches = [f"past_key_values.0.{part}" for part in ("key", "value")]
    assert list(shapes) == ["input_ids", "attention_mask", "position_ids", *caches]
    assert [each.name for each in session.get_outputs()][:3] == ["logits", "present.0.key", "present.0.value"]
    # One token of one sequence, without and with a cache of one token: sizes that tracing likes to fix.
    model = load_model(resolve(run).checkpoint())
    program = make.onnx_session(folder / "model.onnx", 1)
    ids = np.array([[5, 7]], np.int64)
    expected = model(make.torch.from_numpy(ids))[0].detach().numpy()
    caches = [np.zeros((1, 2, 0, 64), np.float32)] * 2
    for place in (0, 1):
        mask, positions = np.ones((1, place + 1), np.int64), np.array([[place]])
        logits, *caches = program([ids[:, place : place + 1], mask, positions, *caches])
        assert np.abs(logits[0, 0] - expected[place]).max() <= record["allowed"]
    assert caches[0].shape == (1, 2, 2, 64)


def test_torch_export(tmp_path, capsys, monkeypatch):
    """With the queries' and keys' norms of qwen3 and a tied head. The proof is of the file: where that holds another
    model, it is not published."""
    run = tiny.run(tmp_path / "run", arch="qwen3", tie_embeddings=True, n_layers=1)
    record = exported(run, capsys, "format=pt2", "name=small")
    assert record["published"]
    assert record["file"] == "small.pt2"
    assert record["max_abs"] <= record["allowed"]
    path = run / "pt2" / "small.pt2"
    model = load_model(resolve(run).checkpoint())
    assert path.stat().st_size > 4 * model.config.n_params

    def other_model(checkpoint):
        with make.torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.mul_(1.01)
        return model

    monkeypatch.setattr(make, "load_model", other_model)
    monkeypatch.setattr(make, "write_program", lambda _, staged: make.shutil.copy(path, staged))
    out = tmp_path / "out"
    record = exported(run, capsys, "format=pt2", f"out={out}", status=EXIT_NOT_PROVEN)
    assert not record["published"]
    assert record["max_abs"] > record["allowed"]
    assert not list(out.glob("*"))


def test_without_onnx(run, monkeypatch):
    monkeypatch.setattr(make, "find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(UserError, match=r"needs onnxruntime, which is not installed: pip install .slm\[onnx\]"):
        main([f"run={run}", "format=onnx"])
