"""``python -m export.bench run=RUN``: what each quantization type costs and gains, in one table.

Every type is made from one checkpoint, with an importance matrix and, where few bits are left, without; each file is
compared with the unquantized one in the same engine, on the same text, and timed. The files lie in a temporary folder
inside the run's directory that goes away with the command: nothing exported before is touched, nothing is kept.
The last line printed is a JSON object.
"""

import math
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from data.errors import UserError
from export.bench.config import SweepConfig, Variant, variants
from export.config import UNQUANTIZED
from slm import report, runs
from slm.configuration import build, load_config
from slm.machine.hardware import compute_threads, share_cores
from slm.machine.record import machine_record

if TYPE_CHECKING:
    from slm.evaluate.text import Text

Say = Callable[[str], None]


@dataclass(kw_only=True)
class Row:
    """One file's figures."""

    type: str
    imatrix: bool
    size_mib: float
    """File length, 2^20 bytes."""
    bits_per_weight: float
    perplexity: float
    """Per token, sliding window."""
    stderr: float
    perplexity_change: float
    """Relative to the reference's."""
    bits_per_byte: float
    kl: float
    """Mean Kullback-Leibler divergence from the reference, nats per position."""
    same_top: float
    """Part of positions where the likeliest token is the reference's."""
    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None


def main(argv: list[str]) -> int:
    """Measure every type, print the table and the JSON line."""
    config = build(SweepConfig, load_config("bench_quant", argv), where="")
    share_cores()
    stopped: list[int] = []

    def stop(number: int, _frame: object = None) -> None:
        """A polite kill removes the temporary files as Ctrl-C does."""
        stopped.append(number)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def say(line: str) -> None:
        if stopped:
            stop(stopped[0])  # what is raised while llama.cpp writes its log is lost
        print(line, flush=True)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        record = sweep(config, say)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    show(record)
    report.final_json(record)
    return 0


def sweep(config: SweepConfig, say: Say = lambda line: None) -> dict[str, Any]:
    """Make, compare and time every file; the record that is printed last. UserError for what a person can mend."""
    import torch

    from export.gguf.writer import run_record, write_gguf
    from export.pipeline import calibration_text, make_quantized, measure_importance, open_source
    from export.quantize import size_bound
    from export.staging import Staging, check_room

    wanted = variants(config)
    run = runs.resolve(config.run)
    threads = config.threads or compute_threads()
    torch.set_num_threads(threads)
    options = config.export_config()
    text = read_text(config, run)
    source = open_source(options, run, [each.kind for each in wanted])
    out = config.out or run.root
    began = perf_counter()
    with Staging(out) as staging:
        logits_bytes = 4 * config.eval.kl_tokens * source.model.config.vocab_size
        check_room(out, logits_bytes + sum(size_bound(source.model.config.n_params, each.kind) for each in wanted))
        say(f"checkpoint {source.checkpoint}: {source.model.config.n_params:,} parameters, {len(wanted)} files")
        imatrix = None
        if any(each.imatrix for each in wanted):
            imatrix = measure_importance(options, source, calibration_text(options, run, say), say)
        record = run_record(run, source.checkpoint)
        paths: list[Path] = []
        rows: list[Row] = []
        judge = None
        began_files = perf_counter()
        for number, variant in enumerate(wanted):
            path = staging.path(f"{number:02d}-{variant.kind}.gguf")
            if variant.kind in UNQUANTIZED:
                write_gguf(
                    path,
                    variant.kind,
                    model=source.model.config,
                    weights=source.model.state_dict(),
                    vocab=source.vocab,
                    identity=source.identity,
                    record=record,
                )
            else:
                make_quantized(paths[0], path, variant.kind, imatrix if variant.imatrix else None, threads, _quiet(say))
            judge = judge or Judge(config, path, text, staging.folder, threads)
            rows.append(judge.compare(path, variant))
            paths.append(path)
            left_s = (perf_counter() - began_files) / len(rows) * (len(wanted) - len(rows))
            say(f"[{len(rows)} of {len(wanted)}] {variant.label}: {_told(rows[-1], number == 0)}; {_left(left_s)}")
        speed = measure_speed(config, paths, rows, judge, say) if config.speed.rounds else None
    return {
        "run": run.name,
        "checkpoint": source.checkpoint.name,
        "parameters": source.model.config.n_params,
        "reference": config.base,
        "text": {"name": text.name, "tokens": judge.n_scored, "definition": f"sliding/{judge.context}"},
        "kl_positions": judge.n_compared,
        "imatrix": {"dataset": imatrix.dataset, "chunks": imatrix.n_chunks, "n_ctx": imatrix.chunk_size}
        if imatrix
        else None,
        "speed": speed,
        "threads": threads,
        "seconds": perf_counter() - began,
        "files": [asdict(each) for each in rows],
        "machine": machine_record(),
    }


