"""The order of an export: read, check, write, prove, measure, quantize, prove, publish."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.errors import UserError
from data.tokenizers.make import load_tokenizer
from data.tokenizers.tokenizer import Tokenizer
from export.config import UNQUANTIZED, ExportConfig
from export.gguf.tensors import check_weights
from export.gguf.vocab import Vocab, build_vocab
from export.gguf.writer import Identity, identify_model, run_record, write_gguf
from export.imatrix import ImportanceMatrix, collect
from export.proof import Comparison, Proof
from export.quantize import (
    fallback_warning,
    predict_fallbacks,
    quantize_file,
    size_bound,
    stored_types,
)
from export.staging import Staging, check_room
from slm import runs
from slm.evaluate.perplexity import chunked_plan
from slm.evaluate.scorers import TorchScorer
from slm.files import atomic_write_json
from slm.llama.gguf_check import read_header
from slm.llama.quantize import quant_types
from slm.machine.hardware import compute_threads
from slm.machine.record import machine_record
from slm.model.checkpoint import MANIFEST, load_model, verify
from slm.model.transformer import LanguageModel

Say = Callable[[str], None]

IMATRIX_FILE = "imatrix.gguf"
RECORD_FILE = "export.json"
TALES_BYTES = 400_000


@dataclass(kw_only=True)
class Source:
    """The checkpoint, opened."""

    run: runs.Run
    checkpoint: Path
    model: LanguageModel
    tokenizer: Tokenizer
    vocab: Vocab
    identity: Identity
    scorer: TorchScorer


@dataclass(frozen=True, kw_only=True)
class Text:
    """Text and where it came from."""

    content: str
    origin: str


def export(config: ExportConfig, say: Say = lambda line: None) -> dict[str, Any]:
    """Write every type asked for, prove each, publish all or none; returns the record saved as ``export.json``.

    UserError for what the person can mend. A failed proof is not an error here: the record's ``published`` is False
    and its ``files`` name the failures.
    """
    types = config.types(quant_types())
    run = runs.resolve(config.run)
    out = config.out or run.gguf_dir
    threads = config.threads or compute_threads()
    torch.set_num_threads(threads)
    source = open_source(config, run, types)
    plain = [kind for kind in UNQUANTIZED if kind in types]
    quantized = [kind for kind in types if kind not in UNQUANTIZED]
    proof_text = validation_text(config, run)
    calibration = proof_text
    if proof_text is None or (quantized and config.calibration.imatrix):
        calibration = calibration_text(config, run, say)
    proof_text = proof_text or calibration
    with Staging(out) as staging:
        check_room(out, room_needed(source.model.config.n_params, types, config.base))
        base = config.base if quantized else plain[0]
        written = {kind: staging.path(source.identity.file_name(kind)) for kind in dict.fromkeys([base, *plain])}
        say(f"checkpoint {source.checkpoint}: {source.model.config.n_params:,} parameters")
        for warning in source.vocab.warnings:
            say(f"warning: {warning}")
        record = run_record(run, source.checkpoint)
        for kind, path in written.items():
            say(f"writing {kind}" + ("" if kind in plain else " (temporary)"))
            write_gguf(
                path,
                kind,
                model=source.model.config,
                weights=source.model.state_dict(),
                vocab=source.vocab,
                identity=source.identity,
                record=record,
            )
        say("comparing with the checkpoint: token ids, logits, perplexity")
        proof = Proof(
            source.scorer,
            source.tokenizer.encode,
            proof_text.content,
            n_ctx=config.proof.n_ctx,
            chunks=config.proof.chunks,
            kl_tokens=config.proof.kl_tokens,
            nfc=bool(source.vocab.warnings),
            n_threads=threads,
        )
        compared = {kind: proof.compare(path, kind) for kind, path in written.items()}
        finished = [written[kind] for kind in plain]
        imatrix = None
        if quantized and not any(each.failures for each in compared.values()):
            if config.calibration.imatrix:
                imatrix = measure_importance(config, source, calibration, say)
                imatrix.write(staging.path(IMATRIX_FILE))
                finished.append(staging.path(IMATRIX_FILE))
            for kind in quantized:
                path = staging.path(source.identity.file_name(kind))
                make_quantized(written[base], path, kind, imatrix, threads, say)
                compared[kind] = proof.compare(path, kind)
                finished.append(path)
        published = not any(each.failures for each in compared.values())
        shown = [compared[kind] for kind in compared if kind in types or compared[kind].failures]
        result = make_record(config, source, proof, shown, imatrix, proof_text, out, published)
        if published:
            staging.publish(finished)
            atomic_write_json(out / RECORD_FILE, result)
    return result


def open_source(config: ExportConfig, run: runs.Run, types: list[str]) -> Source:
    """Load and check the checkpoint before anything is written."""
    checkpoint = run.checkpoint()
    if (checkpoint / MANIFEST).is_file():
        verify(checkpoint)
    model = load_model(checkpoint)
    check_weights(model.state_dict(), to_f16="f16" in (*types, config.base))
    vocab = build_vocab(checkpoint, model.config.vocab_size, config.pre, arch=model.config.arch)
    tokenizer = load_tokenizer(checkpoint)
    bos = vocab.special_ids.get("bos")
    scorer = TorchScorer(
        model,
        tokenizer.encode,
        name=checkpoint.name,
        bos=bos if vocab.add_special["bos"] else None,
        document_start=bos if bos is not None else vocab.special_ids.get("eos"),
    )
    return Source(
        run=run,
        checkpoint=checkpoint,
        model=model,
        tokenizer=tokenizer,
        vocab=vocab,
        identity=identify_model(config, run, checkpoint, model.config.n_params),
        scorer=scorer,
    )


def calibration_text(config: ExportConfig, run: runs.Run, say: Say) -> Text:
    """The text to measure importance on: named, else the run's training documents, else the embedded stories."""
    if config.calibration.text:
        return read_text(config.calibration.text, "calibration.text")
    if run.calibration_text:
        return read_text(run.calibration_text, "calibration.text")
    from data.tales.story import story

    say("no calibration text (no calibration.txt in the run, no calibration.text=FILE): using the embedded stories")
    stories: list[str] = []
    size = 0
    while size < TALES_BYTES:
        stories.append(story(0, len(stories)))
        size += len(stories[-1])
    return Text(content="\n\n".join(stories), origin="embedded stories")


