"""A checkpoint's special tokens: their ids, and which are added to a text by default. Export and scoring ask here."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.chat.tokens import end_of_turn
from data.errors import UserError, one_line
from data.tokenizers.make import load_tokenizer

_IDS = ("bos", "eos", "unk", "sep", "pad", "mask", "eot", "eom")
"""Those for which GGUF has a key."""
_ADDED = ("bos", "eos", "sep")


@dataclass(frozen=True, kw_only=True)
class SpecialTokens:
    """What tokenizer_config.json, tokenizer.json and config.json say together."""

    ids: dict[str, int] = field(default_factory=dict)
    """``bos``, ``eos``, ... to the id, for those there are."""
    added: dict[str, bool] = field(default_factory=lambda: {"bos": False})
    """``bos`` (always present), ``eos``, ``sep`` to whether it is put around a text by default."""
    chat_template: Any = None
    """Jinja text, or several as llama.cpp's converter takes them; None for a base model."""

    @property
    def bos_added(self) -> int | None:
        """The beginning-of-text token, where it is added by default."""
        return self.ids.get("bos") if self.added["bos"] else None

    @property
    def document_start(self) -> int | None:
        """The token that stands before a text: beginning-of-text, else end-of-text."""
        return self.ids.get("bos", self.ids.get("eos"))


def _end_of_turn(directory: Path) -> int | None:
    """The token that ends the assistant's turn in the model's chat template; None without one."""
    return end_of_turn(load_tokenizer(directory)) if (directory / "tokenizer.json").is_file() else None


def read_special_tokens(directory: Path, vocab_size: int) -> SpecialTokens:
    """Read a model directory the way llama.cpp's converter does; ids from ``vocab_size`` up are left out.

    Where the files do not say whether the beginning-of-text token is added, the tokenizer itself is asked; a bare
    SentencePiece model adds it, as transformers and llama.cpp both assume.
    """
    import gguf

    class Special(gguf.SpecialVocab):
        def _set_special_token(self, typ: str, tid: Any) -> None:
            if not (isinstance(tid, int) and tid < 0):  # some configurations say -1 for none
                super()._set_special_token(typ, tid)

    try:
        special = Special(directory, load_merges=False, n_vocab=vocab_size)
    except (ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"the tokenizer's files in {directory} cannot be read ({one_line(error)}): copy them again"
        ) from error
    ids = {name: token for name, token in special.special_token_ids.items() if name in _IDS}
    if "eot" not in ids and (turn := _end_of_turn(directory)) is not None and turn < vocab_size:
        ids["eot"] = turn
    added = {name: bool(value) for name, value in special.add_special_token.items() if name in _ADDED}
    if "bos" not in ids:
        added["bos"] = False
    elif "bos" not in added:
        tokenizer_json = directory / "tokenizer.json"
        if tokenizer_json.is_file():
            from tokenizers import Tokenizer

            added["bos"] = Tokenizer.from_file(str(tokenizer_json)).encode("a").ids[:1] == [ids["bos"]]
        else:
            added["bos"] = True
    template, jinja = special.chat_template, directory / "chat_template.jinja"
    if jinja.is_file():  # as in transformers, it wins over tokenizer_config.json
        own = jinja.read_bytes().decode("utf-8")
        named = template if isinstance(template, list) else []
        others = [each for each in named if each.get("name") != "default"]
        template = [{"name": "default", "template": own}, *others] if others else own
    return SpecialTokens(ids=ids, added=added, chat_template=template)
