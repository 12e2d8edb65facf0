"""A GGUF file's vocabulary and chat template as the files of a Hugging Face tokenizer.

What the metadata leave to llama.cpp (which token begins a text where they do not say, which tokens swallow white space)
is what llama.cpp answers. Unicode normalization is in no GGUF, and llama.cpp does none: so the tokenizer does none.

Tested in tests/slm/from_gguf/test_tokenizer.py.
"""

import json
from pathlib import Path
from typing import Any

from slm.data.errors import UserError, nearest
from slm.data.tokenizers import from_sentencepiece
from slm.data.tokenizers.from_sentencepiece import BPE, CONTROL, NORMAL, UNIGRAM, UNKNOWN, UNUSED, USER_DEFINED
from slm.data.tokenizers.splits import SPLITS, WHOLE_WORDS, section
from slm.data.tokenizers.tokenizer import special_token, tokenizer_config
from slm.from_gguf.contents import Contents
from slm.llama.model import Model

KEY = "tokenizer.ggml."
CHAT_TEMPLATE = "tokenizer.chat_template"
SPACE = "\u2581"
ADDED_SCORE = -1000.0
"""The converters' score of tokens that were added to a SentencePiece model. None of the model's pieces has it."""
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def tokenizer_files(llama: Model, contents: Contents) -> tuple[dict[str, bytes], list[str]]:
    """``tokenizer.json`` and ``tokenizer_config.json``, and lines on what is left out.

    UserError for a tokenizer of a kind that training does not know.
    """
    vocabulary = _Vocabulary(contents)
    sections = vocabulary.sections()
    bos, eos = (vocabulary.tokens[each] if each >= 0 else None for each in (llama.bos, llama.eos))
    eos = eos or vocabulary.named("eot")
    if eos is None:
        raise UserError(
            f"{contents.path.name} does not say which token ends a text (tokenizer.ggml.eos_token_id), without which "
            "it cannot be trained further"
        )
    before = [llama.bos] if llama.add_bos and llama.bos >= 0 else []
    behind = [llama.eos] if llama.add_eos and llama.eos >= 0 else []
    plain = sections.pop("post_processor", None)
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": vocabulary.added(llama),
        **sections,
        "post_processor": _around(vocabulary.tokens, before, behind, plain),
    }
    template, lines = chat_template(contents)
    more = {"unk_token": vocabulary.named("unknown"), "pad_token": vocabulary.named("padding")}
    settings = json.loads(tokenizer_config(eot=eos, bos=bos or eos)) | {"add_bos_token": bool(before)}
    settings |= {"add_eos_token": bool(behind), **{name: token for name, token in more.items() if token is not None}}
    if template is not None:
        settings["chat_template"] = template
    files = {
        "tokenizer.json": json.dumps(spec, ensure_ascii=False, separators=(",", ":")).encode(),
        "tokenizer_config.json": (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode(),
    }
    return files, lines


def chat_template(contents: Contents) -> tuple[str | None, list[str]]:
    """The file's template, and a line where it has further ones, which are left out."""
    found = contents.metadata.get(CHAT_TEMPLATE)
    others = [key.removeprefix(f"{CHAT_TEMPLATE}.") for key in contents.metadata if key.startswith(f"{CHAT_TEMPLATE}.")]
    lines = [f"{len(others)} further chat templates are left out: {', '.join(others)}"] if others else []
    return found, lines


class _Vocabulary:
    """The tokens of a file, by its own kind of tokenizer."""

    def __init__(self, contents: Contents) -> None:
        self.contents = contents
        self.kind = str(self._value("model"))
        self.tokens: list[str] = contents.arrays.get(f"{KEY}tokens", [])
        if not self.tokens:
            raise UserError(f"{contents.path.name} holds no vocabulary (tokenizer.ggml.tokens): give a model's file")
        self.types: list[int] = contents.arrays.get(f"{KEY}token_type", [NORMAL] * len(self.tokens))
        self.scores: list[float] = contents.arrays.get(f"{KEY}scores", [0.0] * len(self.tokens))
        self.merges: list[str] = contents.arrays.get(f"{KEY}merges", [])
        if not len(self.tokens) == len(self.types) == len(self.scores):
            raise UserError(f"{contents.path.name} has arrays of several lengths under tokenizer.ggml: it is damaged")

    def _value(self, key: str, default: Any = None) -> Any:
        return self.contents.metadata.get(f"{KEY}{key}", default)

    def named(self, key: str) -> str | None:
        """The token of ``KEY_token_id``; None where the file names none."""
        id = self._value(f"{key}_token_id")
        return self.tokens[id] if isinstance(id, int) and 0 <= id < len(self.tokens) else None

    def added(self, llama: Model) -> list[dict[str, Any]]:
        """The special tokens, and those that a person's tokenizer finds in a text as a whole."""
        found = []
        control = set(llama.control_names())  # llama.cpp's own word: some it takes for such by their names
        for id, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True)):
            if token in control or kind == USER_DEFINED:
                left, right = llama.strips(id)
                found.append(special_token(id, token) | {"special": token in control, "lstrip": left, "rstrip": right})
        return found

    def sections(self) -> dict[str, Any]:
        """Normalizer, pre-tokenizer, decoder, model and what stands around a text, without special tokens."""
        if self.kind == "gpt2":
            return self._byte_level()
        if self.kind in ("llama", "t5"):
            return self._sentencepiece()
        if self.kind == "gemma4":
            return self._spaced_bpe()
        raise UserError(
            f"{self.contents.path.name} has a tokenizer of the kind {self.kind}: training knows gpt2 (byte-level BPE), "
            "llama and t5 (SentencePiece)"
        )

    def _vocab(self) -> dict[str, int]:
        """The ids by token, unused ones at the end left out: rows that only pad the tables."""
        used = max(id for id, kind in enumerate(self.types) if kind != UNUSED)
        return {token: id for id, token in enumerate(self.tokens[: used + 1])}

    def _byte_level(self) -> dict[str, Any]:
        pre = str(self._value("pre", "default"))
        split = section(pre)
        if split is None:
            hint = nearest(pre, SPLITS, n=1)
            raise UserError(
                f"{self.contents.path.name} splits text by the rule {pre!r}, which is known to llama.cpp alone"
                f"{f' ({hint})' if hint else ''}: it can be served, and not trained further"
            )
        return {
            "normalizer": None,
            "pre_tokenizer": split,
            "post_processor": _BYTE_LEVEL,
            "decoder": _BYTE_LEVEL,
            "model": {
                **_bpe(self._vocab(), self.merges, None),
                **{"fuse_unk": False, "byte_fallback": False, "ignore_merges": pre in WHOLE_WORDS},
            },
        }

    def _sentencepiece(self) -> dict[str, Any]:
        n = len(self.tokens)
        while n and self._is_added(n - 1):
            n -= 1
        pieces = [
            # A symbol of the user's is found in the text before it is normalized, as an added token.
            (token, score, NORMAL if kind == USER_DEFINED else kind)
            for token, score, kind in zip(self.tokens[:n], self.scores, self.types, strict=False)
        ]
        charsmap = bytes(each & 255 for each in self.contents.arrays.get(f"{KEY}precompiled_charsmap", []))
        found = from_sentencepiece.sections(
            from_sentencepiece.Model(
                pieces=pieces,
                model_type=BPE if self.kind == "llama" else UNIGRAM,
                byte_fallback=True,
                bos_id=-1,
                eos_id=-1,
                charsmap=charsmap,
                add_dummy_prefix=bool(self._value("add_space_prefix", True)),
                remove_extra_whitespaces=self.kind == "t5" and bool(self._value("remove_extra_whitespaces", False)),
            )
        )
        return found

    def _is_added(self, id: int) -> bool:
        """Whether a token at the end is none of the SentencePiece model's own."""
        kinds = (CONTROL, USER_DEFINED, UNUSED)
        return self.kind == "llama" and self.scores[id] <= ADDED_SCORE and self.types[id] in kinds

    def _spaced_bpe(self) -> dict[str, Any]:
        """BPE over characters, in which U+2581 stands for a space (Gemma 4)."""
        space = {"String": " "}
        decoders = [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ]
        unknown = self.named("unknown") or next(
            (token for token, kind in zip(self.tokens, self.types, strict=True) if kind == UNKNOWN), None
        )
        return {
            "normalizer": {"type": "Replace", "pattern": space, "content": SPACE},
            "pre_tokenizer": {"type": "Split", "pattern": space, "behavior": "MergedWithPrevious", "invert": False},
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {
                **_bpe(self._vocab(), self.merges, unknown),
                **{"fuse_unk": True, "byte_fallback": True, "ignore_merges": False},
            },
        }


def _bpe(vocab: dict[str, int], merges: list[str], unknown: str | None) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "vocab": vocab,
        "merges": merges,
    }


def _around(tokens: list[str], before: list[int], behind: list[int], plain: dict[str, Any] | None) -> Any:
    """The ``post_processor`` that writes these tokens around each text."""
    if not before and not behind:
        return plain

    def special(ids: list[int], kind: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": tokens[id], "type_id": kind}} for id in ids]

    def text(name: str, kind: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": kind}}

    around = {
        "type": "TemplateProcessing",
        "single": [*special(before, 0), text("A", 0), *special(behind, 0)],
        "pair": [*special(before, 0), text("A", 0), *special(behind, 0), text("B", 1), *special(behind, 1)],
        "special_tokens": {
            tokens[id]: {"id": tokens[id], "ids": [id], "tokens": [tokens[id]]} for id in before + behind
        },
    }
    return {"type": "Sequence", "processors": [plain, around]} if plain else around


def save(files: dict[str, bytes], directory: Path) -> None:
    """Write the files into ``directory``."""
    for name, content in files.items():
        (directory / name).write_bytes(content)
