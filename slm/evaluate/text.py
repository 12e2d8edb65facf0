"""The text that is scored.

Tested in tests/slm/evaluate/test_evaluate.py.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from slm.data.errors import UserError
from slm.evaluate.perplexity import Scorer
from slm.exported import shown
from slm.runs import Run


@dataclass(frozen=True, kw_only=True)
class Text:
    """What is scored."""

    content: str
    name: str
    documents: tuple[str, ...] = ()
    """The documents of a corpus; empty: the content is one."""

    @property
    def n_words(self) -> int:
        return len(self.content.split())

    @property
    def n_bytes(self) -> int:
        return len(self.content.encode("utf-8"))


WIKITEXT = "wikitext"
"""``eval.text``: WikiText-2's raw test set."""


def text_file(named: Path | None, run: Run) -> Path | None:
    """The file to score: the one named, else the run's held-out text; None: WikiText-2's raw test set. A line says
    which it is where nobody has named it."""
    if named is not None:
        return None if str(named) == WIKITEXT and not named.exists() else named
    own = run.validation_text
    if own is not None:
        print(f"text: {shown(own)}, which the run held out (eval.text={WIKITEXT}: WikiText-2's test set)", flush=True)
    return own


def read_text(path: Path | None) -> Text:
    """The text to score. A text file is taken as it is; without one, WikiText-2's raw test set.

    The documents (column ``text``) of a Parquet or JSON Lines file are joined by blank lines.
    """
    from slm.data.sources import files, wikitext

    if path is not None and path.is_file() and files.file_format(str(path)) in files.RECORDS:
        reading, name = files.Reading(), str(path)
        found = (files.parse(raw, name, end, reading) for raw, end in files.read(name, 0, reading))
        documents = tuple(document for document in found if document)
        if not documents:
            raise UserError(f"{path} is empty: give a file with text")
        return Text(content="\n\n".join(documents), name=path.name, documents=documents)
    return Text(content=wikitext.load(path), name="WikiText-2 raw test" if path is None else path.name)


def shorten(scorer: Scorer, content: str, max_tokens: int | None) -> tuple[str, np.ndarray]:
    """The text, or its whole words from the start with about ``max_tokens`` at most; and its ids. A text without white
    space is cut anywhere."""
    ids = scorer.tokenize(content)
    if max_tokens is None or len(ids) <= max_tokens:
        return content, ids
    cut = content[: int(len(content) * max_tokens / len(ids))]
    stop = next((at for at in range(len(cut) - 1, -1, -1) if cut[at].isspace()), 0)
    part = cut[:stop].rstrip() or cut or content[:1]
    return part, scorer.tokenize(part)


def first_documents(scorer: Scorer, text: Text, max_tokens: int | None) -> tuple[list[str], list[np.ndarray]]:
    """The documents of ``text`` from the start, until they have ``max_tokens``, and the ids of each."""
    documents, ids, n_tokens = [], [], 0
    for document in text.documents or (text.content,):
        documents.append(document)
        ids.append(scorer.tokenize(document))
        n_tokens += len(ids[-1])
        if max_tokens is not None and n_tokens >= max_tokens:
            break
    return documents, ids
