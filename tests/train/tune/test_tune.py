"""A small run is tuned on conversations: its recipe, its tokenizer, its end, and its exact resume."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from slm.configuration import build
from slm.configuration import load_config as options_of
from slm.data.chat.story_chat import conversation
from slm.data.chat.tokens import own_template
from slm.data.errors import UserError
from slm.data.sources.plan import plan_sources
from slm.data.tokenizers.make import load_tokenizer
from slm.model.checkpoint import load_config, save_model
from slm.model.transformer import LanguageModel
from slm.runs import Run, list_checkpoints, resolve
from slm.train.config import RunConfig
from slm.train.memory import adapted_bytes, expected_value_bytes, state_bytes, step_bytes
from slm.train.tune import recipe, rule
from slm.train.tune.__main__ import tuning
from slm.train.tune.config import TuneOptions
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.chat_model import base_tokenizer, with_template
from tests.helpers.programs import Program
from tests.helpers.small_run import QUICK, SmallRun, write_corpus

SHORT = (
    "train.sample_prompts=[]",
    "train.seq_len=128",
    "train.micro_batch=4",
    "train.eval_blocks=4",
)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    """A run of a few steps with another optimizer setting than the default."""
    folder = tmp_path_factory.mktemp("base")
    corpus = write_corpus(folder / "documents.jsonl")
    run = SmallRun(
        folder / "runs",
        "name=base",
        f"data.files=[{corpus}]",
        "train.max_steps=4",
        "optim=adamw",
        "optim.lr=2e-3",
        "optim.grad_clip=0.75",
    )
    run.finish()
    return run.root


@pytest.fixture(scope="module")
def chats(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("chats") / "chats.jsonl"
    made = [{"instruction": f"Say {index}", "output": "cat " * (index % 9 + 1)} for index in range(200)]
    path.write_text("\n".join(map(json.dumps, [*made, {"text": "none"}])))
    return path


SOON = ("optim.lr=2e-2", "train.patience=2", "train.checkpoint_every=2")
"""Validations get worse soon."""


def tune(tmp_path: Path, base: Path, *words: str, logs: str = "logs") -> tuple[int, str, str]:
    folder = tmp_path / logs
    folder.mkdir(parents=True, exist_ok=True)
    program = Program(
        "slm.train.tune.__main__", [f"base={base}", f"runs_dir={tmp_path}/runs", *QUICK, *SHORT, *words], folder
    )
    out, err = program.communicate(timeout=240)
    return program.returncode, out, err


def losses(root: Path) -> dict[int, float]:
    records = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    return {each["step"]: each["loss"] for each in records if "loss" in each}


MINE = ("data=chat", "train.max_steps=12", "train.checkpoint_every=5", "train.keep_last=9", "name=mine")


@pytest.fixture(scope="module")
def mine(base, chats, tmp_path_factory) -> tuple[Path, str]:
    """The base, tuned on a file of conversations, and what that printed."""
    folder = tmp_path_factory.mktemp("mine")
    code, out, err = tune(folder, base, f"data.files=[{chats}]", *MINE)
    assert code == 0, err
    return folder / "runs" / "mine", out


def test_a_run_is_tuned_on_a_file_of_conversations(base, mine):
    root, out = mine
    assert "conversations: 200 Alpaca instructions; left out 1 bad record, the first:" in out
    assert "optim.lr=0.0016" in out
    saved = yaml.safe_load((root / "config.yaml").read_text())
    assert saved["optim"]["grad_clip"] == 0.75  # the base's optimizer
    assert saved["model"]["n_layers"] == 1
    curve = losses(root)
    assert curve[12] < curve[1] - 0.5
    (*_, last) = list_checkpoints(root)
    before, shape = load_config(list_checkpoints(base)[-1]), load_config(last)
    tokenizer = load_tokenizer(last)
    assert own_template(tokenizer)
    assert (shape.bos_id, shape.eos_id) == (before.eos_id, tokenizer.eot_id)
    assert shape.vocab_size >= tokenizer.vocab_size > before.eos_id
    assert tokenizer.decode([tokenizer.eot_id]) == ""
    assert "expected: cat" in (root / "samples.md").read_text()
    assert "<|im_start|>" not in (root / "validation.txt").read_text()


def test_it_goes_on_where_it_was_stopped_to_the_bit(base, chats, mine, tmp_path):
    whole, parts = mine[0], tmp_path / "runs" / "mine"
    shutil.copytree(whole, parts)
    for step in (10, 12):
        shutil.rmtree(parts / "checkpoints" / f"step-{step:08d}")
    code, out, err = tune(tmp_path, base, f"data.files=[{chats}]", *MINE)
    assert code == 0, err
    assert "step-00000005" in out
    for name in ("model.safetensors", "optimizer.safetensors"):
        one, two = (load_file(root / "checkpoints" / "step-00000012" / name) for root in (whole, parts))
        assert one.keys() == two.keys()
        assert all(torch.equal(one[key], two[key]) for key in one)


def test_it_ends_when_held_out_conversations_get_worse(base, chats, tmp_path):
    """Two conversations, again and again: what is held out gets worse."""
    words = ("data=chat", f"data.files=[{chats}]", "data.val_files=[{}]", "train.max_steps=200", "train.eval_every=2")
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps(conversation(1, index)) for index in range(20)))
    words = tuple(word.format(other) for word in words)
    code, out, err = tune(tmp_path, base, *words, "name=early", *SOON)
    assert code == 0, err
    assert "the last 2 validations did not improve" in out
    root = tmp_path / "runs" / "early"
    assert max(losses(root)) < 200
    records = [json.loads(line) for line in (root / "metrics.jsonl").read_text().splitlines()]
    loss = {each["step"]: each["val_loss"] for each in records if "val_loss" in each}
    again, said, _ = tune(tmp_path, base, *words, "name=early", *SOON, logs="again")
    assert again == 0
    assert "is finished: it stopped early at step " in said
    assert "To train it further raise train.patience; " in said
    best = min(loss, key=loss.__getitem__)
    assert best < max(loss)
    assert f"next: make export MODEL={root} " in out
    assert Run(root=root).checkpoint().name == f"step-{best:08d}"
    assert f"(step-{best:08d} has the lowest validation loss)" in out


def test_six_conversations_with_copies_are_learned_though_held_out_ones_get_worse(base, tmp_path):
    """The file has each a hundred times in a row, and what is held out does not follow from them."""
    few, other = tmp_path / "few.jsonl", tmp_path / "other.jsonl"
    made = [{"instruction": f"Say {index}", "output": "cat " * (index % 9 + 1)} for index in range(6)]
    few.write_text("\n".join(json.dumps(each) for each in made for _ in range(100)))
    other.write_text("\n".join(json.dumps(conversation(1, index)) for index in range(20)))
    words = (f"data.files=[{few}]", f"data.val_files=[{other}]", "train.max_steps=60", "optim.lr=2e-2", "name=few")
    code, out, err = tune(tmp_path, base, "data=chat", *words, "tune.replay=0")
    assert code == 0, err
    assert "594 copies are left out" in out
    assert "60 of 60 updates" in out
    assert "the run goes on" in out
    assert "the last checkpoint is taken" in out
    root = tmp_path / "runs" / "few"
    assert Run(root=root).checkpoint().name == "step-00000060"
    assert losses(root)[60] < 0.5


def test_the_length_follows_from_the_conversations(base, chats, tmp_path):
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{chats}]", "data.max_epochs=4"]
    config = tuning([*words, "train.seq_len=64", "train.micro_batch=2"])
    assert config.name == "base-chat"
    tokens = config.train.max_steps * config.train.tokens_per_step
    assert 4 * 200 * 20 < tokens < 4 * 200 * 60  # about 40 tokens of the untrained marks and words each
    assert config.data.max_epochs is None  # the steps say it
    assert config.train.eval_every == -(-config.train.max_steps // rule.VALIDATIONS)
    one = tuning([*words, "train.max_steps=7", "optim.lr=0.5", "train.patience=0"])
    assert (one.train.max_steps, one.optim.lr, one.train.patience) == (7, 0.5, 0)
    assert (config.optim.warmup_steps, one.optim.warmup_steps) == (20, 0)


def test_a_budget_is_the_time_of_the_whole_process(base, chats, tmp_path):
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{chats}]"]
    said: list[str] = []
    plain, timed = tuning(words), tuning([*words, "budget=2m"], log=said.append)
    assert timed.train.max_minutes == 2
    assert plain.train.max_steps < timed.train.max_steps <= 2.1 * plain.train.max_steps
    assert any("or as many as 2:00 allow" in line for line in said)
    assert timed.facts["tune"]["conversations"] == 200


def test_steps_are_of_what_training_reads_of_long_conversations(base, tmp_path):
    """Their ends are cut off: counted as wholes, they would end long before the learning rate has fallen."""
    path = tmp_path / "long.jsonl"
    path.write_text("\n".join(json.dumps({"instruction": f"{n}", "output": "cat " * 900}) for n in range(60)))
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{path}]", "tune.replay=0"]
    train = tuning([*words, "train.seq_len=64", "train.micro_batch=1"]).train
    assert train.max_steps * train.tokens_per_step <= 3 * 60 * 65 + train.tokens_per_step


def test_a_base_may_stand_anywhere(base, tmp_path):
    """With characters that mean something else in Hydra's syntax."""
    for name in ("müller", "Projects (new), it's = [here] #1"):
        folder = tmp_path / name
        shutil.copytree(base, folder / "base")
        config = tuning([f"base={folder / 'base'}", f"runs_dir={tmp_path}/runs"])
        assert Path(config.init_from) == folder / "base/checkpoints/step-00000004"
        assert config.name == "base-chat"


