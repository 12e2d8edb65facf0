"""Compressed files: read whole whatever their pieces, and never taken for whole when they are cut."""

import gzip
import io

import pytest
import zstandard

from slm.data.errors import UserError
from slm.data.sources import compressed
from slm.data.sources.compressed import open_binary
from slm.data.sources.files import Reading, read

TEXT = b"".join(b"Sentence %d of the text.\n\n" % i for i in range(4000))
HALF = len(TEXT) // 2
SKIPPABLE = (0x184D2A50).to_bytes(4, "little") + (4).to_bytes(4, "little") + b"note"


def streamed(content):
    """Zstandard as a pipe makes it: no length in the frame's header."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor(write_checksum=True).stream_writer(out, closefd=False) as writer:
        writer.write(content)
    return out.getvalue()


FORMS = {
    "one.txt.gz": [gzip.compress(TEXT)],
    "members.txt.gz": [gzip.compress(TEXT[:HALF]), gzip.compress(TEXT[HALF:])],
    "one.txt.zst": [zstandard.compress(TEXT)],
    "streamed.txt.zst": [streamed(TEXT)],
    "frames.txt.zst": [zstandard.compress(TEXT[:HALF]), streamed(TEXT[HALF:])],
    "skippable.txt.zst": [SKIPPABLE, streamed(TEXT[:HALF]), SKIPPABLE, zstandard.compress(TEXT[HALF:]), SKIPPABLE],
}


def cuts(pieces):
    """Places within the file that are no piece's end: in the header, the body and the check sum of each."""
    found, start = set(), 0
    for piece in pieces:
        n = len(piece)
        found |= {start + at for at in (1, 3, 5, n // 2, n - 5, n - 3, n - 1) if 0 < at < n}
        start += n
    return sorted(found)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("at_once", [7, 1 << 16])
def test_every_form_is_read_whole(tmp_path, monkeypatch, name, at_once):
    monkeypatch.setattr(compressed, "_READ", at_once)
    path = tmp_path / name
    path.write_bytes(b"".join(FORMS[name]))
    with open_binary(str(path)) as file:
        assert file.read() == TEXT


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
@pytest.mark.parametrize("name", FORMS)
def test_a_cut_file_is_an_error_that_names_it(tmp_path, name, kind):
    content = b"".join(FORMS[name])
    path = tmp_path / name.replace("txt", kind)
    for cut in cuts(FORMS[name]):
        path.write_bytes(content[:cut])
        with pytest.raises(UserError) as error:
            list(read(str(path), 0, Reading()))
        assert path.name in str(error.value), cut
        assert "complete" in str(error.value), cut
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.jsonl.zst"])
def test_an_empty_compressed_file_is_incomplete(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"")
    with pytest.raises(UserError, match=rf"{name}.*complete"):
        list(read(str(path), 0, Reading()))


@pytest.mark.parametrize("empty", [gzip.compress(b"", mtime=0), zstandard.compress(b"")], ids=["gzip", "zstandard"])
def test_compressed_nothing_is_no_documents(tmp_path, empty):
    path = tmp_path / ("a.txt.gz" if empty[:2] == b"\x1f\x8b" else "a.txt.zst")
    path.write_bytes(empty)
    assert list(read(str(path), 0, Reading())) == []


def test_the_file_is_closed(tmp_path):
    for name in ("one.txt.gz", "one.txt.zst"):
        path = tmp_path / name
        path.write_bytes(b"".join(FORMS[name]))
        with open(path, "rb") as probe:
            number = probe.fileno()  # the number that the next open file gets
        with open_binary(str(path)) as file:
            file.read(10)
        with open(path, "rb") as probe:
            assert probe.fileno() == number
