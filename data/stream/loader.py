"""Batches for the training loop: worker processes read ahead, and the position is exactly what was consumed."""

import contextlib
import itertools
import multiprocessing
import pickle
import signal
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from slm.data.bad_records import TALLY
from slm.data.config import DataConfig, SourceConfig
from slm.data.errors import UserError
from slm.data.sources.conversations import chat_files
from slm.data.sources.documents import file_order, make_plans
from slm.data.sources.plan import Plan, Split
from slm.data.stream import marks, read_so_far
from slm.data.stream.conversations import LENGTH_MULTIPLE
from slm.data.stream.pipeline import Pipeline, open_pipeline
from slm.data.stream.read_so_far import ReadSoFar, furthest
from slm.data.stream.worker import main as worker_main
from slm.data.tokenizers.parts import has_odd_tokens
from slm.data.tokenizers.tokenizer import Tokenizer


class EndOfTextError(UserError):
    """The training text is used up: every source was read as often as ``max_epochs`` allows."""


VERSION = 3  # of saved positions
SPREAD = 16  # validation blocks are spread over the first this many times as many of a separate validation text
PIPE_BYTES = 1 << 20  # bytes of blocks read ahead per worker, if the system allows such a pipe (else 64 KB)


class Loader:
    """An iterator of ``np.int32[micro_batch, seq_len + 1]``; a row's targets are its inputs moved by one.

    Training reads its sources again, epoch after epoch, and never ends unless each source has its ``max_epochs``:
    then EndOfTextError follows the last whole batch. The validation split ends; its last batch may have fewer rows
    (``validation_text`` is simpler).

    ``workers`` processes tokenize and pack ahead (0: this process does it, without reading ahead). Their blocks are
    taken in turn, so the batches depend on ``workers`` and ``world_size`` but not on timing. Each of the
    ``world_size * workers`` shards reads its own documents.

    ``pairs``: the blocks hold both answers of preference pairs, instead of the chosen ones only.

    ``calibrates``: some of the training text is left out, for ``calibration_blocks``.

    ``room``: most tokens of a block that conversations share. A batch [micro_batch, T + 1] is only as long as the
    longest of its blocks (``ConversationPacker``).

    ``state_dict()`` is the position after the last batch that was returned, JSON-serialisable. A loader with the same
    arguments (``micro_batch`` may differ) that loads it continues bit for bit.

    Raises UserError at construction for text that cannot be found or reached, and while iterating for text that
    cannot be read; RuntimeError where a worker process dies.
    """

    def __init__(
        self,
        config: DataConfig,
        tokenizer: Tokenizer,
        *,
        seq_len: int,
        micro_batch: int,
        split: Split = "train",
        seed: int,
        workers: int = 1,
        rank: int = 0,
        world_size: int = 1,
        pairs: bool = False,
        room: int | None = None,
        calibrates: bool = False,
    ) -> None:
        assert 0 <= rank < world_size
        assert seq_len >= 1
        assert micro_batch >= 1
        if workers < 0:
            raise UserError(f"workers={workers} must be 0 (no extra process) or more")
        plans = _plans(config, split, pairs, calibrates=calibrates)
        self._config, self._pairs, self._calibrates = config, pairs, calibrates
        self.plans = plans
        """What is read of each source."""
        chats = any(each.source.is_chat for each in plans)
        self._micro_batch = micro_batch
        self._padding = tokenizer.eot_id | marks.UNSCORED
        self._least_length = 0
        self._shards = max(1, workers)
        self._processes = workers
        self._split = split
        self._options: dict[str, Any] = {
            "plans": plans,
            "tokenizer": tokenizer,
            "seq_len": seq_len,
            "seed": seed,
            "shuffle_buffer": config.shuffle_buffer if split == "train" else 0,
            "endless": split == "train",
            "num_shards": world_size * self._shards,
            "cache_option": config.cache,
            "cache_folder": config.cache_folder,
            "pairs": pairs,
            "room": room,
        }
        self._first_shard = rank * self._shards
        self._identity = {
            "version": VERSION,
            "split": split,
            "seq_len": seq_len,
            "seed": seed,
            "shuffle_buffer": self._options["shuffle_buffer"],
            "workers": self._shards,
            "rank": rank,
            "world_size": world_size,
            "tokenizer": f"{tokenizer.vocab_size} ids, {tokenizer.fingerprint}",
            **({"begins": list(tokenizer.begins)} if tokenizer.begins else {}),
            "revision": ", ".join(each.source.revision for each in plans if each.source.from_hub),
            "text": [each.fingerprint for each in plans],
            **({"pairs": True} if pairs else {}),
            **({"special_tokens": 2} if chats and has_odd_tokens(tokenizer.spec) else {}),
            **({} if room is None else {"room": room}),
        }
        self._read_so_far = self._files_of(plans)
        self._states: list[dict[str, Any] | None] = [None] * self._shards
        self._turn = 0
        self._ended = [False] * self._shards
        # The rows of the next batch so far, and the position after them; it counts once the batch is returned.
        self._rows: list[np.ndarray] = []
        self._ahead: tuple[list[dict[str, Any] | None], int] = (list(self._states), 0)
        self._sources: list[_Inline | _Worker] | None = None
        self._closer: weakref.finalize | None = None

    def __iter__(self) -> "Loader":
        return self

    def __next__(self) -> np.ndarray:
        if self._sources is None:
            self._sources = self._start()
        while len(self._rows) < self._micro_batch and not all(self._ended):
            states, turn = self._ahead
            if not self._ended[turn]:
                received = self._sources[turn].receive()
                if received is None:
                    self._ended[turn] = True
                else:
                    block, states[turn] = received
                    self._rows.append(block)
            self._ahead = (states, (turn + 1) % self._shards)
        if self._split == "train" and len(self._rows) < self._micro_batch:
            raise self._end()
        if not self._rows:
            raise StopIteration
        batch = _stacked(self._rows, self._padding, self._least_length)
        self._rows = []
        states, self._turn = self._ahead
        self._states = list(states)
        return batch

    def _end(self) -> UserError:
        """The error to raise where there is no further batch to train on."""
        if self._states == [None] * self._shards:
            return UserError(
                f"there is not one batch of text for this process (of {self._identity['world_size']}): give more text, "
                "weaker data filters, fewer processes or workers, or a smaller micro-batch"
            )
        return EndOfTextError("the training text is used up, every source has been read data.max_epochs times")

    def pad(self) -> None:
        """From now on all batches are [micro_batch, seq_len + 1], for a step that is compiled for one shape."""
        self._least_length = self._options["seq_len"] + 1

    def state_dict(self) -> dict[str, Any]:
        """The position, with hashes of all local text that was read up to it."""
        files = [
            None if each is None else each.digests(furthest(self._states, number))
            for number, each in enumerate(self._read_so_far)
        ]
        held = [dict(plan.held) for plan in self.plans]
        return {**self._identity, "held": held, "files": files, "turn": self._turn, "streams": list(self._states)}

    def _files_of(self, plans: list[Plan]) -> list[ReadSoFar | None]:
        seed = self._options["seed"]
        return read_so_far.make(plans, lambda plan, epoch, n_files: file_order(plan, seed, epoch, n_files))

    def _keep_held_out(self, held: list[dict[str, Any]]) -> None:
        """Hold out what the saved run holds out, though text was added since to a small corpus."""
        if held == [dict(plan.held) for plan in self.plans] or len(held) != len(self.plans):
            return
        self.plans = _plans(self._config, self._split, self._pairs, held, calibrates=self._calibrates)
        self._options["plans"] = self.plans
        self._identity["text"] = [each.fingerprint for each in self.plans]
        self._read_so_far = self._files_of(self.plans)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batch at which ``state`` was taken; UserError where it is of other text or options."""
        self._keep_held_out(state.get("held", []))
        for key, mine in self._identity.items():
            saved = state.get(key)
            if saved != mine:
                if key == "version":
                    raise UserError(
                        "the run was begun by another version of slm, which noted its position in the text in another "
                        f"form ({saved}, not {mine}): start a new run from its weights with model=runs/NAME"
                    )
                if key == "revision":
                    raise UserError(
                        f"the saved position is in the commit {saved} of the data set on the Hub, not {mine}: name the "
                        "revision that it began with, or none, or start a new run"
                    )
                if key == "text":
                    raise UserError(
                        "the text is not the one that the saved data position is in: options that select text, or "
                        "validation files, have changed since. Put back what was there, or start a new run"
                    )
                raise UserError(
                    f"the saved data position is for {key}={saved}, not {mine}: resume with the same data options, "
                    "tokenizer and number of workers, or start a new run"
                )
        for each, files in zip(self._read_so_far, state.get("files", ()), strict=False):
            if each is not None and files is not None:
                each.check(files)
        self.close()
        self._states, self._turn = list(state["streams"]), state["turn"]
        self._ended = [False] * self._shards
        self._rows = []
        self._ahead = (list(self._states), self._turn)

    def _start(self) -> list["_Inline | _Worker"]:
        options = [
            ({**self._options, "shard_index": self._first_shard + i}, state) for i, state in enumerate(self._states)
        ]
        sources: list[_Inline | _Worker]
        if self._processes == 0:
            sources = [_Inline(*options[0])]
        else:
            sources = [_Worker(*each) for each in options]
        self._closer = weakref.finalize(self, _close_all, sources)
        return sources

    def close(self) -> None:
        """End the worker processes. Iterating again restarts them after the last batch that was returned."""
        if self._closer is not None:
            self._closer()
            TALLY.report(final=True)
        self._sources, self._closer = None, None
        self._rows = []
        self._ended = [False] * self._shards
        self._ahead = (list(self._states), self._turn)

    def __enter__(self) -> "Loader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stacked(rows: list[np.ndarray], padding: int, least: int) -> np.ndarray:
    """The blocks as one array, ``padding`` after those that are shorter than the longest, or than ``least``."""
    longest = max(least, *map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row)), constant_values=padding) for row in rows])


def _used(blocks: np.ndarray) -> int:
    """The length of blocks of conversations without the padding that all of them end with."""
    last = int(np.flatnonzero(marks.is_scored(blocks).any(axis=0))[-1])
    return min(blocks.shape[1], 1 + -(-last // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)


class _Inline:
    """A shard read in this process."""

    def __init__(self, options: dict[str, Any], state: dict[str, Any] | None) -> None:
        self._pipeline: Pipeline = open_pipeline(**options)
        if state is not None:
            self._pipeline.load_state_dict(state)

    def receive(self) -> tuple[np.ndarray, dict[str, Any]] | None:
        try:
            block = next(self._pipeline)
        except StopIteration:
            return None
        finally:
            TALLY.report()
        return block, self._pipeline.state_dict()

    def close(self) -> None:
        pass


def death_of(process: BaseProcess, name: str, advice: str) -> Exception:
    """What tells that a process ended before its work: a UserError with ``advice`` where the system killed it."""
    process.join(timeout=5)
    code = process.exitcode
    if code == -signal.SIGKILL:
        return UserError(f"{name} was killed (signal 9), as the system does when memory runs out: {advice}")
    return RuntimeError(f"{name} died (exit code {code})")


class _Worker:
    """A shard read in its own process, started by ``spawn`` so that it inherits no threads or locks."""

    def __init__(self, options: dict[str, Any], state: dict[str, Any] | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._blocks, sender = context.Pipe(duplex=False)
        _widen(sender)
        self._process = context.Process(
            target=worker_main, args=(pickle.dumps((options, state)), sender), name="data-worker", daemon=True
        )
        with without_interrupts():
            self._process.start()
        sender.close()  # the worker has the only writing end, so we read an end of file when it dies

    def receive(self) -> tuple[np.ndarray, dict[str, Any]] | None:
        try:
            kind, *content = self._blocks.recv()
            while kind == "bad":
                TALLY.take(content[0])
                TALLY.report()
                kind, *content = self._blocks.recv()
        except (EOFError, ConnectionResetError):
            raise death_of(
                self._process,
                "a data worker",
                "run again with fewer train.workers or a smaller data.shuffle_buffer; it goes on from the last "
                "checkpoint",
            ) from None
        if kind == "block":
            return content[0], content[1]
        if kind == "user_error":
            raise UserError(content[0])
        if kind == "error":
            raise RuntimeError(f"a data worker failed:\n{content[0]}")
        return None

    def close(self) -> None:
        self._process.kill()  # it ignores SIGINT, SIGTERM and SIGHUP, and has nothing to clean up
        self._process.join()
        self._blocks.close()
        self._process.close()


def _close_all(sources: list[Any]) -> None:
    for source in sources:
        source.close()


def _widen(sender: Connection) -> None:
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(sender.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)


@contextlib.contextmanager
def without_interrupts() -> Any:
    """A process that is started inside never sees Ctrl-C, SIGTERM or SIGHUP, not even while it starts.

    Service managers and torchrun send these signals to every process of a run. The training process then finishes its
    step, for which it needs its workers.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _plans(
    config: DataConfig,
    split: Split,
    pairs: bool,
    held: Sequence[dict[str, Any]] | None = None,
    *,
    calibrates: bool = False,
) -> list[Plan]:
    plans = make_plans(config, split, held, calibrates=calibrates)
    for plan in plans if pairs else ():
        if plan.files:
            chat_files.check_pairs(plan.files, plan.source.column_pairs)
    return plans


