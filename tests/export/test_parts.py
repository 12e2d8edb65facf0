"""A large file is proven in parts of its layers, and is exported as a loaded model is."""

import pytest

import slm.export.parts
import slm.export.source
from slm.export.__main__ import EXIT_NOT_PROVEN, main
from slm.export.parts import MOST_BYTES, layer_groups
from slm.model.layers.held import Values, held_of
from tests.helpers import tiny_checkpoint as tiny

OPTIONS = ["quant=q4_k_m", "threads=1", "proof.chunks=2", "proof.n_ctx=64", "calibration.chunks=4"]


@pytest.fixture
def large(monkeypatch):
    """Every model is a large one."""
    monkeypatch.setattr(slm.export.source, "LARGE", 0)
    monkeypatch.setattr(slm.export.parts, "MOST_BYTES", 0)


def test_groups_are_of_about_the_same_size_and_hold_every_layer():
    shape = tiny.config(vocab_size=49_152, n_layers=22, d_model=2048, n_heads=32, n_kv_heads=4, ffn_dim=5632)
    groups = layer_groups(shape)
    assert [number for group in groups for number in group] == list(range(22))
    assert len(groups) > 1
    assert max(map(len, groups)) - min(map(len, groups)) <= 1
    ends = 8 * 49_152 * 2048
    per_layer = (4 * shape.n_params - ends) / 22
    assert all(ends + len(group) * per_layer <= MOST_BYTES * 1.01 for group in groups)
    assert layer_groups(tiny.config()) == [range(2)]


def test_layers_that_differ_are_not_parted(large):
    assert layer_groups(tiny.config(arch="gemma3", n_layers=7, sliding_window=16, tie_embeddings=True)) == [range(7)]
    assert layer_groups(tiny.config(n_layers=3)) == [range(1), range(1, 2), range(2, 3)]


def test_the_file_of_a_large_model_is_that_of_a_small_one(tmp_path, monkeypatch, capsys):
    root, sizes = tiny.run(tmp_path / "run"), []
    assert main([f"run={root}", f"out={tmp_path / 'small'}", *OPTIONS]) == 0
    monkeypatch.setattr(slm.export.source, "LARGE", 0)
    monkeypatch.setattr(slm.export.parts, "MOST_BYTES", 0)
    write = slm.export.source.write_gguf

    def seen(path, kind, *, model, weights, **rest):
        assert isinstance(weights, Values)
        assert held_of(weights.parameter("model.embed_tokens.weight")) is not None
        sizes.append(model.n_layers)
        write(path, kind, model=model, weights=weights, **rest)

    monkeypatch.setattr(slm.export.source, "write_gguf", seen)
    assert main([f"run={root}", f"out={tmp_path / 'large'}", *OPTIONS]) == 0
    assert sizes == [2, 1, 1]
    assert "in 2 parts" in capsys.readouterr().out
    (small,), (large,) = ((tmp_path / name).glob("*Q4_K_M.gguf") for name in ("small", "large"))
    assert small.read_bytes() == large.read_bytes()


def test_an_error_in_any_part_is_found(tmp_path, monkeypatch, capsys, large):
    """An error in one layer's file is one of that part alone."""
    write, parts = slm.export.source.write_gguf, []

    def wrong(path, kind, *, model, weights, **rest):
        if path.name.startswith("part-"):
            parts.append(path)
            if len(parts) == 2:
                weights = dict(weights)
                weights["model.layers.0.mlp.down_proj.weight"][5] *= 1.02
        write(path, kind, model=model, weights=weights, **rest)

    monkeypatch.setattr(slm.export.source, "write_gguf", wrong)
    assert main([f"run={tiny.run(tmp_path / 'run')}", *OPTIONS]) == EXIT_NOT_PROVEN
    said = capsys.readouterr().err
    assert "layers 1 to 1: a logit differs" in said
    assert "layers 0 to 0" not in said
