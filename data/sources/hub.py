"""Documents from the Hugging Face Hub, streamed by the ``datasets`` library: nothing is downloaded in whole."""

import contextlib
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from slm.data.bad_records import REPLACED, TALLY, BadRecordError
from slm.data.chat import message_trees
from slm.data.config import SourceConfig
from slm.data.errors import UserError, excerpt, nearest, one_line
from slm.data.readers import parquet
from slm.data.readers.reader import addressed
from slm.data.sources.conversations.chat_files import to_conversation
from slm.data.sources.conversations.chat_records import Record, row_of
from slm.data.sources.retry import retry

TIMEOUT = 8  # seconds to reach the Hub before giving up
INSTEAD = "run with data=tales (embedded stories) or data=local data.files=[...]"
STATE_EVERY = 1000  # rows between states of ``datasets``, from which reading resumes after a broken connection
SKIP = "leave such rows out with data.on_bad=skip"
COMMIT = re.compile(r"[0-9a-f]{40}")
HEADING = re.compile(r"^ = [^=].*[^=] = \s*$")


def check_reachable(source: SourceConfig) -> None:
    """Raise UserError within seconds if the Hub cannot be reached (``datasets`` would retry for minutes)."""
    if os.path.isdir(source.path):
        return
    from huggingface_hub import constants

    host = constants.ENDPOINT.split("://")[-1]
    offline = "HF_HUB_OFFLINE" if constants.HF_HUB_OFFLINE else "HF_DATASETS_OFFLINE"
    if constants.HF_HUB_OFFLINE or os.environ.get(offline, "").upper() in constants.ENV_VARS_TRUE_VALUES:
        raise UserError(f"{source.path} is on {host}, but {offline} is set: unset it, or {INSTEAD}")
    import httpx

    try:
        httpx.head(constants.ENDPOINT, timeout=TIMEOUT)
    except httpx.HTTPError as error:
        raise UserError(
            f"{host} could not be reached for {source.path} ({type(error).__name__}): check the network, or {INSTEAD}"
        ) from error


@contextlib.contextmanager
def hub_errors(source: SourceConfig) -> Iterator[None]:
    """Turn what ``datasets`` raises for a wrong name, configuration, split or network into one line."""
    from datasets.exceptions import DatasetNotFoundError

    try:
        yield
    except UserError:
        raise
    except DatasetNotFoundError as error:
        raise UserError(f"there is no data set {source.path} (or it needs a login): check data.path") from error
    except (ValueError, ConnectionError, OSError, RuntimeError) as error:
        # huggingface_hub's and fsspec's errors are OSErrors; a wrong configuration or split is a ValueError.
        text = one_line(error)
        split = re.match(r"Bad split: (\w+)\. Available splits: (.*)", text)
        if split:
            known = re.findall(r"[\w.-]+", split.group(2))
            hint = nearest(split.group(1), known) or "set data.split"
            raise UserError(
                f"{source.path} has no split {split.group(1)!r}; {hint} (it has: {', '.join(known)})"
            ) from error
        raise UserError(f"{source.path}: {type(error).__name__}: {text[:300]}; check data.*, or {INSTEAD}") from error


def open_split(source: SourceConfig, split: str) -> Any:
    """The split as a ``datasets.IterableDataset``; UserError where it or its text column does not exist."""
    import datasets.config
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar, set_verbosity_error
    from huggingface_hub.utils import logging as hub_logging

    set_verbosity_error()
    hub_logging.set_verbosity_error()
    disable_progress_bar()
    # Its own retries are silent and wait for minutes; those of slm.data.sources.retry print a line each.
    datasets.config.STREAMING_READ_MAX_RETRIES = datasets.config.STREAMING_OPEN_MAX_RETRIES = 1
    datasets.config.STREAMING_READ_RETRY_INTERVAL = datasets.config.STREAMING_OPEN_RETRY_INTERVAL = 0
    datasets.config.STREAMING_READ_SERVER_UNAVAILABLE_RETRY_INTERVAL = 0
    datasets.config.STREAMING_READ_RATE_LIMIT_RETRY_INTERVAL = 0
    with hub_errors(source):
        options = {"name": source.subset or None, "revision": source.revision or None}
        dataset = load_dataset(source.path, split=split, streaming=True, **options)
        columns = dataset.column_names
        if columns is None:
            columns = list(next(iter(dataset), {}))
        if source.kind == "chat":
            return dataset.with_format("arrow")
        if source.text_field not in columns:
            raise UserError(
                f"{source.path} has no column {source.text_field!r}; its columns are "
                f"{', '.join(map(repr, columns))}: set data.text_field"
            )
        wanted = [source.text_field, *([source.url_field] if source.blocked_urls else [])]
        if wanted[-1] not in columns:
            raise UserError(
                f"{source.path} has no column {wanted[-1]!r} for data.blocked_urls; its columns are "
                f"{', '.join(map(repr, columns))}: set data.url_field"
            )
        # Tables of Arrow's, one row each: rows as Python's values would end at the first text that is not UTF-8.
        return dataset.select_columns(wanted).with_format("arrow")