def read_text(config: SweepConfig, run: runs.Run) -> "Text":
    """The text to compare on: named, else the run's held-out documents, else WikiText."""
    from slm.evaluate.text import read_text as read

    return read(config.eval.text or run.validation_text)


class Judge:
    """The reference's predictions, kept on the disk, and the comparison of every file with them."""

    def __init__(self, config: SweepConfig, path: Path, text: "Text", folder: Path, threads: int) -> None:
        from slm.evaluate.config import LONGEST_DEFAULT_CONTEXT
        from slm.evaluate.perplexity import sliding_plan
        from slm.evaluate.scorers import GGUFScorer
        from slm.evaluate.text import shorten

        self.folder, self.threads = folder, threads
        self.context = config.eval.context or LONGEST_DEFAULT_CONTEXT
        with GGUFScorer(path, context=self.context, n_threads=threads) as scorer:
            self.context = scorer.max_context  # the model's own where that is less
            self.n_ctx_train = scorer.llama.n_ctx_train
            content, ids = shorten(scorer, text.content.removesuffix("\n"), config.eval.max_tokens)
            self.n_bytes = len(content.encode("utf-8"))
            self.stream, self.windows = sliding_plan(scorer, ids, self.context)
        if not self.windows:
            raise UserError("the text is too short to score: it has no token to predict; give more text")
        self.n_scored = sum(window.last - window.first for window in self.windows)
        sizes = np.cumsum([window.last - window.first for window in self.windows])
        # Whole windows: as many as come nearest to kl_tokens without going over, at least one.
        self.n_kept = max(1, int(np.searchsorted(sizes, config.eval.kl_tokens, side="right")))
        self.n_compared = int(sizes[self.n_kept - 1])
        self.reference: float | None = None
        """The reference's perplexity, once it was compared (with itself)."""

    def _kept(self) -> Iterator[np.ndarray]:
        return (np.load(self.folder / f"logits-{number}.npy", mmap_mode="r") for number in range(self.n_kept))

    def compare(self, path: Path, variant: Variant) -> Row:
        """One pass over the text; the first file is the reference and leaves its logits for the others."""
        from export.proof import compare_logits
        from slm.evaluate.perplexity import bits_per_byte, nll_of, reduce
        from slm.evaluate.progress import progress_bar
        from slm.evaluate.scorers import GGUFScorer

        found: list[np.ndarray] = []
        total = sum(window.stop - window.start for window in self.windows)
        with (
            GGUFScorer(path, context=self.context, n_threads=self.threads) as scorer,
            progress_bar(variant.label, total) as progress,
        ):

            def logits() -> Iterator[np.ndarray]:
                for window, logits_NV in scorer.logits(self.windows, self.stream):
                    found.append(nll_of(logits_NV, window.targets(self.stream)))
                    if progress:
                        progress(window.stop - window.start)
                    yield logits_NV

            passing = logits()
            if self.reference is None:
                self._keep(islice(passing, self.n_kept))
                kl, same_top = 0.0, 1.0
            else:
                difference = compare_logits(self._kept(), islice(passing, self.n_kept))
                kl, same_top = difference.kl, difference.same_top
            for _ in passing:
                pass
            header = scorer.llama.header
        score = reduce(np.concatenate(found))
        self.reference = self.reference if self.reference is not None else score.perplexity
        n_weights = sum(math.prod(tensor.shape) for tensor in header.tensors)
        return Row(
            type=variant.kind,
            imatrix=variant.imatrix,
            size_mib=path.stat().st_size / 2**20,
            bits_per_weight=8 * sum(tensor.n_bytes for tensor in header.tensors) / n_weights,
            perplexity=score.perplexity,
            stderr=score.stderr,
            perplexity_change=score.perplexity / self.reference - 1,
            bits_per_byte=bits_per_byte(score.nll, self.n_bytes),
            kl=kl,
            same_top=same_top,
        )

    def _keep(self, logits: Iterator[np.ndarray]) -> None:
        try:
            for number, logits_NV in enumerate(logits):
                np.save(self.folder / f"logits-{number}.npy", logits_NV)
        except OSError as error:
            raise UserError(
                f"the reference's predictions could not be written into {self.folder.parent} "
                f"({error.strerror or error}); free some space, or give fewer eval.kl_tokens or another out=DIR"
            ) from error


