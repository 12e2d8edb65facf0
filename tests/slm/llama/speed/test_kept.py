import json

import numpy as np
import pytest

from slm.data.errors import UserError
from slm.llama.gguf_check import read_header
from slm.llama.speed import kept, trial
from slm.llama.speed.kept import DecodeSpeeds, Shape, decode_speeds, forget
from slm.llama.speed.workload import Workload
from slm.model.architectures import TRAITS
from tests.helpers import tiny_checkpoint as tiny

SHAPE = Shape(n_layers=1, d_model=256, n_heads=4, n_kv_heads=2, head_dim=64, ffn_dim=256, vocab_size=64)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "cache_home", lambda: tmp_path)


def test_speeds_are_measured_in_a_child_and_kept(tmp_path):
    lines: list[str] = []
    first = decode_speeds(SHAPE, ["q4_0", "q8_0"], 1, lines.append)
    assert set(first.tok_s) == {"q4_0", "q8_0"}
    assert all(rate > 10 for rate in first.tok_s.values())
    assert len(lines) == 1
    assert decode_speeds(SHAPE, ["q8_0", "q4_0"], 1, lines.append).tok_s == first.tok_s
    assert len(lines) == 1, "it was measured again"
    (file,) = (tmp_path / "llama").iterdir()
    kept_record = json.loads(file.read_text())
    assert (kept_record["threads"], kept_record["workload"]) == (1, {"prompt": 512, "tokens": 64})
    file.write_text("damaged")
    forget(first)
    assert not file.exists()
    # A shape that llama.cpp refuses: one line, and what to do instead.
    broken = Shape(**(SHAPE.__dict__ | {"n_heads": 3}))
    with pytest.raises(UserError, match="decode speed of this machine could not be measured") as error:
        decode_speeds(broken, ["q4_0"], 1)
    assert "\n" not in str(error.value)


def test_time_is_shared_out_over_the_weights_that_are_read():
    speeds = DecodeSpeeds(shape=SHAPE, threads=1, tok_s={"q4_0": 200.0, "q8_0": 100.0})
    assert SHAPE.n_read == 2 * 256 * 64 * (4 + 2) + 3 * 256 * 256 + 64 * 256
    assert speeds.fastest == "q4_0"
    assert speeds.seconds_per_weight("q4_0") * SHAPE.n_read == pytest.approx(1 / 200)
    assert speeds.seconds_per_weight("f16") == speeds.seconds_per_weight("q8_0")


def test_shapes_are_rounded_up_and_cut_to_a_size_that_is_quickly_measured():
    shape = Shape.of(tiny.config(d_model=576, n_heads=9, n_kv_heads=3, head_dim=64, ffn_dim=1536, n_layers=10))
    assert (shape.d_model, shape.ffn_dim, shape.n_layers) == (768, 1536, 10)
    assert (shape.n_heads, shape.head_dim) == (12, 64)
    large = Shape.of(tiny.config(d_model=4096, n_heads=32, n_kv_heads=8, head_dim=128, ffn_dim=14336, n_layers=32))
    assert large.n_layers == 1


def test_the_model_that_is_timed_has_the_type_in_every_matrix(tmp_path):
    header = read_header(trial.write_model(tmp_path / "m.gguf", SHAPE, "q3_k"))
    assert {tensor.type for tensor in header.tensors if len(tensor.shape) > 1} == {"q3_k"}
    assert sum(t.shape[0] * t.shape[1] for t in header.tensors if len(t.shape) > 1) == SHAPE.n_read


@pytest.mark.parametrize("arch", [arch for arch, traits in TRAITS.items() if not (traits.short_conv or traits.joined)])
def test_the_model_that_is_timed_has_its_architecture(tmp_path, arch):
    """Its norms and biases take time, too: without them a small qwen3 model seemed a fifth faster than it is."""
    window = 16 if TRAITS[arch].sliding_window else None
    small = {"d_model": 256, "ffn_dim": 256, "n_layers": 2, "vocab_size": 64, "tie_embeddings": TRAITS[arch].tied}
    shape = Shape.of(tiny.config(arch=arch, sliding_window=window, **small))
    short = Workload(prompt=24, tokens=8)
    found = trial.rates(tmp_path, shape, ["q4_0", "q8_0"], 1, short)
    assert all(rate > 10 for rate in found.values())
    header = read_header(tmp_path / "q8_0.gguf")
    assert header.metadata["general.architecture"] == arch
    names = {tensor.name for tensor in header.tensors}
    assert ("blk.1.attn_q_norm.weight" in names) == TRAITS[arch].qk_norm
    assert ("blk.1.attn_q.bias" in names) == TRAITS[arch].qkv_bias


def test_separate_matrices_stand_for_joined_ones():
    shape = Shape.of(tiny.config(arch="phi3", rotary_dim=48))
    assert shape == Shape.of(tiny.config(arch="llama"))


def test_attention_stands_for_short_convolutions():
    config = tiny.config(arch="lfm2")
    shape = Shape.of(config)
    assert shape == Shape.of(tiny.config(arch="qwen3"))
    assert not shape.is_of(config)
    assert shape.is_of(tiny.config(arch="qwen3"))


def test_a_disturbed_round_does_not_change_the_relation_of_types():
    quiet_K = np.array([1.0, 1.3, 2.0])
    taken_RK = quiet_K * np.array([1.0, 1.02, 1.7, 0.98, 1.6])[:, None]  # two rounds in which others computed
    taken_RK[1, 0] *= 3  # and a turn of one type
    found_K = trial.settled(taken_RK)
    assert found_K / found_K[0] == pytest.approx(quiet_K)
