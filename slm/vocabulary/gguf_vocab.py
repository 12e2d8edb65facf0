"""A checkpoint's tokenizer as GGUF's ``tokenizer.ggml.*`` metadata.

Byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM and ``tokenizer=bpe``) becomes llama.cpp's ``gpt2`` tokenizer;
SentencePiece BPE (and ``tokenizer=sentencepiece``) becomes ``llama``; SentencePiece unigram without byte fallback
(and ``tokenizer=unigram``) becomes ``t5``. The keys and values equal llama.cpp's converter's; where it leaves
``add_bos_token`` out, it is written too, because its absence means different things to different readers and it changes
every perplexity.
"""

import base64
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from slm.data.errors import UserError
from slm.data.tokenizers import from_sentencepiece
from slm.data.tokenizers.make import no_tokenizer
from slm.model.special_tokens import SpecialTokens, read_special_tokens
from slm.vocabulary.pretokenizer import FINGERPRINT_TEXT, identify, steps_of

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Values of tokenizer.ggml.token_type."""
UNREACHABLE_SCORE = -10_000.0
ADDED_SCORE = -1_000.0
ENDS = ("</s>", "<eos>", "[EOS]", "<EOT>", "_<EOT>", "[EOT]", "<end_of_turn>", "<end_of_utterance>", "<turn|>")
"""Tokens that llama.cpp takes for control tokens by their names, whatever a file says (llama-vocab.cpp)."""


@dataclass(kw_only=True)
class Vocab:
    """What is written under ``tokenizer.ggml``."""

    model: str
    """gpt2, llama or t5."""
    pre: str
    tokens: list[bytes]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] = field(default_factory=list)
    special: SpecialTokens = field(default_factory=SpecialTokens)
    add_space_prefix: bool | None = None
    remove_extra_whitespaces: bool | None = None
    charsmap: bytes | None = None
    """SentencePiece's compiled normalization table."""
    warnings: list[str] = field(default_factory=list)
    """What llama.cpp's tokenizer will not do the way the checkpoint's does."""
    nfc: bool = False
    """Whether the checkpoint's tokenizer applies Unicode NFC first, which llama.cpp's does not."""
    unmarked: tuple[str, ...] = ()
    """Control tokens that the tokenizer's files do not mark as special: the checkpoint's tokenizer finds them in any
    text, and llama.cpp's where it is asked to parse control tokens."""

    def write(self, writer: Any) -> None:
        """Add everything to a ``gguf.GGUFWriter``."""
        if self.add_space_prefix is not None:
            writer.add_add_space_prefix(self.add_space_prefix)
        if self.remove_extra_whitespaces is not None:
            writer.add_remove_extra_whitespaces(self.remove_extra_whitespaces)
        writer.add_tokenizer_model(self.model)
        writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        writer.add_token_types(self.types)
        if self.charsmap:
            writer.add_precompiled_charsmap(self.charsmap)
        if self.merges:
            writer.add_token_merges(self.merges)
        for name, token_id in self.special.ids.items():
            getattr(writer, f"add_{name}_token_id")(token_id)
        for name, added in self.special.added.items():
            getattr(writer, f"add_add_{name}_token")(added)
        if self.special.chat_template is not None:
            writer.add_chat_template(self.special.chat_template)


def build_vocab(directory: Path, vocab_size: int, pre: str | None = None, *, arch: str = "llama") -> Vocab:
    """The tokenizer of the checkpoint ``directory``, padded to ``vocab_size`` rows with unused ``[PADi]`` tokens.

    ``pre`` overrides the recognised pre-tokenizer. UserError where there is no tokenizer, it has more ids than the
    model has rows, or llama.cpp has no tokenizer of its kind.
    """
    sentencepiece_file = directory / "tokenizer.model"
    json_file = directory / "tokenizer.json"
    if sentencepiece_file.is_file() and not (json_file.is_file() and _is_text(sentencepiece_file)):
        vocab = _from_sentencepiece(directory, sentencepiece_file, vocab_size)
    elif json_file.is_file():
        vocab = _from_tokenizer_json(json_file, vocab_size, pre)
    else:
        raise no_tokenizer(directory)
    _note_left_out(vocab, json_file, vocab_size)
    _add_special_tokens(vocab, directory, vocab_size)
    if fault := vocab.special.template_fault:
        vocab.warnings.append(f"the chat template is passed on as it is, and no chat works with it: {fault}")
    settings = directory / "tokenizer_config.json"
    if arch in ("llama", "smollm3", "granite") and vocab.model == "gpt2" and settings.is_file():
        # The converter copies this for Llama only; byte-level BPE ignores it.
        vocab.add_space_prefix = _load_json(settings).get("add_prefix_space")
    assert len(vocab.tokens) == len(vocab.types) == vocab_size
    return vocab


