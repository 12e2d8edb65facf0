"""The checkpoint, opened and checked, and what is made from it: GGUF files, the importance matrix, quantized files.

The export and the sweep over types both go through here.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from slm import runs
from slm.data.errors import UserError
from slm.data.tokenizers.make import load_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.evaluate.perplexity import Window, chunked_plan
from slm.evaluate.progress import progress_bar
from slm.evaluate.scorers import TorchScorer, quick_kernels
from slm.export.config import CalibrationConfig, Naming
from slm.export.gguf.tensors import check_weights
from slm.export.gguf.writer import Identity, identify_model, run_record, write_gguf
from slm.export.imatrix import Begun, ImportanceMatrix, collect
from slm.export.imatrix_file import check_names, merge, read_imatrix, statistics, statistics_line
from slm.export.quantize import fallback_warning, predict_fallbacks, quantize_file, stored_types
from slm.export.texts import Text, read_text
from slm.kernels.native import VARIANTS
from slm.llama.blocks.codec import dequantize
from slm.llama.gguf_check import GgufTensor, read_header
from slm.llama.quantize import quant_types
from slm.model.checkpoint import MANIFEST, load_config, load_model, verify
from slm.model.held.held_model import load_as_stored
from slm.model.layers.held import Values
from slm.model.quantized import BLOCKS, RECORD, QuantizedWeights, load_quantized
from slm.model.transformer import LanguageModel
from slm.vocabulary.gguf_vocab import Vocab, build_vocab

LARGE = 1 << 30
"""Bytes of a model in f32 above which its matrices may stay in their file: reading them for each pass then takes a
small part of the pass."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """The checkpoint, opened."""

    run: runs.Run
    checkpoint: Path
    model: LanguageModel
    tokenizer: Tokenizer
    vocab: Vocab
    identity: Identity
    scorer: TorchScorer
    record: str
    """The run's resolved configuration as JSON, which every file carries."""
    quantized: QuantizedWeights | None = None
    """The blocks of a checkpoint that was trained for a quantized type."""

    @property
    def n_params(self) -> int:
        return self.model.config.n_params

    @property
    def trained_for(self) -> str | None:
        """The type of file that the checkpoint was trained for."""
        return self.quantized.file_type if self.quantized else None

    def write_trained(self, path: Path) -> None:
        """Write the blocks that training computed with to ``path``, a staged file of the type it was trained for."""
        assert self.quantized is not None
        write_gguf(
            path,
            "f32",
            model=self.model.config,
            weights=Values(self.model),
            vocab=self.vocab,
            identity=self.identity,
            record=self.record,
            quantized=self.quantized,
            file_type=quant_types()[self.quantized.file_type],
        )

    def write(self, path: Path, kind: str) -> None:
        """Write the checkpoint as f32, f16 or bf16 to ``path``, a staged file."""
        write_gguf(
            path,
            kind,
            model=self.model.config,
            weights=Values(self.model),
            vocab=self.vocab,
            identity=self.identity,
            record=self.record,
        )


def open_source(
    run: runs.Run,
    types: Collection[str],
    *,
    pre: str | None = None,
    naming: Naming | None = None,
    private: bool = False,
    as_stored: bool = False,
) -> Source:
    """Load and check the run's checkpoint before anything is written.

    ``types``: all that will be made, the base included. ``pre``: tokenizer.ggml.pre, where it is not recognised.
    ``private``: the files' record names data files and sample prompts. ``as_stored``: the matrices of a large model
    may stay in their file.
    """
    checkpoint = run.checkpoint()
    if (checkpoint / MANIFEST).is_file():
        verify(checkpoint, training=False)
    model = open_model(checkpoint, as_stored=as_stored)
    model.config.check_runs_in_llama_cpp()
    check_weights(Values(model), to_f16="f16" in types)
    vocab = build_vocab(checkpoint, model.config.vocab_size, pre, arch=model.config.arch)
    tokenizer = load_tokenizer(checkpoint)
    scorer = TorchScorer(
        model,
        tokenizer.encode,
        name=checkpoint.name,
        bos=vocab.special.bos_added,
        document_start=vocab.special.document_start,
        document_end=vocab.special.ids.get("eos"),
    )
    return Source(
        run=run,
        checkpoint=checkpoint,
        model=model,
        tokenizer=tokenizer,
        vocab=vocab,
        identity=identify_model(naming or Naming(), run, checkpoint, model.config.n_params),
        scorer=scorer,
        record=run_record(run, checkpoint, private=private),
        quantized=_open_quantized(checkpoint, model),
    )


def open_model(directory: Path, *, as_stored: bool) -> LanguageModel:
    """The model of a checkpoint in f32; ``as_stored``: the matrices of a large one stay in their file."""
    if as_stored and 4 * load_config(directory).n_params > LARGE:
        return load_as_stored(directory)
    return load_model(directory)


def _open_quantized(checkpoint: Path, model: LanguageModel) -> QuantizedWeights | None:
    """The blocks that the checkpoint was trained with. UserError where they do not stand for its weights."""
    found, weights = load_quantized(checkpoint), Values(model)
    for name, kind in found.types.items() if found else ():
        assert found is not None
        blocks_OC, weight_OD = found.blocks[name].numpy(), weights[name]
        if not np.array_equal(dequantize(kind, blocks_OC, weight_OD.shape[1]), weight_OD.numpy()):
            raise UserError(
                f"{checkpoint}: the weights of {name} are not those of {BLOCKS}; they were changed after the training "
                f"for {found.file_type}: remove {RECORD} to export them as an ordinary model"
            )
    return found


