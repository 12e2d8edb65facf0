"""One tokenizer for every source: a Hugging Face ``tokenizer.json``, held as the files that a checkpoint carries.

tiktoken encodings, trained BPEs and SentencePiece models are converted to ``tokenizer.json`` first, and only that
file is used from then on. So training, checkpoints and transformers use the same tokenizer.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend

from slm.data.errors import UserError, excerpt, one_line

EOT = "<|endoftext|>"
# Tokens that end a document in well-known vocabularies: tried where tokenizer.json comes without its configuration.
KNOWN_EOT = (EOT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|end▁of▁sentence|>", "[EOS]", "<|im_end|>")


class Tokenizer:
    """Text to ids and back.

    ``files`` maps file names to contents and must hold ``tokenizer.json``. Instances pickle as these files.
    Raises UserError for a tokenizer.json that is not byte-level BPE or SentencePiece-like, or has no end-of-text
    token.
    """

    def __init__(self, files: dict[str, bytes], *, name: str, eot_token: str = "") -> None:
        self._load(files, name=name, eot_token=eot_token)

    def _load(self, files: dict[str, bytes], *, name: str, eot_token: str) -> None:
        self.files = dict(files)
        self.name = name
        try:
            self.spec: dict[str, Any] = json.loads(self.files["tokenizer.json"])
            """``tokenizer.json``, parsed."""
            self._backend = Backend.from_str(self.files["tokenizer.json"].decode("utf-8"))
        except Exception as error:  # the tokenizers library raises plain Exception
            raise UserError(f"{name}: tokenizer.json cannot be read ({excerpt(error)}): copy it again") from error
        self._backend.no_truncation()
        self._backend.no_padding()
        # Text that spells a special token is text: only the packer ends documents.
        self._backend.encode_special_tokens = True
        vocab = self._backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(vocab.values()) + 1
        """Number of ids, special tokens included."""
        added = self.spec.get("added_tokens") or []
        self.special_ids: frozenset[int] = frozenset(token["id"] for token in added if token.get("special"))
        """Ids of special tokens, which represent no text."""
        self._added = {token["id"]: token["content"] for token in added if not token.get("special")}
        self._byte_level = _byte_level(self.spec, name)
        self.kind: str = self.spec["model"]["type"]
        """``BPE`` or ``Unigram``."""
        self.eot_token = eot_token or self._find_eot(vocab)
        if self.eot_token not in vocab:
            raise UserError(
                f"{name} has no token {self.eot_token!r}: set tokenizer.eot_token to one of its special tokens "
                f"({', '.join(self._special_names()) or 'it has none'})"
            )
        self.eot_id: int = vocab[self.eot_token]
        """Id of the token that ends a document."""
        self.begins, self.ends = self._own_ends(vocab)
        """Ids that the tokenizer writes before and after a text by itself: usually none, or ``begins`` is the
        beginning-of-text token of models that use one (Llama 2 and 3, Gemma, LFM2)."""
        self._bytes: list[bytes] | None = None

    def _own_ends(self, vocab: dict[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the post-processor writes around a text. Where it says nothing about that, ``add_bos_token: true`` in
        tokenizer_config.json counts, as for llama.cpp's converter and the classes of transformers 4."""
        around = self._backend.encode("a", add_special_tokens=True)
        added = [bool(each) for each in around.special_tokens_mask]
        first = next((at for at, each in enumerate(added) if not each), len(added))
        last = next((at for at in range(len(added), first, -1) if not added[at - 1]), first)
        begins, ends = tuple(around.ids[:first]), tuple(around.ids[last:])
        settings = self.settings
        if not begins and settings.get("add_bos_token") is True and not _has_template(self.spec.get("post_processor")):
            bos = vocab.get(token_text(settings.get("bos_token")))
            begins = () if bos is None else (bos,)
        return begins, ends

    @property
    def document_start(self) -> tuple[int, ...]:
        """What a new document follows, in training and in samples: ``begins``, else the end-of-text token."""
        return self.begins or (self.eot_id,)

    @property
    def fingerprint(self) -> str:
        """Changes with tokenizer.json."""
        return hashlib.blake2b(self.files["tokenizer.json"], digest_size=8).hexdigest()

    @property
    def unknown_id(self) -> int | None:
        """The id of every character that is no token; None where a tokenizer spells all by their bytes."""
        model = self.spec["model"]
        if self._byte_level or model.get("byte_fallback"):
            return None
        if self.kind == "Unigram":
            return model.get("unk_id")
        return model["vocab"].get(model.get("unk_token"))

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "name": self.name, "eot_token": self.eot_token, "begins": self.begins}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._load(state["files"], name=state["name"], eot_token=state["eot_token"])
        self.begins = state["begins"]

    def _special_names(self) -> list[str]:
        return [token["content"] for token in self.spec.get("added_tokens") or [] if token.get("special")]

    def _find_eot(self, vocab: dict[str, int]) -> str:
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            if declared := token_text(self._json(name).get("eos_token")):
                return declared
        for candidate in KNOWN_EOT:
            if candidate in vocab:
                return candidate
        raise UserError(
            f"{self.name} does not say which token ends a document: give tokenizer_config.json an eos_token, or for "
            f"training tokenizer.eot_token, one of {', '.join(self._special_names()) or 'its tokens'}"
        )

    @property
    def settings(self) -> dict[str, Any]:
        """What ``tokenizer_config.json`` says."""
        return self._json("tokenizer_config.json")

    def _json(self, name: str) -> dict[str, Any]:
        """A file of settings; empty where there is none. Raises UserError where it is no JSON object."""
        try:
            found = json.loads(self.files.get(name, b"{}"))
            if not isinstance(found, dict):
                raise ValueError("no JSON object")
        except ValueError as error:
            raise UserError(f"{self.name}: {name} cannot be read ({one_line(error)}): copy it again") from error
        return found

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, no special token added; lone surrogates become U+FFFD."""
        try:
            return self._backend.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):
            return self._backend.encode(well_formed(text), add_special_tokens=False).ids

    def encode_parsed(self, text: str) -> list[int]:
        """As ``encode``, but text that spells a special token becomes that token, as in transformers."""
        self._backend.encode_special_tokens = False
        try:
            return self.encode(text)
        finally:
            self._backend.encode_special_tokens = True

    def encode_document(self, text: str) -> list[int]:
        """Ids of a text as a server sends them: with what the tokenizer itself writes around it."""
        return [*self.begins, *self.encode(text), *self.ends]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, as ``encode`` gives them."""
        fast = self._backend.encode_batch_fast
        try:
            return [encoding.ids for encoding in fast(texts, add_special_tokens=False)]
        except (UnicodeEncodeError, TypeError):
            return [e.ids for e in fast([well_formed(text) for text in texts], add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``: special tokens are dropped and bytes that are not UTF-8 become U+FFFD."""
        return self._backend.decode([int(i) for i in ids], skip_special_tokens=True)

    def token_bytes(self, id: int) -> bytes:
        """The bytes that one id represents; ``b""`` for special tokens and for ids without a token."""
        return self._token_bytes()[id]

    def byte_lengths(self) -> np.ndarray:
        """The number of UTF-8 bytes that each id represents, ``np.int32[vocab_size]``; 0 for special tokens.

        Some SentencePiece models put a space before the text. The sum over a text's ids counts that space too.
        """
        return np.array([len(each) for each in self._token_bytes()], dtype=np.int32)

    def _token_bytes(self) -> list[bytes]:
        if self._bytes is None:
            self._bytes = self._all_bytes()
        return self._bytes

    def _all_bytes(self) -> list[bytes]:
        table = [b""] * self.vocab_size
        to_bytes = _from_byte_level if self._byte_level else _from_sentencepiece
        for token, id in self._backend.get_vocab(with_added_tokens=True).items():
            if id in self._added:  # one of SentencePiece's spaces stands for a space in it, too (Gemma's runs of them)
                added = self._added[id]
                table[id] = (added if self._byte_level else added.replace("\u2581", " ")).encode()
            elif id not in self.special_ids:
                table[id] = to_bytes(token)
        return table

    def save(self, directory: str | Path) -> None:
        """Write ``tokenizer.json``, ``tokenizer_config.json`` and the files that came with them into ``directory``."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def token_text(token: Any) -> str:
    """A token of ``tokenizer_config.json``, which is text, or an object that holds it; "" for none."""
    return (token.get("content") if isinstance(token, dict) else token) or ""


def _has_template(processor: dict[str, Any] | None) -> bool:
    """Whether a ``post_processor`` says what stands around a text (the one of byte-level BPE alone says nothing)."""
    if not processor:
        return False
    return any(each.get("type") != "ByteLevel" for each in processor.get("processors") or [processor])


def tokenizer_config(*, eot: str, bos: str | None = None, **more: Any) -> bytes:
    """A ``tokenizer_config.json`` that makes transformers use ``tokenizer.json`` unchanged.

    It names the generic class on purpose: the classes of model families rebuild the pre-tokenizer.
    """
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos or eot,
        "eos_token": eot,
        "add_bos_token": False,
        "add_eos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(1e30),
        **more,
    }
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def special_token(id: int, content: str) -> dict[str, Any]:
    """The entry of a special token in the ``added_tokens`` of a ``tokenizer.json``."""
    return {
        "id": id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def token_first(token: str, vocab: dict[str, int] | list[Any]) -> dict[str, Any]:
    """The ``post_processor`` of a ``tokenizer.json`` that writes ``token`` before each text. ``vocab``: its model's."""
    id = vocab[token] if isinstance(vocab, dict) else [piece for piece, _ in vocab].index(token)
    first, text, second = (
        {kind: {"id": name, "type_id": type_id}}
        for kind, name, type_id in (("SpecialToken", token, 0), ("Sequence", "A", 0), ("Sequence", "B", 1))
    )
    special = {token: {"id": token, "ids": [id], "tokens": [token]}}
    single = [first, text]
    return {"type": "TemplateProcessing", "single": single, "pair": [*single, second], "special_tokens": special}


def well_formed(text: str) -> str:
    """``text`` with lone surrogates, which UTF-8 cannot carry, replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def byte_alphabet() -> dict[int, str]:
    """GPT-2's byte-level alphabet: the printable character that stands for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


BYTE_OF = {character: byte for byte, character in byte_alphabet().items()}


def _from_byte_level(token: str) -> bytes:
    if all(character in BYTE_OF for character in token):
        return bytes(BYTE_OF[character] for character in token)
    return token.encode()  # a token added in plain text


def _from_sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def _byte_level(spec: dict[str, Any], name: str) -> bool:
    """Whether tokens are spelt in GPT-2's byte alphabet (else with SentencePiece's U+2581 for a space)."""
    kind = (spec.get("model") or {}).get("type")
    text = json.dumps([spec.get("pre_tokenizer"), spec.get("normalizer"), spec.get("decoder")])
    if kind == "BPE" and '"ByteLevel"' in text:
        return True
    if kind in ("BPE", "Unigram") and ("Metaspace" in text or "\\u2581" in text):
        return False
    raise UserError(
        f"{name} is a {kind} tokenizer of a kind that is not supported here: give a byte-level BPE "
        "(GPT-2, Llama 3, Qwen) or a SentencePiece one (Llama 2, Gemma)"
    )
