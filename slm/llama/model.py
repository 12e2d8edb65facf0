"""A GGUF model through llama.cpp: its weights, its vocabulary and its metadata.

llama.cpp aborts the whole process on a token id out of range or a null pointer, where Python cannot catch it. So
everything is checked here before it goes to native code. No torch: numpy arrays go out, plain ints and bytes go in.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import llama_cpp.llama_cpp as C

from slm.data.chat.content_spans import CHANNEL_MARKS, grammar_name
from slm.data.errors import UserError
from slm.data.unicode_scripts import BLANKS
from slm.llama.errors import LlamaError, MisuseError
from slm.llama.gguf_check import parts, read_header
from slm.llama.log import clear_log, first_error
from slm.machine.cpp_build import cpu_flags

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_NO_MODELS = {
    "adapter": "a LoRA adapter, no model: name the GGUF file of its base (a server takes both: model=BASE "
    "serve.lora=[NAME=ADAPTER])",
    "mmproj": "what lets a model see or hear (mmproj), no model by itself: name the GGUF file of the language model",
    "imatrix": "an importance matrix, no model: name a model's GGUF file",
}
"""Other GGUF files, by their ``general.type``."""
Pooling = Literal["none", "mean", "cls", "last", "rank"]
_POOLINGS: dict[Any, Pooling] = {
    C.LLAMA_POOLING_TYPE_NONE: "none",
    C.LLAMA_POOLING_TYPE_MEAN: "mean",
    C.LLAMA_POOLING_TYPE_CLS: "cls",
    C.LLAMA_POOLING_TYPE_LAST: "last",
    C.LLAMA_POOLING_TYPE_RANK: "rank",
}
_CONTROL_BYTE = b"\xff"
"""llguidance's mark in front of the name of a control token; no UTF-8 text holds it."""

_NOT_WITH_AMX = ("lfm2", "lfm2moe")
"""Architectures with short convolutions that multiply one matrix with several sequences as a third dimension.
llama.cpp's AMX products get that wrong: the logits are garbage (seen with q4_k_m), or an assertion ends the process
(f16)."""