def test_validations_and_checkpoints_stay_together(base, chats, tmp_path):
    """Else the best model is in no checkpoint."""
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{chats}]", "train.max_steps=700"]
    for typed, expected in (("eval_every=25", (25, 25)), ("checkpoint_every=25", (75, 25))):
        train = tuning([*words, f"train.{typed}"]).train
        assert (train.eval_every, train.checkpoint_every) == expected


def test_padding_takes_no_passes(base, tmp_path):
    """Conversations of more than half a block lie alone in it."""
    path = tmp_path / "half.jsonl"
    path.write_text("\n".join(json.dumps({"instruction": f"{n}", "output": "cat " * 30}) for n in range(60)))
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{path}]", "tune.replay=0"]
    lengths = tuning([*words, "train.seq_len=512", "train.micro_batch=1"]).train.max_steps * 512 / 3 / 60
    train = tuning([*words, f"train.seq_len={round(lengths * 1.6)}", "train.micro_batch=1"]).train
    assert train.max_steps == pytest.approx(3 * 60, rel=0.15)


def test_rates_for_pairs_are_not_those_for_conversations(base, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(base, runs / "base-dpo")
    path = runs / "base-dpo/config.yaml"
    saved = yaml.safe_load(path.read_text())
    saved["optim"]["lr"] *= recipe.PREFERENCE_LR_RATIO["dpo"]
    path.write_text(yaml.safe_dump(saved | {"preference": {"loss": "dpo"}}))
    words = [f"runs_dir={runs}"]
    after, before = (tuning([f"base={each}", *words]).optim.lr for each in (runs / "base-dpo", base))
    assert after == pytest.approx(before, rel=0.01)


def test_a_micro_batch_may_be_measured(base, tmp_path):
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "train.micro_batch=auto"]
    tokens: list[int] = []

    def measured(config):
        tokens.append(config.train.tokens_per_step)
        return replace(config, train=replace(config.train, micro_batch=2))

    assert tuning(words, choose=measured).train.micro_batch == 2
    assert set(tokens) == {tuning(words[:-1]).train.tokens_per_step}


