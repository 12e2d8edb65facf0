import gzip
import io
import json
import random
import struct
import tarfile
import zipfile

import pytest
import zstandard

from slm.data.bad_records import TALLY, BadRecordError
from slm.data.errors import UserError
from slm.data.readers import bounds
from slm.data.readers.reader import Reading
from slm.data.sources.corpus import CorpusStream, FileCorpus
from slm.data.sources.files import TextFile
from slm.data.sources.kinds import READERS

MEMBERS = {
    "notes/a.txt": b"The first text.",
    "b.jsonl": b"\n".join(json.dumps({"text": f"line {i}"}).encode() for i in range(5)),
    "page.html": b"<main><p>A page.</p></main>",
    "t.csv": b"id,text\n1,row one\n2,row two\n",
    "code/f.py": b"def f():\n    return 1\n",
    "packed.txt.gz": gzip.compress(b"A packed text."),
    "big.md": b"# Big\n" + b"word \n" * 50_000,
}
LEFT_OUT = {"image.png": b"\x89PNG", ".hidden.txt": b"hidden", "__MACOSX/x.txt": b"fork", "inner.zip": b"PK\x03\x04"}
TEXTS = [
    "The first text.",
    *(f"line {i}" for i in range(5)),
    "A page.",
    "row one",
    "row two",
    "def f():\n    return 1\n",
    "A packed text.",
    MEMBERS["big.md"].decode(),
]


