"""The order of an export: read, check, write, prove, measure, quantize, prove, publish."""

import json
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from export import modelfile
from export.adapter import open_adapter, write_proven
from export.auto.make import make_chosen
from export.auto.planner import Planner
from export.chat_proof import chat_failures
from export.config import UNQUANTIZED, ExportConfig, resolve_types
from export.imatrix import ImportanceMatrix
from export.proof import ADAPTER_TYPE, Comparison, Proof
from export.quantize import size_bound
from export.rounding.make import METADATA, round_again
from export.source import Source, imatrix_record, importance_matrix, make_quantized, open_source
from export.staging import Staging, check_room
from export.steps import Steps
from export.target import is_target, parse_target
from export.texts import Text, calibration_text, validation_text
from slm import runs
from slm.exported import RECORD_FILE, recorded_sums, sha256
from slm.hub import models
from slm.llama.gguf_check import read_header
from slm.llama.quantize import quant_types
from slm.machine.hardware import compute_threads
from slm.machine.record import machine_record
from slm.report import atomic_write_json

IMATRIX_FILE = "imatrix.gguf"
TEMPORARY_CHUNKS = 4  # of text, in the comparison of a file that is not published


def export(
    config: ExportConfig, log: Callable[[str], None] = lambda line: None, steps: Steps | None = None
) -> dict[str, Any]:
    """Write every type asked for, prove each, publish all or none; returns the record saved as ``export.json``.

    ``steps``: measured already, before this function was called. ``UserError`` for what a person can mend. A failed
    proof is not an error here: the record's ``published`` is False and its ``files`` name the failures.
    """
    types, steps = resolve_types(config.quant, quant_types()), steps or Steps()
    run = models.resolve(config.run)
    out = config.out or run.gguf_dir
    threads = config.threads or compute_threads()
    torch.set_num_threads(threads)
    with steps.step("reading the checkpoint"):
        source = open_source(run, (*types, config.base), pre=config.pre, naming=config.naming())
    plain = [kind for kind in UNQUANTIZED if kind in types]
    quantized = [kind for kind in types if kind not in UNQUANTIZED]
    base = config.base if quantized else plain[0]
    proof_text, calibration = choose_texts(config, run, bool(quantized), log)
    with Staging(out) as staging:
        check_room(out, sum(size_bound(source.n_params, kind) for kind in dict.fromkeys([*types, base])))
        written = {kind: staging.path(source.identity.file_name(kind)) for kind in dict.fromkeys([base, *plain])}
        if line := run.choice_line():
            log(line)
        log(f"checkpoint {source.checkpoint}: {source.n_params:,} parameters")
        for warning in source.vocab.warnings:
            log(f"warning: {warning}")
        for kind, path in written.items():
            log(f"writing {kind}" + ("" if kind in plain else " (temporary)"))
            with steps.step(f"conversion to {kind}"):
                source.write(path, kind)
        log("comparing with the checkpoint: token ids, logits, perplexity")
        with steps.step("proof: the checkpoint's side"):
            proof = Proof(
                source.scorer,
                source.tokenizer.encode,
                proof_text.content,
                n_ctx=config.proof.n_ctx,
                chunks=config.proof.chunks,
                kl_tokens=config.proof.kl_tokens,
                nfc=bool(source.vocab.warnings),
                n_threads=threads,
                more=partial(chat_failures, tokenizer=source.tokenizer, nfc=bool(source.vocab.warnings)),
            )
        compared = {}
        for kind, path in written.items():
            with steps.step(f"proof: {kind}"):
                # The files made from a temporary one are compared at full length themselves.
                compared[kind] = proof.compare(path, kind, chunks=None if kind in plain else TEMPORARY_CHUNKS)
        finished = [written[kind] for kind in plain]
        if (adapter := open_adapter(source, log)) and all_passed(compared.values()):
            with steps.step("adapter: conversion and proof"):
                path, compared[ADAPTER_TYPE] = write_proven(source, adapter, staging, proof, log)
            finished.append(path)
        imatrix = None
        choices: dict[str, Any] = {}
        roundings: dict[str, Any] = {}
        if quantized and all_passed(compared.values()):
            if config.calibration.imatrix and quantized != [source.trained_for]:
                header = read_header(written[base])
                with steps.step("importance matrix"):
                    imatrix = importance_matrix(source, calibration, config.calibration, header.tensors, log)
                    imatrix.write(staging.path(IMATRIX_FILE))
                finished.append(staging.path(IMATRIX_FILE))
            planner = None
            for kind in quantized:
                path = staging.path(source.identity.file_name(kind))
                again = config.rounding == "gptq" and kind != source.trained_for
                more = METADATA if again else None
                if is_target(kind):
                    planner = planner or Planner(
                        source, read_header(written[base]), calibration, imatrix, threads=threads, log=log
                    )
                    target = parse_target(kind)
                    with steps.step(f"choice, quantization and proof: {kind}"):
                        compared[kind], choice = make_chosen(
                            planner, written[base], path, target, proof.compare, log, more
                        )
                    choices[path.name] = choice.record() | {"groups": planner.options.checks}
                else:
                    with steps.step(f"quantization: {kind}"):
                        make_quantized(source, written[base], path, kind, imatrix, threads, log, more)
                if again:
                    with steps.step(f"rounding (gptq): {kind}"):
                        roundings[path.name] = round_again(
                            source, path, calibration, config.calibration, imatrix, threads, log
                        )
                if again or kind not in compared:
                    with steps.step(f"proof: {kind}"):
                        compared[kind] = proof.compare(path, kind)
                finished.append(path)
        published = all_passed(compared.values())
        with steps.step("check sums and publishing"):
            sums = {path.name: sha256(path) for path in finished} if published else {}
        shown = [each for kind, each in compared.items() if kind in (*types, ADAPTER_TYPE) or each.failures]
        record = make_record(config, source, proof, shown, imatrix, proof_text, out, published)
        record |= {"choices": choices, "rounding": roundings}
        record["sha256"] = forget_sums(out, sums) | sums
        if published:
            with steps.step("check sums and publishing"):
                staging.publish(finished)
        record |= steps.record()
        if published:
            atomic_write_json(out / RECORD_FILE, record)
            models_written = [out / each["file"] for each in record["files"] if each["type"] != ADAPTER_TYPE]
            modelfile.write(out, source.tokenizer, models_written)
    return record


