"""``format=onnx`` and ``format=pt2``: the file, and the proof that it computes what the checkpoint does.

An ONNX folder has what optimum and onnxruntime need: ``model.onnx``, the configuration and the tokenizer. A ``.pt2``
file is a program of ``torch.export``. Both take and return the key/value cache, and any batch and length.
"""

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slm.data.errors import UserError
from slm.export.config import ExportConfig
from slm.export.gguf.tensors import check_weights
from slm.export.interchange.decoder import CachedDecoder, dynamic_shapes, example_inputs, input_names, output_names
from slm.export.pipeline import forget_sums
from slm.export.staging import Staging, check_room
from slm.export.texts import Text, calibration_text, validation_text
from slm.exported import RECORD_FILE, sha256
from slm.hub import models
from slm.machine.hardware import compute_threads
from slm.machine.record import machine_record
from slm.model.checkpoint import MANIFEST, WEIGHTS, load_model, verify
from slm.model.quantized import RECORD
from slm.model.transformer import LanguageModel
from slm.report import atomic_write_json

TOLERANCE = 1e-4
"""Largest difference of a logit, as a part of the checkpoint's root-mean-square logit (at least 1)."""
SIZES = ("batch_size", "sequence_length", "past_sequence_length", "total_sequence_length")
EXTERNAL_BYTES = 1_500_000_000
"""Weights from this size on stand in their own file: a protobuf file ends at 2 GB."""
_PROMPT, _DECODED = 48, 8
"""Tokens of the proof: a prompt, and decode steps after it."""
_NEEDED = ("onnx", "onnxruntime", "onnxscript")

Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""Inputs to outputs, both in the order of ``input_names`` and ``output_names``."""


def export_program(config: ExportConfig, log: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Write the checkpoint as ``config.format`` says, prove it, publish it; returns the record (``export.json``).

    ``UserError`` for what a person can mend. A failed proof is in the record: ``published`` is False.
    """
    if config.format == "onnx":
        missing = [name for name in _NEEDED if find_spec(name) is None]
        if missing:
            raise UserError(
                f"format=onnx needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed: "
                'pip install "slm[onnx]" (in a checkout: .venv/bin/pip install -e ".[onnx]")'
            )
    run = models.resolve(config.run)
    checkpoint = run.checkpoint()
    if (checkpoint / MANIFEST).is_file():
        verify(checkpoint, training=False)
    threads = config.threads or compute_threads()
    torch.set_num_threads(threads)
    model = load_model(checkpoint).eval()
    if model.config.traits.short_conv:
        raise UserError(
            f"format={config.format} takes models with attention in all layers, and an {model.config.arch} model has "
            "others, which keep something else between calls: export it as GGUF (format=gguf)"
        )
    check_weights(model.state_dict(), to_f16=False)
    out = config.out or run.root / config.format
    check_room(out, 4 * model.config.n_params + (64 << 20))
    if line := run.choice_line():
        log(line)
    log(f"checkpoint {checkpoint}: {model.config.n_params:,} parameters")
    text = validation_text(config.proof.text, run) or calibration_text(None, run, log)
    with Staging(out) as staging:
        log(f"tracing the model for {config.format}")
        if config.format == "onnx":
            path = staging.path("model.onnx")
            write_onnx(model, path)
            program, engine = onnx_session(path, threads), f"onnxruntime {version('onnxruntime')}"
        else:
            path = staging.path(f"{config.name or run.name}.pt2")
            write_program(model, path)
            program, engine = loaded_program(path), f"torch {version('torch')}"
        log(f"comparing with the checkpoint in {engine}: prompt and decode steps")
        difference = compare(model, program, proof_tokens(checkpoint, text, model))
        passed = difference["max_abs"] <= difference["allowed"]
        finished = sorted(each for each in staging.folder.iterdir() if each.is_file())
        size = sum(each.stat().st_size for each in finished)
        if config.format == "onnx":
            finished += copy_description(checkpoint, staging)
        sums = {each.name: sha256(each) for each in finished} if passed else {}
        record = {
            "format": config.format,
            "run": run.name,
            "checkpoint": checkpoint.name,
            "published": passed,
            "out": str(out),
            "file": path.name,
            "size_mb": size / 1e6,
            "engine": engine,
            "text": text.origin,
            **difference,
            "machine": machine_record(),
        }
        record["sha256"] = forget_sums(out, sums) | sums
        if passed:
            staging.publish(finished)
            atomic_write_json(out / RECORD_FILE, record)
    return record


def write_onnx(model: LanguageModel, path: Path) -> None:
    """``model`` as an ONNX file (opset of torch's default), f32. Not atomic."""
    shapes = dynamic_shapes(model.config.n_layers, {name: name for name in SIZES})
    with quiet(), torch.no_grad():
        torch.onnx.export(
            CachedDecoder(model),
            example_inputs(model),
            path,
            input_names=input_names(model.config.n_layers),
            output_names=output_names(model.config.n_layers),
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=4 * model.config.n_params > EXTERNAL_BYTES,
            verbose=False,
        )


