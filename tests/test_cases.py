"""Small inputs as people have them (``cases/data`` beside the shared data) through the commands that a person types:
``data-stats`` of each, ``train`` and ``tune`` of all that can be read and of those that cannot.
"""

import re
from pathlib import Path

import pytest

from slm.data.errors import UserError
from slm.train.tools import data_stats
from tests.helpers import programs
from tests.helpers.small_run import QUICK, SmallRun

READ = {
    "binary.parquet": "500 records",
    "dict.parquet": "500 records",
    "d_pretty.json": "300 records",
    "nul_mid.txt": r"500 replaced by U\+FFFD: a NUL character; the first: .*nul_mid.txt:8",
    "surr.jsonl": r"600 replaced by U\+FFFD: a lone surrogate .*surr.jsonl:1",
}
"""Texts, and what is said of each."""
REFUSED = {
    "badutf8.parquet": "column 'text', row 401: not UTF-8",
    "cp1252.txt": r"cp1252.txt:800: not UTF-8 .* it looks like CP1252: .*-f CP1252",
    "torn.jsonl.gz": "torn.jsonl.gz:144: cannot be decompressed",
    "torn3.jsonl": "torn3.jsonl:3: not a line of JSON",
    "u16_mark.jsonl": "u16_mark.jsonl:1: UTF-16LE, not UTF-8",
    "u16be_nomark.txt": "u16be_nomark.txt:1: UTF-16BE, not UTF-8",
    "u16le_nomark.txt": "u16le_nomark.txt:1: UTF-16LE, not UTF-8",
}
CHATS = {
    "b10_obj.jsonl": "30 OpenAI messages",
    "b1_null.jsonl": "30 OpenAI messages",
    "b1_nulltext.jsonl": "30 OpenAI messages",
    "b3_hist.jsonl": r"30 Alpaca instructions; changed: empty answers of a history not learned \(30\)",
    "b3_part.jsonl": "30 OpenAI messages",
    "b4_from.jsonl": "30 OpenAI messages",
    "b4_output.jsonl": "30 Alpaca instructions",
    "b4_value.jsonl": "30 OpenAI messages",
    "b5_train.jsonl": r"30 OpenAI messages",
    "b5_weight0s.jsonl": r"30 OpenAI messages",
    "n_qa.jsonl": "30 questions with answers",
    "n_reason.jsonl": "the chat template does not write the reasoning of 54 answers",
    "n_sharegpt_system_dict.jsonl": "30 ShareGPT conversations",
    "n_toolname.jsonl": "30 OpenAI messages",
}
REFUSED_CHATS = {
    "b1_list.jsonl": "b1_list.jsonl:1: the arguments of the tool call of message 2 are a list, not an object"
}
SCORED = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


@pytest.fixture(scope="module")
def cases(shared_data) -> Path:
    folder = shared_data.parent / "cases" / "data"
    if not folder.is_dir():
        pytest.skip(f"no cases at {folder}")
    return folder


def files(cases: Path, names) -> str:
    return f"data.files=[{','.join(str(cases / name) for name in names)}]"


def stats(cases: Path, kind: str, name: str) -> int:
    return data_stats.main(
        [f"data={kind}", files(cases, [name]), "tokenizer.vocab_size=300", "train.seq_len=128", "data.val_fraction=0.1"]
    )


def test_every_case_is_here(cases):
    assert {each.name for each in cases.iterdir()} == {*READ, *REFUSED, *CHATS, *REFUSED_CHATS}


@pytest.mark.parametrize("name", [*READ, *CHATS])
def test_data_stats_reads_it_and_says_what_it_changed(cases, name, capsys):
    assert stats(cases, "chat" if name in CHATS else "local", name) == 0
    out, err = capsys.readouterr()
    assert re.search((READ | CHATS)[name], out + err)
    scored = SCORED.findall(out.rpartition("\n{")[0])
    assert not any(each in text for text in scored for each in ("None", "null", "NOTLEARN"))
    assert bool(scored) == (name in CHATS)


@pytest.mark.parametrize("name", [*REFUSED, *REFUSED_CHATS])
def test_data_stats_refuses_it_in_one_line(cases, name):
    with pytest.raises(UserError, match=(REFUSED | REFUSED_CHATS)[name]) as error:
        stats(cases, "chat" if name in REFUSED_CHATS else "local", name)
    assert "\n" not in str(error.value)


def test_train_reads_what_data_stats_reads_and_leaves_out_the_rest_with_a_count(cases, tmp_path):
    names = {*READ, *REFUSED} - {"binary.parquet", "dict.parquet"}
    run = SmallRun(tmp_path, files(cases, sorted(names)), "data.on_bad=skip", "train.max_steps=1").finish()
    assert re.search(r"1,248 records, [\d,]+ taken", run.out)  # 601, and 647 good ones beside the bad
    for name in ("nul_mid.txt", "surr.jsonl"):
        assert re.search(READ[name], run.err)
    for count, why in ((2, "not UTF-8"), (1, "cannot be decompressed"), (1, "not a line of JSON"), (1, "UTF-16BE")):
        assert re.search(rf"text: {count} left out \(data.on_bad=skip\): {why}", run.err)
    assert "text: 2 left out (data.on_bad=skip): UTF-16LE" in run.err


@pytest.mark.parametrize("name", ["torn3.jsonl", "b1_list.jsonl"])
def test_train_refuses_what_data_stats_refuses(cases, name, tmp_path):
    kind = "chat" if name in REFUSED_CHATS else "local"
    run = SmallRun(tmp_path, f"data={kind}", files(cases, [name]), "train.max_steps=1")
    assert run.wait() == 2
    (line,) = run.err.splitlines()
    assert re.search((REFUSED | REFUSED_CHATS)[name], line)


def test_train_and_tune_read_all_conversations(cases, tmp_path):
    words = ("data=chat", files(cases, CHATS), "train.seq_len=128", "train.max_steps=1")
    run = SmallRun(tmp_path, *words, "name=base").finish()
    tune = [f"base={run.root}", f"runs_dir={tmp_path}", "name=tuned", *QUICK, *words]
    tuned = programs.run("slm.train.tune.__main__", tune, tmp_path)
    assert re.search(r"420 records, 404 taken", run.out)
    assert re.search(r"conversations: 300 OpenAI messages, 60 Alpaca", tuned)
    for out in (run.out, tuned):
        assert re.search(r"the chat template does not write the reasoning of (about )?\d\d answers", out)
