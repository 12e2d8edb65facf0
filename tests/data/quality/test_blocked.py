"""Lists of words and of addresses, also with every kind of record that has an address."""

import csv
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slm.data.config import DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.quality.blocked import Urls, Words, read_urls
from slm.data.sources.documents import iter_documents
from slm.data.sources.filters import make_filter, options


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A Damn shame", "damn"),
        ("damnation", None),
        ("what the\n  HELL, man", "the hell man"),
        ("the hello man", None),
        ("これは禁止です", "禁止"),
        ("Caf\u0065\u0301 noir", "café"),
        ("", None),
    ],
)
def test_words(text, found):
    assert Words(["damn", "the hell man", "禁止", "caf\u00e9"]).found(text) == found


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("https://bad.example/", "bad.example"),
        ("http://www.bad.example:8080/a?b", "bad.example"),
        ("HTTP://Deep.Sub.BAD.example/a", "bad.example"),
        ("bad.example", "bad.example"),
        ("https://user:word@bad.example./x", "bad.example"),
        ("https://notbad.example/", None),
        ("https://bad.example.org/", None),
        ("https://ok.example/?u=bad.example", None),
        ("https://news.example/spam/1", "news.example/spam"),
        ("https://m.news.example/spam?page=2", "news.example/spam"),
        ("https://news.example/spammers", None),
        ("https://news.example/", None),
        ("", None),
    ],
)
def test_urls(url, found):
    assert Urls(["bad.example", "https://www.news.example/spam/"]).found(url) == found


def write(path, rows):
    """Records with a text and an address, in the form that the path's ending names."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "url"])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet", ".csv", "hub"])
@pytest.mark.parametrize("dedup", ["none", "exact"])
def test_records_of_blocked_addresses_are_left_out(tmp_path, suffix, dedup):
    blocked = tmp_path / "blocked.txt"
    blocked.write_text("# a list\n\n0.0.0.0 bad.example\nnews.example/spam\n")
    hosts = ["https://bad.example/", "https://good.example/", "https://news.example/spam/", "https://news.example/a/"]
    rows = [
        {"text": f"text {n} of {n % 4}\0" if n == 5 else f"text {n} of {n % 4}", "url": f"{hosts[n % 4]}{n}"}
        for n in range(60)
    ]
    rows.append({"text": "no address", "url": None if suffix in (".jsonl", ".json", ".parquet") else ""})
    folder = tmp_path / "data"
    folder.mkdir()
    path = write(folder / f"a{suffix if suffix != 'hub' else '.parquet'}", rows)
    where = {"kind": "hub", "path": str(folder)} if suffix == "hub" else {"kind": "files", "files": [path]}
    config = DataConfig(
        **where, blocked_urls=str(blocked), val_fraction=0.3, dedup=dedup, cache_dir=str(tmp_path / "cache")
    )
    texts = [text for split in ("train", "validation") for text in iter_documents(config, split, 1)]
    assert sorted(texts) == sorted(
        [f"text {n} of {n % 4}" + "\N{REPLACEMENT CHARACTER}" * (n == 5) for n in range(60) if n % 4 in (1, 3)]
        + ["no address"]
    )


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".csv", "hub"])
def test_a_column_that_is_not_there_is_named(tmp_path, suffix):
    blocked = tmp_path / "blocked.txt"
    blocked.write_text("bad.example\n")
    (tmp_path / "data").mkdir()
    path = write(tmp_path / "data" / f"a{suffix if suffix != 'hub' else '.parquet'}", [{"text": "a", "url": "b"}] * 9)
    where = {"kind": "hub", "path": str(tmp_path / "data")} if suffix == "hub" else {"kind": "files", "files": [path]}
    config = DataConfig(**where, blocked_urls=str(blocked), url_field="link", on_bad="stop")
    with pytest.raises(UserError, match=r"'link'.*set data.url_field"):
        list(iter_documents(config, "train", 1))


def test_lists_are_checked_and_their_content_counts(tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("\ufeffugly\n# pretty\n")
    config = SourceConfig(kind="tales", blocked_words=str(words))
    reason = make_filter(config)
    assert (reason("ugly duck"), reason("pretty duck")) == ("blocked_words", None)
    before = options(config)
    words.write_text("other\n")
    assert options(config) != before
    words.write_text("# nothing\n")
    with pytest.raises(UserError, match="is empty"):
        make_filter(config)
    with pytest.raises(UserError, match="cannot be read"):
        make_filter(SourceConfig(kind="tales", blocked_words="gone.txt"))
    words.write_text("two words here\n")
    with pytest.raises(UserError, match="write a domain"):
        read_urls(str(words))
    with pytest.raises(UserError, match="not for conversations"):
        SourceConfig(kind="chat", files=["a.jsonl"], blocked_urls=str(words))