def write_program(model: LanguageModel, path: Path) -> None:
    """``model`` as a program of ``torch.export``, f32. Not atomic."""
    sizes = dict.fromkeys(SIZES, torch.export.Dim.DYNAMIC)
    with quiet(), torch.no_grad():
        program = torch.export.export(
            CachedDecoder(model),
            example_inputs(model),
            dynamic_shapes=dynamic_shapes(model.config.n_layers, sizes),
            strict=False,
        )
        torch.export.save(program, path)


def onnx_session(path: Path, threads: int) -> Run:
    """The file in onnxruntime on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return list(session.run(None, dict(zip(names, inputs, strict=True))))

    return run


def loaded_program(path: Path) -> Run:
    """The file in torch, as anybody would load it."""
    program = torch.export.load(path).module()

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        ids, mask, positions, *caches = (torch.from_numpy(each) for each in inputs)
        past = list(zip(caches[::2], caches[1::2], strict=True))
        with torch.no_grad():
            logits, present = program(ids, mask, positions, past)
        return [each.numpy() for each in (logits, *(part for pair in present for part in pair))]

    return run


@torch.inference_mode()
def compare(model: LanguageModel, program: Run, ids_BT: np.ndarray) -> dict[str, Any]:
    """The program next to the checkpoint on ids (int64 [2, T]): the prompt at once, the rest one token at a time.

    The second sequence has two tokens less and begins with padding, so masks and positions count, too.
    """
    n_prompt = ids_BT.shape[1] - _DECODED
    padded = 2
    mask_BT = np.ones_like(ids_BT)
    mask_BT[1, :padded] = 0
    positions_BT = np.maximum(np.cumsum(mask_BT, axis=1) - 1, 0)
    expected = [model(torch.from_numpy(ids_BT[row : row + 1, skip:]))[0].numpy() for row, skip in ((0, 0), (1, padded))]
    config = model.config
    empty = np.zeros((2, config.n_kv_heads, 0, config.head_dim), np.float32)
    caches = [empty] * (2 * config.n_layers)
    found, start = [], 0
    for stop in range(n_prompt, ids_BT.shape[1] + 1):
        part = slice(start, stop)
        logits, *caches = program([ids_BT[:, part], mask_BT[:, :stop], positions_BT[:, part], *caches])
        found.append(logits)
        start = stop
    whole_BTV = np.concatenate(found, axis=1)
    pairs = [(whole_BTV[0], expected[0]), (whole_BTV[1, padded:], expected[1])]
    prompts = [np.abs(a[:-_DECODED] - b[:-_DECODED]).max() for a, b in pairs]
    steps = [np.abs(a[-_DECODED:] - b[-_DECODED:]).max() for a, b in pairs]
    every = np.concatenate([b for _, b in pairs])
    rms = float(np.sqrt(np.square(every, dtype=np.float64).mean()))
    finite = all(np.isfinite(a).all() for a, _ in pairs)
    return {
        "max_abs_prompt": float(max(prompts)),
        "max_abs_decode": float(max(steps)),
        "max_abs": float(max(*prompts, *steps)) if finite else float("inf"),
        "allowed": TOLERANCE * max(1.0, rms),
        "same_top": float(np.mean(np.concatenate([a.argmax(1) == b.argmax(1) for a, b in pairs]))),
        "tokens": sum(len(a) for a, _ in pairs),
    }


def proof_tokens(checkpoint: Path, text: Text, model: LanguageModel) -> np.ndarray:
    """int64 [2, T]: two pieces of the text, as long as the proof and the context allow."""
    from slm.data.tokenizers.make import load_tokenizer

    length = min(_PROMPT + _DECODED, model.config.seq_len)
    ids = load_tokenizer(checkpoint).encode(text.content[: 64 * length])
    if len(ids) < 2 * length:
        length = len(ids) // 2
    if length < _DECODED + 4:
        raise UserError(f"{text.origin} is too short to compare on: give a longer text as proof.text=FILE")
    return np.array(ids[: 2 * length], np.int64).reshape(2, length)


def copy_description(checkpoint: Path, staging: Staging) -> list[Path]:
    """What stands next to the weights of a Hugging Face model: configuration, tokenizer, chat template."""
    copied = []
    for path in sorted(checkpoint.iterdir()):
        ours = path.name in (MANIFEST, RECORD, "trainer_state.json")
        if path.suffix in (".json", ".jinja", ".txt", ".model") and not ours and not path.name.startswith(WEIGHTS):
            copied.append(Path(shutil.copy(path, staging.path(path.name))))
    return copied


@contextmanager
def quiet() -> Iterator[None]:
    """Inside, torch's exporters do not report their own workings."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "torch")]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in loggers:
            each.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)
