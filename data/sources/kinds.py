"""Which kind of file a path is, by its name and its first bytes, and which reader the kind has.

To add a reader: write ``data/readers/<kind>.py`` (``data.readers.reader.Reader`` says what it has to give), name it
in ``READERS``, and give the kind its row in ``KINDS`` if it has none.
"""

import functools
import os
import re
from dataclasses import dataclass
from typing import NamedTuple

from data.readers.encodings import not_text
from data.readers.json_records import JsonLines, JsonValues
from data.readers.parquet import Parquet
from data.readers.plain_text import PlainText
from data.readers.reader import BYTE_ORDER_MARK, Reader
from data.sources.compressed import COMPRESSED_SUFFIXES, open_binary

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
            *(".scm", ".rkt", ".dart", ".groovy", ".pas", ".asm", ".s", ".cu", ".vue", ".svelte", ".proto", ".cmake"),
        ),
    ),
    "html": Kind("HTML page", (".html", ".htm", ".xhtml", ".mhtml")),
    "pdf": Kind("PDF document", (".pdf",)),
    "docx": Kind("Word document", (".docx", ".docm")),
    "odt": Kind("OpenDocument text", (".odt", ".fodt", ".ott")),
    "epub": Kind("EPUB book", (".epub",)),
    "rtf": Kind("RTF document", (".rtf",)),
    "csv": Kind("CSV table", (".csv",)),
    "tsv": Kind("TSV table", (".tsv", ".tab")),
    "xml": Kind("XML file", (".xml",)),
    "mail": Kind("mailbox", (".mbox", ".mbx", ".eml")),
    "zip": Kind("ZIP archive", (".zip",)),
    "tar": Kind("TAR archive", (".tar", ".tgz", ".tzst")),
    "notebook": Kind("Jupyter notebook", (".ipynb",)),
}
"""Every kind that is known by name. One without a reader is named and left out, never read as something else."""

READERS: dict[str, Reader] = {
    "text": PlainText(),
    "code": PlainText(),
    "jsonl": JsonLines(),
    "json": JsonValues(),
    "parquet": Parquet(),
}
"""The readers. A kind that is not here is refused where it is named alone, and left out of folders with a line."""
PLAIN = ("text", "code")
"""Kinds whose bytes are the text itself: a document between separators, or all of the file."""
RECORDS = ("jsonl", "json", "parquet")
"""Kinds that hold records with named fields."""
IN_UTF8 = (*PLAIN, "jsonl", "json")

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


class Told(NamedTuple):
    """What a file's name and first bytes tell."""

    kind: str | None
    """A key of ``KINDS``; None: nothing that is known."""
    wrong: str = ""
    """Of text that cannot be UTF-8: the encoding, or what it is instead of text."""


def file_format(path: str) -> str | None:
    """The file's kind (a key of ``KINDS``) by its name and its first bytes, None for no kind that is known.

    The name decides. Bytes tell a JSON array from JSON lines, and what a file without a known ending is; a document in
    a format of its own that is called ``.txt`` is what its bytes say.
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
    if kind is not None and kind not in IN_UTF8:
        return Told(kind)
    first = head(path)
    magic = next((name for start, name in _MAGIC if first.startswith(start)), None)
    if magic:
        return Told(_inside_zip(first) if magic == "zip" else magic)
    wrong = not_text(first)
    if kind == "jsonl":
        start = first.removeprefix(BYTE_ORDER_MARK).lstrip()
        return Told("json" if start[:1] == b"[" or start.split(b"\n", 1)[0].strip() == b"{" else "jsonl", wrong)
    if kind is None and _HTML.match(first):
        return Told("html")
    if kind is None and not wrong and first and not suffix(path):
        kind = "text"
    return Told(kind, wrong)


def bare_name(path: str) -> str:
    """The name in lower case, without .gz or .zst."""
    name = os.path.basename(path).lower()
    for each in COMPRESSED_SUFFIXES:
        name = name.removesuffix(each)
    return name


def suffix(path: str) -> str:
    """The name's ending with its dot, in lower case and before .gz or .zst; ``""`` if it has none."""
    return os.path.splitext(bare_name(path))[1].rstrip(".")


def suffix_kind(path: str) -> str | None:
    """The kind that the file's name says, None for a name that says none."""
    return _BY_SUFFIX.get(suffix(path))


def title(kind: str | None) -> str:
    """What messages call a file of the kind."""
    return KINDS[kind].title if kind in KINDS else kind or "file of an unknown kind"


def head(path: str) -> bytes:
    """The first bytes of the decompressed content; none where it cannot be read."""
    try:
        with open_binary(path) as stream:
            return stream.read1(HEAD) if hasattr(stream, "read1") else stream.read(HEAD)
    except Exception:  # reading it says what is wrong
        return b""


def _inside_zip(first: bytes) -> str:
    """Word, OpenDocument and EPUB files are ZIP archives; the first entry's name or content tells."""
    if b"application/epub+zip" in first:
        return "epub"
    if b"application/vnd.oasis.opendocument.text" in first:
        return "odt"
    if b"word/" in first or b"[Content_Types].xml" in first:
        return "docx"
    return "zip"
