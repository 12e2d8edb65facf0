"""A checkpoint's special tokens: their ids, and which are added to a text by default. Export and scoring ask here."""

import codecs
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slm.data.chat.tokens import end_of_turn, template_fault
from slm.data.errors import UserError, one_line
from slm.data.tokenizers.make import load_tokenizer

_IDS = ("bos", "eos", "unk", "sep", "pad", "mask", "eot", "eom")
"""Those for which GGUF has a key."""
_ADDED = ("bos", "eos", "sep")
_SMALL = 1 << 28
"""Bytes; no JSON of a tokenizer has more."""


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """What tokenizer_config.json, tokenizer.json and config.json say together."""

    ids: dict[str, int] = field(default_factory=dict)
    """``bos``, ``eos``, ... to the id, for those there are."""
    added: dict[str, bool] = field(default_factory=lambda: {"bos": False})
    """``bos`` (always present), ``eos``, ``sep`` to whether it is put around a text by default."""
    beyond: dict[str, int] = field(default_factory=dict)
    """The ids of ``ids``' kinds for which the model has no row, and that have no other."""
    chat_template: Any = None
    """Jinja text, or several as llama.cpp's converter takes them; None for a base model."""
    template_fault: str | None = None
    """Why no chat works with the template."""

    @property
    def bos_added(self) -> int | None:
        """The beginning-of-text token, where it is added by default."""
        return self.ids.get("bos") if self.added["bos"] else None

    @property
    def document_start(self) -> int | None:
        """The token that stands before a text: beginning-of-text, else end-of-text."""
        return self.ids.get("bos", self.ids.get("eos"))


@contextlib.contextmanager
def _without_marks(directory: Path) -> Iterator[Path]:
    """The directory; where JSON in it begins with a byte order mark, which gguf's reader refuses, a copy of the
    tokenizer's files without."""
    files = {path: path.read_bytes() for path in directory.glob("*.json") if path.stat().st_size < _SMALL}
    if not any(content.startswith(codecs.BOM_UTF8) for content in files.values()):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="slm-tokenizer-") as folder:
        for path, content in files.items():
            (Path(folder) / path.name).write_bytes(content.removeprefix(codecs.BOM_UTF8))
        for path in directory.glob("*.jinja"):
            (Path(folder) / path.name).write_bytes(path.read_bytes())
        yield Path(folder)


def read_special_tokens(directory: Path, vocab_size: int) -> SpecialTokens:
    """Read a model directory the way llama.cpp's converter does; ids from ``vocab_size`` up are left out.

    Whether the beginning-of-text token is added is what the tokenizer itself does (``Tokenizer.begins``), as in
    training; a bare SentencePiece model adds it, as transformers and llama.cpp both assume.
    """
    import gguf

    beyond: dict[str, int] = {}

    class Special(gguf.SpecialVocab):
        def _set_special_token(self, typ: str, tid: Any) -> None:
            if isinstance(tid, int) and tid >= vocab_size:
                beyond.setdefault(typ, tid)
            elif not (isinstance(tid, int) and tid < 0):  # some configurations say -1 for none
                super()._set_special_token(typ, tid)

    try:
        with _without_marks(directory) as folder:
            special = Special(folder, load_merges=False, n_vocab=vocab_size)
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"the tokenizer's files in {directory} cannot be read ({one_line(error)}): copy them again"
        ) from error
    fault = None
    ids = {name: token for name, token in special.special_token_ids.items() if name in _IDS}
    added = {name: bool(value) for name, value in special.add_special_token.items() if name in _ADDED}
    if (directory / "tokenizer.json").is_file():
        tokenizer = load_tokenizer(directory)
        if "eot" not in ids and (turn := end_of_turn(tokenizer)) is not None:
            (ids if turn < vocab_size else beyond)["eot"] = turn
        fault = template_fault(tokenizer)
        added["bos"] = len(tokenizer.begins) == 1 and tokenizer.begins[0] < vocab_size
        if added["bos"]:
            ids["bos"] = tokenizer.begins[0]
    else:
        added["bos"] = "bos" in ids and added.get("bos", True)
    template, jinja = special.chat_template, directory / "chat_template.jinja"
    if jinja.is_file():  # as in transformers, it wins over tokenizer_config.json
        own = jinja.read_bytes().decode("utf-8")
        named = template if isinstance(template, list) else []
        others = [each for each in named if each.get("name") != "default"]
        template = [{"name": "default", "template": own}, *others] if others else own
    beyond = {name: token for name, token in beyond.items() if name in _IDS and name not in ids}
    return SpecialTokens(ids=ids, added=added, beyond=beyond, chat_template=template, template_fault=fault)
