"""Local files: nothing dropped, reading may start at any document, and one clear line for what is wrong."""

import gzip
import json
import os
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from slm.data.account.listing import NO_FILE, list_files
from slm.data.bad_records import REPLACED, TALLY, Found
from slm.data.config import SourceConfig
from slm.data.errors import UserError
from slm.data.readers import reader
from slm.data.sources.documents import iter_documents, make_plans
from slm.data.sources.files import Reading, expand, is_undivided, parse, read
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
@settings(max_examples=200, deadline=None)  # it reads and writes files
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
    with pytest.raises(UserError, match=r"'n' is not text \(it holds int64"):
        texts(path, text_field="n")
    pq.write_table(pa.Table.from_arrays([pa.array(["x"]), pa.array(["y"])], names=["text", "text"]), path)
    with pytest.raises(UserError, match=r"2 columns are named 'text': rename them"):
        texts(path)


def test_lines_of_json_in_utf16_behind_others_are_named(tmp_path):
    """Python reads the first of them as UTF-16, and the second, which begins with half of a line end, as no text."""
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": f"text {n}"}) + "\n" for n in range(400)]
    path.write_bytes("".join(lines).encode() + "".join(lines[:3]).encode("utf-16-le"))
    with pytest.raises(UserError, match=r"a.jsonl:401: UTF-16 within other text: correct it"):
        texts(path)
    assert [each for each in texts(path, on_bad="skip") if each] == [f"text {n}" for n in range(400)]


def test_a_key_that_stands_twice_is_no_choice_of_ours(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "x": {"text": "b"}, "y": "\\"text\\""}\n{"text": "c", "text": "d"}\n')
    with pytest.raises(UserError, match=r"a.jsonl:2: the key 'text' stands more than once"):
        texts(path)
    assert texts(path, on_bad="skip") == ["a", ""]
    path = tmp_path / "a.json"
    path.write_text('[{"text": "a", "x": [{"y": 1, "y": 2}]},\n{"text": "c", "text": "d"},\n{"text": "e"}]')
    with pytest.raises(UserError, match=r"a.json, record 2: the key 'text' stands more than once"):
        texts(path)
    assert texts(path, on_bad="skip") == ["a", "", "e"]


def test_what_is_no_file_is_never_opened(tmp_path):
    """Opening a pipe waits for somebody to write."""
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "gone.txt").symlink_to("nowhere")
    (tmp_path / "a.txt").write_text("words")
    assert expand([str(tmp_path)]) == [str(tmp_path / "a.txt")]
    found = list_files(SourceConfig(kind="files", files=[str(tmp_path)]))
    assert [os.path.basename(each) for each in found.left_out[NO_FILE]] == ["gone.txt", "pipe.txt"]
    with pytest.raises(UserError, match=r"pipe.txt is a pipe or a device, .*: write it to a file first"):
        expand([str(tmp_path / "pipe.txt")])
    with pytest.raises(UserError, match=r"gone.txt is a link to nowhere, which is not there"):
        expand([str(tmp_path / "gone.txt")])


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
    every = list(rows)
    write_jsonl(folder / "rows.json", rows[:10])
    write_jsonl(folder / "lines.jsonl", rows[10:-1])
    (folder / "settings.json").write_text('{\n  "theme": "dark"\n}\n')
    (folder / "list.json").write_text("[1, 2, 3]")
    (folder / "array.json").write_text(json.dumps([{"text": rows.pop()}], indent=1))
    (folder / "package.json").write_text('{"name": "x"}')
    (folder / "sub").mkdir()
    (folder / "sub" / "empty.json").write_text("")
    found = [text for s in ("train", "validation") for text in iter_documents(local(folder), s, 1)]
    assert sorted(found) == sorted(every)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("'text' in the first record (list.json, package.json, settings.json and 1 more)")
    assert "3 files are read, 4 left out: 4 .json without" in line
    with pytest.raises(UserError, match=r"package\.json:1: no key 'text'"):
        make_plans(local(folder / "package.json"), "train")
    for name in ("rows.json", "lines.jsonl", "array.json"):
        (folder / name).unlink()
    with pytest.raises(UserError, match=r"holds no file of text, but 4 \.json without"):
        make_plans(local(folder), "train")
    # A user's key.
    (folder / "own.json").write_text("".join(json.dumps({"body": row}) + "\n" for row in rows))
    assert make_plans(local(folder, text_field="body"), "train")[0].files == (str(folder / "own.json"),)