def zipped(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("notes/", b"")
        for name, content in members.items():
            packed.writestr(name, content)
    return buffer.getvalue()


def tarred(members, mode="w"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as packed:
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        packed.addfile(link)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


FORMS = {
    "a.zip": zipped,
    "a.tar": tarred,
    "a.tar.gz": lambda members: tarred(members, "w:gz"),
    "a.tgz": lambda members: tarred(members, "w:gz"),
    "a.tar.bz2": lambda members: tarred(members, "w:bz2"),
    "a.tar.xz": lambda members: tarred(members, "w:xz"),
    "a.tar.zst": lambda members: zstandard.compress(tarred(members)),
    "a.tzst": lambda members: zstandard.compress(tarred(members)),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_member_is_read_by_its_kind_and_from_any_position(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(FORMS[name](MEMBERS | LEFT_OUT))
    file = TextFile(str(path), Reading())
    whole = [(file.text(raw, end), end) for raw, end in file.read()]
    assert [text for text, _ in whole] == TEXTS
    for number in range(len(whole) + 1):
        start = whole[number - 1][1] if number else 0
        assert [(file.text(raw, end), end) for raw, end in file.read(start)] == whole[number:]
    counted = TALLY.record([str(path)])
    assert sorted(counted) == ["an archive in an archive (.zip): unpack it first", "files in archives, .png"]


def test_streams_resume_within_an_archive(tmp_path):
    paths = []
    for name in ("a.zip", "a.tar.gz"):
        (tmp_path / name).write_bytes(FORMS[name](MEMBERS))
        paths.append(str(tmp_path / name))

    def stream():
        corpus = FileCorpus(tuple(paths), Reading())
        return CorpusStream(corpus, order=lambda n: list(range(n)), shard_index=0, num_shards=2)

    whole = list(stream())
    assert len(whole) == len(TEXTS)
    for count in (0, 3, 8, 11):
        first, second = stream(), stream()
        got = [next(first) for _ in range(count)]
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert [*got, *second] == whole


def test_a_bad_member_leaves_the_others(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(zipped({"a.txt": b"one", "b.pdf": b"no PDF", "c.txt": b"two"}))
    file = TextFile(str(path), Reading(on_bad="auto"))
    assert [text for raw, end in file.read() if (text := file.text(raw, end))] == ["one", "two"]
    ((reason, found),) = TALLY.record([str(path)]).items()
    assert reason.startswith("PDF: damaged")
    assert found.first.startswith(f"{path}, b.pdf")
    file = TextFile(str(path), Reading(on_bad="stop"))
    with pytest.raises(UserError, match=r"a\.zip, b\.pdf: PDF: damaged"):
        [file.text(raw, end) for raw, end in file.read()]


def test_a_member_in_another_encoding_is_named_as_such(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(zipped({"a.txt": b"one", "b.txt": "words of two bytes".encode("utf-16")}))
    assert len(list(TextFile(str(path), Reading(on_bad="auto")).read())) == 1
    ((reason, found),) = TALLY.record([str(path)]).items()
    assert reason == "files in archives, .txt (UTF-16LE)"
    assert found.first == f"{path}: b.txt"


def test_what_was_read_is_compared_by_names_and_contents():
    found = [raw for raw, _ in READERS["zip"].read(io.BytesIO(zipped(MEMBERS)), "a.zip", 0, Reading())]
    again = [raw for raw, _ in READERS["zip"].read(io.BytesIO(zipped(MEMBERS)), "a.zip", 0, Reading())]
    assert [each.content for each in found] == [each.content for each in again]
    assert found[0].content == b"notes/a.txt\0The first text."
    assert found[7].content == b"t.csv\0Row(names=['id', 'text'], values=['1', 'row one'])"
    (bad,) = (
        raw for raw, _ in READERS["zip"].read(io.BytesIO(encrypted(zipped({"x.txt": b"a"}))), "a.zip", 0, Reading())
    )
    assert bad.content == b"x.txt\0an encrypted file in an archive"


def read(data, kind="zip"):
    found = READERS[kind].read(io.BytesIO(data), "a.zip", 0, Reading())
    return [READERS[kind].parse(raw, end, Reading()) for raw, end in found]


def encrypted(data):
    """The archive with the bit that marks its files as encrypted."""
    changed = bytearray(data)
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = data.find(mark)
        while place >= 0:
            (flags,) = struct.unpack_from("<H", changed, place + at)
            struct.pack_into("<H", changed, place + at, flags | 1)
            place = data.find(mark, place + 1)
    return bytes(changed)


def test_bombs_are_refused():
    zeros = bytes(bounds.SMALL + (2 << 20))
    with pytest.raises(BadRecordError, match="far more than text"):
        read(zipped({"a.txt": zeros}))
    with pytest.raises(BadRecordError, match="far more than text"):
        read(zipped({"a.txt.gz": gzip.compress(zeros)}))
    with pytest.raises(BadRecordError, match="far more than text"):
        read(tarred({"a.txt.gz": gzip.compress(zeros)}), "tar")
    # Members that share their packed bytes, as in the bomb of Fifield (2019): each is within bounds, all are not.
    name, content = "a.txt", b"x" * (3 << 20)
    buffer = io.BytesIO(zipped({name: content}))
    with zipfile.ZipFile(buffer, "a") as packed:
        info = packed.getinfo(name)
        packed.filelist.extend([info] * 50)
        packed._didModify = True
    with pytest.raises(BadRecordError, match="far more than text"):
        read(buffer.getvalue())


def test_names_lead_nowhere(tmp_path):
    (tmp_path / "outside.txt").write_text("OUTSIDE")
    members = {"../outside.txt": b"one", "/etc/passwd.txt": b"two", "c:\\x.txt": b"three", "a\0b.txt": b"four"}
    assert read(zipped(members))[:3] == ["one", "two", "three"]
    assert read(tarred({k: v for k, v in members.items() if "\0" not in k}), "tar") == ["one", "two", "three"]
    assert (tmp_path / "outside.txt").read_text() == "OUTSIDE"


def test_damaged_and_encrypted_archives():
    whole = zipped(MEMBERS)
    for data, kind, reason in (
        (whole[: len(whole) // 2], "zip", "ZIP archive: damaged"),
        (b"", "zip", "ZIP archive: damaged"),
        (tarred(MEMBERS, "w:gz")[:-2000], "tar", "TAR archive: damaged"),
        (random.Random(1).randbytes(3000), "tar", "TAR archive: damaged"),
        (encrypted(whole), "zip", "an encrypted file in an archive"),
    ):
        with pytest.raises(BadRecordError, match=reason):
            read(data, kind)
    changed = bytearray(zipped({"a.txt": b"some text " * 100}))
    changed[80] ^= 0xFF
    with pytest.raises(BadRecordError, match="a damaged or encrypted file"):
        read(bytes(changed))
