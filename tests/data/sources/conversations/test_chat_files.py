"""Conversations from files of every kind, and records that are none."""

import gzip
import json
from dataclasses import replace

import pytest

from slm.data.chat.formats import from_document, read_record
from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.readers import reader
from slm.data.sources.conversations import chat_files, chat_records
from slm.data.sources.documents import iter_documents, sample_documents
from slm.data.sources.hub import HubCorpus
from slm.data.sources.plan import plan_sources
from slm.data.stream.chat_setup import findings_of


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
    from slm.data.sources.documents import make_plans, open_stream

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


def test_a_key_that_stands_twice_makes_a_bad_record(tmp_path):
    """Python keeps the last of two lists of messages."""
    file = tmp_path / "chats.jsonl"
    twice = '{"question": "a", "answer": "b", "answer": "c"}'
    file.write_text("\n".join([*(json.dumps(each) for each in records(4)), twice]))
    findings = chat_files.inspect((str(file),))
    assert (findings.conversations, findings.bad) == (4, 1)
    assert findings.first_bad == f"{file}:5: the key 'answer' stands more than once"
    turn = '{"role": "user", "content": "a", "content": "b"}'
    deeper = f'{{"messages": [{turn}, {{"role": "assistant", "content": "c"}}]}}'
    for content in (deeper, f"[{json.dumps(records(1)[0])},\n{deeper},\n{json.dumps(records(1)[0])}]"):
        file.write_text(content)
        bad = [each for each in chat_records.read(str(file)) if each.error]
        assert [each.error for each in bad] == ["the key 'content' stands more than once"]


