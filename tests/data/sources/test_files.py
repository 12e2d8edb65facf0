"""Local files: nothing dropped, reading may start at any document, and one clear line for what is wrong."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from data.readers import reader
from data.sources.documents import iter_documents, make_plans
from data.sources.files import Reading, expand, parse, read
from tests.helpers.documents import local, write_jsonl


def texts(path, start=0, **options):
    reading = Reading(**options)
    return [parse(raw, str(path), end, reading) for raw, end in read(str(path), start, reading)]


def resumes(path, **options):
    reading = Reading(**options)
    found = list(read(str(path), 0, reading))
    for number, (_, end) in enumerate(found):
        assert list(read(str(path), end, reading)) == found[number + 1 :]
    return found


def compressed(path, content):
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content))
    elif path.suffix == ".zst":
        half = len(content) // 2  # two frames, as tools that append write them
        path.write_bytes(b"".join(zstandard.compress(part) for part in (content[:half], content[half:])))
    else:
        path.write_bytes(content)
    return path


PROSE = "".join(
    f"Chapter {i}\n\n" + "".join(f"Sentence {j} of chapter {i}, é 🦙. " for j in range(i % 17)) + "\n\n"
    for i in range(300)
)


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_plain_text_is_cut_at_blank_lines_and_nothing_is_dropped(tmp_path, ending):
    path = compressed(tmp_path / f"a.txt{ending}", PROSE.encode())
    found = texts(path, document_bytes=2000)
    assert "".join(found) == PROSE
    assert len(found) > 20
    assert all(2000 <= len(text.encode()) <= 4000 for text in found[:-1])
    assert all(text.endswith("\n\n") for text in found)
    resumes(path, document_bytes=2000)


@given(st.text(st.sampled_from("ab \n\t\réд🦙"), max_size=400), st.integers(4, 40))
@settings(max_examples=200)
def test_any_text_comes_back_whole(tmp_path_factory, text, size):
    path = tmp_path_factory.mktemp("t") / "a.txt"
    path.write_bytes(text.encode())
    assert "".join(texts(path, document_bytes=size)) == text
    resumes(path, document_bytes=size)


def test_text_longer_than_the_read_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "CHUNK", 512)
    path = tmp_path / "a.md"
    path.write_text(PROSE)
    assert "".join(texts(path, document_bytes=700)) == PROSE
    found = resumes(path, document_bytes=700)
    monkeypatch.setattr(reader, "CHUNK", 1 << 20)
    assert list(read(str(path), 0, Reading(document_bytes=700))) == found  # where documents end is not up to chunks


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_separated_documents(tmp_path, ending):
    stories = [f"Story {i}.\n\n" + "word " * (i * 50) for i in range(40)]
    path = compressed(tmp_path / f"stories.txt{ending}", "<|endoftext|>".join(f"\n{s}\n" for s in stories).encode())
    assert texts(path, document_bytes=500) == [story.strip() for story in stories]
    resumes(path, document_bytes=500)


def test_a_separator_beyond_the_first_part_still_separates(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("x" * (1 << 20) + "\n\nafter" + "<|endoftext|>last")
    found = texts(path, document_bytes=700_000)
    assert found[-1] == "last"
    assert "".join(found) == "x" * (1 << 20) + "\n\nafterlast"


def test_a_byte_order_mark_is_not_text(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfhello")
    assert texts(path) == ["hello"]


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_json_lines(tmp_path, ending):
    rows = [{"text": f"row {i} é\n", "id": i} for i in range(50)]
    lines = "\n".join(json.dumps(row, ensure_ascii=i % 2 == 0) for i, row in enumerate(rows))
    path = compressed(tmp_path / f"a.jsonl{ending}", (lines + "\n\n" + '{"text": null}').encode())
    assert texts(path) == [row["text"] for row in rows] + ["", ""]
    resumes(path)


def test_parquet_over_row_groups(tmp_path):
    rows = [f"row {i}" for i in range(1000)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": rows, "id": range(1000)}), path, row_group_size=300)
    assert texts(path, text_field="body") == rows
    for start in (0, 1, 63, 64, 299, 300, 301, 650, 999, 1000):
        assert texts(path, start, text_field="body") == rows[start:]
    pq.write_table(pa.table({"text": pa.array(["a", None, "b"], pa.large_string())}), path)
    assert texts(path) == ["a", "", "b"]
    pq.write_table(pa.table({"text": pa.array(["a", "b", "a"]).dictionary_encode()}), path)
    assert texts(path) == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"fine\nfine\nbad \xff here", ["a.txt:3", "0xff", "offset 14", "UTF-8", "iconv"]),
        ("a.txt", b"a<|endoftext|>  \nb\nc \xe9t\xe9", ["a.txt:3", "offset 21"]),
        ("a.txt", "text".encode("utf-16"), ["UTF-16", "iconv"]),
        ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', ["a.jsonl:2", "UTF-8"]),
        ("a.jsonl", b'{"text": "a"}\n\n{oops}\n', ["a.jsonl:3", "JSON"]),
        ("a.jsonl", b'{"text": "a"}\n["text"]', ["a.jsonl:2", "object"]),
        ("a.jsonl", b'{"body": "a", "id": 1}', ["a.jsonl:1", "'text'", "'body', 'id'", "data.text_field"]),
        ("a.jsonl", b'{"text": 7}', ["a.jsonl:1", "not text"]),
        ("a.jsonl", b"[" * 100_000, ["a.jsonl:1", "JSON"]),
        ("a.txt.gz", b"not gzip", ["a.txt.gz", "complete"]),
        ("a.txt.gz", gzip.compress(b"text " * 9999, mtime=0)[:-20], ["a.txt.gz", "complete"]),
        ("a.txt.zst", b"not zstd at all", ["a.txt.zst", "complete"]),
        ("a.parquet", b"PAR1 nonsense PAR1", ["a.parquet", "parquet", "complete"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        texts(path)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in [str(tmp_path), *words]), message


def test_parquet_columns_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"title": ["x"], "n": [1]}), path)
    with pytest.raises(UserError, match=r"no column 'text' \(its columns are 'title', 'n'\): set data.text_field"):
        texts(path)
    with pytest.raises(UserError, match="'n' is not text .it holds int64"):
        texts(path, text_field="n")


def test_a_bad_byte_late_in_a_large_file_is_placed_right(tmp_path):
    path = tmp_path / "a.txt"
    content = PROSE.encode() * 20
    at = len(content) - 5000
    path.write_bytes(content[:at] + b"\xfe" + content[at:])
    line = content[:at].count(b"\n") + 1
    with pytest.raises(UserError, match=rf"a\.txt:{line}: .*offset {at}\): the text around it is UTF-8"):
        texts(path, document_bytes=3000)


def test_expand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hidden = ("sub/.trash/f.md", "sub/._c.jsonl")
    for name in ("b.txt", "a.md", "sub/c.jsonl.gz", "sub/d.parquet", "sub/e.png", "odd.xyz", *hidden):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert expand(["b.txt", "a.md", "b.txt"]) == ["b.txt", "a.md"]
    assert expand(["*"]) == ["a.md", "b.txt"]
    assert expand(["**/*"]) == ["a.md", "b.txt", "sub/c.jsonl.gz", "sub/d.parquet"]
    assert expand(["sub"]) == ["sub/c.jsonl.gz", "sub/d.parquet"]
    assert expand(["odd.xyz"]) == ["odd.xyz"]  # named in full: read as plain text
    with pytest.raises(UserError, match=r"there is no file bb.txt; did you mean 'b.txt'"):
        expand(["bb.txt"])
    with pytest.raises(UserError, match=r"data.val_files: nowhere/\*\.txt matches no"):
        expand(["nowhere/*.txt"], "data.val_files")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty holds no file"):
        expand(["empty"])


def test_text_without_a_space_keeps_its_characters_whole(tmp_path):
    (tmp_path / "a.txt").write_text("\u4e2d" * 600_000)
    assert "".join(texts(tmp_path / "a.txt", document_bytes=524_288, separator="")) == "\u4e2d" * 600_000


def test_a_zstandard_file_with_a_large_window(tmp_path):
    settings = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=False)
    stream = zstandard.ZstdCompressor(compression_params=settings).compressobj()  # which does not know the size
    (tmp_path / "a.txt.zst").write_bytes(stream.compress(b"Words. " * 9) + stream.flush())
    assert texts(tmp_path / "a.txt.zst") == ["Words. " * 9]


def test_a_folders_other_json_files_are_left_out_and_named(tmp_path, capsys):
    folder = tmp_path / "notes"
    folder.mkdir()
    rows = [f"Note {i} with some words." for i in range(30)]
    write_jsonl(folder / "rows.json", rows[:10])
    write_jsonl(folder / "lines.jsonl", rows[10:])
    (folder / "settings.json").write_text('{\n  "theme": "dark"\n}\n')
    (folder / "list.json").write_text('[{"text": "no line of its own"}]')
    (folder / "package.json").write_text('{"name": "x"}')
    (folder / "sub").mkdir()
    (folder / "sub" / "empty.json").write_text("")
    found = [text for s in ("train", "validation") for text in iter_documents(local(folder), s, 1)]
    assert sorted(found) == sorted(rows)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("no 'text' key: list.json, package.json, settings.json and 1 more")
    assert "4 .json files" in line
    with pytest.raises(UserError, match=r"package\.json:1 has no key 'text'"):
        make_plans(local(folder / "package.json"), "train")
    for name in ("rows.json", "lines.jsonl"):
        (folder / name).unlink()
    with pytest.raises(UserError, match=r"4 \.json files of .* left out"):
        make_plans(local(folder), "train")
    # A key of one's own.
    (folder / "own.json").write_text("".join(json.dumps({"body": row}) + "\n" for row in rows))
    assert make_plans(local(folder, text_field="body"), "train")[0].files == (str(folder / "own.json"),)
