import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import slm.export.gguf.tensors
import slm.export.source
from slm.export.__main__ import EXIT_NOT_PROVEN, main
from slm.export.config import ExportConfig
from slm.export.pipeline import export
from slm.export.proof import TOLERANCES, LogitDifference, Proof, compare_logits, logit_failures
from slm.vocabulary.same_ids import token_failures
from tests.helpers import tiny_checkpoint as tiny


def test_compare_logits_is_the_textbook_sum():
    rng = np.random.default_rng(3)
    a_NV, b_NV = (rng.normal(size=(5, 11)).astype(np.float32) for _ in range(2))
    found = compare_logits([a_NV[:2], a_NV[2:]], [b_NV[:2], b_NV[2:]], values=22)
    p, q = torch.from_numpy(a_NV).double().log_softmax(1), torch.from_numpy(b_NV).double().log_softmax(1)
    expected = torch.nn.functional.kl_div(q, p, log_target=True, reduction="batchmean").item()
    assert found.kl == pytest.approx(expected, rel=1e-9)
    assert found.max_abs == pytest.approx(np.abs(a_NV - b_NV).max())
    assert found.rms == pytest.approx(np.sqrt((a_NV.astype(float) ** 2).mean()))
    assert found.same_top == (a_NV.argmax(1) == b_NV.argmax(1)).mean()
    assert found.finite
    b_NV[1, 1] = np.nan
    assert not compare_logits([a_NV], [b_NV]).finite


def test_logits_of_a_file_that_is_only_read_give_no_warning():
    logits_NV = np.zeros((2, 3), np.float32)
    logits_NV.flags.writeable = False
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # torch warns of them once in a process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compare_logits([logits_NV], [logits_NV]).kl == 0
    finally:
        torch.set_warn_always(before)


def difference(**changes) -> LogitDifference:
    return LogitDifference(**({"max_abs": 0.0, "rms": 3.0, "kl": 0.0, "same_top": 1.0, "finite": True} | changes))


def test_each_tolerance_has_its_own_words():
    allowed = TOLERANCES["f32"]
    assert logit_failures(difference(), 0.0, allowed) == []
    assert "a logit differs" in logit_failures(difference(max_abs=0.01), 0.0, allowed)[0]
    assert "KL divergence" in logit_failures(difference(kl=0.01), 0.0, allowed)[0]
    assert "perplexity differs" in logit_failures(difference(), -0.01, allowed)[0]
    assert "perplexity differs" in logit_failures(difference(), float("nan"), allowed)[0]
    assert logit_failures(difference(max_abs=0.01), 0.001, TOLERANCES["f16"]) == []


def test_a_coarser_type_is_not_taken_for_bf16_or_f16(tmp_path):
    """Each type's own divergence passes, that of the next coarser one does not."""
    root = tiny.run(
        tmp_path / "run", arch="lfm2", tie_embeddings=True, d_model=64, head_dim=16, ffn_dim=128, n_layers=3
    )
    record = export(ExportConfig(threads=1, run=root, quant=["f16", "bf16", "q8_0"]))
    f16, bf16, q8_0 = (each["kl"] for each in record["files"])
    assert record["published"]
    assert f16 < TOLERANCES["f16"].kl < bf16 < TOLERANCES["bf16"].kl < q8_0


def test_the_tolerances_stand_in_the_documentation(repository):
    text = (repository / "docs" / "formats.md").read_text(encoding="utf-8")
    for kind, allowed in TOLERANCES.items():
        row = f"| {kind} | {allowed.logits:.1%} | {allowed.kl:g} | {allowed.perplexity:.2%} |"
        assert row.replace(".0%", "%").replace("%", " %") in text, row


def test_token_failures_name_the_first_difference():
    class Fake:
        def tokenize(self, text, *, add_special, parse_special):
            return [ord(letter) for letter in text]

    assert token_failures(Fake(), ["ab"], [[97, 98]]) == []
    assert "from token 1 on" in token_failures(Fake(), ["ab", "abc"], [[97, 98], [97, 99]])[0]
    assert "from token 2 on" in token_failures(Fake(), ["ab"], [[97, 98, 99]])[0]


def export_broken(root: Path, capsys, *options: str) -> str:
    """Export, expecting the proof to fail; what was said."""
    assert main([f"run={root}", "threads=1", *options]) == EXIT_NOT_PROVEN
    assert list((root / "gguf").iterdir()) == []
    said = capsys.readouterr()
    assert '"published": false' in said.out.splitlines()[-1]
    return said.err