def test_the_latest_run_goes_on_where_it_is_a_tuned_one_that_was_stopped(base, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(base, runs / "base")
    shutil.copytree(base, runs / "base-chat")
    init = runs / "base" / "checkpoints" / "step-00000004"
    (runs / "base-chat" / "config.yaml").write_text(f"init_from: {init}\n")
    (runs / "latest").symlink_to("base-chat")
    for status, name in (("stopped", "base"), ("finished", "base-chat")):
        end = {"event": "end", "step": 4, "time": 1.0, "status": status}
        (runs / "base-chat" / "journal.jsonl").write_text(json.dumps(end) + "\n")
        assert recipe.base_of(str(runs / "latest"))[0].name == name
        assert recipe.base_of(str(runs / "base-chat"))[0].name == "base-chat"


def test_the_bases_own_optimizer_typed_keeps_the_bases_rates(base, tmp_path):
    words = [f"base={base}", f"runs_dir={tmp_path}/runs"]
    assert tuning([*words, "optim=adamw"]).optim.lr == tuning(words).optim.lr == pytest.approx(2e-3 * 0.8)
    assert tuning([*words, "optim=adamw"]).optim.lr == pytest.approx(2e-3 * 0.8)


def test_what_begins_new_weights_is_not_taken_over(base, tmp_path):
    """A run with preset=auto has begun as a model of neighbouring tokens; its weights are not new any more."""
    runs = tmp_path / "runs"
    shutil.copytree(base, runs / "base")
    path = runs / "base/config.yaml"
    saved = yaml.safe_load(path.read_text())
    saved["optim"]["init_bigrams"] = 1000
    path.write_text(yaml.safe_dump(saved))
    assert tuning([f"base={runs / 'base'}", f"runs_dir={runs}"]).optim.init_bigrams == 0


def test_duplicates_are_left_out_with_the_bases_text_mixed_in_too(base, chats, tmp_path):
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{chats}]", "data.dedup=exact"]
    assert tuning([*words, "tune.replay=0.25"]).data.dedup == "exact"