def _is_text(path: Path) -> bool:
    """Whether a ``tokenizer.model`` is a list of tokens as text (tiktoken's, as Llama 3's first release has it), and no
    SentencePiece model: then the ``tokenizer.json`` beside it is the tokenizer."""
    return all(32 <= byte < 127 or byte in b"\r\n\t" for byte in path.read_bytes()[:256])


def _from_tokenizer_json(path: Path, vocab_size: int, pre: str | None) -> Vocab:
    parsed = _load_json(path)
    kind = parsed.get("model", {}).get("type")
    if kind == "Unigram":
        return _from_unigram(path, parsed, vocab_size)
    if kind != "BPE":
        raise UserError(
            f"{path} holds a {kind} tokenizer: llama.cpp runs only byte-level BPE and SentencePiece ones for this "
            "model, so it cannot be exported"
        )
    if parsed["model"].get("byte_fallback"):
        return _from_fallback_bpe(parsed, vocab_size)
    return _from_byte_level_bpe(path, parsed, vocab_size, pre)


def _from_byte_level_bpe(path: Path, parsed: dict[str, Any], vocab_size: int, pre: str | None) -> Vocab:
    warnings = []
    steps = [step.get("type") for step in steps_of(parsed.get("normalizer"))]
    normalizer, nfc = ", ".join(map(str, steps)), bool(steps) and set(steps) == {"NFC"}
    if nfc:
        warnings.append(
            "the tokenizer applies Unicode NFC first and llama.cpp does not: text with combining marks may get "
            "other ids there (ids are compared on NFC text)"
        )
    elif normalizer:
        raise UserError(
            f"{path} normalizes text ({normalizer}) before it splits it; llama.cpp's BPE tokenizer does not, so the "
            "GGUF would give other ids, and the model cannot be exported"
        )
    if pre is None:
        from tokenizers import Tokenizer

        pre = identify(parsed, Tokenizer.from_file(str(path)).encode(FINGERPRINT_TEXT).ids)
    tokens, types = _padded(vocab_size)
    beyond = _ids_beyond(parsed, vocab_size)
    for text, token_id in parsed["model"]["vocab"].items():
        if token_id in beyond:
            continue
        _check_id(token_id, vocab_size)
        tokens[token_id], types[token_id] = text.encode(), NORMAL
    _put_added(parsed.get("added_tokens", []), tokens, types, vocab_size)
    merges = _merges(parsed["model"])
    return Vocab(model="gpt2", pre=pre, tokens=tokens, types=types, merges=merges, warnings=warnings, nfc=nfc)


def _merges(model: dict[str, Any]) -> list[str]:
    """Merges as ``left right``; a space inside a half is written as byte-level BPE's own letter for it."""
    merges = model.get("merges") or []
    if merges and isinstance(merges[0], str):
        return merges
    return [" ".join(half.replace(" ", chr(ord(" ") + 256)) for half in pair) for pair in merges]


