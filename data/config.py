"""The options of text and tokens: frozen keyword-only dataclasses, checked at construction."""

import os
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from slm.data.errors import UserError, nearest
from slm.data.storage import cache_home

SourceKind = Literal["tales", "files", "hub", "mixture", "chat", "story_chat"]
WHOLE_FILE = 4 << 20
"""The usual ``document_chars``, bytes: more than a novel has. It bounds the memory that a document takes."""
LONGEST_DOCUMENT = 16 << 20
"""The most that ``document_chars`` may be, bytes. Text between two separators is cut at a blank line after it."""
Split = Literal["gpt2", "digits", "code"]
CORPUS, CORPUS_PLAN = "slm-corpus.json", "slm-plan.json"
"""What tells the folder of a prepared corpus, one that is complete and one that was begun."""
CHAT_COLUMNS = (
    *("user", "assistant", "system", "context", "history", "reasoning", "tools", "messages", "chosen", "rejected"),
)
"""What ``columns`` can name."""
FILTERS = (
    *("min_chars", "max_chars", "min_letters", "script", "min_script"),
    *("languages", "rules", "blocked_words", "blocked_urls", "filter", "decontaminate", "mask_personal"),
)
"""Options that decide which documents are left out, and what is changed in the others."""
INHERITED = ("max_epochs", "on_bad", *FILTERS)
"""Options that a mixture sets for all its sources."""