def resolve(source: SourceConfig) -> str:
    """The commit that the source's revision points to, which identifies the text; ``""`` for a folder.

    Of a revision that is a commit nothing is asked: a run that resumes has one, and perhaps all of its text in the
    cache and no network. Raises UserError where the Hub cannot be reached, or the data set or revision does not exist.
    """
    if os.path.isdir(source.path):
        return ""
    if COMMIT.fullmatch(source.revision):
        return source.revision
    check_reachable(source)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    def ask() -> str:
        return HfApi().dataset_info(source.path, revision=source.revision or None, timeout=TIMEOUT).sha or ""

    with hub_errors(source):
        try:
            return retry(ask, source.path)
        except RevisionNotFoundError as error:
            raise UserError(f"{source.path} has no revision {source.revision!r}: check data.revision") from error
        except RepositoryNotFoundError as error:
            raise UserError(f"there is no data set {source.path} (or it needs a login): check data.path") from error


class HubCorpus:
    """A split's files, streamed. Where documents span rows (WikiText), the whole split counts as one file."""

    def __init__(self, source: SourceConfig, split: str) -> None:
        self._source = source
        self._split = split
        self._dataset: Any = None
        self._reached = False

    def n_files(self) -> int:
        return self._opened().num_shards if self._by_row() else 1

    def splits_by_file(self, n_shards: int) -> bool:
        return self._by_row() and self.n_files() >= n_shards

    def open(self, file: int, record: int, position: Any) -> "_Rows | _Articles | _Trees":
        def dataset() -> Any:
            # Opened again after a failure: the connections of the old one are gone.
            whole = self._opened()
            return whole.shard(num_shards=whole.num_shards, index=file) if self._by_row() else whole

        row = None  # of a record's number none is known where a record may be several rows
        if position is None or (self._by_row() and self._source.kind != "chat"):
            row = 0 if position is None else record
        rows = _Rows(dataset, self._close, self._source, position, file=file, row=row)
        reader: _Rows | _Articles | _Trees = rows
        if not self._by_row():
            reader = _Articles(rows)
        elif self._source.kind == "chat":
            reader = _Trees(rows)
        if position is None:
            for _ in range(record):
                next(reader)
        return reader

    def _by_row(self) -> bool:
        return self._source.rows == "documents"

    def _opened(self) -> Any:
        if self._dataset is None:
            if not self._reached:
                check_reachable(self._source)  # in seconds; later on, ``retry`` waits for the network
                self._reached = True
            with hub_errors(self._source):
                self._dataset = retry(lambda: open_split(self._source, self._split), self._source.path)
        return self._dataset

    def _close(self) -> None:
        self._dataset = None