def _from_fallback_bpe(parsed: dict[str, Any], vocab_size: int) -> Vocab:
    """SentencePiece BPE that survives only as a tokenizer.json (Llama 2, TinyLlama): scores from merge ranks.

    llama.cpp merges the adjacent pair with the joined token that scores highest; the earlier a token's merge, the
    higher its score.
    """
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(parsed["model"].get("merges") or []):
        halves = merge.split(" ", 1) if isinstance(merge, str) else merge
        ranks.setdefault("".join(halves), rank)
    tokens, types = _padded(vocab_size)
    scores = [UNREACHABLE_SCORE] * vocab_size
    unknown, beyond = parsed["model"].get("unk_token"), _ids_beyond(parsed, vocab_size)
    for text, token_id in parsed["model"]["vocab"].items():
        if token_id in beyond:
            continue
        _check_id(token_id, vocab_size)
        tokens[token_id] = text.encode()
        scores[token_id] = -float(ranks[text]) if text in ranks else -1e6
        is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        types[token_id] = BYTE if is_byte else UNKNOWN if text == unknown else NORMAL
    _put_added(parsed.get("added_tokens", []), tokens, types, vocab_size, scores, unknown)
    prefix = any(
        step.get("type") == "Prepend" or step.get("prepend_scheme") in ("always", "first")
        for section in ("normalizer", "pre_tokenizer")
        for step in steps_of(parsed.get(section))
    )
    return Vocab(model="llama", pre="default", tokens=tokens, types=types, scores=scores, add_space_prefix=prefix)


def _check_unigram(path: Path, byte_fallback: object) -> None:
    """UserError for a Unigram tokenizer that spells by bytes what it lacks: llama.cpp's makes ``<unk>`` of it."""
    if byte_fallback:
        raise UserError(
            f"{path} is a Unigram tokenizer with byte fallback, and llama.cpp's Unigram tokenizer has none: characters "
            "that are no tokens would be lost there, so the model cannot be exported; train with "
            "tokenizer=sentencepiece (BPE with byte fallback) instead"
        )


def _from_unigram(path: Path, parsed: dict[str, Any], vocab_size: int) -> Vocab:
    _check_unigram(path, parsed["model"].get("byte_fallback"))
    tokens, types = _padded(vocab_size)
    scores = [UNREACHABLE_SCORE] * vocab_size
    for token_id, (text, score) in enumerate(parsed["model"]["vocab"]):
        _check_id(token_id, vocab_size)
        is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
        is_unknown = token_id == parsed["model"].get("unk_id")
        tokens[token_id], scores[token_id] = text.encode(), float(score)
        types[token_id] = UNKNOWN if is_unknown else BYTE if is_byte else NORMAL
    _put_added(parsed.get("added_tokens", []), tokens, types, vocab_size, scores)
    charsmap = next(
        (step["precompiled_charsmap"] for step in steps_of(parsed.get("normalizer")) if step["type"] == "Precompiled"),
        None,
    )
    prefix = any(step.get("prepend_scheme") in ("always", "first") for step in steps_of(parsed.get("pre_tokenizer")))
    return Vocab(
        model="t5",
        pre="default",
        tokens=tokens,
        types=types,
        scores=scores,
        add_space_prefix=prefix,
        remove_extra_whitespaces=False,
        charsmap=base64.b64decode(charsmap) if charsmap else None,
    )


def _from_sentencepiece(directory: Path, path: Path, vocab_size: int) -> Vocab:
    spec = from_sentencepiece.parse(path.read_bytes(), str(path))
    tokens, types = _padded(vocab_size)
    scores = [UNREACHABLE_SCORE] * vocab_size
    for token_id, (piece, score, kind) in enumerate(spec.pieces):
        _check_id(token_id, vocab_size)
        if kind == USER_DEFINED:  # llama.cpp looks for it in the text before spaces get their letter
            piece = piece.replace("\u2581", " ")
        # SentencePiece's own numbers for piece types are the ones GGUF uses.
        tokens[token_id], scores[token_id], types[token_id] = piece.encode(), score, kind
    added: list[dict[str, Any]] = []
    if (directory / "added_tokens.json").is_file():
        listed = _load_json(directory / "added_tokens.json")
        added += [
            {"id": token_id, "content": text, "special": token_id >= vocab_size} for text, token_id in listed.items()
        ]
    if (directory / "tokenizer.json").is_file():
        n_pieces = len(spec.pieces)
        listed = _load_json(directory / "tokenizer.json").get("added_tokens", [])
        # Pieces that only this file calls special: SentencePiece has them as its user's symbols (Gemma's turns).
        added += [
            token
            for token in listed
            if token["id"] >= n_pieces or (token.get("special") and types[token["id"]] == USER_DEFINED)
        ]
    if (directory / "tokenizer_config.json").is_file():
        decoder = _load_json(directory / "tokenizer_config.json").get("added_tokens_decoder", {})
        added += [{"id": int(token_id), **token} for token_id, token in decoder.items()]
    _put_added(added, tokens, types, vocab_size, scores)
    vocab = Vocab(model="llama", pre="default", tokens=tokens, types=types, scores=scores)
    if spec.model_type == from_sentencepiece.UNIGRAM:
        _check_unigram(path, spec.byte_fallback)
        vocab.model = "t5"
        vocab.charsmap = spec.charsmap or None
        vocab.remove_extra_whitespaces = spec.remove_extra_whitespaces
        vocab.add_space_prefix = spec.add_dummy_prefix
    elif not spec.add_dummy_prefix:
        vocab.add_space_prefix = False
    return vocab


