"""Documents that readers convert, as a run reads them: kinds, plans, cache, resume, what is left out."""

import json
import zipfile

import pytest

from slm.data.bad_records import TALLY
from slm.data.config import DataConfig, TokenizerConfig
from slm.data.errors import UserError
from slm.data.sources import files, kinds
from slm.data.sources.documents import iter_documents
from slm.data.sources.plan import plan_sources
from slm.data.stream import token_cache
from slm.data.stream.loader import Loader
from slm.data.tales.story import story
from slm.data.tokenizers.make import make_tokenizer

PAGE = "<html><body><nav>Menu</nav><main><h1>{0}</h1><p>{1}</p></main></body></html>"


def folder_of_documents(folder, n=24):
    """Pages, a table, a mail, an archive and some that cannot be read."""
    for i in range(n):
        text = f"Page {i} says " + " ".join(f"word{i}x{j}" for j in range(40))
        (folder / f"page{i}.html").write_text(PAGE.format(f"Title {i}", text))
    (folder / "rows.csv").write_text("id,text\n" + "".join(f"{i},row {i} of the table\n" for i in range(30)))
    (folder / "mail.eml").write_text("Subject: hello\n\nThe text of a mail.\n")
    with zipfile.ZipFile(folder / "more.zip", "w") as archive:
        for i in range(5):
            archive.writestr(f"{i}.html", PAGE.format("Inside", f"an archive, number {i}"))
    (folder / "scan.pdf").write_bytes(b"%PDF-1.4 nothing")
    (folder / "book.epub").write_bytes(b"PK\x03\x04 cut off")
    (folder / "pom.xml").write_text("<project><page>1</page></project>")
    (folder / "program.jar").write_bytes(b"PK\x03\x04" + bytes(100))
    return folder


def test_kinds_by_name_and_bytes(tmp_path):
    folder_of_documents(tmp_path)
    (tmp_path / "wiki.xml").write_text('<mediawiki version="0.11"></mediawiki>')
    (tmp_path / "no_ending").write_text(PAGE)
    told = {
        **{"page0.html": "html", "rows.csv": "csv", "mail.eml": "mail", "more.zip": "zip", "scan.pdf": "pdf"},
        **{"pom.xml": "xml", "program.jar": None, "wiki.xml": "wiki", "no_ending": "html"},
    }
    assert {name: kinds.file_format(str(tmp_path / name)) for name in told} == told
    taken = {each.rsplit("/", 1)[1] for each in files.expand([str(tmp_path)])}
    assert not taken & {"pom.xml", "program.jar"}
    assert {"wiki.xml", "scan.pdf", "more.zip"} <= taken
    with pytest.raises(UserError, match=r"pom\.xml is a XML file that is no MediaWiki dump, which is not read"):
        files.expand([str(tmp_path / "pom.xml")])


def test_a_folder_is_read_and_what_cannot_be_read_is_counted(tmp_path):
    folder_of_documents(tmp_path)
    config = DataConfig(kind="files", files=[str(tmp_path)])
    texts = []
    for split in ("train", "validation"):
        texts += iter_documents(config, split, seed=1)
    joined = "\n".join(texts)
    assert "Menu" not in joined
    for i in (0, 11, 23):
        assert f"Page {i} says" in joined
    for text in ("row 29 of the table", "The text of a mail.", "an archive, number 4"):
        assert text in joined
    counted = TALLY.record([str(tmp_path / "scan.pdf"), str(tmp_path / "book.epub")])
    assert {reason.split(":")[0] for reason in counted} == {"PDF", "EPUB book"}
    assert all(found.count == 1 for found in counted.values())
    stop = DataConfig(kind="files", files=[str(tmp_path)], on_bad="stop")
    with pytest.raises(UserError, match=r"book\.epub: EPUB book: damaged"):
        plan_sources(stop, "train")


def test_conversions_are_cached_and_part_of_the_fingerprint(tmp_path, monkeypatch):
    folder_of_documents(tmp_path)
    pages = plan_sources(DataConfig(kind="files", files=[f"{tmp_path}/*.html"]), "train")[0]
    (tmp_path / "plain.txt").write_text("Plain text. " * 50)
    (tmp_path / "plain.md").write_text("More of it. " * 50)
    plain = plan_sources(DataConfig(kind="files", files=[f"{tmp_path}/*.txt", f"{tmp_path}/*.md"]), "train")[0]
    assert token_cache.is_wanted("auto", pages)
    assert not token_cache.is_wanted("auto", plain)
    before, earlier = (pages.corpus, plain.corpus), (pages.fingerprint, plain.fingerprint)
    monkeypatch.setattr(kinds, "VERSION", kinds.VERSION + 1)
    kinds._conversion.cache_clear()
    assert pages.corpus != before[0]
    assert plain.corpus == before[1]
    assert pages.fingerprint != earlier[0]
    assert plain.fingerprint == earlier[1]
    kinds._conversion.cache_clear()


@pytest.mark.parametrize("cache", [False, True])
def test_batches_are_the_same_after_a_resume(tmp_path, cache):
    text = tmp_path / "text"
    text.mkdir()
    folder_of_documents(text)
    options = {"shuffle_buffer": 8, "cache": cache, "cache_dir": str(tmp_path / "cache")}
    config = DataConfig(kind="files", files=[str(text)], **options)
    tokenizer = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), lambda: (story(0, i) for i in range(50)))

    def loader():
        return Loader(config, tokenizer, seq_len=64, micro_batch=2, seed=3, workers=0)

    whole = iter(loader())
    batches = [next(whole).tolist() for _ in range(90)]  # more than an epoch
    for count in (1, 40, 70):
        first = loader()
        batch = iter(first)
        for _ in range(count):
            next(batch)
        second = loader()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        batch = iter(second)
        assert [next(batch).tolist() for _ in range(90 - count)] == batches[count:]


def test_a_missing_package_is_one_line(tmp_path, monkeypatch):
    folder_of_documents(tmp_path)
    monkeypatch.setitem(kinds.PACKAGES, "html", ("no_such_package",))
    message = (
        r"data\.files: 24 x HTML page \(.*page0\.html, .* and 21 more\): the package no_such_package, which reads it"
    )
    with pytest.raises(UserError, match=message + r", is not installed: pip install 'slm\[documents\]'"):
        files.expand([str(tmp_path)])
