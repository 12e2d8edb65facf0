"""Equal time for a micro model of ours and of Hugging Face's Trainer, and the score that both get."""

import json
import math
import os
import re
import signal
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch

import slm.train.bench_recipe.nanochat as module
from slm.configuration import load, to_dict, to_yaml
from slm.data.errors import UserError
from slm.data.tokenizers.make import load_tokenizer
from slm.model.checkpoint import load_model
from slm.train.bench_recipe import bench, contender, hf_trainer
from slm.train.bench_recipe.bench import score
from slm.train.bench_recipe.config import FINISHED, BenchRecipeConfig
from slm.train.bench_recipe.contender import (
    Entry,
    StoppedContenderError,
    append_finished,
    passes_of_a_step,
    read_finished,
    timed,
)
from slm.train.bench_recipe.nanochat import rehearsal_iterations, scaled_rates, step_seconds, steps_that_fit
from slm.train.bench_recipe.ours import chosen
from slm.train.bench_recipe.texts import check_unread, validation_documents
from slm.train.config import RunConfig, TrainConfig
from slm.train.report.run_record import RunRecord
from slm.train.run.run_state import check_set_up
from tests.helpers import tiny_checkpoint
from tests.helpers.programs import Program
from tests.helpers.small_run import OPTIONS, write_corpus

MINUTES = (0.3, 0.6, 2.0)
"""Tried in this order: with the machine busy, set-up alone may take the first. Next to two other tests it does not."""
ENOUGH = 20_000
"""Tokens after which each of them has learnt something."""


def code_of(words: list[str]) -> int | None:
    """What the benchmark returned; None where set-up took all of the minutes."""
    try:
        return bench.main(words)
    except UserError as error:
        if "is too short: set-up" in str(error):
            return None
        raise


def test_a_document_that_is_scored_may_not_be_trained_on(corpus, tmp_path):
    words = [*OPTIONS, f"data.files=[{corpus}]", f"runs_dir={tmp_path}/runs"]
    lines = corpus.read_text().splitlines()
    other = [json.dumps({"text": "words that nobody has trained on"})]
    scored = tmp_path / "scored.jsonl"
    scored.write_text("\n".join([*other, *lines[:9]]))
    with pytest.raises(UserError, match=r"of the 10 documents that are scored are in the training text.*scored\.jsonl"):
        bench.main([*words, f"bench.validation={scored}"])
    with pytest.raises(UserError, match=r"data\.decontaminate"):
        bench.main([*words, f"bench.second_text={scored}"])
    assert not (tmp_path / "runs").exists()
    config = load(BenchRecipeConfig, "bench_recipe", words)
    held_out = validation_documents(config)
    assert check_unread(config, [held_out]).startswith(f"none of the {len(set(held_out[1])):,} scored documents")


@pytest.mark.slow
def test_everybody_has_the_same_time_and_is_scored_alike(corpus, tmp_path, capfd):
    second = write_corpus(tmp_path / "second.jsonl", 40, seed=12)
    words = [*OPTIONS, f"data.files=[{corpus}]", f"runs_dir={tmp_path}/runs", f"bench.second_text={second}"]
    words += ["optim=muon", "bench.learning_rates=[3e-3]", "bench.trainer_tokens=[128]", "bench.window=32"]
    for minutes in MINUTES:
        code = code_of([*words, f"minutes={minutes}"])
        if code is None:
            continue
        out = capfd.readouterr().out
        if "is too short" in out and minutes < max(MINUTES):  # for the set-up of a contender, on a busy machine
            continue
        assert code == 0
        record = json.loads(out.splitlines()[-1])
        if min(run["tokens"] for run in record["runs"]) > ENOUGH:
            break
    assert [run["name"] for run in record["runs"]] == ["ours", "hf_trainer"]
    assert list(record["texts"]) == ["held-out text", second.name]
    for run in record["runs"]:
        assert run["seconds"] > 20 * minutes  # and about 60 x minutes where the machine is not busy
        assert run["tokens"] % (4 * 32) == 0
        assert run["tokens_per_s"] > 0
        # A word of 15 is 3.9 bits and, with its space, about 4 bytes. A model that learnt nothing has 8.2 bits a token.
        assert 0.8 < run["bits_per_byte"]["held-out text"] < 2.5
    assert record["runs"][0]["seconds"] < 60 * minutes + 10
    assert record["best"]["ours"] == record["runs"][0]
    assert "ours is " in out
    assert "contiguous windows of 32" in out