def skipping(path, **options):
    """The texts that are left with ``on_bad="skip"``, and the reasons of what was left out."""
    found = [text for text in texts(path, on_bad="skip", **options) if text]
    return found, {reason: each.count for reason, each in TALLY.record([str(path)]).items()}


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize("n_rows", [2, 5000])
def test_a_torn_last_line_is_named_by_its_number(tmp_path, ending, n_rows):
    lines = [json.dumps({"text": f"row {i}"}) for i in range(n_rows)]
    path = compressed(tmp_path / f"a.jsonl{ending}", ("\n".join(lines) + '\n{"text": "ro').encode())
    with pytest.raises(UserError, match=rf"a\.jsonl{ending}:{n_rows + 1}: not a line of JSON .*ends within.*skip"):
        texts(path)
    assert skipping(path) == ([f"row {i}" for i in range(n_rows)], {"not a line of JSON": 1})


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_lines_before_the_end_of_an_incomplete_file_are_read(tmp_path, ending):
    lines = [json.dumps({"text": f"row {i * i} {hash(str(i))}"}) + "\n" for i in range(8_000)]
    path = compressed(tmp_path / f"a.jsonl{ending}", "".join(lines).encode())
    path.write_bytes(path.read_bytes()[:-40_000])
    found, left_out = skipping(path)
    assert left_out == {"cannot be decompressed": 1}
    assert len(found) > 3000
    assert found == [json.loads(line)["text"] for line in lines[: len(found)]]
    with pytest.raises(UserError, match=rf"a\.jsonl{ending}:{len(found) + 1}: cannot be decompressed"):
        texts(path)


def test_a_long_line_is_read_once(tmp_path, monkeypatch):
    """Its parts were joined and split again with each of them."""
    monkeypatch.setattr(reader, "CHUNK", 64)
    rows = ["short", "long " * 40_000, "last"]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"text": row}) for row in rows))
    start = time.perf_counter()
    assert texts(path) == rows
    assert time.perf_counter() - start < 1  # 200 KB in 3,000 parts: ten seconds if each part were searched again
    resumes(path)
    monkeypatch.setattr(reader, "LONGEST_RECORD", 1000)
    with pytest.raises(UserError, match=r"a\.jsonl:2: longer than"):
        texts(path)
    found, left_out = skipping(path)
    assert found == ["short", "last"]
    assert list(left_out.values()) == [1]


@given(
    st.lists(st.text(st.sampled_from('ab"\\{}[],: \n\u00e9\U0001f999'), max_size=30), max_size=12),
    st.sampled_from([None, 2]),
    st.integers(1, 40),
    st.booleans(),
)
@settings(max_examples=50, deadline=None)
def test_a_json_array_of_any_form_is_read_in_pieces(tmp_path_factory, rows, indent, chunk, mark):
    path = tmp_path_factory.mktemp("t") / "a.json"
    content = json.dumps([{"id": 1.5, "text": row} for row in rows], indent=indent, ensure_ascii=indent is None)
    path.write_text("\ufeff" * mark + content + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "CHUNK", chunk)
        assert texts(path) == rows
        resumes(path)
    if rows:
        path.write_text(content[:-1])
        with pytest.raises(UserError, match=r"without its end.*complete"):
            texts(path)
        assert skipping(path)[0] == [row for row in rows if row]


def test_json_values_one_after_another(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{\n "text": "a"\n}\n{\n "text": "b"\n}\n["c", {"text": null}]\n')
    assert texts(path) == ["a", "b", "c", ""]
    path.write_text('[{"text": "a"},\n{"text": 7},\n{"text": "b"},\n{"text" "c"}]')
    with pytest.raises(UserError, match=r"a\.json, record 2: 'text' is not text \(but 7\)"):
        texts(path)
    assert skipping(path) == (["a", "b"], {"'text' is not text": 1, "not valid JSON": 1})
    assert ":4 (" in TALLY.record([str(path)])["not valid JSON"].first
    path.write_bytes(b'[{"text": "a"}, {"text": "\xff"}, {"text": "b"}]')
    assert skipping(path)[0] == ["a", "b"]


@pytest.mark.parametrize(
    "kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view", "dictionary", "bytes of"]
)
def test_columns_of_any_type_of_text(tmp_path, kind):
    rows = ["one", None, "zwölf 🦙", ""] * 50
    if kind == "dictionary":
        column = pa.array(rows).dictionary_encode()
    elif kind == "bytes of":
        column = pa.array([row and row.encode() for row in rows], pa.binary()).dictionary_encode()
    else:
        column = pa.array([row and (row.encode() if "binary" in kind else row) for row in rows], getattr(pa, kind)())
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert texts(tmp_path / "a.parquet") == [row or "" for row in rows]
    resumes(tmp_path / "a.parquet")