def forget_sums(out: Path, names: Collection[str]) -> dict[str, str]:
    """Drop what the folder's record says about files that are replaced now; returns the sums of the other files.

    So an export that is killed between its files and its record leaves no sum that a whole file does not have.
    """
    before = recorded_sums(out)
    kept = {name: value for name, value in before.items() if name not in names and (out / name).is_file()}
    if not before.keys().isdisjoint(names):
        record = json.loads((out / RECORD_FILE).read_text(encoding="utf-8"))
        atomic_write_json(out / RECORD_FILE, record | {"sha256": kept})
    return kept


def choose_texts(config: ExportConfig, run: runs.Run, quantizes: bool, log: Callable[[str], None]) -> tuple[Text, Text]:
    """The texts of the proof and of the importance matrix. Each stands in for the other where it is not there or not
    needed."""
    proof_text = validation_text(config.proof.text, run)
    reads = any(map(is_target, config.quant)) or (quantizes and config.rounding != "nearest")
    if proof_text is None or reads or (quantizes and config.calibration.imatrix):
        calibration = calibration_text(config.calibration.text, run, log)
        return proof_text or calibration, calibration
    return proof_text, proof_text


def all_passed(compared: Iterable[Comparison]) -> bool:
    """Whether no file failed a gate of its proof."""
    return not any(each.failures for each in compared)


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
    """What is printed as the last line and saved next to the files."""
    return {
        "run": source.run.name,
        "checkpoint": source.checkpoint.name,
        "out": str(out),
        "published": published,
        "parameters": source.n_params,
        "text": text.origin,
        "n_ctx": proof.n_ctx,
        "tokens": proof.score.tokens,
        "checkpoint_perplexity": proof.score.perplexity,
        "checkpoint_stderr": proof.score.stderr,
        "trained_for": source.trained_for,
        "tokenizer": {"model": source.vocab.model, "pre": source.vocab.pre},
        "base": config.base,
        "imatrix": imatrix_record(imatrix),
        "files": [each.record() for each in files],
        "machine": machine_record(),
    }