@pytest.mark.slow
def test_a_contender_that_fails_is_named_and_the_others_are_scored(corpus, tmp_path, capfd):
    nanochat = tmp_path / "nanochat"
    (nanochat / "scripts").mkdir(parents=True)
    (nanochat / "scripts/base_train.py").write_text("")
    (nanochat / "scripts/tok_train.py").write_text("raise SystemExit('error: no tokenizer today')")
    words = [*OPTIONS, f"data.files=[{corpus}]", f"runs_dir={tmp_path}/runs", "bench.window=32"]
    words += ["bench.baselines=[]", f"bench.nanochat={nanochat}", f"bench.nanochat_python={sys.executable}"]
    words += ["bench.nanochat_depths=[4]", "bench.nanochat_tokens=[2048]"]
    codes = (code_of([*words, f"minutes={minutes}"]) for minutes in (0.15, *MINUTES))
    assert next(code for code in codes if code is not None) == 1
    record = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert [run["name"] for run in record["runs"]] == ["ours"]
    assert "no tokenizer today" in record["failed"]["nanochat depth 4, 2,048 tokens a step"]


@pytest.mark.slow
def test_a_comparison_that_was_stopped_goes_on(corpus, tmp_path, capfd):
    """Ctrl-C ends our run with a checkpoint; with bench.resume it is continued, and nothing of it is lost."""
    words = [*OPTIONS, f"data.files=[{corpus}]", f"runs_dir={tmp_path}/runs", "bench.window=32", "bench.baselines=[]"]
    words.append("minutes=0.7")
    comparison = Program("slm.train.bench_recipe.bench", words, tmp_path)
    end = time.time() + 60
    while steps_of(tmp_path) <= 20 and comparison.poll() is None and time.time() < end:
        time.sleep(0.1)
    comparison.send_signal(signal.SIGINT)
    out, err = comparison.communicate(60)
    assert comparison.returncode == 130, out + err
    [folder] = (tmp_path / "runs/bench-recipe").glob("*")
    assert f"bench.resume={folder}" in out
    before = steps_of(tmp_path)
    assert (folder / FINISHED).read_text() == ""
    assert bench.main([*words, f"bench.resume={folder}"]) == 0
    [run] = json.loads(capfd.readouterr().out.splitlines()[-1])["runs"]
    assert run["tokens"] == steps_of(tmp_path) * 4 * 32 > before * 4 * 32
    assert 30 < run["seconds"] < 60  # both parts, and not as long as anew
    assert list(read_finished(folder / FINISHED)) == ["ours"]


def steps_of(folder):
    """The step of our run in the only comparison there; 0 before it has begun."""
    for root in folder.glob("runs/bench-recipe/*/ours"):
        record = RunRecord(root)
        record.update()
        return record.step()
    return 0


@pytest.mark.slow
def test_the_trainer_goes_on_where_it_was_stopped(corpus, tmp_path, monkeypatch):
    config = load(RunConfig, "train", [*OPTIONS, f"data.files=[{corpus}]"])
    spec = {"config": to_dict(config), "lr": 1e-3, "seconds": 15, "out": str(tmp_path)}
    started, began = time.time(), hf_trainer.hugging_face.make_trainer

    def stopped(*arguments, **named):
        trainer = began(*arguments, **named)  # from here on a signal is for the training, not for these tests
        ended = trainer.callback_handler.callbacks[-1].on_step_end

        def at_the_fifth_step(args, state, control, **others):
            if state.global_step == 5:
                os.kill(os.getpid(), signal.SIGINT)
            ended(args, state, control, **others)

        trainer.callback_handler.callbacks[-1].on_step_end = at_the_fifth_step
        return trainer

    monkeypatch.setattr(hf_trainer.hugging_face, "make_trainer", stopped)
    assert hf_trainer.main(spec, started=started) == 130
    part = hf_trainer.Part.read(tmp_path)
    assert part.steps in (5, 6)
    assert part.checkpoint(tmp_path).is_dir()
    assert part.seconds < part.limit < 12
    seen = []

    def watched(model, rows, *arguments, **named):
        trainer = began(model, rows, *arguments, **named)
        trainer.callback_handler.callbacks[-1].on_train_begin = lambda _, state, *__, **___: seen.append(state)
        return trainer

    monkeypatch.setattr(hf_trainer.hugging_face, "make_trainer", watched)
    assert hf_trainer.main(spec, started=time.time() - 100) == 0  # the set-up of this start does not count
    result = json.loads((tmp_path / "result.json").read_text())
    assert part.limit <= result["training_seconds"] < part.limit + 2
    assert result["tokens"] > part.steps * 4 * 32
    assert seen[0].global_step * 4 * 32 == result["tokens"]


