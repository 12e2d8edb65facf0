"""``rounding=gptq`` of whole models, on tiny ones with random weights."""

import gguf
import numpy as np
import pytest
import torch

from slm import runs
from slm.data.errors import UserError
from slm.export.config import CalibrationConfig, ExportConfig, ProofConfig
from slm.export.gguf.tensors import in_gguf_order
from slm.export.pipeline import export
from slm.export.rounding.layers import is_held_out, round_layers
from slm.llama.blocks.grids import KINDS
from slm.llama.blocks.names import gguf_name
from slm.llama.blocks.rounding import dequantize_rows, quantize_rows
from slm.llama.gguf_check import read_header
from slm.model.checkpoint import load_model
from tests.helpers import tiny_checkpoint as tiny

MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny.run(tmp_path_factory.mktemp("run") / "run")


def exported(run, rounding: str, quant: list[str]) -> dict:
    config = ExportConfig(
        run=run,
        quant=quant,
        rounding=rounding,
        out=run / rounding,
        threads=1,
        calibration=CalibrationConfig(n_ctx=128, chunks=24),
        proof=ProofConfig(n_ctx=128, chunks=8, kl_tokens=1024),
    )
    return export(config)


@pytest.fixture(scope="module")
def records(run):
    more = {"nearest": [], "gptq": ["auto:4.9"]}
    return {rounding: exported(run, rounding, ["q4_0", "q4_k_m", *goals]) for rounding, goals in more.items()}


def tensors(record, file) -> dict[str, tuple[str, bytes]]:
    reader = gguf.GGUFReader(f"{record['out']}/{file}")
    return {each.name: (each.tensor_type.name.lower(), each.data.tobytes()) for each in reader.tensors}


def test_the_exported_files_are_closer_to_the_checkpoint(records):
    before, after = ({each["type"]: each for each in records[name]["files"]} for name in ("nearest", "gptq"))
    assert records["nearest"]["rounding"] == {}
    for kind in ("q4_0", "q4_k_m"):
        assert after[kind]["size_mb"] == pytest.approx(before[kind]["size_mb"], rel=1e-3)
        assert after[kind]["kl"] < before[kind]["kl"]
        record = records["gptq"]["rounding"][after[kind]["file"]]
        assert record["kept"]
        assert record["kl_gptq"] < record["kl_nearest"]
        assert "held-out" in record["measure"]
        assert record["matrices"].keys() == {f"blk.{i}.{name}.weight" for i in (0, 1) for name in MATRICES}
        for each in record["matrices"].values():
            assert each["kept"] == (each["gptq_error"] < each["nearest_error"])
    assert records["gptq"]["published"]


@pytest.mark.parametrize("kind", ["q4_0", "q4_k_m"])
def test_only_the_blocks_of_kept_matrices_differ(records, kind):
    names = {name: next(each["file"] for each in records[name]["files"] if each["type"] == kind) for name in records}
    before, after = (tensors(records[name], names[name]) for name in ("nearest", "gptq"))
    assert before.keys() == after.keys()
    kept = {name for name, each in records["gptq"]["rounding"][names["gptq"]]["matrices"].items() if each["kept"]}
    assert kept
    for name, (stored, data) in after.items():
        assert stored == before[name][0]
        assert (data != before[name][1]) == (name in kept), name
    metadata = read_header(runs.Path(records["gptq"]["out"]) / names["gptq"]).metadata
    assert metadata["slm.rounding"] == "gptq where measured better"


def test_a_choice_of_types_is_rounded_again_too(records):
    record = records["gptq"]
    file = next(each for each in record["files"] if each["type"] == "auto:4.9")
    stored = {name: kind for name, (kind, _) in tensors(record, file["file"]).items()}
    chosen = record["choices"][file["file"]]["types"]
    assert {name: stored[name] for name in chosen} == chosen
    again = record["rounding"][file["file"]]
    assert again["kept"]
    assert again["kl_gptq"] < again["kl_nearest"]
    assert {name for name, kind in chosen.items() if kind in KINDS and name.startswith("blk")} == set(again["matrices"])
    metadata = read_header(runs.Path(record["out"]) / file["file"]).metadata
    assert (metadata["slm.auto.goal"], metadata["slm.rounding"]) == ("auto:4.9", "gptq where measured better")


def test_the_file_holds_the_blocks_that_were_chosen(run, records):
    """Bit for bit, queries and keys in the order of rows that llama.cpp wants."""
    file = next(each["file"] for each in records["gptq"]["files"] if each["type"] == "q4_k_m")
    stored = tensors(records["gptq"], file)
    model = load_model(runs.resolve(run).checkpoint())
    text = (run / "calibration.txt").read_text()
    windows_BT = np.array(tiny.tokenizer().encode(text)[: 24 * 128], np.int32).reshape(24, 128)
    types = {name: kind for name, (kind, _) in stored.items()}
    done: list[int] = []
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = round_layers(model, windows_BT, types, {}, progress=done.append)
    assert sum(done) == 14
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    for name, each in found.items():
        assert each.kind in KINDS
        blocks = in_gguf_order(model.config, name, torch.from_numpy(each.blocks)).numpy()
        qtype = gguf.GGMLQuantizationType[each.kind.upper()]
        weights_OD = in_gguf_order(model.config, name, before[name]).numpy()
        values_OD = gguf.quants.dequantize(blocks, qtype)
        assert np.array_equal(values_OD, dequantize_rows(blocks, each.kind, each.n_columns))
        # No row of another head: each is near the row of weights at its place.
        assert np.abs(values_OD - weights_OD).mean() < 0.2 * np.abs(weights_OD).mean()
        if not each.kept:
            assert np.array_equal(each.blocks, quantize_rows(before[name].numpy(), each.kind))
        assert gguf_name(name) in stored


def test_part_of_the_windows_is_held_out():
    assert is_held_out(9).tolist() == [False, False, False, True] * 2 + [False]
    assert is_held_out(2).tolist() == [False, True]


def test_too_little_text_is_one_line(run, tmp_path):
    (tmp_path / "short.txt").write_text(tiny.text(800))
    config = ExportConfig(
        run=run,
        quant=["q4_0"],
        rounding="gptq",
        out=tmp_path / "out",
        threads=1,
        calibration=CalibrationConfig(text=tmp_path / "short.txt", n_ctx=128, chunks=1, imatrix=False),
    )
    with pytest.raises(UserError, match="at least 2 chunks of calibration text"):
        export(config)
