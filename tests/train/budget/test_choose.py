"""What a budget becomes: ordinary options, chosen once and kept for the next start."""

import math
from dataclasses import replace

import pytest

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.train.budget import choice, choose
from slm.train.budget.choice import Wanted
from slm.train.config import RunConfig
from slm.train.resolve import Chosen, resolve
from tests.helpers.machines import MACHINE
from tests.train.budget.test_choice import chosen


def no_choice(*_):
    raise AssertionError("nothing is to be chosen")


def test_bad_budgets_are_one_line():
    with pytest.raises(UserError, match="preset=auto needs the time"):
        resolve(["preset=auto"], no_choice, no_choice)
    for word in ("budget=8", "budget=fast", "budget=0h"):
        with pytest.raises(UserError, match="is not a length of time: give a number and a unit"):
            resolve([word, "preset=10m"], no_choice, no_choice)
    with pytest.raises(UserError, match="several processes and sweeps need a preset"):
        resolve(["budget=8h"], no_choice)


def test_a_named_preset_keeps_its_size_and_gets_the_time():
    config = resolve(["preset=10m", "budget=90m"], no_choice, no_choice)
    assert (config.model.d_model, config.train.max_minutes) == (512, 90.0)
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
    argv = ["budget=20m", "data=local", f"data.files=[{corpus}]", f"runs_dir={tmp_path}", "train.keep_last=7"]
    config = resolve(argv, no_choice, choose.choose)
    shown = capsys.readouterr().out
    assert "layers x width" in shown
    assert "the lowest predicted bits per byte" in shown
    assert "more text would help, more time would not" in shown  # 400 short documents
    assert config.train.max_steps == math.ceil(choice.LEAST_STEPS / (1 - config.distill.born_again))
    assert config.train.keep_last == 7
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


@pytest.mark.parametrize("given", ["train.micro_batch=8", "train.grad_accum=1"])
def test_one_of_the_two_numbers_of_a_step_alone_leaves_the_step_as_planned(given):
    wanted = choose.wanted_of(choose.compose([given]), [given])
    planned = chosen(3600, wanted=replace(wanted, vocab_size=8192, n_layers=2, d_model=256))
    train = choose.compose([*choose.words(planned, [given]), given]).train
    assert train.micro_batch * train.grad_accum == planned.sequences


def test_a_budgets_run_goes_on_from_a_checkpoint_without_its_name(tmp_path):
    argv = ["budget=1h", f"resume={tmp_path / 'mine' / 'checkpoints' / 'step-00000500'}"]
    assert choose.compose(argv).root == tmp_path / "mine"
    assert not any(word.startswith("name=") for word in choose.words(chosen(3600), argv))
    assert choose.compose(["budget=1h"]).root.name == "auto"


@pytest.mark.parametrize(
    ("words", "deviation"),
    [
        ([], 0.8),
        (["train.phases=[{bags: 4, until: 0.1}]"], 0.1),
        (["train.phases=[{bags: 4, until: 0.1}]", "optim.init_bigrams=10"], 0.8),
        (["train.phases=[{seq_len: 64, until: 0.1}]"], 0.8),
        (["train.phases=[{bags: 4, until: 0.1}]", "optim=adamw"], 0.02),
    ],
)
def test_bags_of_tokens_come_with_an_embedding_that_begins_small(words, deviation):
    config = build(RunConfig, load_config("train", ["preset=tiny", "model.tie_embeddings=false", *words]))
    assert config.init.embed_std == deviation


def test_adamw_remembers_for_longer_where_training_computes_few_logits():
    few, all_of_them = (chosen(3600, wanted=Wanted(vocab_size=8192, sampled_softmax=each)) for each in (1280, 0))
    word = f"optim.betas={choose.BETAS_WITH_SAMPLED}"
    assert word in choose.words(few, [])
    assert word not in choose.words(all_of_them, [])
    assert word not in choose.words(few, ["optim=adamw"])


def optim_of(words: list[str]) -> dict[str, float]:
    found = (word.removeprefix("optim.").split("=") for word in words if word.startswith("optim."))
    return {name: float(value) for name, value in found if not value.startswith("[")}


