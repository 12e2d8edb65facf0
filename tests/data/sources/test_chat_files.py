"""Conversations from files of every kind, and records that are none."""

import gzip
import json

import pytest

from data.chat.formats import from_document
from data.config import DataConfig
from data.errors import UserError
from data.sources import chat_files, chat_records
from data.sources.documents import iter_documents, sample_documents
from data.sources.hub import HubCorpus
from data.sources.plan import plan_sources


def records(n: int = 60) -> list[dict]:
    return [{"prompt": f"Question {index}?", "completion": f"Answer {index}."} for index in range(n)]


@pytest.fixture(params=["jsonl", "jsonl.gz", "jsonl.zst", "json", "parquet"])
def path(request, tmp_path) -> str:
    file = tmp_path / f"chats.{request.param}"
    lines = "\n\n".join(map(json.dumps, records())).encode()
    if request.param == "jsonl":
        file.write_bytes(b"\xef\xbb\xbf" + lines)
    elif request.param == "jsonl.gz":
        file.write_bytes(gzip.compress(lines))
    elif request.param == "jsonl.zst":
        import zstandard

        file.write_bytes(zstandard.ZstdCompressor().compress(lines))
    elif request.param == "json":
        file.write_text(" \n" + json.dumps(records(), indent=1))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(records()), file, row_group_size=7)
    return str(file)


def answers(documents) -> set[str]:
    return {from_document(each)["messages"][-1]["content"] for each in documents}


def test_every_kind_of_file_gives_every_conversation_once(path):
    config = DataConfig(kind="chat", files=[path], val_fraction=0.1)
    train, validation = (list(_documents(config, split)) for split in ("train", "validation"))
    assert len(train) + len(validation) == 60
    assert answers(train) | answers(validation) == {f"Answer {index}." for index in range(60)}
    assert train
    assert validation


def _documents(config, split):
    from data.sources.documents import make_plans, open_stream

    (plan,) = make_plans(config, split)
    stream = open_stream(plan, seed=1, wrap=lambda corpus: corpus)
    while True:
        try:
            yield next(stream)
        except StopIteration:
            return


def test_reading_goes_on_at_any_record(path):
    whole = [each.value for each in chat_records.read(path)]
    assert [each.value for each in chat_records.read(path, 23)] == whole[23:]


def test_bad_records_are_counted_and_the_first_is_shown(tmp_path):
    file = tmp_path / "chats.jsonl"
    good = [json.dumps(each) for each in records(5)]
    file.write_text("\n".join([good[0], "", "{broken", good[1], '{"text": "plain"}', *good[2:]]))
    findings = chat_files.inspect((str(file),))
    assert (findings.conversations, findings.bad) == (5, 2)
    assert findings.first_bad.startswith(f"{file}:3: it is not a line of JSON")
    assert findings.line().startswith("conversations: 5 prompts with completions; left out 2 bad records, the first: ")
    with pytest.raises(UserError, match=rf"{file}:3: it is not a line of JSON .*data.on_bad=skip"):
        chat_files.inspect((str(file),), stop=True)
    with pytest.raises(UserError, match="on_bad=skip"):
        plan_sources(DataConfig(kind="chat", files=[str(file)], on_bad="stop"), "train")


def test_files_without_a_conversation_are_one_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "plain"}\n')
    with pytest.raises(
        UserError, match=r"no conversation in the files; the first record is bad: .*a.jsonl:1: its fields"
    ):
        plan_sources(DataConfig(kind="chat", files=[str(tmp_path / "a.jsonl")]), "train")
    (tmp_path / "a.txt").write_text("plain")
    with pytest.raises(UserError, match=r"a.txt is plain text.*data=local"):
        plan_sources(DataConfig(kind="chat", files=[str(tmp_path / "a.txt")]), "train")


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "jsonl.gz", "jsonl.zst", "json.gz"])
def test_a_torn_file_is_read_up_to_its_last_whole_record(tmp_path, kind):
    """Its place is named, reading can go on anywhere in it, and ``stop`` ends the run there."""
    array = kind in ("json", "json.gz")
    if array:
        text = json.dumps(records(), indent=1)
    elif kind == "csv":
        text = "prompt,completion\n" + "".join(f'"{each["prompt"]}","{each["completion"]}"\n' for each in records())
    else:
        text = "".join(json.dumps(each) + "\n" for each in records())
    content = text.encode()
    if kind.endswith("gz"):
        content = gzip.compress(content)
    elif kind.endswith("zst"):
        import zstandard

        half = content.index(b"\n", len(content) // 2) + 1
        content = b"".join(zstandard.ZstdCompressor().compress(each) for each in (content[:half], content[half:]))
    file = tmp_path / f"torn.{kind}"
    file.write_bytes(content[:-12])
    found = list(chat_records.read(str(file)))
    assert 1 <= len(found) <= 60
    assert [each.value for each in found[:-1]] == records(len(found) - 1)
    line = 1 + text.encode()[: text.encode().rfind(records()[len(found) - 1]["prompt"].encode())].count(b"\n")
    line -= array  # the record's brace stands a line before
    assert found[-1].where == f"{file}:{line}"
    assert found[-1].error
    for start in (1, len(found) - 1, len(found)):
        assert list(chat_records.read(str(file), start)) == found[start:]
    findings = chat_files.inspect((str(file),))
    assert (findings.conversations, findings.bad) == (len(found) - 1, 1)
    assert f"{file}:{line}" in findings.line()
    with pytest.raises(UserError, match=f"{file}:{line}: .*data.on_bad=skip"):
        chat_files.inspect((str(file),), stop=True)


def test_chat_needs_files_or_a_data_set_and_not_both():
    with pytest.raises(UserError, match=r"data=chat needs conversations"):
        DataConfig(kind="chat")
    with pytest.raises(UserError, match="only one of the two"):
        DataConfig(kind="chat", files=["a.jsonl"], path="owner/name")


def test_text_samples_are_what_is_said(path):
    config = DataConfig(kind="chat", files=[path], val_fraction=0.1)
    assert sample_documents(config, "train", 10, seed=1)[0].startswith("Question ")
    assert all("role" not in each for each in iter_documents(config, "train", seed=1))


def test_rows_of_a_data_set_are_conversations(tmp_path):
    """A folder that ``datasets`` loads stands for the Hub."""
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, [*records(30), {"prompt": "a", "completion": ""}])))
    config = DataConfig(kind="chat", path=str(tmp_path), val_fraction=0.2)
    (plan,) = plan_sources(config, "train")
    corpus = HubCorpus(plan.source, "train")
    reader = corpus.open(0, 0, None)
    found = []
    while True:
        try:
            found.append(reader.document(next(reader)))
        except StopIteration:
            break
    assert len(found) == 31
    assert found[-1] is None
    assert answers(found[:-1]) == {f"Answer {index}." for index in range(30)}