def _commits(position: dict[str, Any]) -> list[str]:
    """Those of a position's data sets of the Hub, in the order of the sources."""
    return str(position.get("revision", "")).split(", ")


def at_saved_commits(config: DataConfig, position: dict[str, Any] | None, *, began_with: str = "") -> DataConfig:
    """``config`` with the commits that a saved position is in for data sets of the Hub.

    A long run then goes on with the text that it began with, whatever is changed on the Hub meanwhile. Another
    ``data.revision`` than the run ``began_with`` stays: the loader compares it with the position.
    """
    if config.kind != "mixture" and config.revision not in ("", began_with):
        return config
    sources: list[SourceConfig] = config.sources if config.kind == "mixture" else [config]
    commits = _commits(position or {})
    pinned_here = [each.from_hub for each in sources]
    if len(commits) != sum(pinned_here):
        return config
    left = iter(commits)
    of_each = [next(left) if here else "" for here in pinned_here]
    pinned = [replace(each, revision=commit or each.revision) for each, commit in zip(sources, of_each, strict=True)]
    return replace(config, sources=pinned) if config.kind == "mixture" else replace(config, revision=pinned[0].revision)


def _known_held(config: DataConfig, position: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """What the run of a saved ``position`` holds out of each source."""
    held = (position or {}).get("held")
    return held if held and len(held) == len(config.all_sources()) else None


def calibration_blocks(
    config: DataConfig,
    tokenizer: Tokenizer,
    seq_len: int,
    max_blocks: int,
    seed: int,
    *,
    position: dict[str, Any] | None = None,
) -> np.ndarray:
    """At most ``max_blocks`` blocks of the training text that a ``Loader(calibrates=True)`` leaves out,
    ``np.int32[n, seq_len + 1]``; n = 0 where it is less than one. Those of files are spread over several documents.

    ``position``: that of a loader of the run that resumes, which says what was held out.
    """
    plans = _plans(config, "calibration", False, _known_held(config, position))
    spread = SPREAD if all(plan.has_files for plan in plans) else 1
    pipeline = open_pipeline(
        plans=plans,
        tokenizer=tokenizer,
        seq_len=seq_len,
        seed=seed,
        shuffle_buffer=config.shuffle_buffer,
        endless=False,
    )
    blocks = list(itertools.islice(pipeline, max_blocks * spread))
    return _evenly(blocks, max_blocks) if blocks else np.empty((0, seq_len + 1), np.int32)


def spread_evenly(n: int, most: int) -> np.ndarray:
    """The numbers of at most ``most`` of ``n`` things, spread evenly over all."""
    chosen = min(most, n)
    return (2 * np.arange(chosen) + 1) * n // (2 * chosen)


def _evenly(blocks: list[np.ndarray], most: int) -> np.ndarray:
    """At most this many blocks, spread evenly over all."""
    return np.stack([blocks[number] for number in spread_evenly(len(blocks), most)])


@dataclass(frozen=True)
class HeldOut:
    """The text that validations score."""

    blocks: np.ndarray
    """int32 [N, seq_len + 1]."""
    counts: np.ndarray | None = None
    """int64 [V]: how often each token is a target in all blocks that these stand for; None where they stand for
    themselves."""


def validation_text(
    config: DataConfig,
    tokenizer: Tokenizer,
    seq_len: int,
    max_blocks: int,
    seed: int,
    *,
    pairs: bool = False,
    position: dict[str, Any] | None = None,
) -> HeldOut:
    """At most ``max_blocks`` blocks of the validation split, ``np.int32[n, seq_len + 1]``.

    ``position``: that of a loader of the run that resumes, which says what was held out.

    Those of a separate validation text (``val_files``, ``val_split``) are spread evenly over the first
    ``max_blocks * SPREAD`` blocks, since neighbours are often of one book. Where documents are held out of the training
    text, and of a mixture, they are the first ones: to go on would mean reading the corpus, or one source alone.

    They do not depend on the number of workers and ranks. Raises UserError if there is less than one block of text.
    """
    plans = _plans(config, "validation", pairs, _known_held(config, position))
    spread = SPREAD if len(plans) == 1 and plans[0].is_own_text else 1
    pipeline = open_pipeline(
        plans=plans,
        tokenizer=tokenizer,
        seq_len=seq_len,
        seed=seed,
        shuffle_buffer=config.shuffle_buffer,
        endless=False,
        cache_option=config.cache,
        cache_folder=config.cache_folder,
        pairs=pairs,
    )
    blocks = list(itertools.islice(pipeline, max_blocks * spread))
    if not blocks and any(plan.source.is_chat for plan in plans):
        raise UserError(
            f"none of the held-out conversations has an answer in its first train.seq_len={seq_len} tokens, if any are "
            "held out: give data.val_files=[...] or more conversations, raise data.val_fraction, or raise train.seq_len"
        )
    if not blocks:
        raise UserError(
            f"the validation text is {pipeline.queued} tokens, less than one block of seq_len + 1 = {seq_len + 1}: "
            "give more text or data.val_files=[...], raise data.val_fraction, or lower the sequence length"
        )
    chosen = _evenly(blocks, max_blocks)
    if any(plan.source.is_chat for plan in plans):
        return HeldOut(chosen[:, : _used(chosen)])
    if len(chosen) == len(blocks) or spread == 1:
        return HeldOut(chosen)
    counts = np.zeros(tokenizer.vocab_size, np.int64)
    for block in blocks:
        counts += np.bincount(marks.ids_of(block[1:]), minlength=len(counts))
    return HeldOut(chosen, counts)
