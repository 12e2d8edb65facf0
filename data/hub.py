"""Documents from the Hugging Face Hub, streamed by the ``datasets`` library: nothing is downloaded in whole."""

import contextlib
import os
import re
from collections.abc import Iterator
from typing import Any

from data.config import SourceConfig
from data.errors import UserError, nearest

TIMEOUT = 8  # seconds to reach the Hub before giving up
INSTEAD = "run with data=tales (embedded stories) or data=local data.files=[...]"
HEADING = re.compile(r"^ = [^=].*[^=] = \s*$")


def check_reachable(source: SourceConfig) -> None:
    """Raise UserError within seconds where the Hub cannot be reached (``datasets`` would retry for minutes)."""
    if os.path.isdir(source.path):
        return
    from huggingface_hub import constants

    host = constants.ENDPOINT.split("://")[-1]
    if constants.HF_HUB_OFFLINE:
        raise UserError(f"{source.path} is on {host}, but HF_HUB_OFFLINE is set: unset it, or {INSTEAD}")
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
        text = " ".join(str(error).split())
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
    from datasets import load_dataset
    from datasets.utils.logging import disable_progress_bar, set_verbosity_error

    set_verbosity_error()
    disable_progress_bar()
    with hub_errors(source):
        options = {"name": source.subset or None, "revision": source.revision or None}
        dataset = load_dataset(source.path, split=split, streaming=True, **options)
        columns = dataset.column_names
        if columns is None:
            columns = list(next(iter(dataset), {}))
        if source.text_field not in columns:
            raise UserError(
                f"{source.path} has no column {source.text_field!r}; its columns are "
                f"{', '.join(map(repr, columns))}: set data.text_field"
            )
        return dataset.select_columns([source.text_field])


class HubStream:
    """One pass over a split (or over one worker's part of it)."""

    def __init__(self, source: SourceConfig, split: str, *, shard_index: int, num_shards: int) -> None:
        self._source = source
        dataset = open_split(source, split)
        # Whole files are shared out where there are enough and documents do not span rows.
        by_file = source.rows == "documents" and dataset.num_shards >= num_shards
        if by_file and num_shards > 1:
            dataset = dataset.shard(num_shards=num_shards, index=shard_index)
        self._index, self._count = (0, 1) if by_file else (shard_index, num_shards)
        self._rows = _Rows(dataset, source)
        self._articles = _Articles(self._rows) if source.rows == "wikitext" else self._rows
        self._ordinal = 0  # of the next document, before sharing out

    def __iter__(self) -> "HubStream":
        return self

    def __next__(self) -> str:
        while True:
            text = next(self._articles)
            mine = self._ordinal % self._count == self._index
            self._ordinal += 1
            if mine and text.strip():
                return text

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._articles.state_dict(), "ordinal": self._ordinal}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._articles.load_state_dict(state["rows"])
        self._ordinal = state["ordinal"]


class _Rows:
    """The text column of a streamed data set, row by row."""

    def __init__(self, dataset: Any, source: SourceConfig) -> None:
        self._dataset = dataset
        self._source = source
        self._iterator: Iterator[dict[str, Any]] | None = None
        self._start = dataset.state_dict()

    def __next__(self) -> str:
        with hub_errors(self._source):
            if self._iterator is None:
                self._iterator = iter(self._dataset)
            text = next(self._iterator)[self._source.text_field]
        if text is not None and not isinstance(text, str):
            raise UserError(f"{self._source.path}: the column {self._source.text_field!r} is not text")
        return text or ""

    def state_dict(self) -> dict[str, Any]:
        return self._start if self._iterator is None else self._dataset.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._start = state
        self._dataset.load_state_dict(state)
        self._iterator = None


class _Articles:
    """WikiText's lines joined into articles: each begins with its title, `` = Title = ``."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows
        self._state: dict[str, Any] | None = None  # before the title that is held
        self._title: str | None = None

    def __next__(self) -> str:
        lines = [] if self._title is None else [self._title]
        self._title = None
        while True:
            state = self._rows.state_dict()
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

    def state_dict(self) -> dict[str, Any]:
        return self._rows.state_dict() if self._title is None else dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows.load_state_dict(state)
        self._title = None