def test_a_process_that_is_stopped_may_save_and_its_seconds_count(tmp_path):
    program = "import pathlib, sys, time\npathlib.Path('ready').touch()\n"
    program += "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    sys.exit('saved')\n"
    command, log = [sys.executable, "-S", "-c", program], tmp_path / "run.log"

    def stop():
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop).start()
    with pytest.raises(StoppedContenderError):
        timed(command, log, environment=dict(os.environ), cwd=tmp_path, continues=True)
    assert log.read_text() == "saved\n"
    rest = [sys.executable, "-S", "-c", "print('done')"]
    assert 0.5 < timed(rest, log, environment={}, continues=True) < 30
    assert log.read_text() == "saved\ndone\n"


def test_a_process_that_takes_long_gives_signs_of_life(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(contender, "PLAIN_SECONDS", 0.5)
    program = "import time; print('step 1, 2 min left', flush=True); time.sleep(1.8)"
    timed([sys.executable, "-S", "-c", program], tmp_path / "run.log", environment={})
    lines = capsys.readouterr().out.splitlines()
    assert 2 <= len(lines) <= 4
    assert all(re.fullmatch(r"  0:0\d so far: step 1, 2 min left", line) for line in lines)


def test_finished_runs_are_read_again(tmp_path):
    entry = Entry("nanochat", tmp_path / "model", 4096, 60.5, 50.25, "depth 3")
    file = tmp_path / FINISHED
    file.touch()
    assert read_finished(file) == {}
    append_finished(file, "nanochat depth 3", entry)
    assert read_finished(file) == {"nanochat depth 3": entry}


def test_the_others_get_what_was_chosen_for_ours(tmp_path):
    shape = ["preset=50m", "model.n_layers=3", "tokenizer.vocab_size=777", "train.micro_batch=5", "optim=adamw"]
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/config.yaml").write_text(to_yaml(load(RunConfig, "train", shape)))
    asked = load(BenchRecipeConfig, "bench_recipe", ["minutes=7", "bench.learning_rates=[5e-3]"])
    config = chosen(asked, tmp_path)
    assert (config.model.n_layers, config.tokenizer.vocab_size, config.train.micro_batch) == (3, 777, 5)
    assert (config.minutes, config.bench) == (7, asked.bench)


def test_the_score_is_all_nats_over_all_bytes(tmp_path):
    checkpoint = tiny_checkpoint.checkpoint(tmp_path / "model")
    documents = [tiny_checkpoint.text(400, seed=5), "naïveté", tiny_checkpoint.text(150, seed=6)]
    model, tokenizer = load_model(checkpoint), load_tokenizer(checkpoint)
    stream = [token for text in documents for token in (tokenizer.eot_id, *tokenizer.encode(text))]
    nats = 0.0
    for begin in range(0, len(stream) - 1, 16):
        part = torch.tensor(stream[begin : begin + 17])
        with torch.no_grad():
            logits = model(part[None, :-1])[0]
        nats += torch.nn.functional.cross_entropy(logits, part[1:], reduction="sum").item()
    n_bytes = sum(len(text.encode()) for text in documents)
    assert score(checkpoint, documents, 16) == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-5)