class _Rows:
    """The text column of a streamed data set, row by row; every row once, however often the connection breaks."""

    def __init__(
        self,
        open_dataset: Callable[[], Any],
        close: Callable[[], None],
        source: SourceConfig,
        position: Any,
        *,
        file: int = 0,
        row: int | None = None,
    ) -> None:
        self._open_dataset = open_dataset
        self._close = close
        self._source = source
        self._dataset: Any = None
        self._iterator: Iterator[Any] | None = None
        self._known = position  # a state of ``datasets``, None: the beginning
        self._since = 0  # rows given after it
        self._file = file
        self._row_number = row
        """Number in its file of the row given last; None where unknown, after a position within articles."""

    def __next__(self) -> Any:
        with hub_errors(self._source):
            table = retry(self._row, self._source.path, self._disconnect)
        self._since += 1
        if self._row_number is not None:
            self._row_number += 1
        if self._since == STATE_EVERY:
            self.position()
        return self._conversation(table) if self._source.kind == "chat" else self._text(table)

    def _conversation(self, table: Any) -> Record:
        record = row_of(table, 0, self._place())
        features = self._dataset.features
        if record.error or features is None:
            return record
        return Record(features.decode_example(record.value), record.where)  # of columns that hold JSON as text

    def _text(self, table: Any) -> str:
        scalar = table.column(self._source.text_field)[0]
        try:
            raw = parquet.raw_text(scalar)
            text = parquet.parse_text(raw, field=self._source.text_field)
        except TypeError:
            text = self._other(scalar)
            if not isinstance(text, str):
                return self._leave_out(f"the column {self._source.text_field!r} is not text", text)
        except BadRecordError as error:
            return self._leave_out(error.reason, detail=error.detail)
        if "\0" in text:
            self._count("a NUL character", text, count=text.count("\0"), kind=REPLACED)
            text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
        if self._source.blocked_urls:
            text = addressed(text, self._url(table))
        return text

    def _url(self, table: Any) -> str | None:
        try:
            raw = parquet.raw_text(table.column(self._source.url_field)[0])
        except TypeError:
            return None
        return None if raw is None else raw.decode("utf-8", "replace")

    def _other(self, scalar: Any) -> Any:
        """The value of a column that is none of text: JSON of several types holds texts, too."""
        field, features = self._source.text_field, self._dataset.features
        value = {field: scalar.as_py()}
        return (features.decode_example(value) if features else value)[field]

    def _leave_out(self, reason: str, row: Any = "", *, detail: str = "") -> str:
        if not self._source.skips_bad:
            what = f"but {excerpt(row)}: set data.text_field, or {SKIP}" if not detail else f"({detail}): {SKIP}"
            raise UserError(f"{self._place()}: {reason} {what}")
        self._count(reason, detail or row)
        return ""

    def _count(self, reason: str, shown: Any, **more: Any) -> None:
        if self._row_number is not None:
            position = (self._file << 40) + self._row_number
        else:  # its content tells it apart
            position = zlib.crc32(repr(shown).encode("utf-8", "surrogatepass"))
        first = f"{self._place()}: {excerpt(shown)}"
        TALLY.add(reason, path=self._source.path, position=position, first=lambda: first, **more)

    def _place(self) -> str:
        at = "a row" if self._row_number is None else f"file {self._file + 1}, row {self._row_number:,}"
        return f"{self._source.path}: {at}"

    def _row(self) -> Any:
        """The next row, as a table."""
        if self._iterator is None:
            self._dataset = self._open_dataset()
            # Also None, the beginning: an earlier pass may have set a position, and ``datasets`` keeps it.
            self._dataset.load_state_dict(self._known)
            iterator = iter(self._dataset)
            for _ in range(self._since):
                next(iterator)
            self._iterator = iterator
        return next(self._iterator)

    def _disconnect(self) -> None:
        self._iterator = self._dataset = None
        self._close()

    def document(self, row: Any) -> str | None:
        if self._source.kind == "chat":
            found = to_conversation(row, stop=not self._source.skips_bad, columns=self._source.column_pairs)
            return None if found is None else found[1]
        return row if row and not row.isspace() else None

    def position(self) -> Any:
        if self._since:
            self._known, self._since = self._dataset.state_dict(), 0
        return self._known

    def fraction_read(self) -> float:
        return 0.0


class _Trees:
    """Rows of conversations; where rows are messages (OpenAssistant's), one record for each tree of neighbouring
    rows."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._state: Any = None  # before the row that was read ahead
        self._ahead: Record | None = None

    def __next__(self) -> Record:
        first, self._ahead = self._ahead or next(self._rows), None
        tree = message_trees.tree_of(first.value)
        if tree is None:
            return first
        group = [first.value]
        while True:
            state = self._rows.position()
            try:
                row = next(self._rows)
            except StopIteration:
                break
            if message_trees.tree_of(row.value) != tree:
                self._ahead, self._state = row, state
                break
            group.append(row.value)
        return Record(message_trees.join(group), first.where)

    def document(self, record: Record) -> str | None:
        return self._rows.document(record)

    def position(self) -> Any:
        return self._rows.position() if self._ahead is None else self._state

    def fraction_read(self) -> float:
        return 0.0


class _Articles:
    """WikiText's lines joined into articles: each begins with its title, `` = Title = ``."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._state: Any = None  # before the title that was read ahead
        self._title: str | None = None

    def __next__(self) -> str:
        lines = [] if self._title is None else [self._title]
        self._title = None
        while True:
            state = self._rows.position()
            try:
                row = next(self._rows)
            except StopIteration:
                if any(line.strip() for line in lines):
                    return "".join(lines)
                raise
            if HEADING.match(row) and any(line.strip() for line in lines):
                self._title, self._state = row, state
                return "".join(lines)
            lines.append(row or " \n")

    def document(self, text: str) -> str | None:
        return self._rows.document(text)

    def position(self) -> Any:
        return self._rows.position() if self._title is None else self._state

    def fraction_read(self) -> float:
        return 0.0