def test_an_object_on_one_line_holds_its_list_as_one_on_several_does(tmp_path):
    file = tmp_path / "a.json"
    whole = {"version": 1, "data": records(4)}
    for indent in (None, 2):
        file.write_text(json.dumps(whole, indent=indent) + "\n")
        assert [each.value for each in chat_records.read(str(file))] == records(4)
        assert [each.value for each in chat_records.read(str(file), 3)] == records(4)[3:]
    chat = {"chat": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    for indent in (None, 2):
        file.write_text(json.dumps(chat, indent=indent))
        assert [each.value for each in chat_records.read(str(file))] == [chat]


def test_files_without_a_conversation_are_one_line(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "plain"}\n')
    with pytest.raises(
        UserError, match=r"no conversation in the files; the first record is bad: .*a.jsonl:1: its fields"
    ):
        plan_sources(DataConfig(kind="chat", files=[str(tmp_path / "a.jsonl")]), "train")
    (tmp_path / "a.txt").write_text("plain")
    with pytest.raises(UserError, match=r"a.txt is plain text.*data=local"):
        plan_sources(DataConfig(kind="chat", files=[str(tmp_path / "a.txt")]), "train")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("question,answer\n", "they hold no record; the first line of a table names its columns"),
        ("Who?,Leo\nAnd who?,Ana\n", r"its fields \(Leo, Who\?\) .*; the first line of a table names its columns"),
    ],
)
def test_a_table_without_rows_or_without_names_is_told_what_its_first_line_is(content, says, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(content)
    with pytest.raises(UserError, match=says):
        chat_files.inspect((str(path),))


def test_a_spreadsheet_is_named(tmp_path):
    path = tmp_path / "Chats.XLSX"
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(UserError, match=r"Chats.XLSX is a spreadsheet: save its table as CSV"):
        chat_files.inspect((str(path),))


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


TABLES = {
    "questions.csv": 'Question,Answer,Topic\nWhat 0?,It 0.,x\n"What, 1?","It \n 1.",\n',
    "excel.csv": '\ufeffsep=;\nprompt;response\nWhat 0?;It 0.\n"What, 1?";"It \n 1."\n',
    "alpaca.csv": 'instruction,input,output\nWhat 0?,,It 0.\n"What, 1?","","It \n 1."\n',
    "tabs.tsv": 'input\ttarget\nWhat 0?\tIt 0.\nWhat, 1?\t"It \n 1."\n',
}
ROWS = [("What 0?", "It 0."), ("What, 1?", "It \n 1.")]


def said(path, **columns) -> list[tuple[str, str]]:
    found = [read_record(each.value, columns).conversation["messages"] for each in chat_records.read(str(path))]
    return [(messages[0]["content"], messages[-1]["content"]) for messages in found]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tables_of_questions_and_answers(tmp_path, name, encoding):
    """Also in UTF-16 with its mark, as Excel saves "Unicode text"."""
    file = tmp_path / name
    text = TABLES[name] if encoding == "utf-8" else TABLES[name].removeprefix("\ufeff")
    file.write_bytes(text.encode(encoding))
    assert said(file) == ROWS
    assert [each.value for each in chat_records.read(str(file), 1)] == [
        each.value for each in chat_records.read(str(file))
    ][1:]
    folder = DataConfig(kind="chat", files=[str(tmp_path)])
    assert plan_sources(folder, "train")[0].files == (str(file),)


def test_the_lines_of_a_tables_bad_rows_are_right(tmp_path):
    file = tmp_path / "a.csv"
    file.write_bytes(b'q,a\n"1\n\n1",one\nlost\n2,"two"x\n3,th\xffree\n4,four,more\n5,five\n6,"six\n')
    found = [(each.where.rpartition(":")[2], each.error[:24]) for each in chat_records.read(str(file))]
    assert [line for line, error in found if error] == ["5", "6", "7", "8", "10"]
    assert len(found) == 7
    with pytest.raises(UserError, match=rf"{file}:5: it has 1 columns, and the first line names 2; .*on_bad=skip"):
        chat_files.inspect((str(file),), stop=True)


def test_columns_of_any_name(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("frage,antwort\n" + "".join(f"Was {n}?,Das {n}.\n" for n in range(30)))
    with pytest.raises(UserError, match=r"its fields \(antwort, frage\) are of no known format; .*data.columns="):
        plan_sources(DataConfig(kind="chat", files=[str(file)]), "train")
    config = DataConfig(kind="chat", files=[str(file)], columns={"user": "frage", "assistant": "antwort"})
    found = [*_documents(config, "train"), *_documents(config, "validation")]
    assert answers(found) == {f"Das {n}." for n in range(30)}
    (plan,) = plan_sources(config, "train")
    other = replace(plan, source=replace(plan.source, columns={"user": "antwort", "assistant": "frage"}))
    assert other.fingerprint != plan.fingerprint
    for wrong, message in (
        ({"user": "a"}, "needs user and assistant"),
        ({"user": "a", "asistant": "b"}, r"asistant is not known; did you mean 'assistant'"),
    ):
        with pytest.raises(UserError, match=message):
            DataConfig(kind="chat", files=[str(file)], columns=wrong)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(records(3), indent=2),
        " \n[" + ",\n\n".join(map(json.dumps, records(3))) + "]\n",
        "\n".join(json.dumps(each, indent=2) for each in records(3)),
        json.dumps({"version": 1, "data": records(3)}, indent=2),
        json.dumps({"rows": [{"row_idx": n, "row": each} for n, each in enumerate(records(3))]}, indent=2),
        "\n \n" + "\n".join(map(json.dumps, records(3))),
    ],
)
def test_json_over_several_lines(tmp_path, text, monkeypatch):
    monkeypatch.setattr(reader, "CHUNK", 16)  # what is read at a time ends anywhere
    file = tmp_path / "a.json"
    file.write_text(text)
    assert [each.value for each in chat_records.read(str(file))] == records(3)
    assert [each.value for each in chat_records.read(str(file), 2)] == records(3)[2:]