def test_minutes_that_end_before_set_up_are_one_line(tmp_path):
    """The words of a contender that failed come from a real run that had no time left."""
    asked = TrainConfig(max_steps=1, seq_len=32, micro_batch=4, max_minutes=0.1)
    with pytest.raises(UserError) as caught:
        check_set_up(asked, setup=14.2)
    program = f"import sys; sys.exit('error: ' + {str(caught.value)!r})"
    with pytest.raises(UserError, match=r"minutes=0.1 is too short: set-up, .* took 0:14 .*; give more minutes"):
        timed([sys.executable, "-S", "-c", program], tmp_path / "ours.log", environment={}, minutes=0.1)
    with pytest.raises(UserError, match=r"failed \(no room\)"):
        timed(
            [sys.executable, "-S", "-c", "raise SystemExit('error: no room')"],
            tmp_path / "x.log",
            environment={},
            minutes=0.1,
        )


def test_the_trainer_does_not_begin_when_its_time_is_over(corpus, tmp_path):
    config = load(RunConfig, "train", [*OPTIONS, f"data.files=[{corpus}]"])
    spec = {"config": to_dict(config), "lr": 1e-3, "seconds": 6, "out": str(tmp_path)}
    with pytest.raises(SystemExit, match=r"error: set-up took \d+:\d\d, and saving takes 0:03 more"):
        hf_trainer.main(spec, started=time.time() - 10)


def test_how_many_iterations_fit():
    log = "step 00000/00012 | loss: 9.1 | dt: 9000.00ms | tok/sec: 1\n"
    log += "".join(f"step {n:05d}/00012 | dt: {200 + n}.50ms | tok/sec: 9\n" for n in range(1, 12))
    assert step_seconds(log) == pytest.approx(0.209)
    assert steps_that_fit(60.0, 20.0, 0.25) == 160
    assert [rehearsal_iterations(minutes) for minutes in (0.3, 2, 10, 180)] == [12, 16, 32, 72]
    with pytest.raises(UserError, match="give more minutes"):
        steps_that_fit(60.0, 70.0, 0.25)
    with pytest.raises(UserError, match="no time of a step"):
        step_seconds("nothing")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("minutes=0", "minutes must be positive"),
        ("bench.baselines=[nanochat]", "bench.nanochat=DIR"),
        ("bench.resume=/nowhere", "is no comparison"),
        ("bench.nanochat=/nowhere", "no checkout of nanochat"),
        ("bench.nanochat_lr_factors=[0]", "at least one positive factor"),
        ("bench.nanochat_tokens=[0]", "one token or more"),
        ("bench.trainer_tokens=[0]", "one token or more"),
        ("bench.learning_rates=[]", "at least one positive rate"),
        ("bench.second_text=/nowhere.txt", "there is no such file"),
    ],
)
def test_bad_options_are_one_line(option, message):
    with pytest.raises(UserError, match=message):
        bench.main([option])


