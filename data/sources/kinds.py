"""Which kind of file a path is, by its name and its first bytes, and which reader the kind has.

To add a reader: write ``data/readers/<kind>.py`` (``data.readers.reader.Reader`` says what it has to give), name it
in ``READERS``, and give the kind its row in ``KINDS`` if it has none.
"""

import os
import re
from dataclasses import dataclass

from data.readers import docx, epub, html, mail, notebook, odt, pdf, rtf, table, wiki
from data.readers.reader import Reader
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

DOCUMENT_READERS: dict[str, Reader] = {
    "html": html.READER,
    "pdf": pdf.READER,
    "docx": docx.READER,
    "odt": odt.READER,
    "epub": epub.READER,
    "rtf": rtf.READER,
    "notebook": notebook.READER,
    "csv": table.CSV,
    "tsv": table.TSV,
    "xml": wiki.READER,
    "mail": mail.READER,
}
READERS: dict[str, Reader] = {}
"""The readers. A kind that is not here is refused where it is named alone, and left out of folders with a line."""

_BY_SUFFIX = {suffix: kind for kind, each in KINDS.items() for suffix in each.suffixes}

_MAGIC = (
    (b"PAR1", "parquet"),
    (b"%PDF-", "pdf"),
    (b"{\\rtf", "rtf"),
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"PK\x03\x04", "zip"),
)
_HTML = re.compile(rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)


def bare_name(path: str) -> str:
    """The name in lower case, without .gz or .zst."""
    name = os.path.basename(path).lower()
    for suffix in COMPRESSED_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def suffix_kind(path: str) -> str | None:
    """The kind that the file's name says, None for a name that says none."""
    return _BY_SUFFIX.get(os.path.splitext(bare_name(path))[1])


def file_format(path: str) -> str | None:
    """The file's kind (a key of ``KINDS``) by its name and its first bytes, None for no kind that is known.

    The name decides, except that bytes tell a JSON array from JSON lines, and what a name without a known ending is.
    """
    kind = suffix_kind(path)
    if kind == "jsonl":
        first = head(path).removeprefix(b"\xef\xbb\xbf").lstrip()
        return "json" if first[:1] == b"[" or first.split(b"\n", 1)[0].strip() == b"{" else "jsonl"
    return kind or _kind_of_bytes(head(path))


def head(path: str) -> bytes:
    """The first bytes of the decompressed content; none where it cannot be read."""
    try:
        with open_binary(path) as stream:
            return stream.read(HEAD)
    except Exception:  # reading it says what is wrong
        return b""


def _kind_of_bytes(first: bytes) -> str | None:
    for magic, kind in _MAGIC:
        if first.startswith(magic):
            return _inside_zip(first) if kind == "zip" else kind
    if _HTML.match(first):
        return "html"
    return None


def _inside_zip(first: bytes) -> str:
    """Word, OpenDocument and EPUB files are ZIP archives; the first entry's name or content tells."""
    if b"application/epub+zip" in first:
        return "epub"
    if b"application/vnd.oasis.opendocument.text" in first:
        return "odt"
    if b"word/" in first or b"[Content_Types].xml" in first:
        return "docx"
    return "zip"
