"""``python -m slm.train.tools.prepare``: a text read, filtered, divided and tokenized once, for any number of runs."""

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slm import cli
from slm.command import grammar
from slm.configuration import load, to_dict
from slm.data.config import CORPUS
from slm.data.errors import UserError
from slm.data.prepare import finish
from slm.data.prepare.pool import LOOK_SECONDS, do
from slm.data.prepare.repeated import list_repeated, remove_signatures
from slm.data.prepare.work import Step, Work, alone, begin, remove_remains
from slm.data.progress import Progress
from slm.data.sources.documents import sample_documents
from slm.data.sources.prepared import manifest
from slm.data.sources.prepared.manifest import WITHOUT_EFFECT
from slm.data.tokenizers.make import make_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.machine.hardware import compute_threads
from slm.report import duration, final_json, size, table
from slm.train.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class PrepareConfig(RunConfig):
    """A run with text that is prepared."""

    out: str = "corpus"
    """The folder that gets the corpus."""
    processes: int = 0
    """Processes that read and tokenize; 0: as many as there are cores."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes < 0:
            raise UserError(f"processes={self.processes} must be at least 1, or 0: as many as there are cores")

    @property
    def folder(self) -> Path:
        """``out`` as a path."""
        return Path(self.out).expanduser()


def main(argv: list[str]) -> int:
    """Prepare the text, or go on with it, and print what became of it. Returns the exit code."""
    config = load(PrepareConfig, "prepare", argv)
    folder = config.folder
    with alone(folder):
        remove_remains(folder)
        with _shown_alive(f"deciding on the shards of {folder}"):
            work = work_of(config)
        if (folder / CORPUS).exists():
            print(f"{folder} is complete, and the text and the options are those that it was made with")
            report = finish.report_of(folder)
        else:
            processes = config.processes or compute_threads()
            if work.needs_list:
                _do(work, "signatures", processes)
                list_repeated(work)
            remove_signatures(work)
            work = work.with_list()
            _do(work, "shards", processes)
            report = finish.finish(work)
    _show(report, folder)
    print(f"next: {cli.spelled('train', data=f'{folder}/', budget='1h')}")
    final_json({**report, "out": str(folder)})
    return 0


@contextlib.contextmanager
def _shown_alive(what: str) -> Iterator[None]:
    """Show how long ``what`` has taken so far, since nobody knows how long it will: it may train a tokenizer."""
    progress, ended, start = Progress(what), threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(LOOK_SECONDS):
            progress.update(0, None, f"{duration(time.monotonic() - start)} so far")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        progress.done()


def show_prepared(folder: str) -> int:
    """What ``slm data-stats`` says of a prepared corpus: what was counted when it was made. Returns the exit code."""
    manifest.load(folder)
    report = finish.report_of(Path(folder))
    _show(report, Path(folder))
    final_json(report)
    return 0


def words_of(typed: Iterable[str]) -> list[str]:
    """The words of a command line as ``main`` takes them."""
    return grammar.read("prepare", list(typed))


def work_of(config: PrepareConfig) -> Work:
    """What is to be done. The tokenizer is made at the first start."""
    flat = {f"data.{name}": value for name, value in to_dict(config.data).items() if name not in WITHOUT_EFFECT}
    flat |= {f"tokenizer.{name}": value for name, value in to_dict(config.tokenizer).items()}
    flat["train.seed"] = config.train.seed

    def tokenizer() -> Tokenizer:
        sample_bytes, seed = config.tokenizer.sample_bytes, config.train.seed
        if config.tokenizer.trained:
            print(f"training the tokenizer on up to {size(sample_bytes)} of the text", flush=True)
        return make_tokenizer(config.tokenizer, lambda: sample_documents(config.data, "train", sample_bytes, seed))

    return begin(config.data, config.folder, tokenizer, flat)


def _do(work: Work, step: Step, processes: int) -> None:
    missing, n_shards = work.missing(step), len(work.shards)
    total = sum(each.bytes for each in work.shards)
    begun = f", {n_shards - len(missing):,} of them made before" if len(missing) < n_shards else ""
    shards = f"{n_shards:,} shard{'s' * (n_shards != 1)}"
    what = shards if step == "shards" else f"signatures of {shards}, to find duplicates"
    workers = f"{processes} process{'es' * (processes != 1)}"
    print(f"{what}, about {size(total)} of text{begun}; {workers}", flush=True)
    before = total - sum(work.shards[number].bytes for number in missing)
    progress = Progress(f"{step} of {work.folder}", before)
    start = time.monotonic()
    do(work, step, processes, lambda done, n: progress.update(done, total, f"{n:,} of {n_shards:,}"))
    progress.done()
    print(f"{len(missing):,} made in {duration(time.monotonic() - start)}", flush=True)


def _show(report: dict[str, Any], folder: Path) -> None:
    caption = (
        f"{report['tokens']:,} tokens of {report['tokenizer']} ({report['vocab_size']:,} ids) in {folder}. The report, "
        f"with examples of what is left out: {folder / finish.PAGE}"
    )
    table("What was prepared", ["source", "what", "how many"], finish.rows_of(report), caption=caption)


if __name__ == "__main__":
    cli.run(main)
