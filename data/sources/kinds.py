"""Which kind of file a path is, by its name and its first bytes, and which reader the kind has.

To add a reader: write ``data/readers/<kind>.py`` (``slm.data.readers.reader.Reader`` says what it has to give), name it
in ``READERS``, and give the kind its row in ``KINDS`` if it has none.
"""

import functools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

from slm.data.readers import archive, epub, html, mail, notebook, pdf, table, wiki
from slm.data.readers.encodings import not_text
from slm.data.readers.json_records import JsonLines, JsonValues
from slm.data.readers.office import docx, odt, rtf
from slm.data.readers.parquet import Parquet
from slm.data.readers.plain_text import PlainText
from slm.data.readers.reader import BYTE_ORDER_MARK, Reader
from slm.data.sources.compressed import COMPRESSED_SUFFIXES, open_binary

HEAD = 4096
"""Bytes at the beginning of a file by which its kind is told."""


@dataclass(frozen=True)
class Kind:
    """A kind of file."""

    title: str
    """What messages call one of them."""
    suffixes: tuple[str, ...] = ()


KINDS: dict[str, Kind] = {
    "text": Kind(
        "plain text",
        (
            *(".txt", ".md", ".text", ".markdown", ".raw", ".rst", ".rest", ".tex", ".latex", ".org", ".adoc"),
            *(".asciidoc", ".log", ".textile", ".mdx", ".qmd", ".rmd", ".man", ".nfo", ".me", ".wiki"),
        ),
    ),
    "jsonl": Kind("JSON lines", (".jsonl", ".ndjson", ".json")),
    "json": Kind("JSON array"),
    "parquet": Kind("parquet", (".parquet", ".pq")),
    "code": Kind(
        "source code",
        (
            *(".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".cs", ".java", ".js", ".mjs", ".cjs"),
            *(".jsx", ".ts", ".tsx", ".go", ".rs", ".rb", ".php", ".swift", ".kt", ".kts", ".scala", ".clj", ".hs"),
            *(".ml", ".mli", ".ex", ".exs", ".erl", ".lua", ".pl", ".pm", ".r", ".jl", ".sh", ".bash", ".zsh", ".ps1"),
            *(".sql", ".f", ".f90", ".f95", ".m", ".mm", ".d", ".nim", ".zig", ".v", ".sv", ".vhd", ".lisp", ".el"),
            *(".scm", ".rkt", ".dart", ".groovy", ".gradle", ".pas", ".adb", ".ads", ".vb", ".sol", ".tf", ".asm"),
            *(".s", ".cu", ".vue", ".svelte", ".proto", ".cmake"),
        ),
    ),
    "html": Kind("HTML page", (".html", ".htm", ".xhtml")),
    "pdf": Kind("PDF document", (".pdf",)),
    "docx": Kind("Word document", (".docx", ".docm")),
    "odt": Kind("OpenDocument text", (".odt", ".fodt", ".ott")),
    "epub": Kind("EPUB book", (".epub",)),
    "rtf": Kind("RTF document", (".rtf",)),
    "csv": Kind("CSV table", (".csv",)),
    "tsv": Kind("TSV table", (".tsv", ".tab")),
    "xml": Kind("XML file that is no MediaWiki dump", (".xml",)),
    "wiki": Kind("MediaWiki dump"),
    "mail": Kind("mailbox", (".mbox", ".mbx", ".eml", ".mhtml", ".mht")),
    "zip": Kind("ZIP archive", (".zip",)),
    "tar": Kind("TAR archive", (".tar", ".tgz", ".tbz2", ".txz", ".tzst")),
    "notebook": Kind("Jupyter notebook", (".ipynb",)),
}
"""Every kind that is known by name. One without a reader is named and left out, never read as something else."""

READERS: dict[str, Reader] = {
    "text": PlainText(),
    "code": PlainText(),
    "jsonl": JsonLines(),
    "json": JsonValues(),
    "parquet": Parquet(),
    "html": html.READER,
    "pdf": pdf.READER,
    "docx": docx.READER,
    "odt": odt.READER,
    "epub": epub.READER,
    "rtf": rtf.READER,
    "notebook": notebook.READER,
    "csv": table.CSV,
    "tsv": table.TSV,
    "wiki": wiki.READER,
    "mail": mail.READER,
}
"""The readers. A kind that is not here is refused where it is named alone, and left out of folders with a line."""
PLAIN = ("text", "code")
"""Kinds that are plain text: a document between separators, or all of the file."""
RECORDS = ("jsonl", "json", "parquet")
"""Kinds that hold records with named fields."""
TABLES = ("csv", "tsv")
IN_UTF8 = (*PLAIN, "jsonl", "json")
ONE_DOCUMENT = ("html", "pdf", "docx", "odt", "epub", "rtf", "notebook")
"""Kinds that are one document a file, so that it may be long and is divided as plain text is."""
CONVERTED = (*ONE_DOCUMENT, *TABLES, "wiki", "mail", "zip", "tar")
"""Kinds that are converted to text, which takes longer than reading does."""

PACKAGES: dict[str, tuple[str, ...]] = {
    "html": ("resiliparse",),
    "epub": ("resiliparse",),
    "mail": ("resiliparse",),
    "pdf": ("pypdfium2",),
    "rtf": ("striprtf",),
    "wiki": ("mwparserfromhell",),
}
"""What reads a kind, of the extra ``slm[documents]``."""
VERSION = 2
"""Version of the conversions. Another version may give other texts, so it invalidates caches and positions."""

_BY_SUFFIX = {suffix: kind for kind, each in KINDS.items() for suffix in each.suffixes}
_MAGIC = (
    (b"PAR1", "parquet"),
    (b"%PDF-", "pdf"),
    (b"{\\rtf", "rtf"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"PK\x03\x04", "zip"),
)
_HTML = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)