def validation_text(config: ExportConfig, run: runs.Run) -> Text | None:
    """The text to compare perplexity on: named, else the run's held-out documents; None where there are none."""
    if config.proof.text:
        return read_text(config.proof.text, "proof.text")
    if run.validation_text:
        return read_text(run.validation_text, "proof.text")
    return None


def read_text(path: Path, option: str) -> Text:
    """A UTF-8 file. UserError names the option where it is missing, empty, or not UTF-8."""
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a text file as {option}=FILE") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); give another file as {option}=FILE") from error
    if not content.strip():
        raise UserError(f"{path} is empty; give a file with text as {option}=FILE")
    return Text(content=content, origin=path.name)


def room_needed(n_params: int, types: list[str], base: str) -> int:
    """Bytes of all files that exist at once, the base included."""
    kinds = dict.fromkeys([*types, *([base] if any(kind not in UNQUANTIZED for kind in types) else [])])
    return sum(size_bound(n_params, kind) for kind in kinds)


def measure_importance(config: ExportConfig, source: Source, text: Text, say: Say) -> ImportanceMatrix:
    """The importance matrix over at most ``calibration.chunks`` windows of the text."""
    from rich.progress import Progress

    options = config.calibration
    ids = source.scorer.tokenize(text.content[: options.chunks * options.n_ctx * 16])
    n_ctx = min(options.n_ctx, source.model.config.seq_len, max((len(ids) + 1) // 2, 4))
    stream, windows = chunked_plan(source.scorer, ids, n_ctx, options.chunks)
    say(f"importance matrix: {len(windows)} chunks of {n_ctx} tokens of {text.origin}")
    with Progress(transient=True, disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("importance matrix", total=len(windows))
        return collect(
            source.model,
            np.stack([window.inputs(stream) for window in windows]),
            dataset=text.origin,
            output=options.output,
            progress=lambda done, _: bar.update(task, completed=done),
        )


def make_quantized(base: Path, path: Path, kind: str, imatrix: ImportanceMatrix | None, threads: int, say: Say) -> None:
    """Quantize with its warning before and, where it mattered, what was really stored after."""
    fallbacks = predict_fallbacks(read_header(base).tensors, kind)
    if fallbacks:
        say("warning: " + fallback_warning(kind, fallbacks))
    say(f"quantizing to {kind}")
    fell_back = quantize_file(base, path, kind, imatrix.means() if imatrix else None, threads)
    unforeseen = sorted(set(fell_back) - {each.tensor for each in fallbacks})
    if unforeseen:
        say(f"warning: {kind}: llama.cpp stored these in a larger type than asked for: {', '.join(unforeseen)}")
    if fallbacks:
        counts = stored_types(path)
        total = sum(counts.values())
        parts = sorted(counts.items(), key=lambda item: -item[1])
        say(f"{kind}: weights stored as " + ", ".join(f"{name} {count / total:.1%}" for name, count in parts))


def make_record(
    config: ExportConfig,
    source: Source,
    proof: Proof,
    files: list[Comparison],
    imatrix: ImportanceMatrix | None,
    text: Text,
    out: Path,
    published: bool,
) -> dict[str, Any]:
    """What is printed as the last line and saved beside the files."""
    return {
        "run": source.run.name,
        "checkpoint": source.checkpoint.name,
        "out": str(out),
        "published": published,
        "parameters": source.model.config.n_params,
        "text": text.origin,
        "n_ctx": proof.n_ctx,
        "tokens": proof.score.tokens,
        "checkpoint_perplexity": proof.score.perplexity,
        "checkpoint_stderr": proof.score.stderr,
        "tokenizer": {"model": source.vocab.model, "pre": source.vocab.pre},
        "base": config.base,
        "imatrix": {"dataset": imatrix.dataset, "chunks": imatrix.n_chunks, "n_ctx": imatrix.chunk_size}
        if imatrix
        else None,
        "files": [each.record() for each in files],
        "machine": machine_record(),
    }
