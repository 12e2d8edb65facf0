"""Stand-ins for the models that llama-server's tests download (tests/serve/llama_server_suite.py): random weights, with
a SentencePiece vocabulary of 512 tokens as the original's."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import gguf

from slm.data.tales.story import story
from slm.llama import random_model
from tests.helpers import tiny_gguf

_VOCAB, _LAYERS, _CONTEXT = 512, 2, 8192
_FIM = ("prefix", "suffix", "middle")


@dataclass(frozen=True)
class StandIn:
    """``of``: a word of the original's name. ``pooling``: of several files for one name, how this one pools."""

    of: str
    file: str
    pooling: str = ""


MODELS = (
    StandIn("stories260K-infill", "infill.gguf"),
    StandIn("stories260K", "stories.gguf"),
    StandIn("tinyllamas/split", "split-00001-of-00003.gguf"),
    StandIn("stories15M_MOE", "stories.gguf"),
    StandIn("bert-bge-small", "bert-cls.gguf", "cls"),
    StandIn("bert-bge-small", "bert-mean.gguf", "mean"),
    StandIn("bert-bge-small", "bert-last.gguf", "last"),
    StandIn("bert-bge-small", "bert-none.gguf", "none"),
    StandIn("jina-reranker", "rank.gguf"),
)
FILES = {"moe_shakespeare15M.gguf": "adapter.gguf", "stories15M-q4_0.gguf": "stories.gguf"}
"""What the tests download by address."""


def write_models(folder: Path) -> None:
    """Writes all of them."""
    from tests.serve.test_adapters import write_adapter

    folder.mkdir()
    pieces = _vocabulary()
    _write(folder / "stories.gguf", pieces)
    _write(folder / "infill.gguf", pieces, fim=True)
    _write(folder / "split.gguf", pieces, n_files=3)
    for name in ("CLS", "MEAN", "LAST", "NONE"):
        pooling = getattr(gguf.PoolingType, name)
        tiny_gguf.write(folder / f"bert-{name.lower()}.gguf", encoder=True, pooling=pooling, add_bos=True)
    tiny_gguf.write(folder / "rank.gguf", encoder=True, pooling=gguf.PoolingType.RANK)
    write_adapter(folder / "adapter.gguf", 1, n_layers=_LAYERS)


def _vocabulary() -> list[tuple[str, float, gguf.TokenType]]:
    import sentencepiece

    # Some tests count on one token for this word.
    tales = ["Hello there. " * 20 + story(1, i) for i in range(400)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(tales), model_writer=model, vocab_size=_VOCAB, model_type="bpe", byte_fallback=True,
        character_coverage=1.0, split_digits=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    out = []
    for i in range(spm.GetPieceSize()):
        kind = gguf.TokenType.NORMAL
        if spm.IsUnknown(i):
            kind = gguf.TokenType.UNKNOWN
        elif spm.IsControl(i):
            kind = gguf.TokenType.CONTROL
        elif spm.IsByte(i):
            kind = gguf.TokenType.BYTE
        out.append((spm.IdToPiece(i), spm.GetScore(i), kind))
    return out


def _write(path: Path, pieces: list, *, fim: bool = False, n_files: int = 0) -> None:
    """``n_files``: the number of parts; the path is then the common beginning of their names."""
    pieces = list(pieces)
    first = len(pieces)
    if fim:
        pieces += [(f"<{name}>", 0.0, gguf.TokenType.CONTROL) for name in _FIM]
    n_tensors = 3 + 9 * _LAYERS
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=-(-n_tensors // n_files) if n_files else 0)
    random_model.add_shape(writer, n_vocab=len(pieces), n_ctx=_CONTEXT, n_layers=_LAYERS)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for piece, _, _ in pieces])
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([kind for _, _, kind in pieces])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if fim:
        writer.add_uint32("tokenizer.ggml.fim_pre_token_id", first)
        writer.add_uint32("tokenizer.ggml.fim_suf_token_id", first + 1)
        writer.add_uint32("tokenizer.ggml.fim_mid_token_id", first + 2)
    random_model.add_weights(writer, n_vocab=len(pieces), n_layers=_LAYERS)
    # Random texts should not end by chance.
    writer.tensors[-1]["output.weight"].tensor[2] = 0
    random_model.finish(writer)
