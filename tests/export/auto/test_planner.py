"""Choices for a tiny model with random weights, from the command line to the file."""

import json
import math

import numpy as np
import pytest

from slm import runs
from slm.data.errors import UserError
from slm.export.__main__ import main
from slm.export.auto.candidates import TYPES, bits
from slm.export.auto.make import make_chosen
from slm.export.auto.planner import Planner
from slm.export.proof import Proof
from slm.export.source import open_source
from slm.export.target import parse_target
from slm.export.texts import calibration_text
from slm.exported import quant_of
from slm.llama.gguf_check import read_header
from slm.llama.speed import DecodeSpeeds, Shape, timing
from tests.helpers import tiny_checkpoint as tiny

WORDS = ["threads=1", "calibration.chunks=4", "calibration.n_ctx=64", "proof.chunks=4", "proof.kl_tokens=256"]


@pytest.fixture(scope="module")
def chosen(tmp_path_factory) -> tuple:
    """One export of four goals and two fixed types: the run, the record, the files by goal."""
    root = tiny.run(tmp_path_factory.mktemp("auto") / "run")
    goals = ["q4_k_m", "q3_k_s", "auto:4.9", "auto:1.1MB", "auto:2%", "auto:3.7"]
    assert main([f"run={root}", f"quant={','.join(goals)}", *WORDS]) == 0
    record = json.loads((root / "gguf" / "export.json").read_text())
    return root, record, {each["type"]: each for each in record["files"]}


def test_each_goal_is_met(chosen):
    root, record, files = chosen
    assert record["published"]
    assert files["auto:4.9"]["bits_per_weight"] <= 4.9
    assert files["auto:4.9"]["bits_per_weight"] > 4.6
    assert 1.0 < files["auto:1.1MB"]["size_mb"] <= 1.1
    assert files["auto:2%"]["kl"] <= math.log(1.02)
    for goal, name in (("auto:4.9", "auto-4.9bpw"), ("auto:1.1MB", "auto-1.1MB"), ("auto:2%", "auto-2pct")):
        path = root / "gguf" / files[goal]["file"]
        assert path.stem.endswith(f"-v1.0-{name}")
        assert quant_of(path) == goal


def test_the_file_holds_the_types_of_the_record_and_says_so(chosen):
    root, record, files = chosen
    for goal in ("auto:4.9", "auto:3.7"):
        choice = record["choices"][files[goal]["file"]]
        header = read_header(root / "gguf" / files[goal]["file"])
        assert choice["types"] == {t.name: t.type for t in header.tensors if not t.name.endswith("norm.weight")}
        assert len(set(choice["types"].values())) > 1
        assert choice["bits_per_weight"] == pytest.approx(header.bits_per_weight)
        assert header.metadata["slm.auto.goal"] == goal
        assert header.metadata["slm.auto.kl_predicted"] == pytest.approx(choice["predicted_kl"], rel=1e-5)
        assert header.size_bytes <= choice["predicted_bytes"] <= header.size_bytes + 2_048
        assert sum(role["bytes"] for role in choice["roles"]) < header.size_bytes
        # Random weights make errors add up far from independently, but the prediction is no guess either.
        assert 0.2 < files[goal]["kl"] / choice["predicted_kl"] < 5
    assert header.metadata["general.file_type"] != 0


def test_the_choice_loses_less_than_fixed_types_of_its_size(chosen):
    _, _, files = chosen
    for fixed, goal in (("q4_k_m", "auto:4.9"), ("q3_k_s", "auto:3.7")):
        assert files[goal]["bits_per_weight"] <= files[fixed]["bits_per_weight"] * 1.03
        assert files[goal]["kl"] < files[fixed]["kl"]


def test_estimates_agree_with_measurements(chosen):
    _, record, files = chosen
    checks = record["choices"][files["auto:3.7"]["file"]]["groups"]
    assert {each["group"] for each in checks} >= {"token_embd", "output", "ffn_down 1/2", "attn_v 2/2"}
    ratios = np.array([each["measured"] / each["estimated"] for each in checks if each["type"] == "q4_k"])
    assert math.exp(np.abs(np.log(ratios)).mean()) < 2


@pytest.fixture(scope="module")
def planner(chosen, tmp_path_factory) -> Planner:
    """A planner without an importance matrix, on a machine whose speed is inverse to the size of a type."""
    run = runs.resolve(chosen[0])
    source = open_source(run, ["f32"])
    base = tmp_path_factory.mktemp("planner") / "f32.gguf"
    source.write(base, "f32")
    tok_s = {kind: 100 / bits(kind) for kind in TYPES}
    speeds = DecodeSpeeds(shape=Shape.of(source.model.config), threads=1, tok_s=tok_s)
    text = calibration_text(None, run, print)
    return Planner(source, read_header(base), text, None, threads=1, log=print, speeds=speeds)


