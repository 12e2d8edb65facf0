"""Makes tiny checkpoints with random weights and a real trained tokenizer, for tests of export and evaluation.

Seeded: the same weights and vocabulary each time.
"""

import random
from functools import cache
from pathlib import Path

import torch

from slm.data.config import TokenizerConfig
from slm.data.tokenizers.make import make_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.model.checkpoint import save_model
from slm.model.config import ModelConfig
from slm.model.transformer import LanguageModel

_NOUNS = ["fox", "bird", "river", "boat", "girl", "bear", "garden", "king", "lamp", "café", "naïveté", "1984", "12345"]
_VERBS = ["saw", "took", "found", "gave", "lost", "said", "made", "left", "wanted", "couldn't", "didn't"]
_ENDS = [". ", "! ", "? ", ".\n", ".\n\n", '," he said. ', "; ", " — ", "... "]


@cache
def text(n_characters: int = 60_000, seed: int = 1) -> str:
    """Nonsense with the statistics of a small language: some words are common, sentences end."""
    rng = random.Random(seed)
    parts, size = [], 0
    while size < n_characters:
        noun, other = rng.choice(_NOUNS), rng.choice(_NOUNS[: rng.randint(1, len(_NOUNS))])
        parts.append(f"The {noun} {rng.choice(_VERBS)} the {other}{rng.choice(_ENDS)}")
        size += len(parts[-1])
    return "".join(parts)[:n_characters]


@cache
def tokenizer(vocab_size: int = 384) -> Tokenizer:
    return make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=vocab_size), lambda: iter([text()]))


def config(**changes) -> ModelConfig:
    shape = {
        "arch": "llama",
        "vocab_size": 400,
        "n_layers": 2,
        "d_model": 256,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 64,
        "ffn_dim": 512,
        "seq_len": 128,
        "tie_embeddings": False,
    }
    return ModelConfig(**(shape | changes))


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int = 0) -> None:
    """Weights that make sharp, varied predictions (fresh ones would predict nearly the same for every text)."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            parameter.copy_(1 + 0.1 * torch.randn(parameter.shape, generator=generator))
        else:
            scale = 3.0 if name.startswith(("lm_head", "model.embed")) else 1.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale * parameter.shape[1] ** -0.5)


def checkpoint(directory: Path, *, own_tokenizer: bool = False, **changes) -> Path:
    """A checkpoint directory that slm writes. ``own_tokenizer``: there is a tokenizer in it already."""
    directory.mkdir(parents=True, exist_ok=True)
    words = tokenizer()
    shape = config(**({"bos_id": words.eot_id, "eos_id": words.eot_id} | changes))
    model = LanguageModel(shape)
    randomize(model)
    save_model(directory, model)
    if not own_tokenizer:
        words.save(directory)
    return directory


def gguf_file(path: Path, **changes) -> Path:
    """A checkpoint that slm writes, as an f32 GGUF; the checkpoint is in a folder next to it."""
    return write(path, checkpoint(path.with_suffix(".checkpoint"), **changes))


def write(path: Path, directory: Path) -> Path:
    """The checkpoint in ``directory`` as an f32 GGUF."""
    from slm.export.config import Naming
    from slm.export.gguf.writer import identify_model, write_gguf
    from slm.model.checkpoint import load_model
    from slm.runs import Run
    from slm.vocabulary.gguf_vocab import build_vocab

    model = load_model(directory)
    config = model.config
    write_gguf(
        path,
        "f32",
        model=config,
        weights=model.state_dict(),
        vocab=build_vocab(directory, config.vocab_size, arch=config.arch),
        identity=identify_model(Naming(), Run(root=directory, is_hf=True), directory, config.n_params),
        record="{}",
    )
    return path


def run(root: Path, **changes) -> Path:
    """A run directory with one checkpoint, validation and calibration text."""
    checkpoint(root / "checkpoints" / "step-00000010", **changes)
    (root / "config.yaml").write_text("preset: test\nmodel:\n  n_layers: 2\n", encoding="utf-8")
    (root / "validation.txt").write_text(text(20_000, seed=2), encoding="utf-8")
    (root / "calibration.txt").write_text(text(20_000, seed=3), encoding="utf-8")
    return root