def _name_in_grammars(piece: bytes) -> bytes:
    return grammar_name(piece.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


class Model:
    """A GGUF file's weights and vocabulary (memory-mapped: two processes share the pages).

    Raises ``UserError`` for a missing or damaged file, ``LlamaError`` where llama.cpp refuses a well-formed one.
    Close it after every ``Context`` and ``Sampler`` made from it.
    """

    def __init__(
        self, path: str | Path, *, vocab_only: bool = False, n_gpu_layers: int = 0, use_mmap: bool = True
    ) -> None:
        self.path = Path(path)
        self._model = None
        self.header = read_header(self.path)
        kind = self.header.metadata.get("general.type")
        if self.header.metadata.get("general.architecture") == "clip":
            kind = "mmproj"  # older ones do not say it
        if kind in _NO_MODELS:
            raise UserError(f"{self.path} is {_NO_MODELS[kind]}")
        for part in parts(self.path, self.header)[1:]:
            read_header(part)
        params = C.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = n_gpu_layers
        params.load_mode = C.LLAMA_LOAD_MODE_MMAP if use_mmap else C.LLAMA_LOAD_MODE_NONE
        if self.header.metadata.get("general.architecture") in _NOT_WITH_AMX and "amx_tile" in cpu_flags():
            params.use_extra_bufts = False
        clear_log()
        self._model = C.llama_model_load_from_file(os.fsencode(self.path), params)
        if not self._model:
            raise LlamaError(f"llama.cpp cannot load {self.path}: {first_error()}")
        self._vocab = C.llama_model_get_vocab(self._model)
        self.n_vocab: int = C.llama_vocab_n_tokens(self._vocab)
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self._model)
        """Tokens of context the model was trained with."""
        self.n_embd: int = C.llama_model_n_embd(self._model)
        self.n_params: int = C.llama_model_n_params(self._model)
        self.size_bytes: int = C.llama_model_size(self._model)
        """Bytes of all tensors (the file is this plus its header)."""
        self.keeps_cells: bool = not (
            C.llama_model_is_recurrent(self._model)
            or C.llama_model_is_hybrid(self._model)
            or C.llama_model_n_swa(self._model) > 0
        )
        """Whether a cache keeps keys and values of every position, so that it can be cut back to any of them. A model
        with a recurrent state or a sliding window does not."""
        self.pooling: Pooling = _POOLINGS.get(self._own_value("pooling_type"), "mean")
        """What the file says an embedding is made of; the mean where it says nothing."""
        self.causal: bool = self._own_value("attention.causal") is not False
        """Whether a token sees only those before it. An encoder's see all."""
        self.n_scores: int = C.llama_model_n_cls_out(self._model)
        """Numbers that a reranking model ("rank") gives for a text."""
        self.bos: int = C.llama_vocab_bos(self._vocab)
        """-1 where there is none; the same for ``eos``."""
        self.eos: int = C.llama_vocab_eos(self._vocab)
        self.add_bos: bool = C.llama_vocab_get_add_bos(self._vocab)
        self.add_eos: bool = C.llama_vocab_get_add_eos(self._vocab)
        self.separator: int = C.llama_vocab_sep(self._vocab)
        """-1 where there is none."""
        self.add_separator: bool = C.llama_vocab_get_add_sep(self._vocab)
        self.fim_prefix: int = C.llama_vocab_fim_pre(self._vocab)
        """The tokens for filling in the middle, -1 where there is none: before the text in front of the gap,"""
        self.fim_suffix: int = C.llama_vocab_fim_suf(self._vocab)
        """before the text behind it,"""
        self.fim_middle: int = C.llama_vocab_fim_mid(self._vocab)
        """before the text in the gap,"""
        self.fim_repository: int = C.llama_vocab_fim_rep(self._vocab)
        """before the name of a repository, and"""
        self.fim_file: int = C.llama_vocab_fim_sep(self._vocab)
        """before the name of a file."""

    def _own_value(self, key: str) -> Any:
        """A value of the file under the name of its architecture."""
        return self.header.metadata.get(f"{self.header.metadata.get('general.architecture')}.{key}")

    def _open(self) -> object:
        if not self._model:
            raise MisuseError("the model is closed")
        return self._model

    def check_token(self, token: int) -> int:
        """Raises ``LlamaError`` unless ``token`` is an id of the vocabulary."""
        if not 0 <= token < self.n_vocab:
            raise LlamaError(f"token id {token} is outside the vocabulary (0 to {self.n_vocab - 1})")
        return token

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of ``text``. ``add_special`` adds BOS where the file asks for it. ``parse_special`` reads text
        that spells a special token as that token: right for a rendered chat template, wrong for a user's text.
        """
        if not parse_special and any(name in text for name in self._channel_marks):
            # llama.cpp reads these as tokens in any text. Cut inside of a name, it is text.
            names = "|".join(re.escape(name[1:]) for name in self._channel_marks)
            first, *rest = re.split(f"(?<=<)(?={names})", text)
            tokens = self._tokenized(first, add_special=add_special, parse_special=False)
            return tokens + [
                token for part in rest for token in self._tokenized(part, add_special=False, parse_special=False)
            ]
        return self._tokenized(text, add_special=add_special, parse_special=parse_special)

    def _tokenized(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        self._open()
        raw = to_utf8(text)
        if len(raw) >= 2**31 - 8:
            raise LlamaError(f"a text of {len(raw)} bytes is too long to tokenize at once")
        capacity = len(raw) + 8
        for _ in range(2):
            buffer = (C.llama_token * capacity)()
            n = C.llama_tokenize(self._vocab, raw, len(raw), buffer, capacity, add_special, parse_special)
            if n >= 0:
                return buffer[:n]
            capacity = -n
        raise LlamaError(f"llama.cpp cannot tokenize a text of {len(raw)} bytes")

    @cached_property
    def _channel_marks(self) -> dict[str, int]:
        """Control tokens of gpt-oss's vocabulary that llama.cpp takes for a person's own ones, by name: it shows them,
        and it reads them in any text."""
        self._open()
        end = self._tokenized("<|call|>", add_special=False, parse_special=True)
        if len(end) != 1 or not self.is_eog(end[0]):
            return {}
        found = {name: self._tokenized(name, add_special=False, parse_special=True) for name in CHANNEL_MARKS}
        return {
            name: tokens[0]
            for name, tokens in found.items()
            if len(tokens) == 1 and self._attributes[tokens[0]] & C.LLAMA_TOKEN_ATTR_USER_DEFINED
        }

    @cached_property
    def _attributes(self) -> tuple[int, ...]:
        """What llama.cpp knows of each token, as bits; read once, since it takes a tenth of a second."""
        self._open()
        return tuple(C.llama_vocab_get_attr(self._vocab, token) for token in range(self.n_vocab))

    def _is_control(self, token: int) -> bool:
        hidden = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
        return bool(self._attributes[token] & hidden) or token in self._channel_marks.values()

    def tokenize_parts(
        self, text: str, literal: Sequence[tuple[int, int]], *, add_special: bool, parse_special: bool
    ) -> list[int]:
        """Token ids of a prompt: as ``tokenize``, but in the ``literal`` spans of characters, in order, nothing is read
        as a special token.

        White space that a special token of another part swallows is left out, as in training (``PartEncoder``).
        """
        parts: list[tuple[int, int, bool]] = []
        start = 0
        for begin, end in literal:
            if start < begin:
                parts.append((start, begin, parse_special))
            if begin < end:
                parts.append((begin, end, False))
            start = end
        if start < len(text) or not parts:
            parts.append((start, len(text), parse_special))
        tokens: list[int] = []
        for place, (begin, end, parse) in enumerate(parts):
            part = text[begin:end]
            if tokens and self.strips(tokens[-1])[1]:
                part = part.lstrip(BLANKS)
            if parts[place + 1 :] and parts[place + 1][2] and text.startswith(self._swallowing_before, end):
                part = part.rstrip(BLANKS)
            if part or not begin:
                tokens += self.tokenize(part, add_special=add_special and begin == 0, parse_special=parse)
        return tokens

    @cached_property
    def _swallowing_before(self) -> tuple[str, ...]:
        """The special tokens that swallow the white space before them."""
        strips = C.LLAMA_TOKEN_ATTR_LSTRIP
        return tuple(self.token_name(token) for token, each in enumerate(self._attributes) if each & strips)

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """UTF-8 bytes of a token, which may end inside a character; b"" for control tokens unless ``special``."""
        self._open()
        self.check_token(token)
        size = 64
        for _ in range(2):
            buffer = ctypes.create_string_buffer(size)
            n = C.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n
        raise LlamaError(f"llama.cpp cannot spell token {token}")

    def token_name(self, token: int) -> str:
        """A control token as text; "" for one that the model lacks (-1)."""
        return self.token_to_piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    @cached_property
    def spellings(self) -> list[bytes]:
        """Bytes of every token, control tokens by their names. Takes a moment the first time."""
        return [self.token_to_piece(token, special=True) for token in range(self.n_vocab)]

    @cached_property
    def grammar_tokenizer(self) -> LLTokenizer:
        """The vocabulary as grammars read it. Takes a fraction of a second the first time, without Python's lock for
        most of it; the model must outlive it.

        Control tokens add no text, so that a grammar's text never allows them. End-of-generation tokens end a text.
        """
        from llguidance import LLTokenizer

        self._open()
        tokens = [
            _CONTROL_BYTE + _name_in_grammars(piece) if self._is_control(token) else piece
            for token, piece in enumerate(self.spellings)
        ]
        ends = [token for token in range(self.n_vocab) if C.llama_vocab_is_eog(self._vocab, token)]
        if not ends:
            # llguidance asks for one. This one no row of logits has.
            tokens.append(_CONTROL_BYTE + b"<end>")
            ends = [self.n_vocab]
        return LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]
            tokens=tokens,
            vocab_ptr=ctypes.cast(self._vocab, ctypes.c_void_p).value,
            tokenize_fptr=ctypes.cast(C._lib.llama_tokenize, ctypes.c_void_p).value,
            eos_token=ends,
        )

    def control_names(self) -> tuple[str, ...]:
        """The texts that ``tokenize`` reads as a special token with ``parse_special``, and as text without it."""
        self._open()
        return tuple(
            C.llama_vocab_get_text(self._vocab, token).decode("utf-8", errors="replace")
            for token in range(self.n_vocab)
            if self._is_control(token)
        )

    def strips(self, token: int) -> tuple[bool, bool]:
        """Whether a special token swallows the white space before it, and that behind it."""
        self._open()
        attributes = self._attributes[self.check_token(token)]
        return bool(attributes & C.LLAMA_TOKEN_ATTR_LSTRIP), bool(attributes & C.LLAMA_TOKEN_ATTR_RSTRIP)

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (end of text, end of turn)."""
        self._open()
        return C.llama_vocab_is_eog(self._vocab, self.check_token(token))

    @cached_property
    def eog_tokens(self) -> tuple[int, ...]:
        """Ids of all tokens that end a generation: a model may have one for the text and another for a turn."""
        self._open()
        return tuple(token for token in range(self.n_vocab) if C.llama_vocab_is_eog(self._vocab, token))

    def metadata(self) -> dict[str, str]:
        """The file's key-value pairs as llama.cpp prints them (long arrays are shortened)."""

        def read(function, *args: object) -> str:
            size = 256
            while True:
                buffer = ctypes.create_string_buffer(size)
                n = function(self._open(), *args, buffer, size)
                if n < size:
                    return buffer.raw[: max(n, 0)].decode("utf-8", errors="replace")
                size = n + 1

        count = C.llama_model_meta_count(self._open())
        return {
            read(C.llama_model_meta_key_by_index, i): read(C.llama_model_meta_val_str_by_index, i) for i in range(count)
        }

    def chat_template(self) -> str | None:
        """The Jinja chat template inside the file, untrusted text; None for a base model."""
        raw = C.llama_model_chat_template(self._open(), None)
        return raw.decode("utf-8", errors="replace") if raw else None

    def close(self) -> None:
        """Frees the weights. Safe to call twice."""
        if self._model:
            C.llama_model_free(self._model)
            self._model = None

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def to_utf8(text: str) -> bytes:
    """UTF-8 of any Python text; a lone surrogate, which has none, becomes U+FFFD."""
    # Lone surrogates are legal in JSON, and llama.cpp's tokenizer throws on invalid UTF-8.
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")