@pytest.mark.parametrize(("epochs", "share"), [(1.5, 0.5), (2.1, 1.0), (4.0, 1.0), (8.0, 2.0)])
@pytest.mark.parametrize("given", [(), ("optim.lr=0.1", "optim.embed_lr=0.4")])
def test_weights_forget_in_a_share_of_an_epoch_where_text_is_read_again(epochs, share, given):
    few = replace(chosen(3600, wanted=Wanted(vocab_size=8192, sampled_softmax=1280)), epochs=epochs, steps=6000)
    optim = optim_of(["optim.lr=0.03", *choose.words(few, [*given]), *given])
    an_epoch = few.steps / epochs
    assert optim["table_decay"] * an_epoch == pytest.approx(share / 0.4, rel=0.01)
    assert optim["weight_decay"] * optim["lr"] * an_epoch == pytest.approx(share / 0.9, rel=0.01)


def test_a_model_that_is_taught_may_remember_for_longer():
    few = replace(chosen(3600, wanted=Wanted(vocab_size=8192, sampled_softmax=1280)), epochs=8.0, steps=6000)
    taught = replace(few, born_again=0.25, last_share=0.5, epochs=16.0, steps=12000)
    words = choose.words(taught, [])
    assert "distill.born_again=0.25" in words
    assert f"distill.alpha={choose.TEACHER_SHARE}" in words
    assert f"optim.momentum_steps={min(300, 6000 // 4)}" in words
    plain, mild = optim_of(choose.words(few, [])), optim_of(words)
    assert not any(word.startswith("distill.") for word in choose.words(few, []))
    for name in ("table_decay", "weight_decay"):
        assert mild[name] == pytest.approx(plain[name] / choose.TAUGHT_MEMORY, rel=0.01)


@pytest.mark.parametrize(
    ("words", "share"),
    [
        ([], None),
        (["distill.born_again=0"], 0.0),
        (["distill.born_again=0.4"], 0.4),
        (["distill.teacher=runs/a"], 0.0),
        (["data=chat", "data.files=[a.jsonl]"], 0.0),
    ],
)
def test_a_run_is_born_again_unless_a_person_says_otherwise(tmp_path, words, share):
    argv = ["budget=1h", f"runs_dir={tmp_path}", *words]
    assert choose.wanted_of(choose.compose(argv), argv).born_again == share


def test_a_text_of_a_few_steps_leaves_weights_time_to_learn():
    few = chosen(3600, wanted=Wanted(vocab_size=8192, sampled_softmax=1280))
    found = [choose.words(replace(few, epochs=few.steps / an_epoch), []) for an_epoch in (0.5, 2, 8)]
    assert found[0] == found[1] == found[2]
    optim = optim_of(["optim.lr=0.03", *found[0]])
    assert optim["weight_decay"] * optim["lr"] == pytest.approx(1 / choose.LEAST_MATRICES_STEPS, rel=0.01)


@pytest.mark.parametrize("epochs", [0.0, 0.9, 6.0])
def test_weights_stay_where_text_is_read_once_and_where_a_person_says_otherwise(epochs):
    for sampled in (1280, 0):
        run = replace(chosen(3600, wanted=Wanted(vocab_size=8192, sampled_softmax=sampled)), epochs=epochs)
        assert any("decay" in word for word in choose.words(run, [])) == (epochs > 1)
        assert not any("decay" in word for word in choose.words(run, ["optim=adamw"]))


def test_steps_end_a_run_that_has_read_its_text_often_enough():
    in_time = chosen(3600)
    early = replace(in_time, ends_early=True)
    assert f"train.max_steps={in_time.steps}" in choose.words(early, [])
    assert f"train.max_steps={choose.SPARE_STEPS * in_time.steps}" in choose.words(in_time, [])


def test_a_model_with_a_head_of_its_own_begins_as_bigrams_unless_a_person_says_otherwise(tmp_path):
    words = choose.words(chosen(3600), [])
    assert "optim.init_bigrams=20000000" in words
    assert f"optim.embed_lr={choose.EMBED_LR_WITH_BIGRAMS}" in words
    assert not any("embed_lr" in word for word in choose.words(chosen(3600, wanted=Wanted(init_bigrams=0)), []))
    assert not any(word.startswith("optim.") and "init" in word for word in choose.words(chosen(3600), ["optim=adamw"]))
    for argv, counted in (
        ([], None),
        (["optim.init_bigrams=1000"], 1000),
        (["optim=adamw"], 0),
        (["model.tie_embeddings=true"], 0),
        (["model.tie_embeddings=false"], None),
        (["data=chat", "data.files=[a.jsonl]"], 0),
    ):
        argv = ["budget=1h", f"runs_dir={tmp_path}", *argv]
        assert choose.wanted_of(choose.compose(argv), argv).init_bigrams == counted, argv