def measure_speed(config: SweepConfig, paths: list[Path], rows: list[Row], judge: Judge, say: Say) -> dict[str, int]:
    """Fill in the rows' tokens per second: medians over rounds in which every file has its turn."""
    decode = min(config.speed.decode, judge.n_ctx_train // 2)
    prefill = min(config.speed.prefill, judge.n_ctx_train - decode)
    tokens = np.resize(judge.stream, prefill + decode)
    taken: list[list[tuple[float, float]]] = [[] for _ in paths]
    began = perf_counter()
    for done in range(config.speed.rounds):
        for path, seconds in zip(paths, taken, strict=True):
            seconds.append(time_file(path, tokens, prefill, judge.threads))
        if done == 0 and config.speed.rounds > 1:
            left_s = (perf_counter() - began) * (config.speed.rounds - 1)
            say(f"speed, round 1 of {config.speed.rounds}; {_left(left_s)}")
    for row, seconds in zip(rows, taken, strict=True):
        row.prefill_tok_s = prefill / float(np.median([each[0] for each in seconds]))
        row.decode_tok_s = decode / float(np.median([each[1] for each in seconds]))
    return {"prefill": prefill, "decode": decode, "rounds": config.speed.rounds, "sequences": 1}


def time_file(path: Path, tokens: np.ndarray, prefill: int, threads: int) -> tuple[float, float]:
    """Seconds of the first ``prefill`` tokens in one batch, and of the others one at a time."""
    from slm.llama.context import Batch, Context
    from slm.llama.model import Model

    with Model(path) as model, Context(model, n_ctx=len(tokens), n_batch=prefill, n_threads=threads) as context:
        batch = Batch(prefill)

        def run(ids: np.ndarray, position: int) -> None:
            batch.clear()
            batch.extend(ids.tolist(), position, 0, logits=True)
            context.decode(batch)
            context.row(len(batch) - 1)

        run(tokens[:prefill], 0)  # the first pass reads the file and makes the buffers
        run(tokens[prefill : prefill + 1], prefill)
        context.clear()
        began = perf_counter()
        run(tokens[:prefill], 0)
        between = perf_counter()
        for position in range(prefill, len(tokens)):
            run(tokens[position : position + 1], position)
        return between - began, perf_counter() - between


def _quiet(say: Say) -> Say:
    """Only warnings: every file gets a line of its own when it is measured."""
    return lambda line: say(line) if line.startswith("warning") else None


def _told(row: Row, reference: bool) -> str:
    size = f"{row.bits_per_weight:.2f} bits per weight, perplexity {row.perplexity:.4f}"
    return size + (" (the reference)" if reference else f" ({row.perplexity_change:+.2%}), KL {row.kl:.2g} nats")


def _left(seconds: float) -> str:
    return f"about {seconds / 60:.1f} min left" if seconds >= 60 else f"about {seconds:.0f} s left"


def show(record: dict[str, Any]) -> None:
    """The table a person reads."""
    speed, text = record["speed"], record["text"]
    rows = []
    for number, each in enumerate(record["files"]):
        rows.append(
            [
                each["type"],
                "" if each["type"] in UNQUANTIZED else "yes" if each["imatrix"] else "no",
                f"{each['size_mib']:.2f}",
                f"{each['bits_per_weight']:.2f}",
                f"{each['bits_per_byte']:.4f}",
                f"{each['perplexity']:.4f}",
                f"{each['perplexity_change']:+.2%}" if number else "",
                f"{each['kl']:.2g}" if number else "",
                f"{each['same_top']:.1%}" if number else "",
                *([f"{each['prefill_tok_s']:,.0f}", f"{each['decode_tok_s']:,.0f}"] if speed else []),
            ]
        )
    columns = ["type", "imatrix", "MiB", "bits/weight", "bits/byte", "perplexity", "change", "KL (nats)", "same top"]
    report.table(
        f"Quantization of {record['run']} / {record['checkpoint']}",
        columns + (["prefill tok/s", "decode tok/s"] if speed else []),
        rows,
        caption=(
            f"perplexity per token and bits per byte: {text['definition']} (stride half of it, every token scored "
            f"once), {text['tokens']:,} tokens of {text['name']}\n"
            f"change, KL, same top (first choices that agree): against {record['reference']} in llama.cpp, "
            f"KL and same top on {record['kl_positions']:,} positions"
            + (
                f"\nspeed: one sequence, a prompt of {speed['prefill']} tokens in one batch, then {speed['decode']} "
                f"tokens one at a time; {record['threads']} threads; medians of {speed['rounds']}"
                if speed
                else ""
            )
        ),
    )
