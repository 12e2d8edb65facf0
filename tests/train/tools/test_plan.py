"""The plan of a run agrees with the preset's own statement, and the menu of a time with its own arithmetic."""

import json
import math

import pytest
from omegaconf import OmegaConf

from slm.data.errors import UserError
from slm.model.config import ModelConfig
from slm.train.budget import choose
from slm.train.budget.costs import costs, q4_k_m_bytes
from slm.train.predict import records, wikitext
from slm.train.tools import plan, preset_plan
from slm.train.tools.run_records import record_of
from tests.helpers.machines import MACHINE
from tests.helpers.small_run import SmallRun


def test_the_last_line_is_the_plan_as_json(capsys):
    assert plan.main(["preset=10m", "tokens_per_s=1000", "train.max_steps=10"]) == 0
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert record["tokens"] == 10 * 8 * 4 * 512
    assert record["seconds"] == {"1000": 163.84}
    assert record["n_params"] == 13_636_608
    assert record["total_flops"] == record["tokens"] * record["flops_per_token"]
    assert record["bits_per_byte_low"] < record["bits_per_byte"] < record["bits_per_byte_high"]


def test_a_preset_on_this_machine_has_a_speed_and_a_price(capsys, monkeypatch):
    monkeypatch.setattr(preset_plan, "measured", lambda *_: MACHINE)
    assert plan.main(["preset=10m", "budget=8h", "plan.price_per_hour=0.5", "plan.api_price=2"]) == 0
    out = capsys.readouterr().out
    record = json.loads(out.splitlines()[-1])
    assert "(measured on" in " ".join(out.split())
    assert set(record["seconds"]) == {"500", "2000", "10000"}
    assert record["predicted_tokens"] == pytest.approx(8 * 3600 * record["tokens_per_s"], rel=0.08)
    assert record["costs"]["training"] == pytest.approx(4.0)
    serving = 1e6 * 0.5 / 3600 / record["decode_tokens_per_s"]
    assert record["costs"]["serving_per_million_tokens"] == pytest.approx(serving)


def test_a_named_machine_is_planned_without_a_measurement(capsys):
    assert plan.main(["preset=125m", "plan.machine=16xzen4", "plan.price_per_hour=1"]) == 0
    out = capsys.readouterr().out
    record = json.loads(out.splitlines()[-1])
    assert "16xzen4), everything included" in out
    assert record["costs"]["training"] == pytest.approx(record["budget_s"] / 3600)
    low, at, high = (record[f"wikitext103_perplexity{end}"] for end in ("_low", "", "_high"))
    assert 1 < low < at < high  # of articles of Wikipedia
    articles = [record[f"articles_bits_per_byte{end}"] for end in ("_low", "", "_high")]
    assert articles[0] < record["bits_per_byte_low"] < articles[1] < record["bits_per_byte_high"] < articles[2]
    assert at == pytest.approx(wikitext.word_perplexity(articles[1] * wikitext.OTHER_FORM))
    assert record["predicted_steps"] == 100_000  # the guide's, as the preset has them
    assert "(100,000 steps)" in " ".join(out.split())
    assert "WikiText-103 perplexity per word" in " ".join(out.split())


def test_a_given_speed_has_a_price_of_training(capsys):
    assert plan.main(["preset=10m", "tokens_per_s=1000", "plan.price_per_hour=3600"]) == 0
    out = capsys.readouterr().out
    record = json.loads(out.splitlines()[-1])
    assert record["costs"]["training"] == pytest.approx(record["budget_s"])
    assert record["costs"]["serving_per_million_tokens"] is None
    assert "wikitext103_perplexity" not in record
    assert "training, per million tokens" in " ".join(out.split())


@pytest.mark.parametrize("budget", ["5s", "7s"])
def test_a_budget_without_time_for_a_step_is_one_line(budget, monkeypatch):
    monkeypatch.setattr(preset_plan, "measured", lambda *_: MACHINE)
    with pytest.raises(UserError, match=f"budget={budget} is too short for a step of"):
        plan.main(["preset=125m", f"budget={budget}"])


def test_a_preset_with_sampled_words_is_planned_at_their_speed(capsys, monkeypatch):
    monkeypatch.setattr(preset_plan, "measured", lambda *_: MACHINE)

    def speed(*options: str) -> float:
        assert plan.main(["preset=10m", "budget=8h", *options]) == 0
        return json.loads(capsys.readouterr().out.splitlines()[-1])["tokens_per_s"]

    assert speed("train.sampled_softmax=512") > speed() * 1.05