def is_prepared(folder: str) -> bool:
    """Whether a folder holds a prepared corpus, complete or not."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (CORPUS, CORPUS_PLAN))


@dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One stream of documents. Which of the fields count depends on ``kind``."""

    kind: SourceKind
    """``tales`` (embedded stories), ``files`` (local), ``hub`` (a Hugging Face data set), ``mixture``; conversations:
    ``chat`` (from ``files``, or with ``path`` from the Hub), ``story_chat`` (embedded, about the stories)."""
    name: str = ""
    """What messages call this source; empty: made from the kind and the first path."""
    weight: float = 1.0
    """Share of the mixture's tokens, relative to the other sources' weights."""
    validated: bool = True
    """Whether the text that it holds out is scored in validations."""
    max_epochs: int | None = None
    """How often the source may be read; then it leaves the mixture, or the training text ends. None: no limit. (The
    embedded stories never end.)"""

    files: list[str] = field(default_factory=list)
    """``files``: paths, globs or folders of files of any kind that has a reader (``slm.data.sources.kinds``), also
    compressed. A folder's hidden files are left out, and so is a ``.json`` file without the ``text_field`` in its first
    record."""
    val_files: list[str] = field(default_factory=list)
    """``files``: validation text; empty: ``val_fraction`` of the documents is held out instead."""
    document_chars: int = WHOLE_FILE
    """``files``: a text file is one document up to about this many bytes; a longer one is cut at blank lines."""
    separator: str = "<|endoftext|>"
    """``files``: a mark that ends a document within a text file; empty: there is none."""

    path: str = ""
    """``hub``: ``owner/name``, or a folder that ``datasets`` can load."""
    subset: str = ""
    """``hub``: the data set's configuration, for example ``20231101.en``."""
    split: str = "train"
    """``hub``: the split to train on."""
    val_split: str = ""
    """``hub``: the split to validate on; empty: ``val_fraction`` of the documents is held out instead."""
    revision: str = ""
    """``hub``: branch, tag or commit; empty: the default branch."""
    rows: Literal["documents", "wikitext"] = "documents"
    """``hub``: each row is a document, or (``wikitext``) a line of an article; lines are joined into articles."""

    text_field: str = "text"
    """``files`` and ``hub``: the column or JSON key that holds the text."""

    columns: dict[str, str] | None = None
    """``chat``: the columns of a table or the fields of a record by what they hold, for example ``{user: q, assistant:
    a}``; null: they are recognised by their names."""
    tool_template: Literal["auto", "own", "ours"] = "auto"
    """``chat``: where the model's chat template does not write tools, their calls or results, it gets one that does
    (``auto``); or it stays, and conversations that it cannot write are left out (``own``). ``ours``: conversations with
    tools get that other one always."""
    train_on: Literal["all", "last"] = "all"
    """``chat``: which answers of a conversation are learned: all, or those after the user's last message (its last tool
    calls, too). Answers that are marked as not to be learned (``weight: 0``) never are."""
    on_bad: Literal["auto", "stop", "skip"] = "auto"
    """Whether a record that cannot be read (a torn line, text that is not UTF-8, no conversation) ends the run or is
    left out and counted; ``auto``: ``skip`` for ``chat`` and for documents (PDF, HTML, mail), ``stop`` for text."""

    min_chars: int = 0
    """Shorter documents are left out."""
    max_chars: int = 0
    """Longer documents are left out; 0: no limit."""
    min_letters: float = 0.0
    """Least share of letters among a document's characters, white space not counted; others are left out."""
    script: str = ""
    """A script, by the first word of its letters' Unicode names (latin, cyrillic, greek, cjk, hangul, ...), in any
    case; empty: any script."""
    min_script: float = 0.5
    """With ``script``: least share of a document's letters that belong to it; others are left out."""
    languages: list[str] = field(default_factory=list)
    """Keep only documents in these languages, by their codes (``en``, ``de``); empty: any language."""
    rules: str = "none"
    """Sets of rules, joined by ``+``. Documents that break one are left out: those of Gopher's text on ``repetition``,
    or all of them (``gopher``), of which some are for English prose; those of C4 (``c4``), which also take lines out of
    the other documents."""
    blocked_words: str = ""
    """A file with a word or phrase a line; documents that hold one are left out. Empty: none."""
    blocked_urls: str = ""
    """A file with a domain or the beginning of an address a line. Records with such a ``url_field``, or one that begins
    so, are left out. Empty: none."""
    url_field: str = "url"
    """``blocked_urls``: the column or JSON key that holds a record's address."""
    filter: str = ""
    """``module:function``, a Python function that takes a text and returns True (keep) or False. The
    module is one of this folder or an installed one, or a file (``own/filters.py:keep``)."""
    decontaminate: list[str] = field(default_factory=list)
    """Files of evaluation texts (txt, jsonl, json, parquet): documents with 13 words in a row of theirs are left out,
    and such passages are cut out of documents of 32,768 characters or more."""
    mask_personal: bool = False
    """Whether e-mail addresses, telephone and card numbers, IP addresses and keys are replaced by marks."""

    def __post_init__(self) -> None:
        if not self.weight > 0 or self.weight == float("inf"):
            raise UserError(f"weight={self.weight} of source {self.label!r} must be a positive number")
        if self.max_epochs is not None and self.max_epochs < 1:
            raise UserError(
                f"max_epochs={self.max_epochs} of source {self.label!r} must be at least 1, or null: no end"
            )
        self._check_filters()
        if not 256 <= self.document_chars <= LONGEST_DOCUMENT:
            raise UserError(
                f"document_chars={self.document_chars} must be from 256 to {LONGEST_DOCUMENT}; the default, "
                f"{WHOLE_FILE}, leaves nearly every file whole"
            )
        if self.kind == "chat" and bool(self.path) == bool(self.files):
            raise UserError(
                "data=chat needs conversations: add data.files=[chats.jsonl] (JSON lines, JSON or parquet), or "
                "data.path=owner/name for a data set on the Hub, and only one of the two"
            )
        self._check_columns()
        if self.kind == "hub" and not self.path:
            raise UserError("a Hub source needs a path: add data.path=owner/name")

    def _check_columns(self) -> None:
        if self.columns is None:
            return
        for name, column in self.columns.items():
            if name not in CHAT_COLUMNS:
                raise UserError(
                    f"data.columns: {name} is not known; {nearest(name, CHAT_COLUMNS) or 'known'} "
                    f"({', '.join(CHAT_COLUMNS)})"
                )
            if not isinstance(column, str | int | float) or isinstance(column, bool):
                raise UserError(f"data.columns: {name} must be the name of a column, not {column!r}")
        named = self.columns.keys()
        if not any(each <= named for each in ({"user", "assistant"}, {"messages"}, {"chosen", "rejected"})):
            raise UserError(
                "data.columns needs user and assistant, or messages, or chosen and rejected, for example "
                "data.columns={user: question, assistant: answer}"
            )

    def _check_filters(self) -> None:
        if self.rules != "none" and not self.rule_sets <= {"repetition", "gopher", "c4"}:
            raise UserError(f"rules={self.rules} must be none, repetition, gopher, c4, or several joined: gopher+c4")
        if self.is_chat and ("c4" in self.rule_sets or self.blocked_urls):
            raise UserError("rules=c4 and blocked_urls are for documents of the web, not for conversations")
        for code in self.languages:  # which of them there are, ``slm.data.quality.language`` knows
            if not (code.isalpha() and code.islower() and 2 <= len(code) <= 3):
                raise UserError(f"languages={code} is not a code of two or three small letters, for example [en,de]")
        if self.filter and not all(self.filter.partition(":")):
            raise UserError(
                f"filter={self.filter} names no function: write data.filter=module:function, a Python function that "
                "takes a text and returns True (keep) or False"
            )
        for name in ("min_chars", "max_chars"):
            if getattr(self, name) < 0:
                raise UserError(f"{name}={getattr(self, name)} must be 0 (off) or a number of characters")
        if 0 < self.max_chars < self.min_chars:
            raise UserError(
                f"max_chars={self.max_chars} is less than min_chars={self.min_chars}: no document would be left"
            )
        for name in ("min_letters", "min_script"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{name}={getattr(self, name)} must be a share from 0 to 1")
        if self.script:
            from slm.data.unicode_scripts import scripts  # needs numpy, and half a second for its table

            if self.script_key not in scripts():
                hint = nearest(self.script, scripts()) or "for example latin, cyrillic, greek, arabic, cjk, hangul"
                raise UserError(
                    f"script={self.script_key!r} is not the first word of any letter's Unicode name; {hint}"
                )

    @property
    def prepared(self) -> str:
        """The folder of a prepared corpus (``slm prepare``), where ``files`` names it and nothing else; else empty."""
        if self.kind != "files" or len(self.files) != 1:
            return ""
        folder = os.path.expanduser(self.files[0])
        return folder if is_prepared(folder) else ""

    @property
    def from_hub(self) -> bool:
        """Whether it is read from the Hub, or from a folder that ``datasets`` loads."""
        return self.kind == "hub" or (self.kind == "chat" and bool(self.path))

    @property
    def column_pairs(self) -> tuple[tuple[str, str], ...]:
        """``columns`` as pairs, in order."""
        return tuple(sorted((name, str(column)) for name, column in (self.columns or {}).items()))

    @property
    def skips_bad(self) -> bool:
        """Whether records that cannot be read are left out and counted."""
        return self.on_bad == "skip" or (self.on_bad == "auto" and self.is_chat)

    @property
    def is_chat(self) -> bool:
        """Whether its documents are conversations (as ``slm.data.chat.formats`` writes them) instead of text."""
        return self.kind in ("chat", "story_chat")

    @property
    def label(self) -> str:
        """The name that messages use."""
        if self.from_hub and self.name == self.subset:  # data.name is then the data set's configuration
            return f"{self.path} {self.subset}".strip()
        return self.name or self.path or (self.files[0] if self.files else self.kind)

    @property
    def rule_sets(self) -> frozenset[str]:
        """The names in ``rules``."""
        return frozenset() if self.rules == "none" else frozenset(self.rules.split("+"))

    @property
    def script_key(self) -> str:
        """``script`` in lower case, as the table of scripts has it."""
        return self.script.lower()


@dataclass(frozen=True, kw_only=True)
class DataConfig(SourceConfig):
    """The text of a run: one source, or with ``kind=mixture`` several weighted sources."""

    sources: list[SourceConfig] = field(default_factory=list)
    """``mixture``: what is mixed, by ``weight``."""
    with_files: list[SourceConfig] = field(default_factory=list)
    """``mixture``: the sources in place of ``sources`` where ``files`` are given: those of kind ``files`` that name
    none read these (and validate on ``val_files``). A configuration that was built has them in ``sources``."""
    val_fraction: float = 0.01
    """Share of the documents (chosen by a hash of their text) held out where no validation text is named. 0, for
    conversations only: nothing is held out, and validations score conversations that are trained on."""
    shuffle_buffer: int = 1024
    """Documents shuffled together, in consecutive groups of at most this many (and 16 MB); 0: in file order."""
    dedup: Literal["none", "exact", "near"] = "none"
    """Which documents are left out as duplicates of earlier ones: the same words (``exact``), or nearly (``near``)."""
    dedup_threshold: float = 0.8
    """``near``: the least share of common five-word sequences (Jaccard) that makes two documents duplicates."""
    dedup_max_docs: int | None = None
    """The most documents that are compared, from the beginning of the sources; later ones are kept unchecked. None:
    all."""
    cache: Literal["auto", True, False] = "auto"
    """Whether tokenized text is kept on disk; ``auto``: only for slow sources (the Hub, compressed files,
    documents that are converted)."""
    cache_dir: str = ""
    """The folder of the cache; empty: ``$SLM_CACHE``, else ``slm`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._take_files()
        if not 0 <= self.val_fraction < 1:
            raise UserError(f"val_fraction={self.val_fraction} must be between 0 and 1, for example 0.01")
        if self.val_fraction == 0 and not all(each.kind == "chat" for each in self._validated()):
            raise UserError("val_fraction=0 is for conversations (data=chat), which may be few: give for example 0.01")
        if self.shuffle_buffer < 0:
            raise UserError(f"shuffle_buffer={self.shuffle_buffer} must be 0 (off) or a number of documents")
        if not 0.3 <= self.dedup_threshold <= 1:
            raise UserError(f"dedup_threshold={self.dedup_threshold} must be from 0.3 to 1, for example 0.8")
        if self.dedup_max_docs is not None and self.dedup_max_docs < 1:
            raise UserError(f"dedup_max_docs={self.dedup_max_docs} must be at least 1, or null: all documents")
        if self.kind == "mixture":
            if not self.sources:
                raise UserError("data kind=mixture needs data.sources: a list of sources with weights")
            if any(source.kind == "mixture" for source in self.sources):
                raise UserError("a mixture's sources cannot be mixtures themselves: list their sources directly")
            if not any(source.validated for source in self.sources):
                raise UserError("data.sources: at least one source must be scored in validations (validated: true)")
        elif self.sources:
            raise UserError(f"data.sources is for kind=mixture, not kind={self.kind}: remove one of the two")

    def _take_files(self) -> None:
        """Replace a mixture's sources by those for ``files``, so that ``sources`` always lists what is read."""
        if self.kind != "mixture":
            return
        if self.val_files and not self.files:
            raise UserError("data.val_files needs data.files: what the files hold takes the place of the Hub's text")
        if self.files:
            if not self.with_files:
                raise UserError(
                    "data.files is for one source: a mixture names files in its sources, {kind: files, files: [...]}"
                )
            sources = [
                replace(each, files=self.files, val_files=self.val_files)
                if each.kind == "files" and not each.files
                else each
                for each in self.with_files
            ]
            for name, value in (("sources", sources), ("files", []), ("val_files", [])):
                object.__setattr__(self, name, value)
        # What is not read is not part of a run: one that began before there was such a choice goes on.
        object.__setattr__(self, "with_files", [])

    def _validated(self) -> list[SourceConfig]:
        return [each for each in self.sources if each.validated] if self.kind == "mixture" else [self]

    @property
    def has_chat(self) -> bool:
        """Whether any of the sources gives conversations: their model then needs a chat template."""
        return any(source.is_chat for source in self.all_sources())

    @property
    def cache_folder(self) -> Path:
        """Where tokenized text and lists of duplicates are kept."""
        named = self.cache_dir or os.environ.get("SLM_CACHE")
        return Path(named).expanduser() if named else cache_home()

    def all_sources(self) -> list[SourceConfig]:
        """The sources to read: this one, or the mixture's. A mixture's limits and filters apply to each of its
        sources that does not set its own."""
        if self.kind == "mixture":
            usual = {
                f.name: f.default if f.default_factory is MISSING else f.default_factory()
                for f in fields(SourceConfig)
                if f.name in INHERITED
            }
            given = {name: getattr(self, name) for name in INHERITED if getattr(self, name) != usual[name]}
            return [
                replace(source, **{k: v for k, v in given.items() if getattr(source, k) == usual[k]})
                for source in self.sources
            ]
        return [SourceConfig(**{f.name: getattr(self, f.name) for f in fields(SourceConfig)})]


TRAINED = ("bpe", "sentencepiece", "unigram")
"""Kinds of tokenizers that are trained on a run's own text."""


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Which tokenizer a run uses, and how one of kind ``bpe``, ``sentencepiece`` or ``unigram`` is trained."""

    kind: Literal["tiktoken", "bpe", "sentencepiece", "unigram", "file"]
    """A tiktoken encoding by name; a byte-level BPE, a BPE over characters with byte fallback (SentencePiece's form,
    as Llama 2's) or a Unigram tokenizer without (as T5's), trained on the run's own text; a tokenizer from disk."""
    name: str = "gpt2"
    """``tiktoken``: the encoding's name (gpt2, cl100k_base, o200k_base, ...)."""
    fallback: Literal["none", "bpe"] = "none"
    """``tiktoken``: what to do if its vocabulary is neither cached nor reachable: fail (``none``) or train a BPE."""
    vocab_size: int = 4096
    """For a trained one: most ids, with the end-of-text token and the 256 bytes; little text may give fewer."""
    min_frequency: int = 2
    """For a trained BPE: a pair is merged only if it was seen this often."""
    sample_bytes: int = 50_000_000
    """For a trained one: the size of the text it is trained on, in bytes."""
    split: Split = "gpt2"
    """For a trained one: where text is cut before pairs are merged. ``gpt2``: words with the blank before them,
    numbers, signs; ``digits``: the same, and each digit is one token (as SmolLM's); ``code``: each digit, a sign stays
    with the word behind it, line ends with the signs before them, and indentation is kept together (as Qwen 2's)."""
    path: str = ""
    """``file``: a Hugging Face model or tokenizer directory, a tokenizer.json, or a SentencePiece .model."""
    eot_token: str = ""
    """``file``: the token that ends a document, if the files do not name it."""

    @property
    def trained(self) -> bool:
        """Whether it is trained on the run's own text."""
        return self.kind in TRAINED

    def __post_init__(self) -> None:
        if self.kind == "bpe" and self.vocab_size < 257:
            raise UserError(
                f"tokenizer.vocab_size={self.vocab_size} is too small: 256 bytes and the end-of-text token make 257"
            )
        if self.kind == "sentencepiece" and self.vocab_size < 300:
            raise UserError(
                f"tokenizer.vocab_size={self.vocab_size} is too small: 256 bytes, two special tokens and the text's "
                "most frequent characters need 300"
            )
        if self.kind == "unigram" and self.vocab_size < 200:
            raise UserError(
                f"tokenizer.vocab_size={self.vocab_size} is too small: ASCII and the text's most frequent characters "
                "need 200"
            )
        if self.min_frequency < 1 or self.sample_bytes < 1:
            raise UserError("tokenizer.min_frequency and tokenizer.sample_bytes must be at least 1")
        if self.kind == "file" and not self.path:
            raise UserError(
                "tokenizer=file needs a path: add tokenizer.path=DIR (a Hugging Face directory, "
                "a tokenizer.json or a SentencePiece .model)"
            )