def importance_matrix(
    source: Source,
    text: Text,
    options: CalibrationConfig,
    tensors: list[GgufTensor],
    log: Callable[[str], None],
    begun: Begun | None = None,
) -> ImportanceMatrix:
    """The importance matrix that the options ask for: measured on the texts, read from files, or both merged.

    ``tensors``: of the unquantized file. ``begun``: of ``text``. Logs its statistics. UserError for a file of another
    model.
    """
    matrices = [read_imatrix(path) for path in options.files]
    for matrix in matrices:
        check_names(matrix, tensors)
    if not matrices or options.text:
        matrices.append(measure_importance(source, text, options, log, begun))
    for path in options.more_texts:
        more = read_text(path, "calibration.more_texts")
        matrices.append(measure_importance(source, more, options, log))
    merged = merge(matrices)
    log(statistics_line(merged))
    return merged


def measure_importance(
    source: Source, text: Text, options: CalibrationConfig, log: Callable[[str], None], begun: Begun | None = None
) -> ImportanceMatrix:
    """The importance matrix over at most ``options.chunks`` windows of the text. ``begun``: counted already, if each
    of its windows is among them once."""
    windows, stream = calibration_windows(source, text, options)
    windows_BT = np.stack([window.inputs(stream) for window in windows])
    left_BT = begun.left(windows_BT) if begun else None
    if left_BT is None:
        begun, left_BT = None, windows_BT
    n_left = len(left_BT)
    kernels = quick_kernels(source.model, n_left * windows_BT.shape[1])
    by = f"{VARIANTS[kernels.name].title} kernels" if kernels else "PyTorch"
    measured = f", {len(windows) - n_left} of them measured with the proof" if begun else ""
    unit = "chunk" if len(windows) == 1 else "chunks"
    chunks = f"{len(windows)} {unit} of {windows_BT.shape[1]} tokens of {text.origin}{measured}"
    log(f"importance matrix: {chunks}, f32, {by}")
    began = perf_counter()
    with progress_bar("importance matrix", n_left, "chunks") as progress:
        found = collect(
            source.model,
            left_BT,
            dataset=text.origin,
            output=options.output,
            progress=progress,
            kernels=kernels,
            begun=begun,
        )
    if n_left:
        rate = n_left * windows_BT.shape[1] / (perf_counter() - began)
        log(f"importance matrix: {found.n_rows:,} tokens, {rate:,.0f} tokens/s")
    return found


def calibration_windows(source: Source, text: Text, options: CalibrationConfig) -> tuple[list[Window], np.ndarray]:
    """At most ``options.chunks`` windows of the text, and the stream of ids that they are parts of."""
    ids = source.scorer.tokenize(text.content[: options.chunks * options.n_ctx * 16])
    whole = len(ids) + (source.scorer.bos is not None)
    n_ctx = min(options.n_ctx, source.model.config.seq_len, max(whole // 2, 4))
    stream, windows = chunked_plan(source.scorer, ids, n_ctx, options.chunks)
    return windows, stream


def imatrix_record(imatrix: ImportanceMatrix | None) -> dict[str, Any] | None:
    """What the records of both commands hold about the importance matrix."""
    if imatrix is None:
        return None
    return {
        "dataset": imatrix.dataset,
        "chunks": imatrix.n_chunks,
        "n_ctx": imatrix.chunk_size,
        "statistics": statistics(imatrix),
    }


def make_quantized(
    source: Source,
    base: Path,
    path: Path,
    kind: str,
    imatrix: ImportanceMatrix | None,
    threads: int,
    log: Callable[[str], None],
    metadata: Mapping[str, str | float] | None = None,
) -> None:
    """Quantize ``base``, the written ``source``, into ``path``. Logs a warning before, and what was really stored
    after, where rows do not fit the type. A type that the checkpoint was trained for is written as it was trained.
    ``metadata``: further entries of the file."""
    if kind == source.trained_for:
        log(f"writing {kind} as it was trained")
        source.write_trained(path)
        return
    if source.trained_for:
        log(f"note: this checkpoint was trained for {source.trained_for}; {kind} is quantized from its weights")
    fallbacks = predict_fallbacks(read_header(base).tensors, kind)
    if fallbacks:
        log("warning: " + fallback_warning(kind, fallbacks))
    log(f"quantizing to {kind}")
    fell_back = quantize_file(base, path, kind, imatrix.means() if imatrix else None, threads, metadata=metadata)
    unforeseen = sorted(set(fell_back) - {each.tensor for each in fallbacks})
    if unforeseen:
        log(f"warning: {kind}: llama.cpp stored these in a larger type than asked for: {', '.join(unforeseen)}")
    if fallbacks:
        counts = stored_types(path)
        total = sum(counts.values())
        shares = sorted(counts.items(), key=lambda item: -item[1])
        log(f"{kind}: weights stored as " + ", ".join(f"{name} {count / total:.1%}" for name, count in shares))
