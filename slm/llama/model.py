"""A GGUF model through llama.cpp: its weights, its vocabulary and its metadata.

llama.cpp aborts the whole process on a token id out of range or a null pointer, where Python cannot catch it. So
everything is checked here before it goes to native code. No torch: numpy arrays go out, plain ints and bytes go in.
"""

from __future__ import annotations

import codecs
import ctypes
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import llama_cpp.llama_cpp as C
import numpy as np

from slm.data.errors import UserError
from slm.llama.errors import LlamaError, MisuseError
from slm.llama.gguf_check import read_header
from slm.llama.log import clear_log, first_error

_NO_MODELS = {
    "adapter": "a LoRA adapter, no model: name the GGUF file of its base (a server takes both: model=BASE "
    "serve.lora=[NAME=ADAPTER])",
    "imatrix": "an importance matrix, no model: name a model's GGUF file",
}
"""Other GGUF files, by their ``general.type``."""
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


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
        if (kind := self.header.metadata.get("general.type")) in _NO_MODELS:
            raise UserError(f"{self.path} is {_NO_MODELS[kind]}")
        params = C.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = n_gpu_layers
        params.load_mode = C.LLAMA_LOAD_MODE_MMAP if use_mmap else C.LLAMA_LOAD_MODE_NONE
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
        self.bos: int = C.llama_vocab_bos(self._vocab)
        """-1 where there is none; the same for ``eos``."""
        self.eos: int = C.llama_vocab_eos(self._vocab)
        self.add_bos: bool = C.llama_vocab_get_add_bos(self._vocab)
        self.add_eos: bool = C.llama_vocab_get_add_eos(self._vocab)

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

    def tokenize_parts(
        self, text: str, literal: Sequence[tuple[int, int]], *, add_special: bool, parse_special: bool
    ) -> list[int]:
        """Token ids of a prompt: as ``tokenize``, but in the ``literal`` spans of characters, in order, nothing is read
        as a special token."""
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
        for begin, end, parse in parts:
            tokens += self.tokenize(text[begin:end], add_special=add_special and begin == 0, parse_special=parse)
        return tokens

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
    def starts_character(self) -> np.ndarray:
        """bool [n_vocab]: whether a token is UTF-8 from its first byte on; its last character may be unfinished."""
        return np.array([unfinished_character(b"", piece) is not None for piece in self.spellings])

    @cached_property
    def grammar_banned(self) -> np.ndarray:
        """int32 ids of tokens that a grammar must not pick. llama.cpp reads a control token as its name, which the text
        does not show, and a token that holds a NUL not to its end. End-of-text tokens are not among them."""
        self._open()
        ids = [
            token
            for token, piece in enumerate(self.spellings)
            if not C.llama_vocab_is_eog(self._vocab, token)
            and (C.llama_vocab_is_control(self._vocab, token) or b"\0" in piece)
        ]
        return np.array(ids, np.int32)

    def control_names(self) -> tuple[str, ...]:
        """The texts that ``tokenize`` reads as a special token with ``parse_special``, and as text without it."""
        self._open()
        wanted = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
        return tuple(
            C.llama_vocab_get_text(self._vocab, token).decode("utf-8", errors="replace")
            for token in range(self.n_vocab)
            if C.llama_vocab_get_attr(self._vocab, token) & wanted
        )

    def strips(self, token: int) -> tuple[bool, bool]:
        """Whether a special token swallows the white space before it, and that behind it."""
        self._open()
        attributes = C.llama_vocab_get_attr(self._vocab, self.check_token(token))
        return bool(attributes & C.LLAMA_TOKEN_ATTR_LSTRIP), bool(attributes & C.LLAMA_TOKEN_ATTR_RSTRIP)

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (end of text, end of turn)."""
        self._open()
        return C.llama_vocab_is_eog(self._vocab, self.check_token(token))

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


def unfinished_character(pending: bytes, piece: bytes) -> bytes | None:
    """The unfinished character at the end of ``pending + piece``, b"" where there is none. None for invalid UTF-8."""
    decoder = _Utf8Decoder()
    try:
        decoder.decode(pending + piece)
    except UnicodeDecodeError:
        return None
    rest = decoder.getstate()[0]
    # The decoder sees that a half character is a surrogate only at its last byte, when nothing fits any more.
    return None if rest[:1] == b"\xed" and rest[1:2] >= b"\xa0" else rest