def test_the_menu_of_a_time_is_a_table_a_picture_and_one_json_line(capsys, monkeypatch, tmp_path, corpus):
    monkeypatch.setattr(choose, "measured", lambda *_: MACHINE)
    argv = ["budget=20m", "preset=auto", "data=local", f"data.files=[{corpus}]", f"plan.plot={tmp_path}/plan.png"]
    argv.append("plan.times=[2m,20m]")
    assert plan.main(argv) == 0
    out = capsys.readouterr().out
    record = json.loads(out.splitlines()[-1])
    assert "two of three" in out
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    assert record["chosen"] in record["menu"]
    assert [each["budget_s"] for each in record["curve"]] == [120, 1200]
    assert record["curve"][1] == record["chosen"] | {"budget_s": 1200}
    lowest = min(each["bits_per_byte"] for each in record["menu"])
    assert record["chosen"]["bits_per_byte"] <= 1.002 * lowest
    for each in record["menu"]:
        assert each["bits_per_byte_low"] < each["bits_per_byte"] < each["bits_per_byte_high"]
        assert each["tokens"] == each["steps"] * each["tokens_per_step"]
    assert record["chosen"]["seconds"] < 20 * 60  # 400 short documents
    assert record["costs"]["training"] == pytest.approx(0.10 * record["chosen"]["seconds"] / 3600)


def test_the_size_of_a_file_is_near_a_real_one():
    """The 125m preset's Q4_K_M file has 79 MiB (docs/results/serving-speed.md)."""
    shape = dict(n_layers=12, d_model=768, n_heads=12, n_kv_heads=12, head_dim=64, ffn_dim=2048, seq_len=1024)
    assert q4_k_m_bytes(ModelConfig(vocab_size=50304, **shape)) / 2**20 == pytest.approx(79, rel=0.03)


def test_an_api_that_is_cheaper_never_pays_for_the_training():
    dear = costs(seconds=3600, tokens=1e6, decode_tokens_per_s=10, price_per_hour=1.0, api_price=0.1)
    assert dear.tokens_until_paid is None
    assert costs(seconds=3600, tokens=1e6, decode_tokens_per_s=10, price_per_hour=0, api_price=1).api_is_x is None


def test_a_finished_run_becomes_a_record_and_an_unfinished_one_does_not(tmp_path, corpus, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = [f"data.files=[{corpus}]", "name=done", "train.max_steps=20", "train.eval_every=20"]
    run = SmallRun(tmp_path, *words).finish()
    assert plan.main(["preset=tiny", "tokens_per_s=1000", f"plan.add=[{run.root}]"]) == 0
    assert "added done:" in capsys.readouterr().out
    (record,) = records.load_own()
    assert (record.name, record.tokens, record.tokens_per_step, record.vocab_size) == ("done", 2560, 128, 300)
    assert record.n_matrix == 256 * (2 * (4 + 2) * 64 + 3 * 256)
    assert record.bytes > record.tokens
    assert plan.main(["preset=tiny", "tokens_per_s=1000", f"plan.add=[{run.root}]"]) == 0
    assert len(records.load_own()) == 1  # in place of the former
    metrics = run.root / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.write_text("".join(json.dumps(each) + "\n" for each in lines if each["step"] < 3 or "val_loss" in each))
    with pytest.raises(UserError, match="ended before its learning rate had fallen"):
        plan.main(["preset=tiny", "tokens_per_s=1000", f"plan.add=[{run.root}]"])


def test_a_record_has_the_epochs_that_the_run_did_however_much_its_text_counts(tmp_path, corpus):
    words = [f"data.files=[{corpus}]", "name=done", "train.max_steps=20", "train.eval_every=20"]
    run = SmallRun(tmp_path, *words, "train.phases=[{bags:2,until:0.5}]").finish()
    assert record_of(run.root).unique_bytes == math.inf  # nobody planned it, so nobody knows
    config = OmegaConf.load(run.root / "config.yaml")
    planned = {"tokens": 2560 // 2, "epochs": 0.6}  # it then did twice as much
    OmegaConf.update(config, "facts.predicted", planned, force_add=True)
    OmegaConf.save(config, run.root / "config.yaml")
    record = record_of(run.root)
    assert record.bytes / record.unique_bytes == pytest.approx(1.2)
    # The law is about trained heads: what a calibration gave is taken from the record.
    metrics = run.root / "metrics.jsonl"
    lines = [line for line in metrics.read_text().splitlines() if '"calibrated"' not in line]
    metrics.write_text("".join(f"{line}\n" for line in lines))
    trained = record_of(run.root)
    event = {"event": "calibrated", "step": 20, "before": 4.0, "after": 3.9}
    metrics.write_text("".join(f"{line}\n" for line in [*lines, json.dumps(event)]))
    assert record_of(run.root).bits_per_byte > trained.bits_per_byte
    OmegaConf.update(config, "distill.teacher", "runs/other")
    OmegaConf.save(config, run.root / "config.yaml")
    with pytest.raises(UserError, match="learnt from a teacher: the law is about models that learn from text alone"):
        record_of(run.root)


def test_a_speed_that_is_none_is_refused():
    for given, message in (("fast", "must be a number"), ("0", "positive number"), ("-5", "positive number")):
        with pytest.raises(UserError, match=message):
            plan.main([f"tokens_per_s={given}"])
    with pytest.raises(UserError, match="preset=auto needs the time"):
        plan.main(["preset=auto"])
    with pytest.raises(UserError, match=r"plan\.api_price must not be negative"):
        plan.main(["plan.api_price=-1"])
