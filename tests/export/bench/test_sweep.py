import json
import re
from pathlib import Path

import numpy as np
import pytest

from slm.data.errors import UserError
from slm.evaluate.perplexity import bits_per_byte, reduce, sliding_plan
from slm.evaluate.scorers import GGUFScorer
from slm.evaluate.text import read_text, shorten
from slm.export.bench.__main__ import main
from slm.export.bench.config import SweepConfig, nominal_bits, variants
from slm.export.config import CalibrationConfig, ExportConfig
from slm.export.pipeline import export
from slm.llama.speed import timing
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run that holds an export of q4_0 and f32 already."""
    root = tiny.run(tmp_path_factory.mktemp("sweep") / "run")
    export(ExportConfig(threads=1, run=root, quant=["f32", "q4_0"]))
    return root


def labels(**options) -> list[str]:
    return [each.label for each in variants(SweepConfig(run=Path("run"), **options))]


def test_which_files_are_made():
    assert labels(quant=["F16", "q8_0", "q4_k", "q4_k_m", "iq2_xxs"]) == [
        "f32",
        "f16",
        "q8_0",
        "q4_k_m",
        "q4_k_m without imatrix",
        "iq2_xxs",  # llama.cpp does not write it without
    ]
    assert labels(quant=["q4_0", "f16"], base="f16", plain_below=0) == ["f16", "q4_0"]
    plain = CalibrationConfig(imatrix=False)
    assert labels(quant=["q8_0", "q4_0"], calibration=plain) == ["f32", "q8_0 without imatrix", "q4_0 without imatrix"]
    with pytest.raises(UserError, match="iq3_xxs cannot be made without an importance matrix"):
        labels(quant=["iq3_xxs"], calibration=plain)
    assert [nominal_bits(kind) for kind in ("q8_0", "q4_k_m", "q4_0", "q2_k")] == [8.5, 4.5, 4.5, 2.625]


def test_the_figures_are_those_of_the_exported_files(run, capsys, monkeypatch):
    """Perplexity and divergence, computed again from what ``python -m slm.export`` wrote."""
    monkeypatch.setattr(timing, "_LEAST_S", 0.01)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    words = [
        f"run={run}",
        "threads=1",
        "eval.max_tokens=1500",
        "eval.kl_tokens=700",
        "speed.rounds=2",
        "speed.decode=8",
    ]
    assert main([*words, "quant=q4_0,q8_0"]) == 0
    out = capsys.readouterr().out
    record = json.loads(out.splitlines()[-1])
    reference, small, plain, large = record["files"]
    assert [each["type"] for each in record["files"]] == ["f32", "q4_0", "q4_0", "q8_0"]
    assert [each["imatrix"] for each in record["files"]] == [False, True, False, True]
    after = {
        path: path.stat().st_mtime_ns for path in run.rglob("*") if run / "quantization" not in (path, path.parent)
    }
    assert after == before, "something was left or changed"
    assert sorted(path.name for path in (run / "quantization").iterdir()) == ["report.html", "rows.json"]

    paths = {kind: next((run / "gguf").glob(f"*-{kind}.gguf")) for kind in ("F32", "Q4_0")}
    logits = {}
    for kind, row in (("F32", reference), ("Q4_0", small)):
        assert row["size_mib"] == pytest.approx(paths[kind].stat().st_size / 2**20, rel=0.01)
        with GGUFScorer(paths[kind], context=128, n_threads=1) as scorer:
            content, ids = shorten(scorer, read_text(run / "validation.txt").content.removesuffix("\n"), 1500)
            stream, windows = sliding_plan(scorer, ids, 128)
            score = reduce(scorer.nll(windows, stream))
            parts = [part for _, part in scorer.logits(windows, stream)]
        logits[kind] = np.concatenate(parts)[: record["kl_positions"]].astype(np.float64)
        assert row["perplexity"] == pytest.approx(score.perplexity, rel=1e-4)
        assert row["bits_per_byte"] == pytest.approx(bits_per_byte(score.nll, len(content.encode())), rel=1e-4)
        assert record["text"]["tokens"] == score.tokens
    assert 600 < record["kl_positions"] <= 700
    p, q = (each - np.log(np.exp(each).sum(1, keepdims=True)) for each in (logits["F32"], logits["Q4_0"]))
    assert small["kl"] == pytest.approx((np.exp(p) * (p - q)).sum(1).mean(), rel=1e-3)
    assert small["same_top"] == pytest.approx((p.argmax(1) == q.argmax(1)).mean(), abs=0.01)
    assert large["kl"] < small["kl"]
    assert plain["kl"] != small["kl"], "the importance matrix changed nothing"
    assert large["bits_per_weight"] > 8 > small["bits_per_weight"]
    assert record["speed"] == {"prefill": 120, "decode": 8, "rounds": 2, "sequences": 1}
    assert all(each["prefill_tok_s"] > 0 and each["decode_tok_s"] > 0 for each in record["files"])
    assert all(each["decode_bound_tok_s"] > each["decode_tok_s"] * 1e-3 for each in record["files"])
    assert large["decode_bound_tok_s"] < small["decode_bound_tok_s"]
    for each in record["files"]:
        read = record["memory_read_gb_per_s"] * 1e9
        assert each["decode_bound_tok_s"] == pytest.approx(read / each["bytes_per_token"])
    assert 0.5 < large["bytes_per_token"] / (large["size_mib"] * 2**20) <= 1
    assert "[4 of 4] q8_0" in out
    assert record["recommendation"] in " ".join(out.split())
    assert [line for line in out.splitlines() if line.startswith("> ")], "the recommended row is marked"

    # The same again, with chosen mixes: known rows are not measured again, new ones are, all are timed in turn.
    goals = "quant=q4_0,q8_0,auto:5,auto:1tok/s,auto:900000tok/s,auto:1"
    assert main([*words, goals, "calibration.chunks=64"]) == 0
    out = capsys.readouterr().out
    again = json.loads(out.splitlines()[-1])
    assert "4 of 8 rows were measured before" in out
    assert "[2 of 5] auto:5" in out
    # A goal that no file meets has no row; the others have.
    line = r"^auto:1 is left out: quant=auto:1 cannot be met: .* bits per weight"
    assert len(re.findall(line, out, re.MULTILINE)) == 1
    assert len(again["files"]) == 7
    # A decode speed is measured on the file, as the table defines it, and chosen again: as export does.
    slow, fast = again["files"][5:]
    choices = again["choices"]
    assert slow["kl"] == large["kl"]
    assert set(choices["auto:1tok/s"]["types"].values()) == {"q8_0"}
    assert choices["auto:1tok/s"]["decode_workload"] == {"prompt": 120, "tokens": 8, "threads": 1}
    measured = choices["auto:900000tok/s"]["measured_decode_tok_s"]
    assert 10 < measured < 900_000
    assert f" of types measured {measured:,.0f} tokens/s (one sequence behind a prompt of 120 tokens, 1 thread)" in out
    assert f"note: auto:900000tok/s: {fast['decode_tok_s']:,.0f} tokens/s in the table's rounds" in out
    assert [each["kl"] for each in again["files"][:4]] == [each["kl"] for each in record["files"]]
    chosen = again["files"][4]
    assert (chosen["type"], chosen["label"]) == ("auto:5", "auto:5")
    assert large["kl"] < chosen["kl"] < small["kl"] * 1.1
    assert 4.7 < chosen["bits_per_weight"] <= 5
    assert again["choices"]["auto:5"]["goal"] == "auto:5"
    assert main([*words, goals]) == 0
    out = capsys.readouterr().out
    last = json.loads(out.splitlines()[-1])
    assert len(re.findall(line, out, re.MULTILINE)) == 1
    assert last["files"] == again["files"], "a row was measured again"
    page = (run / "quantization" / "report.html").read_text()
    assert last["recommendation"] in page.replace("&#x27;", "'")
    assert page.count("<svg") == 1
    assert "auto:5" in page


def test_rows_of_gptq_stand_next_to_the_others(run, tmp_path, capsys):
    assert labels(quant=["f16", "q4_0", "iq3_xxs", "auto:5"], rounding=["nearest", "gptq"], plain_below=0) == [
        *("f32", "f16", "q4_0", "q4_0 gptq"),
        "iq3_xxs",  # its blocks cannot be chosen
        *("auto:5", "auto:5 gptq"),
    ]
    words = ["threads=1", "eval.max_tokens=1500", "eval.kl_tokens=1000", "speed.rounds=0", "plain_below=0"]
    words += ["calibration.chunks=16", "quant=q4_0", "rounding=nearest,gptq", f"out={tmp_path}"]
    assert main([f"run={run}", *words]) == 0
    out = capsys.readouterr().out
    record = json.loads(out.splitlines()[-1])
    _, nearest, gptq = record["files"]
    assert [each["label"] for each in record["files"]] == ["f32", "q4_0", "q4_0 gptq"]
    assert (nearest["rounding_kept"], gptq["rounding_kept"]) == (None, True)
    assert gptq["bits_per_weight"] == nearest["bits_per_weight"]
    assert gptq["kl"] < 0.95 * nearest["kl"]
    assert "q4_0 gptq" in out
    assert "not kept: llama.cpp's own" in out


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("rounding=gtpq", "must be of nearest and gptq"),
        ("quant=q4km", "did you mean 'q4_k_m'"),
        ("eval.text=/nowhere.txt", "/nowhere.txt"),
        ("eval.max_tokens=3", "at least 16"),
        ("speed.decode=0", "speed.decode must be"),
        ("qant=q8_0", "did you mean 'quant'"),
    ],
)
def test_mistakes_are_reported_before_anything_is_made(run, word, message):
    with pytest.raises(UserError, match=message.replace(".", r"\.")) as error:
        main([f"run={run}", word])
    assert "\n" not in str(error.value)