def test_a_forgotten_permutation_is_caught(tmp_path, monkeypatch, capsys):
    """The classic silent conversion error: the file loads and speaks, but not as the checkpoint does."""
    monkeypatch.setattr(slm.export.gguf.tensors, "interleave_heads", lambda weight, n_heads: weight)
    said = export_broken(tiny.run(tmp_path / "run"), capsys)
    assert "a logit differs" in said
    assert "nothing was written" in said


def _exchanged(name: str, first: slice, second: slice):
    def change(model, weights):
        tensor = weights[name].clone()
        tensor[first], tensor[second] = weights[name][second], weights[name][first]
        return model, weights | {name: tensor}

    return change


def _scaled(name: str, factor: float, rows: slice):
    def change(model, weights):
        tensor = weights[name].clone()
        tensor[rows] *= factor
        return model, weights | {name: tensor}

    return change


DOWN, GAIN = "model.layers.1.mlp.down_proj.weight", "model.layers.1.post_attention_layernorm.weight"
SUBTLE = {
    "two rows of the head": _exchanged("lm_head.weight", slice(7, 8), slice(8, 9)),
    "two heads of keys": _exchanged("model.layers.0.self_attn.k_proj.weight", slice(0, 64), slice(64, 128)),
    "one row by 2 %": _scaled(DOWN, 1.02, slice(5, 6)),
    "a matrix by 0.1 %": _scaled(DOWN, 1.001, slice(None)),
    "one gain by 5 %": _scaled(GAIN, 1.05, slice(9, 10)),
    "rotary base by 1 %": lambda model, weights: (replace(model, rope_theta=model.rope_theta * 1.01), weights),
    "norm's epsilon times 100": lambda model, weights: (replace(model, norm_eps=model.norm_eps * 100), weights),
}


@pytest.mark.parametrize("error", SUBTLE)
def test_one_window_of_a_temporary_file_finds_small_errors(error, tmp_path, monkeypatch, capsys):
    """All positions of a window and the whole vocabulary are compared, so that more text would find no more of them."""
    write, change = slm.export.source.write_gguf, SUBTLE[error]

    def wrong(path, kind, *, model, weights, **rest):
        model, weights = change(model, dict(weights))
        write(path, kind, model=model, weights=weights, **rest)

    monkeypatch.setattr(slm.export.source, "write_gguf", wrong)
    said = export_broken(tiny.run(tmp_path / "run"), capsys, "quant=q8_0", "proof.n_ctx=128")
    assert "a logit differs" in said or "KL divergence" in said


def test_a_wrong_pre_tokenizer_is_caught(tmp_path, capsys):
    assert "other ids" in export_broken(tiny.run(tmp_path / "run"), capsys, "pre=smollm", "quant=f16")


def test_a_wrong_beginning_of_text_is_caught(tmp_path, monkeypatch, capsys):
    build = slm.export.source.build_vocab

    def wrong(*arguments, **options):
        vocab = build(*arguments, **options)
        monkeypatch.setattr(vocab, "write", lambda writer, write=vocab.write: (write(writer), _add_bos(writer)))
        return vocab

    def _add_bos(writer):
        writer.kv_data[0]["tokenizer.ggml.add_bos_token"].value = True

    monkeypatch.setattr(slm.export.source, "build_vocab", wrong)
    assert "before a text" in export_broken(tiny.run(tmp_path / "run"), capsys, "quant=f32")


def test_a_temporary_file_is_compared_on_less_text_with_the_checkpoint_on_the_same(tmp_path, monkeypatch):
    compare, seen = Proof.compare, {}

    def kept(self, path, kind, **options):
        seen[kind] = compare(self, path, kind, **options)
        return seen[kind]

    monkeypatch.setattr(Proof, "compare", kept)
    root = tiny.run(tmp_path / "run")
    assert main([f"run={root}", "threads=1", "quant=q8_0", "proof.n_ctx=32", "calibration.imatrix=false"]) == 0
    assert (
        seen["q8_0"].tokens == 4 * seen["f32"].tokens == 4 * 15
    )  # in each of 4 chunks the second half, but for its first
    assert seen["q8_0"].predictions == 4 * seen["f32"].predictions == 4 * 31
    assert abs(seen["f32"].perplexity_change) < 1e-4