def test_the_bases_text_can_be_mixed_in(base, chats, tmp_path):
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{chats}]"]
    plain, mixed = tuning([*words, "tune.replay=0"]), tuning([*words, "tune.replay=0.25"])
    assert mixed.train.max_steps == pytest.approx(plain.train.max_steps / 0.75, rel=0.05)
    talks, text = mixed.data.all_sources()
    assert (talks.kind, talks.weight, talks.max_epochs) == ("chat", 0.75, None)
    assert (text.kind, text.weight, text.max_epochs) == ("files", 0.25, None)
    assert mixed.data.has_chat
    assert [plan.source.kind for plan in plan_sources(mixed.data, "validation")] == ["chat"]
    assert plain.data.kind == "chat"
    code, _, err = tune(
        tmp_path, base, "data=chat", f"data.files=[{chats}]", "tune.replay=0.5", "train.max_steps=3", "name=mixed"
    )
    assert code == 0, err
    with pytest.raises(UserError, match="not a run of slm"):
        recipe.with_replay(plain.data, Run(root=tmp_path, is_hf=True), 0.5)


def test_without_conversations_the_embedded_ones_are_taken(base, tmp_path):
    config = tuning([f"base={base}", f"runs_dir={tmp_path}/runs"])
    talks, text = config.data.all_sources()
    assert (talks.kind, text.kind, text.weight) == ("story_chat", "files", recipe.REPLAY)
    tokens = config.train.max_steps * config.train.tokens_per_step
    assert tokens == pytest.approx(rule.UNKNOWN_TOKENS / (1 - recipe.REPLAY), rel=0.01)


