"""Plans: what is read and held out, and the errors where there is no text."""

import pytest

from data.config import DataConfig
from data.errors import UserError
from data.sources.documents import iter_documents, make_plans
from tests.helpers.documents import local, write_jsonl


def test_a_small_text_file_can_be_split(tmp_path):
    text = "\n\n".join(f"Paragraph {i}. " + "Some words follow. " * 20 for i in range(200))
    (tmp_path / "a.txt").write_text(text)
    train, validation = (list(iter_documents(local(tmp_path / "a.txt"), s, 1)) for s in ("train", "validation"))
    size = sum(map(len, validation))
    assert 4000 < size < len(text) / 4
    assert size + sum(map(len, train)) == len(text)


def test_validation_files_are_kept_apart(tmp_path):
    a, b = (write_jsonl(tmp_path / f"{n}.jsonl", [f"{n}{i}" for i in range(20)]) for n in "ab")
    config = local(str(tmp_path / "*.jsonl"), val_files=[b])
    assert sorted(iter_documents(config, "train", 1)) == sorted(f"a{i}" for i in range(20))
    assert sorted(iter_documents(config, "validation", 1)) == sorted(f"b{i}" for i in range(20))
    with pytest.raises(UserError, match=r"also in data\.val_files"):
        make_plans(local(a, val_files=[a]), "train")


def test_a_changed_corpus_has_another_fingerprint(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", ["one", "two", "three"])
    before = make_plans(local(path), "train")[0].fingerprint
    assert before == make_plans(local(path), "train")[0].fingerprint
    write_jsonl(tmp_path / "a.jsonl", ["one", "two", "three", "four"])
    assert make_plans(local(path), "train")[0].fingerprint != before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the corpus is empty"),
        (b" \n \n", "the corpus is empty"),
        (b"one short line", "is one document"),
    ],
)
def test_a_corpus_without_text(tmp_path, content, message):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError, match=message):
        make_plans(local(tmp_path / "a.txt"), "train")


def test_no_files_named():
    with pytest.raises(UserError, match=r"add data\.files="):
        make_plans(DataConfig(kind="files"), "train")


def test_a_large_corpus_is_not_read_to_split_it(tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(1000)])
    monkeypatch.setattr("data.sources.plan.SMALL_CORPUS", 100)
    monkeypatch.setattr("data.sources.plan._held_out", None)  # calling it would fail
    assert make_plans(local(path), "train")[0].held_out == 0.01
