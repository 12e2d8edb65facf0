"""``slm prepare`` as a person types it: killed and typed again, with one process and two, and what trains from it."""

import json
import re
import time

import pytest

from slm.configuration import load_config
from slm.data import progress
from slm.data.errors import UserError
from slm.data.prepare import work
from slm.data.tales.story import story
from slm.train.resolve import resolve
from slm.train.tools import prepare
from tests.helpers.programs import Program, run
from tests.helpers.small_run import OPTIONS, SmallRun, differences, losses

MODULE = "slm.train.tools.prepare"


def small_shards():
    work.SHARD_BYTES = 16_000


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "stories.jsonl"
    path.write_text("".join(json.dumps({"text": story(1, index % 390)}) + "\n" for index in range(400)))
    return path


def words(text, out, *more):
    given = ["preset=tiny", "data=local", f"data.files=[{text}]", "tokenizer.vocab_size=300", "data.dedup=exact"]
    return [*given, f"out={out}", *more]


@pytest.fixture(scope="module")
def corpus(text, tmp_path_factory):
    """Made by one process, and never stopped."""
    folder = tmp_path_factory.mktemp("prepared")
    out = run(MODULE, words(text, folder / "corpus", "processes=1"), folder, prepare=small_shards)
    report = json.loads(out.splitlines()[-1])
    assert report["shards"] > 20
    assert f"{report['tokens']:,} tokens of bpe-300 (300 ids) in" in out
    assert "next: " in out
    return folder / "corpus"


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_killed_and_typed_again_it_is_the_same_to_the_byte_by_two_processes(text, corpus, tmp_path):
    out = tmp_path / "corpus"
    stopped = Program(MODULE, words(text, out, "processes=2"), tmp_path, prepare=small_shards)
    while len(list(out.glob("shards/*.json"))) < 3:
        assert stopped.poll() is None, stopped.out + stopped.err
        stopped.process.join(0.002)
    stopped.kill()
    stopped.wait()
    assert not (out / "slm-corpus.json").exists()
    with pytest.raises(UserError, match=r"not a complete corpus \([0-9,]+ shards are made\)"):
        resolve(["preset=tiny", "data=local", f"data.files=[{out}]"], lambda config: config)
    said = run(MODULE, words(text, out, "processes=2"), tmp_path, prepare=small_shards)
    assert " of them made before; 2 processes" in said
    assert content(out) == content(corpus)
    again = run(MODULE, words(text, out), tmp_path)
    assert "is complete" in again
    assert content(out) == content(corpus)


def test_a_run_from_it_is_the_run_from_the_text(text, corpus, tmp_path):
    options = ("data.shuffle_buffer=16", "train.max_steps=12", "train.eval_every=6")
    raw = SmallRun(
        tmp_path, "name=raw", f"data.files=[{text}]", "data.dedup=exact", f"data.cache_dir={tmp_path}", *options
    )
    own = [word for word in OPTIONS if not word.startswith("tokenizer.")]
    prepared = Program(
        "slm.train", [*own, f"runs_dir={tmp_path}", "name=prepared", f"data.files=[{corpus}/]", *options], tmp_path
    )
    raw.finish()
    assert prepared.wait(60) == 0, prepared.out + prepared.err
    assert differences(*(tmp_path / name / "checkpoints/step-00000012" for name in ("raw", "prepared"))) == []
    assert losses(tmp_path / "raw") == losses(tmp_path / "prepared")
    for name in ("validation.txt", "calibration.txt", "tokenizer/tokenizer.json"):
        assert (tmp_path / "raw" / name).read_bytes() == (tmp_path / "prepared" / name).read_bytes()
    counted = [re.findall(r"text of [^:]*: (.* taken) \(.*; (left out: .*)", out) for out in (raw.out, prepared.out)]
    assert counted[0] == counted[1]
    assert counted[0][0][0].startswith("400 records, ")
    assert "10 duplicates" in counted[0][0][1]


def test_a_word_that_changes_the_text_is_refused_beside_it(corpus):
    for word, message in {
        "data.min_chars=0": "data.min_chars changes the text, and .* was prepared with data.min_chars=0",
        "data.text_field=body": "data.text_field changes the text",
        "tokenizer=gpt2": "tokenizer changes the text, and .* is prepared: leave it out",
        "tokenizer.vocab_size=512": "was prepared with tokenizer.vocab_size=300: leave it out, or prepare the text",
    }.items():
        with pytest.raises(UserError, match=message):
            resolve(["preset=tiny", "data=local", f"data.files=[{corpus}]", word], lambda config: config)
    config = resolve(
        ["preset=tiny", "data=local", f"data.files=[{corpus}]", "data.max_epochs=2", "data.shuffle_buffer=0"],
        lambda config: config,
    )
    assert config.tokenizer.path == f"{corpus}/tokenizer"


def test_what_takes_long_says_so_before_there_are_shards(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0)
    monkeypatch.setattr(prepare, "LOOK_SECONDS", 0.05)
    with prepare._shown_alive("deciding"):
        time.sleep(0.3)
    assert capsys.readouterr().err.count("deciding: 0:00 so far") > 1


def test_a_mistake_in_a_process_is_one_line(text, tmp_path):
    torn = tmp_path / "torn.jsonl"
    torn.write_text(text.read_text() + '{"text": "torn')
    given = words(torn, tmp_path / "out", "processes=1", f"data.val_files=[{text}]")
    err = run(MODULE, given, tmp_path, status=2)
    assert err.strip().splitlines()[-1].startswith(f"error: {torn}:401: not a line of JSON")
    assert load_config("prepare", [])["out"] == "corpus"