def test_the_others_look_for_a_step_and_a_depth_that_suit_them(tmp_path):
    """By default each tries four steps, and nanochat two depths, whatever our step is."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/base_train.py").write_text("")
    words = [*OPTIONS, f"bench.nanochat={tmp_path}", f"bench.nanochat_python={sys.executable}"]
    found = []
    for ours in (["train.micro_batch=4", "train.grad_accum=6"], ["train.micro_batch=1", "train.grad_accum=1"]):
        argv = [*words, *ours, "bench.learning_rates=[2e-3]"]
        config = load(BenchRecipeConfig, "bench_recipe", argv)
        found.append([name for name, _ in bench._plan(config, argv, False, tmp_path)])
    assert found[0] == found[1]
    steps = [f"{tokens:,} tokens a step" for tokens in (1024, 2048, 4096, 8192)]
    assert found[0] == [
        "ours",
        *(f"hf_trainer at 0.002, {each}" for each in steps),
        *(f"nanochat depth {depth}, {each}" for depth in (3, 4) for each in steps),
    ]


def test_nanochat_can_have_a_step_of_its_own(tmp_path, monkeypatch):
    """Its step has the tokens asked for, in passes that divide it; the run's name, its files and its tokens say so."""
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/base_train.py").write_text("")
    words = [*OPTIONS, "train.seq_len=32", "train.micro_batch=4", "train.grad_accum=4", f"bench.nanochat={tmp_path}"]
    config = load(BenchRecipeConfig, "bench_recipe", [*words, f"bench.nanochat_python={sys.executable}"])
    asked, formats = [], []

    def its_scripts(command, log, environment, **_):
        asked.append([str(word) for word in command])
        formats.append(environment["NANOCHAT_DTYPE"])
        log.write_text("step 1 | dt: 500.00ms |")
        return 5.0

    monkeypatch.setattr(module, "timed", its_scripts)
    monkeypatch.setattr(module, "_write_shards", lambda folder, _: folder.mkdir(parents=True))
    monkeypatch.delenv("NANOCHAT_DTYPE", raising=False)
    config = replace(config, train=replace(config.train, precision="bf16"))
    done = module.nanochat(config, depth=3, folder=tmp_path, tokens=6 * 32)
    assert set(formats) == {"bfloat16"}  # as ours and the Trainer, where the machine is faster in it
    assert {"--device-batch-size=3", "--total-batch-size=192"} <= set(asked[-1])
    assert done.tokens % 192 == 0
    assert done.note.endswith(", 192 tokens a step")
    assert (tmp_path / "nanochat-3-192").is_dir()
    checkpoints = tmp_path / "nanochat-3-192" / module.CHECKPOINTS / "d3"
    checkpoints.mkdir(parents=True)
    for step in (600, 1200):
        (checkpoints / f"optim_{step:06d}_rank0.pt").touch()
    calls = len(asked)
    assert module.nanochat(config, depth=3, folder=tmp_path, tokens=6 * 32) == done
    assert len(asked) == calls + 1  # neither tokenizer nor rehearsal again
    assert {"--resume-from-step=1200", "--save-every=1200"} <= set(asked[-1])
    as_ours = module.nanochat(config, depth=3, folder=tmp_path)
    assert [module.PIECES in words for words in asked[-4:]] == [False, True, False, False]  # behind the tokenizer
    assert {"--device-batch-size=4", "--total-batch-size=512"} <= set(asked[-1])
    assert as_ours.tokens % 512 == 0
    assert "tokens a step" not in as_ours.note


def test_the_trainer_can_have_a_vocabulary_and_a_step_of_its_own():
    words = [*OPTIONS, "train.seq_len=32", "train.micro_batch=4", "train.grad_accum=4"]
    as_ours = hf_trainer.its_options(load(BenchRecipeConfig, "bench_recipe", words))
    assert (as_ours.train.micro_batch, as_ours.train.grad_accum) == (4, 4)
    asked = load(BenchRecipeConfig, "bench_recipe", [*words, "bench.trainer_vocab=400"])
    own = hf_trainer.its_options(asked, 192)
    assert own.tokenizer.vocab_size == 400 != as_ours.tokenizer.vocab_size
    assert (own.train.micro_batch, own.train.grad_accum, own.train.tokens_per_step) == (3, 2, 192)
    assert own.model == as_ours.model


def test_a_step_has_whole_sequences():
    train = TrainConfig(max_steps=1, seq_len=512, micro_batch=6)
    assert passes_of_a_step(8192, train) == (4, 4)
    assert passes_of_a_step(5000, train) == passes_of_a_step(5120, train) == (5, 2)
    assert passes_of_a_step(100, train) == (1, 1)


def test_nanochats_rates_are_multiplied_by_their_own_defaults():
    script = "".join(
        f'parser.add_argument("--{name}", type=float, default={value}, help="a rate")\n'
        for name, value in (("matrix-lr", 0.02), ("embedding-lr", 0.3), ("unembedding-lr", 0.008), ("scalar-lr", 0.5))
    )
    assert scaled_rates(script, 1) == []
    expected = ["--matrix-lr=0.26", "--embedding-lr=3.9", "--unembedding-lr=0.104", "--scalar-lr=6.5"]
    assert scaled_rates(script, 13) == expected
    with pytest.raises(UserError, match="this version is not known here"):
        scaled_rates(script.replace("matrix", "muon"), 13)
