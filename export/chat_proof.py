"""The exported file chats as the checkpoint does: the same ids for rendered conversations, and an end to each turn.

Tested in tests/export/test_chat_proof.py.
"""

import itertools
import unicodedata
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as HFTokenizer

from data.chat.template import TemplateRefusesError
from data.chat.tokens import ChatEncoder, own_template
from data.errors import UserError
from data.tokenizers.tokenizer import Tokenizer
from export.proof import PROBES, token_failures
from slm.llama.model import Model

CONVERSATIONS = 200


def chat_failures(llama: Model, tokenizer: Tokenizer, *, nfc: bool = False) -> list[str]:
    """Messages about what differs; empty where nothing does, and for a model without a (valid) chat template.

    Compared are the ids that transformers gives for rendered prompts and those of the file. ``nfc``: on NFC text only.
    """
    if own_template(tokenizer) is None or not llama.chat_template():
        return []
    try:
        encoder = ChatEncoder(tokenizer)
        turn = encoder.end_of_turn
    except (UserError, TemplateRefusesError):
        return []  # a template that does not render is passed on as it is
    if turn is not None and not llama.is_eog(turn):
        return [f"its chats never end: token {turn}, with which the template ends a turn, ends no generation there"]
    texts = rendered(encoder, conversations(nfc=nfc))
    theirs = HFTokenizer.from_str(tokenizer.files["tokenizer.json"].decode("utf-8"))
    theirs.no_truncation()
    theirs.no_padding()
    ids = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    return [f"in a chat, {each}" for each in token_failures(llama, texts, ids, parse_special=True)]


def rendered(encoder: ChatEncoder, conversations: Sequence[list[dict[str, Any]]]) -> list[str]:
    """Prompts of the conversations; those that the template refuses (some know no system message) are left out."""
    texts = []
    for messages in conversations:
        try:
            texts.append(encoder.template.text(messages, prompt=True))
        except TemplateRefusesError:
            continue
    return texts


def conversations(n: int = CONVERSATIONS, *, nfc: bool = False) -> list[list[dict[str, Any]]]:
    """Prompts made of ``PROBES``: single questions, with a system message, and of several turns."""
    probes = [unicodedata.normalize("NFC", each) for each in PROBES] if nfc else list(PROBES)
    words = itertools.cycle(probes)
    made = [[_said("user", each)] for each in probes]
    for number in range(n - len(made)):
        messages = [_said("system", next(words))] if number % 2 else []
        for _ in range(number % 3):
            messages += [_said("user", next(words)), _said("assistant", next(words))]
        made.append([*messages, _said("user", next(words))])
    return made


def _said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}