@pytest.mark.parametrize("separator", ["\n", "\n\n"])
def test_a_list_of_messages_in_each_line(tmp_path, separator):
    turns = [[{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}."}] for n in range(3)]
    file = tmp_path / "a.jsonl"
    file.write_text(separator.join(map(json.dumps, turns)))
    assert said(file) == [(f"{n}?", f"{n}.") for n in range(3)]
    file.write_text(json.dumps(turns))
    assert said(file) == [(f"{n}?", f"{n}.") for n in range(3)]
    file.write_text("[\n" + json.dumps(records(1)[0]) + "\n]\n{}\n")
    assert [each.value for each in chat_records.read(str(file))] == [records(1)[0], {}]  # read behind the array's end
    file.write_text("[\n" + json.dumps(records(1)[0]) + "\n]\nplain\n")
    *_, behind = chat_records.read(str(file))
    assert (behind.where, behind.last) == (f"{file}:4", True)
    assert behind.error == "it is not valid JSON (Expecting value)"


@pytest.mark.parametrize("content", [b"", b"plain", gzip.compress(b"", mtime=0)[:-3]], ids=["empty", "text", "torn"])
def test_a_file_that_is_no_gzip_is_one_line(tmp_path, content):
    file = tmp_path / "a.jsonl.gz"
    file.write_bytes(content)
    with pytest.raises(UserError, match=rf"{file}(:1:)?:? (it )?cannot be read"):
        chat_files.inspect((str(file),))


def test_a_place_in_an_array_is_its_line(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b'[\n {"prompt": "a",\n  "completion": "b"},\n {"prompt": "\xff"},\n {"prompt"; 1},\n {}]')
    found = list(chat_records.read(str(file)))
    assert [each.where.rpartition(":")[2] for each in found] == ["2", "4", "5"]
    assert (found[1].error, found[2].last) == ("it is not UTF-8", True)
    assert chat_files.inspect((str(file),)).line().endswith(f"; not read: what stands behind {file}:5")


def test_bytes_that_are_no_text_are_bad_records(tmp_path):
    lines = [json.dumps(each).encode() for each in records(4)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([lines[0], lines[1].replace(b"1?", b"\xff?"), *lines[2:]]))
    findings = chat_files.inspect((str(tmp_path / "a.jsonl"),))
    assert (findings.conversations, findings.bad) == (3, 1)
    assert findings.first_bad.startswith(f"{tmp_path}/a.jsonl:2: it is not UTF-8: it looks like CP1252")
    text = "\n".join(map(json.dumps, records(4)))
    (tmp_path / "u.jsonl").write_bytes(text.encode("utf-16"))
    assert [each.value for each in chat_records.read(str(tmp_path / "u.jsonl"))] == records(4)
    for wide in ("utf-16-le", "utf-16-be", "utf-32", "utf-32-be"):
        (tmp_path / "v.jsonl").write_bytes(text.encode(wide))
        name = wide.upper().replace("-LE", "LE").replace("-BE", "BE")
        with pytest.raises(UserError, match=rf"v\.jsonl looks like {name}.*iconv -f {name}"):
            list(chat_records.read(str(tmp_path / "v.jsonl")))
    (tmp_path / "a.csv").write_bytes("question,answer\nWhat 0?,It 0.\nGrüße?,„Schön“ – é\n".encode("cp1252"))
    good, bad = chat_records.read(str(tmp_path / "a.csv"))
    assert (good.error, bad.where) == ("", f"{tmp_path}/a.csv:3")
    assert bad.error.startswith("it is not UTF-8: it looks like CP1252: convert")
    (tmp_path / "b.csv").write_text("question,answer,answer\na,b,c\n")
    (bad,) = chat_records.read(str(tmp_path / "b.csv"))
    assert bad.error == "its first line names the column 'answer' more than once"


def test_parquet_holds_text_in_other_types_and_nulls_in_its_objects(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    calls = [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {"y": [{"z": 2}, {"w": 3}]}}]
    turns = [
        [
            {"role": "user", "content": f"q {n}"},
            {"role": "assistant", "tool_calls": [{"type": "function", "function": call}]},
            {"role": "assistant", "content": "x"},
        ]
        for n, call in enumerate(calls)
    ]
    pq.write_table(pa.Table.from_pylist([{"messages": each, "prompt": None} for each in turns]), tmp_path / "a.parquet")
    found = [
        read_record(each.value).conversation["messages"] for each in chat_records.read(str(tmp_path / "a.parquet"))
    ]
    assert [each[1]["tool_calls"][0]["function"] for each in found] == calls
    assert all("null" not in json.dumps(each) for each in found)
    binary = pa.array([b"q 0", b"q \xff", b"q 2"], pa.binary())
    pq.write_table(pa.table({"prompt": binary, "completion": ["a", "b", "c"]}), tmp_path / "b.parquet")
    damaged = pa.Array.from_buffers(pa.string(), 3, binary.buffers())
    kinds = {"c": damaged, "d": pa.array(["q 0", "q 1", "q 2"]).dictionary_encode()}
    for name, column in kinds.items():
        pq.write_table(pa.table({"prompt": column, "completion": ["a", "b", "c"]}), tmp_path / f"{name}.parquet")
    for name in ("b", "c"):
        findings = chat_files.inspect((str(tmp_path / f"{name}.parquet"),))
        assert (findings.conversations, findings.bad) == (2, 1)
        assert findings.first_bad == f"{tmp_path}/{name}.parquet: row 2: its column 'prompt' is not UTF-8"
    assert said(tmp_path / "d.parquet") == [("q 0", "a"), ("q 1", "b"), ("q 2", "c")]


def test_rows_of_message_trees_become_conversations(tmp_path):
    """As in OpenAssistant's tables: a row for each message, those of a tree together."""
    rows = []
    for tree in "abc":
        texts = {
            "": ("prompter", None),
            "0": ("assistant", 1),
            "1": ("assistant", 0),
            "10": ("prompter", None),
            "100": ("assistant", 0),
        }
        for name, (role, rank) in texts.items():
            parent = None if not name else tree + name[:-1]
            row = {
                "message_id": tree + name,
                "parent_id": parent,
                "message_tree_id": tree,
                "text": f"says {tree}{name}",
            }
            rows.append(row | {"role": role, "rank": rank, "deleted": False})
    file = tmp_path / "a.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    found = [read_record(each.value) for each in chat_records.read(str(file))]
    contents = [[each["content"] for each in read.conversation["messages"]] for read in found]
    assert contents == [[f"says {tree}{name}" for name in ("", "1", "10", "100")] for tree in "abc"]
    assert len(list(chat_records.read(str(file), 1))) == 2
    assert (
        "replies of message trees that are not the best-ranked ones left out (3)"
        in chat_files.inspect((str(file),)).line()
    )


def test_what_is_not_used_is_named_with_its_count(tmp_path):
    file = tmp_path / "a.jsonl"
    lines = [{**each, "id": n} | ({"weight": 0.5} if n else {}) for n, each in enumerate(records(5))]
    file.write_text("\n".join(map(json.dumps, lines)))
    findings = chat_files.inspect((str(file),))
    assert findings.line() == (
        "conversations: 5 prompts with completions; fields that are not used: id (5); "
        "changed: weights other than 0 and 1 taken as 1 (4)"
    )


def test_chat_needs_files_or_a_data_set_and_not_both():
    with pytest.raises(UserError, match=r"data=chat needs conversations"):
        DataConfig(kind="chat")
    with pytest.raises(UserError, match="only one of the two"):
        DataConfig(kind="chat", files=["a.jsonl"], path="owner/name")


def test_text_samples_are_what_is_said(path):
    config = DataConfig(kind="chat", files=[path], val_fraction=0.1)
    assert next(sample_documents(config, "train", 10, seed=1)).startswith("Question ")
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
    looked_at = findings_of(plan.source)
    assert looked_at is not None
    assert (looked_at.conversations, looked_at.bad, looked_at.complete) == (30, 1, True)
    assert looked_at.first_bad == f"{tmp_path}: file 1, row 31: its completion is empty"
