from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from slm.data.errors import UserError
from slm.export.__main__ import main
from slm.export.config import UNQUANTIZED, CalibrationConfig, ExportConfig, ProofConfig, resolve_types
from slm.export.pipeline import export
from slm.export.quantize import base_type, fallback_warning, predict_fallbacks, quantize_file
from slm.llama.gguf_check import GGML_TYPES, read_header
from slm.llama.quantize import IGNORE_IMATRIX, quant_types, quantize
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture(scope="module")
def narrow(tmp_path_factory) -> Path:
    """An f32 file whose rows are 96 and 320 wide."""
    root = tiny.run(
        tmp_path_factory.mktemp("narrow") / "run", d_model=96, n_heads=3, n_kv_heads=1, head_dim=32, ffn_dim=320
    )
    record = export(ExportConfig(threads=1, run=root, quant=["f32"]))
    return root / "gguf" / record["files"][0]["file"]


def test_base_types():
    assert [base_type(name) for name in ("q4_k_m", "q2_k_s", "iq2_m", "iq4_xs", "q8_0", "mxfp4_moe")] == [
        "q4_k",
        "q2_k",
        "iq2_s",
        "iq4_xs",
        "q8_0",
        "q8_0",
    ]
    assert all(base_type(name) in GGML_TYPES for name in quant_types())


@pytest.mark.parametrize("kind", ["q4_k_m", "q6_k", "q3_k_s", "tq2_0"])
def test_predicted_fallbacks_are_llama_cpps_own(narrow, tmp_path, kind):
    predicted = predict_fallbacks(read_header(narrow).tensors, kind)
    logged = quantize_file(narrow, tmp_path / "out.gguf", kind, None)
    # llama.cpp gives the head q8_0 at once and logs no fallback for it.
    assert set(logged) == {each.tensor for each in predicted} - {"output.weight"}
    stored = {tensor.name: tensor.type for tensor in read_header(tmp_path / "out.gguf").tensors}
    same = [each for each in predicted if stored[each.tensor] == each.used]
    raised = {each.tensor for each in predicted} - {each.tensor for each in same}
    assert len(same) >= 10
    assert all("attn_v" in name or "ffn_down" in name or "token_embd" in name for name in raised)
    warning = fallback_warning(kind, predicted)
    assert warning.endswith("quant=auto:4.5 keeps to 4.5, with types that fit")
    assert "blk.*.ffn_down.weight (rows of 320)" in warning
    assert "\n" not in warning


def test_rows_of_256_need_no_fallback(tmp_path):
    root = tiny.run(tmp_path / "run")
    record = export(ExportConfig(threads=1, run=root, quant=["f16"]))
    header = read_header(root / "gguf" / record["files"][0]["file"])
    for kind in quant_types():
        assert predict_fallbacks(header.tensors, kind) == []


def test_a_type_that_the_shapes_do_not_allow_is_refused(narrow, tmp_path):
    with pytest.raises(UserError, match="q1_0 could not be made"):
        quantize_file(narrow, tmp_path / "out.gguf", "q1_0", None)
    assert list(tmp_path.iterdir()) == []


def test_the_source_is_never_overwritten(narrow):
    before = narrow.stat()
    with pytest.raises(UserError, match="would overwrite the input"):
        quantize_file(narrow, narrow, "q8_0", None)
    assert narrow.stat() == before


def test_unknown_type_is_one_line_with_the_nearest(tmp_path, capsys):
    root = tiny.run(tmp_path / "run")
    with pytest.raises(UserError, match=r"q4_k_n.*did you mean 'q4_k") as caught:
        main([f"run={root}", "quant=q4_k_n"])
    assert "\n" not in str(caught.value)
    assert not (root / "gguf").exists()


def test_which_types_an_importance_matrix_changes(narrow, tmp_path):
    """The same bytes with and without one for ``IGNORE_IMATRIX``, others for a type that reads one."""
    random = np.random.default_rng(0)
    matrices = [each for each in GGUFReader(narrow).tensors if len(each.shape) == 2 and each.name.startswith("blk.")]
    imatrix = {each.name: random.random(each.shape[0], np.float32) + 0.01 for each in matrices}
    for kind in (*IGNORE_IMATRIX, "q4_0"):
        found = []
        for number, given in enumerate((None, imatrix)):
            path = tmp_path / f"{kind}-{number}.gguf"
            quantize(narrow, path, kind, imatrix=given, n_threads=1)
            found.append({each.name: bytes(each.data) for each in GGUFReader(path).tensors})
        assert (found[0] == found[1]) == (kind in IGNORE_IMATRIX), kind


def test_an_export_that_uses_no_importance_matrix_measures_none(tmp_path, capsys):
    root = tiny.run(tmp_path / "run", n_layers=1, ffn_dim=256, n_kv_heads=1)
    assert main([f"run={root}", "quant=q8_0", "threads=1", "proof.chunks=2"]) == 0
    assert "importance matrix: left out, q8_0 does not use one" in capsys.readouterr().out
    assert not (root / "gguf" / "imatrix.gguf").exists()


@pytest.mark.slow
def test_every_type_llama_cpp_offers(tmp_path):
    root = tiny.run(tmp_path / "run", n_layers=1, ffn_dim=256, n_kv_heads=1)
    wanted = [*UNQUANTIZED, *quant_types()]
    proof, calibration = ProofConfig(chunks=1, n_ctx=64, kl_tokens=64), CalibrationConfig(chunks=4)
    config = ExportConfig(threads=1, run=root, quant=wanted, proof=proof, calibration=calibration)
    record = export(config)
    assert record["published"]
    by_type = {each["type"]: each for each in record["files"]}
    assert set(by_type) == set(resolve_types(config.quant, quant_types()))
    assert len(by_type) >= 33
    files = {path.name for path in (root / "gguf").glob("*.gguf")}
    assert files == {each["file"] for each in record["files"]} | {"imatrix.gguf"}
    bits = {kind: each["bits_per_weight"] for kind, each in by_type.items()}
    assert bits["iq1_s"] < bits["iq2_xxs"] < bits["q3_k_m"] < bits["q4_k_m"] < bits["q6_k"] < bits["q8_0"] < bits["f16"]
    kl = {kind: each["kl"] for kind, each in by_type.items()}
    assert kl["f32"] < kl["q8_0"] < kl["q4_k_m"] < kl["q2_k"] < kl["iq1_s"]
