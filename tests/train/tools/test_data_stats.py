"""The command that shows what a run's text is made of."""

import json
import time

import pytest

from slm.configuration import build, load_config
from slm.data.config import DataConfig, SourceConfig, TokenizerConfig
from slm.data.tales.story import story
from slm.data.tokenizers import from_tiktoken
from slm.data.tokenizers.make import make_tokenizer
from slm.train.tools import data_stats
from slm.train.tools.data_stats import DataStatsConfig, StatsOptions, count


@pytest.mark.parametrize("cached", [True, False])
def test_bytes_per_token_stand_next_to_gpt2s_where_it_is_here(tmp_path, capsys, monkeypatch, shared_data, cached):
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(shared_data / "tiktoken_cache" if cached else tmp_path / "empty"))
    monkeypatch.setattr("tiktoken.registry.ENCODINGS", {})
    monkeypatch.setattr(from_tiktoken, "_fetch", None)  # nothing is downloaded
    config = build(DataStatsConfig, load_config("data_stats", ["data=tales"]))
    texts = [story(1, index) for index in range(80)]
    tokenizer = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), lambda: iter(texts))
    monkeypatch.setattr(data_stats, "COMPARED_BYTES", 20_000)
    found = data_stats.next_to_gpt2(config, tokenizer)
    out = capsys.readouterr().out
    assert out.startswith("bytes per token of 0.0 MB of the text: ")
    assert f"{found['bpe-300']:.2f} of bpe-300 (300 ids)" in out
    assert set(found) == ({"bpe-300", "gpt2"} if cached else {"bpe-300"})
    assert 1 < found["bpe-300"] < 3
    if cached:
        assert 3.5 < found["gpt2"] < 5
        assert f"{found['gpt2']:.2f} of gpt2 (50,257 ids)" in out


def test_the_command(tmp_path, capsys):
    rows = [story(1, index) for index in range(60)]
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": row}) + "\n" for row in [*rows, rows[0] + " And so on.", rows[1]])
    )
    plot = tmp_path / "plots" / "lengths.png"
    options = [f"data.files=[{tmp_path / 'a.jsonl'}]", "tokenizer.vocab_size=300", f"stats.plot={plot}"]
    assert data_stats.main(["data=local", *options, "stats.max_docs=61"]) == 0
    out = capsys.readouterr().out
    record = json.loads(out.splitlines()[-1])
    source = record["sources"][str(tmp_path / "a.jsonl")]
    assert (source["documents"], source["near_duplicates"], source["exact_duplicates"]) == (61, 1, 0)
    assert source["complete"] is False
    assert source["tokens"] > 5000
    assert source["examples"] == [row[:2000] for row in rows[:3]]
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "61+" in out
    assert "near duplicates" in out
    assert record["bytes_per_token"][record["tokenizer"]] > 1


def test_duplicates_are_found_across_sources(tmp_path):
    for name in "ab":
        rows = [story(1, index) for index in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    sources = [SourceConfig(kind="files", files=[str(tmp_path / f"{name}.jsonl")], name="same") for name in "ab"]
    config = DataConfig(kind="mixture", sources=sources, cache_dir=str(tmp_path / "cache"), dedup="exact")
    tokenizer = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), lambda: iter([story(1, 0)] * 9))
    found = count(config, tokenizer, StatsOptions(), seed=1)
    assert [each.repeated["exact"] for each, _ in found.values()] == [0, 20]
    assert list(found) == ["same", "same'"]
    assert not (tmp_path / "cache").exists()


def test_conversations_are_counted_and_shown_with_what_is_scored(tmp_path, capsys):
    rows = [{"instruction": f"Say {index}", "output": "yes " * index} for index in range(1, 41)]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, {"text": "none"}])))
    options = [f"data.files=[{path}]", "tokenizer.vocab_size=300", "train.seq_len=48", "data.val_fraction=0.1"]
    assert data_stats.main(["data=chat", *options]) == 0
    out = capsys.readouterr().out
    assert f"40 Alpaca instructions; left out 1 bad record, the first: {path}:41: its fields (text)" in out
    assert "example 3 (what is scored is between [[ and ]])" in out
    assert "assistant\n[[yes " in out
    assert "<|im_end|>]]" in out
    source = json.loads(out.splitlines()[-1])["sources"][str(path)]
    assert source["conversations"] == source["messages"] / 2
    assert source["complete"]
    assert json.loads(out.splitlines()[-1])["tune_holds_out"] == 0  # of so few, as slm tune does
    assert 20 < source["conversations"] < 40  # the rest is held out
    asked, learned, *_ = source["examples"][0]
    assert (asked["scored"], learned["scored"], learned["text"].startswith("yes ")) == (False, True, True)
    assert 0 < source["scored_tokens"] < source["tokens"]
    assert source["longer_than_seq_len"] > 0