def test_the_bases_text_is_mixed_in_where_it_is_at_hand(base, tmp_path):
    run = resolve(str(base))
    assert recipe.replay_share(run, TuneOptions()) == recipe.REPLAY
    assert recipe.replay_share(run, TuneOptions(lora=4)) == 0  # the weights are left alone
    assert recipe.replay_share(run, TuneOptions(replay=0.0)) == 0
    elsewhere = tmp_path / "moved"
    elsewhere.mkdir()
    config = yaml.safe_load((base / "config.yaml").read_text())
    config["data"]["files"] = [str(tmp_path / "gone.jsonl")]
    (elsewhere / "config.yaml").write_text(yaml.safe_dump(config))
    assert recipe.replay_share(Run(root=elsewhere), TuneOptions()) == 0


def test_muons_other_rates_are_scaled_more(base, tmp_path):
    """Tables and gains learn slowly in tuning, matrices nearly as fast as before."""
    muon = {"name": "muon", "lr": 0.03, "embed_lr": 0.025, "other_lr_scale": 0.5}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"optim": {**muon, "head_lr": 0.007}}))  # of an older version
    found = recipe.recipe(Run(root=tmp_path), list_checkpoints(base)[-1], TuneOptions(), given=lambda name: False)
    assert found["optim.lr"] == 0.024
    assert (found["optim.other_lr_scale"], found["optim.embed_lr"]) == (0.1, 0.025)
    assert "optim.head_lr" not in found


def test_an_optimizer_without_moments_where_those_do_not_fit(base, chats, tmp_path, monkeypatch):
    """One line says so, with both sizes; what a person has chosen stays."""
    shape = load_config(list_checkpoints(base)[-1])
    words = [f"base={base}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{chats}]", "tune.replay=0"]
    lines: list[str] = []
    monkeypatch.setattr(recipe, "available_bytes", lambda: state_bytes(shape, "adafactor") + 1000)
    config = tuning(words, log=lines.append)
    assert (config.optim.name, config.optim.lr) == ("adafactor", recipe.ADAFACTOR_LR)
    assert (config.train.grad_accum, config.optim.grad_clip) == (1, 0)
    assert any("weights, gradients and moments would take" in each and "optim=adafactor" in each for each in lines)
    assert tuning([*words, "optim=adamw"]).optim.name == "adamw"
    assert tuning([*words, "tune.lora=4"]).optim.name == "adamw"
    for free in (state_bytes(shape, "adafactor") - 1, state_bytes(shape, "adamw")):  # too little, and enough
        monkeypatch.setattr(recipe, "available_bytes", lambda free=free: free)
        assert tuning(words).optim.name == "adamw"


def test_a_model_from_elsewhere_gets_a_rate_by_its_size(base):
    directory = list_checkpoints(base)[-1]
    shape = load_config(directory)
    assert recipe.size_lr(shape) == 1e-3
    larger = 5e-4 > recipe.size_lr(load_config_of(125_000_000)) > 1e-4
    assert larger


def load_config_of(n_params: int):
    from types import SimpleNamespace

    return SimpleNamespace(n_params=n_params)


def test_the_weights_of_a_downloaded_model_alone_go_back_towards_its_own(base):
    elsewhere = Run(root=base, is_hf=True)
    assert recipe.forgets(elsewhere, TuneOptions()) is (elsewhere.config_file is None)
    assert not recipe.forgets(Run(root=base), TuneOptions())  # its text is mixed in
    assert not recipe.forgets(elsewhere, TuneOptions(lora=4))
    assert not recipe.forgets(elsewhere, TuneOptions(), pairs=True)
    with pytest.raises(UserError, match="a share above 0"):
        TuneOptions(kept=1.5)


