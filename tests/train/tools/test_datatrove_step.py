"""The same shards by another engine: two local workers of datatrove."""

import json

import pytest

from slm.data.prepare import work
from slm.data.prepare.finish import finish
from slm.data.prepare.shard import make_shard
from slm.data.tales.story import story
from slm.train.tools.prepare import PrepareConfig, load, main, work_of


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_workers_of_datatrove_make_the_same_corpus(tmp_path, monkeypatch, capsys):
    pytest.importorskip("datatrove", reason="datatrove is not installed: pip install 'slm[cluster]'")
    from datatrove.executor import LocalPipelineExecutor

    from slm.train.tools.datatrove_step import PrepareShards

    monkeypatch.setattr(work, "SHARD_BYTES", 4000)
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": story(1, index)}) + "\n" for index in range(60)))
    words = ["preset=tiny", "data=local", f"data.files=[{text}]", "tokenizer.vocab_size=300"]
    alone = work_of(load(PrepareConfig, "prepare", [*words, f"out={tmp_path / 'alone'}"]))
    assert len(alone.shards) > 4
    for number in range(len(alone.shards)):
        make_shard(alone.with_list(), number)
    finish(alone)

    out = tmp_path / "corpus"
    work_of(load(PrepareConfig, "prepare", [*words, f"out={out}"]))  # the shards are decided with the small size
    step = PrepareShards("tiny", str(text), "tokenizer.vocab_size=300", f"out={out}")
    executor = LocalPipelineExecutor([step], tasks=2, workers=2, logging_dir=str(tmp_path / "logs"))
    stats = executor.run()
    assert stats.stats[0]["shards"].total == len(alone.shards)
    assert not (out / "slm-corpus.json").exists()
    assert main([*words, f"out={out}"]) == 0
    assert content(out) == content(tmp_path / "alone")