def test_the_machines_speeds_decide_where_no_size_is_given(planner):
    small = planner.choose(parse_target("auto"))
    assert small.measured_kl is not None
    assert small.measured_kl <= math.log(1.01)
    assert small.decode_tok_s is not None
    assert small.decode_tok_s > planner.speeds.tok_s["q8_0"]
    # A machine that decodes the largest type fastest gets it everywhere, and the others gain nothing.
    tok_s = dict.fromkeys(TYPES, 1.0) | {"q8_0": 2.0}
    speeds = DecodeSpeeds(shape=planner.speeds.shape, threads=1, tok_s=tok_s)
    other = Planner(planner.source, planner.header, planner.text, None, threads=1, log=print, speeds=speeds)
    other.options = planner.options  # measured once
    large = other.choose(parse_target("auto"))
    assert {kind for name, kind in large.types.items() if name != "token_embd.weight"} == {"q8_0"}
    assert large.decode_tok_s == pytest.approx(2.0)
    assert small.n_bytes < large.n_bytes


def test_a_decode_speed_is_met_with_the_least_loss(planner):
    """On the fixture's machine: q8_0 everywhere gives 100 / 8.5 tokens/s, q4_0 100 / 4.5."""
    found = [planner.choose(parse_target(f"auto:{tok_s}tok/s")) for tok_s in (12, 16, 22, 30)]
    for asked, choice in zip((12, 16, 22, 30), found, strict=True):
        assert asked <= choice.decode_tok_s < 1.1 * asked
        assert choice.measured_kl is None
    losses = [choice.predicted_kl for choice in found]
    assert losses == sorted(losses)
    assert losses[-1] > 3 * losses[0]
    assert len(set(found[1].types.values())) > 1


def test_the_speed_of_the_finished_file_decides(planner, tmp_path, monkeypatch):
    """Speeds that no machine has: files are measured, and one line says what was found."""
    monkeypatch.setattr(timing, "ROUNDS", 1)
    monkeypatch.setattr(timing, "_LEAST_S", 0.01)
    tok_s = {kind: 2e4 * rate for kind, rate in planner.speeds.tok_s.items()}
    lines: list[str] = []

    def other(speeds: dict[str, float]) -> Planner:
        found = DecodeSpeeds(shape=planner.speeds.shape, threads=1, tok_s=speeds)
        made = Planner(planner.source, planner.header, planner.text, None, threads=1, log=print, speeds=found)
        made.options = planner.options  # measured once
        return made

    base = tmp_path / "f32.gguf"
    planner.source.write(base, "f32")
    proof = Proof(
        planner.source.scorer, planner.source.tokenizer.encode, planner.text.content, n_ctx=64, chunks=2, kl_tokens=64
    )
    path, target = tmp_path / "fast.gguf", parse_target("auto:500000tok/s")
    compared, choice = make_chosen(other(tok_s), base, path, target, proof.compare, lines.append)
    assert compared.file == path.name
    assert choice.measured_tok_s is not None
    assert 10 < choice.measured_tok_s < target.value
    assert lines[-1] == (
        f"note: auto:500000tok/s is missed: the fastest of {len(choice.tries)} choices of types measured "
        f"{choice.measured_tok_s:,.0f} tokens/s (one sequence behind a prompt of 64 tokens, 1 thread)"
    )
    assert len(choice.tries) == sum("measured" in line and "predicted" in line for line in lines) >= 2
    assert choice.measured_tok_s >= 0.97 * max(each["measured_decode_tok_s"] for each in choice.tries)
    stored = {tensor.name: tensor.type for tensor in read_header(path).tensors}
    assert {name: stored[name] for name in choice.types} == choice.types, "the file is of another choice"

    # So much slower than the prediction that nobody believed in the goal: nothing is kept.
    with pytest.raises(
        UserError, match=r"500000tok/s cannot be met: the fastest of \d choices? .*; ask for less"
    ) as error:
        make_chosen(other(planner.speeds.tok_s), base, path, target, proof.compare, lines.append)
    assert "\n" not in str(error.value)
    # Far faster than predicted: then the least loss is fast enough.
    met, choice = make_chosen(
        other(planner.speeds.tok_s), base, path, parse_target("auto:20tok/s"), proof.compare, lines.append
    )
    assert choice.record()["measured_decode_tok_s"] > 20
    assert choice.record()["decode_workload"] == {"prompt": 64, "tokens": 64, "threads": 1}
    assert set(choice.types.values()) == {"q8_0"}
    assert met.kl < compared.kl


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        ("auto:1.5", r"this model's smallest choice has 2\.\d\d bits per weight, 0\.\d\d MB; give more"),
        ("auto:0.2MB", "this model's smallest choice has"),
        ("auto:0.0001%", "cannot be met: the best types for every matrix add about"),
    ],
)
def test_goals_that_cannot_be_met_are_one_line(planner, goal, message):
    with pytest.raises(UserError, match=message) as error:
        planner.choose(parse_target(goal))
    assert "\n" not in str(error.value)


def test_a_stricter_choice_loses_less(planner):
    target = parse_target("auto:5%")
    first, second = planner.choose(target), planner.choose(target, stricter=0.3)
    assert first.measured_kl is not None
    assert second.measured_kl is not None
    assert second.measured_kl <= 0.3 * target.value < first.measured_kl <= target.value
    assert second.n_bytes > first.n_bytes