def test_a_row_that_is_not_utf8(tmp_path):
    rows = pa.array([b"one", b"tw\xe9", b"three"]).view(pa.string())  # pyarrow does not look
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": rows}), path)
    with pytest.raises(UserError, match=r"a\.parquet, column 'body', row 2: not UTF-8 \(byte 0xe9"):
        texts(path, text_field="body")
    assert skipping(path, text_field="body") == (["one", "three"], {"not UTF-8": 1})


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "LICENSE", "a.py"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32-le"])
def test_utf16_is_never_read_as_utf8(tmp_path, name, encoding):
    content = json.dumps([{"text": "words of a line"}] * 20) if "json" in name else "words of a line\n" * 20
    (tmp_path / name).write_bytes(content.encode(encoding))
    wide = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    with pytest.raises(UserError, match=rf"{name}:1: {wide}.*, not UTF-8: convert.*iconv -f {wide}"):
        texts(tmp_path / name)
    assert skipping(tmp_path / name)[0] == []


def test_nuls_and_lone_surrogates_become_the_replacement_character(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntw\0o\0\nthree\n" * 3)
    assert texts(path) == ["one\ntw\ufffdo\ufffd\nthree\n" * 3]
    assert TALLY.record([str(path)], REPLACED) == {"a NUL character": Found(6, f"{path}:2")}
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine \\ud83d\\ude00"}\n{"text": "a \\ud83d b \\ude00 \\u0000"}\n')
    found = texts(path)
    assert found == ["fine \U0001f600", "a \ufffd b \ufffd \ufffd"]
    "".join(found).encode()
    counts = {reason: each.count for reason, each in TALLY.record([str(path)], REPLACED).items()}
    assert counts == {"a NUL character": 1, "a lone surrogate (half of a character)": 2}


@pytest.mark.parametrize("wide", ["utf-16-le", "utf-16-be"])
def test_utf16_behind_other_text_is_no_text(tmp_path, wide):
    """PowerShell appends UTF-16 to a file that is UTF-8."""
    path = tmp_path / "a.txt"
    path.write_bytes(b"A line as it should be.\n" * 1000 + "And then another.\n".encode(wide))
    with pytest.raises(UserError, match=r"a.txt:1001: UTF-16 within other text .*18 NUL characters, 'And then another"):
        texts(path)
    assert skipping(path)[0] == []


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_separator_after_many_megabytes_still_separates(tmp_path, name):
    """Only the first megabyte was searched, and the first document then counted as all of the file."""
    long = "word " * 500_000
    path = compressed(tmp_path / name, f"{long}<|endoftext|>\nshort\n<|endoftext|>last\n".encode())
    assert not is_undivided(str(path), Reading())
    assert is_undivided(str(path), Reading(separator="=="))
    assert texts(path) == [long.strip(), "short", "last"]
    resumes(path)


def test_a_folder_of_many_kinds(tmp_path, capsys):
    folder = tmp_path / "docs"
    folder.mkdir()
    names = ["a.md", *(f"{i}.rst" for i in range(20)), "b.tex", "c.org", "d.adoc", "e.log", "f.py", "README"]
    for name in names:
        (folder / name).write_text("Some words.")
    others = {"x.png": b"\x89PNG\r\n\x1a\n", "y.png": b"\x89PNG", "page.xml": b"<a/>", "run": bytes(range(256)) * 9}
    for name, content in others.items():
        (folder / name).write_bytes(content)
    assert sorted(os.path.basename(path) for path in expand([str(folder)])) == sorted(names)
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "left out" in each]
    assert "27 files are read, 4 left out" in line
    assert "2 .png (x.png, y.png)" in line
    assert "1 .xml (page.xml)" in line
    assert "1 without an ending (run)" in line


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [("a.pdb", b"BZh91", "bzip2"), ("a.text", b"\xfd7zXZ\x00", "xz"), ("a.txt", b"\x28\xb5\x2f\xfd", "zstd")],
)
def test_a_file_of_another_kind_that_is_named_alone(tmp_path, name, content, what):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name} is a {what}, which is not read: decompress it"):
        expand([str(tmp_path / name)])
    with pytest.raises(UserError, match=f"{name}: a {what}, which is not read"):
        texts(tmp_path / name)
