"""The command that shows what a run's text is made of."""

import json

from data.config import DataConfig, SourceConfig, TokenizerConfig
from data.tales.story import story
from data.tokenizers.make import make_tokenizer
from train.tools import data_stats
from train.tools.data_stats import StatsOptions, count


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
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "61+" in out
    assert "near duplicates" in out


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