def test_answers_before_the_last_question_are_not_counted_as_scored_where_the_last_alone_are_learned(tmp_path, capsys):
    turns = [("user", "Who?"), ("assistant", "A cat. " * 20), ("user", "And?"), ("assistant", "A hill.")]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"messages": [{"role": role, "content": said} for role, said in turns]}))
    options = [f"data.files=[{path}]", "tokenizer.vocab_size=300", "data.val_fraction=0"]
    shares = {}
    for which in ("all", "last"):
        assert data_stats.main(["data=chat", *options, f"data.train_on={which}"]) == 0
        source = json.loads(capsys.readouterr().out.splitlines()[-1])["sources"][str(path)]
        shares[which] = source["scored_share"]
        assert [each["text"] for each in source["examples"][0] if each["scored"]][-1].startswith("A hill.")
    assert shares["last"] < 0.2 < 0.5 < shares["all"]


@pytest.mark.parametrize(("kind", "megabytes"), [("chat", 2), ("local", 70)])
def test_of_large_files_a_part_is_read_and_said(tmp_path, capsys, kind, megabytes):
    """70 MB of text are more than is read whole to know what is held out: the time depends on ``stats.max_mb`` only."""
    tale = story(1, 1)
    row = {"instruction": "Tell me story ######", "output": tale} if kind == "chat" else {"text": f"###### {tale}"}
    line = json.dumps(row) + "\n"
    n_lines = megabytes * 1_000_000 // len(line)
    path = tmp_path / "large.jsonl"
    path.write_text("".join(line.replace("######", f"{n:06}") for n in range(n_lines)))
    options = [f"data.files=[{path}]", "tokenizer.vocab_size=300", "tokenizer.sample_bytes=100000", "stats.plot="]
    began = time.process_time()
    assert data_stats.main([f"data={kind}", *options, "stats.max_mb=0.3", "stats.duplicates=none"]) == 0
    assert time.process_time() - began < 5
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    (source,) = found["sources"].values()
    (text,) = found["text"]
    assert (source["complete"], text["exact"]) == (False, kind == "chat")
    assert 300_000 <= source["bytes"] < 1_000_000
    assert text["read"] == pytest.approx(n_lines, rel=0.1)
    if kind == "chat":  # of all of them, not of those that were counted
        assert found["tune_holds_out"] == max(0.02, 20 / text["taken"]) < 20 / source["conversations"]


def test_a_terminal_gets_colour_and_no_marks():
    from slm.data.chat.template import Rendered
    from slm.train.tools.chat_stats import colored

    rendered = Rendered("ask\x1b[2Janswer", ((7, 13),), ())
    shown = colored(rendered, terminal=True)
    assert shown.endswith("\x1b[32manswer\x1b[0m")
    assert "\x1b[2J" not in shown  # a text must not move the cursor
    assert colored(Rendered("ab", ((1, 2),), ()), terminal=True) == "a\x1b[32mb\x1b[0m"
    assert colored(Rendered("ab", ((1, 2),), ()), terminal=False) == "a[[b]]"


def test_each_filter_is_counted_with_examples_and_languages_are_named(tmp_path, capsys):
    english = [story(1, index) for index in range(30)]
    french = [f"Les {n} enfants sont descendus à la rivière parce que l'eau était chaude le soir." for n in range(8)]
    brackets = [f"{english[0]} {{{n}}}" for n in range(5)]
    rows = [*english, *french, *brackets, english[3]]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    filters = [
        "data.languages=[en]",
        "data.rules=c4",
        "data.val_fraction=0.1",
        "tokenizer.vocab_size=300",
        "stats.plot=",
    ]
    hub = ["data=tinystories", f"data.path={tmp_path / 'data'}", "data.val_split="]
    for source in (["data=local", f"data.files=[{tmp_path / 'data'}]"], hub):
        assert data_stats.main([*source, *filters, f"data.cache_dir={tmp_path / 'cache'}"]) == 0
        out = capsys.readouterr().out
        record = json.loads(out.splitlines()[-1])
        (found,) = record["sources"].values()
        assert found["left_out"] == {"languages (fr)": 8, "rules (a curly bracket)": 5}
        assert (found["documents"], found["exact_duplicates"]) == (44, 1)
        for why, texts in (("languages (fr)", french), ("rules (a curly bracket)", brackets)):
            shown = [line for line in out.splitlines() if f"left out by {why}: " in line]
            assert len(shown) == 3
            for line, text in zip(shown, texts, strict=False):
                assert line.partition(": left out by ")[2].partition(": ")[2].startswith(" ".join(text.split())[:99])
        assert out.count("left out by exact duplicates: ") == 1
        assert "documents: en " in out
    assert found["languages"] == {"en": 36, "fr": 8}