def test_conversations_that_cannot_be_learned_are_reported_before_training(tmp_path):
    """Those that the model's own template refuses, and those whose answers come too late."""
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
        "<turn>{{ m.content }}</turn>{% endfor %}{% if add_generation_prompt %}<turn>{% endif %}"
    )
    tokenizer = with_template(base_tokenizer(), template, ("<turn>", "</turn>"), bos="<turn>", eos="</turn>")
    size = -(-tokenizer.vocab_size // 64) * 64
    save_model(tmp_path, LanguageModel(tiny.config(vocab_size=size, n_layers=1, eos_id=tokenizer.eot_id)))
    tokenizer.save(tmp_path)
    system = {"role": "system", "content": "Be kind."}
    answer = {"role": "assistant", "content": "A cat."}
    path, said = tmp_path / "chats.jsonl", []
    words = [f"base={tmp_path}", f"runs_dir={tmp_path}/runs", "data=chat", f"data.files=[{path}]", *SHORT]

    def tuned(n_refused: int, *more: str) -> None:
        made = []
        for number in range(40):
            turns = [{"role": "user", "content": f"{number}: " + "Who is it? " * 30}, answer]
            made.append({"messages": [system, *turns] if number < n_refused else turns})
        path.write_text("\n".join(map(json.dumps, made)))
        tuning([*words, *more], log=said.append)

    tuned(3, "train.seq_len=512")
    line = next(each for each in said if each.startswith("conversations:"))
    assert "conversations: 40 OpenAI messages; the chat template refuses 3 of " in line
    assert line.endswith("left out, the first so: the chat template refuses it: no system turns")
    with path.open("a") as file:
        file.write("\n" + "\n".join(json.dumps({"prompt": f"{number}?", "completion": "Yes."}) for number in range(30)))
    tuning([*words, "train.seq_len=64"], log=lambda line: said.append(line))
    assert " have no answer in their first train.seq_len=64 tokens: left out" in said[-3]
    with pytest.raises(UserError, match=r"refuses all conversations, .*no system turns; give them in the"):
        tuned(40)
    with pytest.raises(
        UserError, match=r"an answer in its first train.seq_len=64 tokens \(they have 1.*raise train.seq"
    ):
        tuned(0, "train.seq_len=64")


def test_what_cannot_be_tuned_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no model to tune is named"):
        tuning([])
    with pytest.raises(UserError, match=r"a tuned run has tune.lora=4 in place of lora.rank=4"):
        tuning(["base=x", "lora.rank=4"])
    with pytest.raises(UserError, match="does not exist"):
        tuning([f"base={tmp_path}/nothing"])


@pytest.mark.parametrize("more", [["lora.rank=4"], ["lora.rank=4", "lora.base_bits=8"], [], ["optim=adafactor"]])
def test_layers_are_computed_again_where_a_step_fits_only_then(more, monkeypatch):
    shape = tiny.config(n_layers=8)
    words = ["init_from=base", "optim=adamw", "train.seq_len=1024", "train.micro_batch=8", *more]
    if "optim=adafactor" in more:
        words += ["train.grad_accum=1", "optim.grad_clip=0"]
    config = build(RunConfig, options_of("train", words))
    bits = config.lora.base_bits or 4
    state = adapted_bytes(shape, 4, bits) if config.lora.rank else state_bytes(shape, config.optim.name)
    whole = state + step_bytes(shape, config.train, value_bytes=expected_value_bytes(config.train))
    for free, again in ((whole, False), (whole - 1, True), (state, False)):  # the last is refused by the run itself
        monkeypatch.setattr(recipe, "available_bytes", lambda free=free: free)
        found, line = recipe.recomputed(config, shape)
        assert (found.train.recompute == "layer") is again
        assert ("layers are computed again in the backward pass" in (line or "")) is again
    again = replace(config, train=replace(config.train, gradient_checkpointing=True))
    monkeypatch.setattr(recipe, "available_bytes", lambda: whole - 1)
    assert recipe.recomputed(again, shape) == (again, None)
