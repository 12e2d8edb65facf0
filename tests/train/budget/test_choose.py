"""A whole run within a budget: it ends in time with its decay finished, and goes on where it was stopped."""

import json
import signal
import time

import pytest
from omegaconf import OmegaConf

from data.errors import UserError
from tests.helpers.machines import MACHINE
from tests.helpers.small_run import SmallRun
from train.budget import choose
from train.resolve import Chosen, resolve

BUDGET = 10.0


def no_choice(*_):
    raise AssertionError("nothing is to be chosen")


def test_a_budget_ends_the_whole_run_in_time_also_where_it_was_stopped_between(tmp_path, corpus):
    """Set-up, validations and saves of both starts together are the budget; the pause between them is not."""
    words = [
        f"data.files=[{corpus}]",
        "name=short",
        f"budget={BUDGET:g}s",
        "train.eval_every=100",
        "train.max_steps=100000",
    ]
    spent = []
    for stop in (True, False):
        began = time.monotonic()
        run = SmallRun(tmp_path, *words)
        if stop:
            run.wait_for_step(20)
            run.send_signal(signal.SIGINT)
        code = run.wait()
        spent.append(time.monotonic() - began)
        assert code == (130 if stop else 0), run.err
    assert sum(spent) == pytest.approx(BUDGET, abs=0.02 * BUDGET + 1.2)  # and a process's end, twice
    lines = [json.loads(line) for line in (run.root / "metrics.jsonl").read_text().splitlines()]
    training, validations = [r for r in lines if "lr" in r], [r for r in lines if "val_loss" in r]
    rates = [record["lr"] for record in training]
    assert max(rates[: len(rates) // 4]) == max(rates)
    assert rates[-1] < 0.1 * max(rates)
    assert validations[-1]["step"] == training[-1]["step"]
    saved = OmegaConf.load(run.root / "config.yaml")
    assert (saved.train.minutes_of, saved.train.max_minutes, saved.budget) == ("process", BUDGET / 60, f"{BUDGET:g}s")
    forecasts = [r for r in training if "forecast_bits_per_byte" in r]
    last = forecasts[-1]
    assert last["forecast_bits_per_byte_low"] < validations[-1]["val_bits_per_byte"] * 1.2
    assert last["forecast_bits_per_byte_high"] > validations[-1]["val_bits_per_byte"] * 0.8
    assert "is finished" in SmallRun(tmp_path, *words).finish().out


def test_bad_budgets_are_one_line():
    with pytest.raises(UserError, match="preset=auto needs the time"):
        resolve(["preset=auto"], no_choice, no_choice)
    for word in ("budget=8", "budget=fast", "budget=0h"):
        with pytest.raises(UserError, match="is not a length of time: give a number and a unit"):
            resolve([word, "preset=10m"], no_choice, no_choice)
    with pytest.raises(UserError, match="with several processes a budget needs a preset"):
        resolve(["budget=8h"], no_choice)


def test_a_named_preset_keeps_its_size_and_gets_the_time():
    config = resolve(["preset=10m", "budget=90m"], no_choice, no_choice)
    assert (config.model.d_model, config.train.max_minutes, config.train.minutes_of) == (512, 90.0, "process")
    assert config.train.max_steps == 1_000_000
    assert resolve(["preset=10m", "budget=90m", "train.max_steps=7"], no_choice, no_choice).train.max_steps == 7


def test_what_is_chosen_becomes_ordinary_options_and_what_is_given_wins():
    def chooser(argv, seconds):
        assert seconds == 600
        return Chosen(
            ["name=auto", "model.n_layers=6", "train.seq_len=256", "tokenizer.vocab_size=4096"], {"chosen": ["x"]}
        )

    config = resolve(["budget=10m", "train.seq_len=128", "data=local", "data.files=[a.txt]"], no_choice, chooser)
    assert (config.model.n_layers, config.train.seq_len, config.tokenizer.vocab_size) == (6, 128, 4096)
    assert (config.preset, config.root.name, config.facts["chosen"]) == ("auto", "auto", ["x"])


def test_a_choice_is_made_of_this_machine_and_text_and_kept_for_the_next_start(tmp_path, corpus, monkeypatch, capsys):
    monkeypatch.setattr(choose, "measured", lambda *_: MACHINE)
    argv = ["budget=20m", "data=local", f"data.files=[{corpus}]", f"runs_dir={tmp_path}", "train.log_every=7"]
    config = resolve(argv, no_choice, choose.choose)
    shown = capsys.readouterr().out
    assert "layers x width" in shown
    assert "the lowest predicted bits per byte" in shown
    assert "more text would help more than more time" in shown  # 400 short documents
    assert config.train.log_every == 7
    assert (
        config.facts["predicted"]["low"]
        < config.facts["predicted"]["bits_per_byte"]
        < config.facts["predicted"]["high"]
    )
    assert config.model.n_layers * config.model.d_model <= 1024
    # The run exists: its own file has the choice, whatever would be chosen today.
    from slm.configuration import to_yaml

    (config.root / "checkpoints" / "step-00000001").mkdir(parents=True)
    (config.root / "checkpoints" / "step-00000001" / "config.json").write_text("{}")
    (config.root / "config.yaml").write_text(to_yaml(config))
    monkeypatch.setattr(choose, "measured", no_choice)
    again = resolve(argv, no_choice, choose.choose)
    assert again == config
    longer = resolve([*argv, "budget=40m"], no_choice, choose.choose)
    assert (longer.model, longer.train.max_minutes) == (config.model, 40.0)


def test_groups_that_a_person_names_are_kept(tmp_path):
    argv = ["budget=1h", "model=50m", "tokenizer.vocab_size=512", "train.micro_batch=4", "train.grad_accum=3"]
    base = choose.compose([*argv, f"runs_dir={tmp_path}"])
    wanted = choose.wanted_of(base, argv)
    assert (wanted.n_layers, wanted.d_model, wanted.ffn_dim) == (13, 512, 1536)
    assert (wanted.vocab_size, wanted.sequences, wanted.seq_len) == (512, 12, None)