_MAILBOX = re.compile(rb"From [^\n]+\n(?:[A-Za-z-]+:[^\n]*\n(?:[ \t][^\n]*\n)*)*?(?:From|Subject|Date):", re.IGNORECASE)
"""How a mailbox begins: Thunderbird's files have no ending."""
_MAILDIR = re.compile(r"(?:^|/)(?:cur|new)/\d+\.[^/]+$")
"""A message in a Maildir: its time, what makes it unique, the machine's name, flags."""


class Told(NamedTuple):
    """What a file's name and first bytes tell."""

    kind: str | None
    """A key of ``KINDS``; None: nothing that is known."""
    wrong: str = ""
    """For bytes that are not UTF-8: their encoding, or what they are instead of text."""


def file_format(path: str) -> str | None:
    """The file's kind (a key of ``KINDS``) by its name and its first bytes, None for no kind that is known.

    The name decides. Bytes tell a JSON array from JSON lines, and what a file without a known ending is. They also win
    where a file called ``.txt`` begins as a document of another format.
    """
    return tell(path).kind


def tell(path: str) -> Told:
    """The file's kind, and whether what should be text can be."""
    try:
        found = os.stat(path)
    except OSError:
        return Told(suffix_kind(path))
    return _tell(path, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=1 << 16)
def _tell(path: str, size: int, changed: int) -> Told:
    kind = suffix_kind(path)
    if kind is not None and kind not in IN_UTF8 and kind != "xml":
        return Told(kind)
    return of_bytes(path, head(path))


def of_bytes(path: str, first: bytes) -> Told:
    """The kind of a file by its name and its first bytes."""
    kind = suffix_kind(path)
    if kind == "xml" and wiki.ROOT.match(first):
        return Told("wiki")
    if kind is not None and kind not in IN_UTF8:
        return Told(kind)
    magic = next((name for start, name in _MAGIC if first.startswith(start)), None)
    if magic == "zip":
        magic = _inside_zip(first)
        if magic == "zip" and suffix(path) and kind is None:
            magic = None  # a program, a sheet or what else is packed so
    if magic:
        return Told(magic)
    wrong = not_text(first)
    if kind == "jsonl":
        start = first.removeprefix(BYTE_ORDER_MARK).lstrip()
        return Told("json" if start[:1] == b"[" or start.split(b"\n", 1)[0].strip() == b"{" else "jsonl", wrong)
    if (kind is None or suffix(path) in (".txt", ".text")) and _HTML.match(first):
        return Told("html")
    if kind is None and not wrong and first and not suffix(path):
        kind = "mail" if _MAILBOX.match(first) else "text"
    return Told(kind, wrong)


def bare_name(path: str) -> str:
    """The name in lower case, without .gz or .zst."""
    name = os.path.basename(path).lower()
    for each in COMPRESSED_SUFFIXES:
        name = name.removesuffix(each)
    return name


def suffix(path: str) -> str:
    """The name's ending with its dot, in lower case and before .gz or .zst; ``""`` if it has none."""
    return "" if _MAILDIR.search(path) else os.path.splitext(bare_name(path))[1].rstrip(".")


def suffix_kind(path: str) -> str | None:
    """The kind that the file's name says, None for a name that says none."""
    return "mail" if _MAILDIR.search(path) else _BY_SUFFIX.get(suffix(path))


def title(kind: str | None) -> str:
    """What messages call a file of the kind."""
    return KINDS[kind].title if kind in KINDS else kind or "file of an unknown kind"


def missing_package(kind: str | None) -> str:
    """The first package that reads the kind and is not installed; ``""`` if none is missing."""
    return next((each for each in PACKAGES.get(kind or "", ()) if find_spec(each) is None), "")


def conversions(paths: Iterable[str]) -> tuple[tuple[object, ...], ...]:
    """What the texts of these files depend on, next to their bytes: for fingerprints. Empty if none is converted."""
    found = {kind for path in paths if (kind := file_format(path)) in CONVERTED}
    return tuple(_conversion(kind) for kind in sorted(map(str, found)))


@functools.cache
def _conversion(kind: str) -> tuple[object, ...]:
    readers = PACKAGES if kind in ("zip", "tar") else (kind,)
    packages = sorted({package for each in readers for package in PACKAGES.get(each, ())})
    return (kind, VERSION, *((each, version(each)) for each in packages if find_spec(each)))


def head(path: str) -> bytes:
    """The first bytes of the decompressed content; none where it cannot be read."""
    try:
        with open_binary(path) as stream:
            return stream.read1(HEAD) if hasattr(stream, "read1") else stream.read(HEAD)
    except Exception:  # reading it says what is wrong
        return b""


def _kind_of_member(name: str, first: bytes) -> tuple[str | None, str]:
    told = of_bytes(name, first)
    return (None, told.wrong) if told.wrong else (told.kind, "")


_OF_MEMBERS = dict(READERS)  # without archives in archives, which would have no bounds
READERS["zip"] = archive.Archive(archive.zip_members, _kind_of_member, _OF_MEMBERS)
READERS["tar"] = archive.Archive(archive.tar_members, _kind_of_member, _OF_MEMBERS)


def _inside_zip(first: bytes) -> str:
    """Word, OpenDocument and EPUB files are ZIP archives; the first entry's name or content tells."""
    if b"application/epub+zip" in first:
        return "epub"
    if b"application/vnd.oasis.opendocument.text" in first:
        return "odt"
    if b"word/" in first or (b"[Content_Types].xml" in first and b"xl/" not in first and b"ppt/" not in first):
        return "docx"
    return "zip"