def _add_special_tokens(vocab: Vocab, directory: Path, vocab_size: int) -> None:
    """Ids of special tokens, what is added by default, and the chat template. UserError where no text could end."""
    special = read_special_tokens(directory, vocab_size)
    for name, ended in (("eos", "text"), ("eot", "turn of a chat")):
        if name in special.beyond:
            raise UserError(
                f"the token {special.beyond[name]} that ends a {ended} has no row in the model, which has "
                f"{vocab_size}, so none would end: name a token of the model (eos_token in tokenizer_config.json, and "
                "the chat template), or copy the model's own tokenizer files there"
            )
    if vocab.model == "t5":  # llama.cpp would assume T5's habit of adding eos
        special = replace(special, added=special.added | {"eos": special.added.get("eos", False)})
    vocab.special = special


def _is_beyond(token: dict[str, Any], vocab_size: int) -> bool:
    """Whether it is a special token for which the model has no row, as Gemma 3's mark of an image in a text model."""
    return bool(token.get("special")) and token["id"] >= vocab_size


def _ids_beyond(parsed: dict[str, Any], vocab_size: int) -> set[int]:
    return {token["id"] for token in parsed.get("added_tokens") or [] if _is_beyond(token, vocab_size)}


def _note_left_out(vocab: Vocab, tokenizer_json: Path, vocab_size: int) -> None:
    added = _load_json(tokenizer_json).get("added_tokens") or [] if tokenizer_json.is_file() else []
    vocab.unmarked = tuple(
        token["content"]
        for token in added
        if not token.get("special") and (_looks_special(token["content"]) or token["content"] in ENDS)
    )
    if names := [token["content"] for token in added if _is_beyond(token, vocab_size)]:
        vocab.warnings.append(
            f"the model has no row for {', '.join(names[:5])}{' ...' if len(names) > 5 else ''}: left out of the GGUF"
        )


def _padded(vocab_size: int) -> tuple[list[bytes], list[int]]:
    return [f"[PAD{index}]".encode() for index in range(vocab_size)], [UNUSED] * vocab_size


def _check_id(token_id: int, vocab_size: int) -> None:
    if token_id >= vocab_size:
        raise UserError(
            f"the tokenizer has the id {token_id} but the model only {vocab_size} rows (vocab_size in config.json); "
            "this tokenizer belongs to another model: copy the model's own tokenizer files there"
        )


def _put_added(
    added: list[dict[str, Any]],
    tokens: list[bytes],
    types: list[int],
    vocab_size: int,
    scores: list[float] | None = None,
    unknown: str | None = None,
) -> None:
    for token in added:
        token_id, text = token["id"], token["content"]
        if _is_beyond(token, vocab_size):
            continue
        _check_id(token_id, vocab_size)
        if text == unknown:
            continue  # keeps its own type
        if token.get("special") or _looks_special(text):
            types[token_id] = CONTROL
        else:
            types[token_id] = USER_DEFINED
            text = text.replace("\u2581", " ")
        tokens[token_id] = text.encode()
        if scores is not None:
            scores[token_id] = ADDED_SCORE


def _looks_special(text: str) -> bool:
    """Control tokens that some published tokenizers forget to mark (the converter's rule)."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def _load_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); copy the tokenizer's files again") from error
