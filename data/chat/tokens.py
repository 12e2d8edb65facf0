"""A tokenizer that chats: its template, its marks as special tokens, and conversations as marked token ids."""

import datetime
import json
import re
from typing import Any

import numpy as np

from data.chat.formats import from_document, to_document
from data.chat.template import CHATML, IM_END, IM_START, ChatTemplate, Rendered, TemplateRefusesError
from data.errors import UserError
from data.tokenizers.tokenizer import Tokenizer, special_token

MOMENT = "chat_template_moment"
"""The key of ``tokenizer_config.json`` that holds the moment which the chat template prints, in ISO 8601."""


def own_template(tokenizer: Tokenizer) -> str | None:
    """The chat template that came with the tokenizer; None for a base model's."""
    if "chat_template.jinja" in tokenizer.files:
        return tokenizer.files["chat_template.jinja"].decode("utf-8")
    template = _settings(tokenizer).get("chat_template")
    if isinstance(template, list):  # several by name
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def with_chatml(tokenizer: Tokenizer) -> Tokenizer:
    """``tokenizer`` with ChatML as its template, its two marks among the special tokens, and turns that end in one.

    The token that ended documents stays what a text begins with. Ids of before do not change.
    """
    spec, settings = json.loads(tokenizer.files["tokenizer.json"]), _settings(tokenizer)
    known = {token["content"]: token for token in spec.get("added_tokens") or []}
    next_id = tokenizer.vocab_size
    for mark in (IM_START, IM_END):
        if mark in known:
            known[mark]["special"] = True
            continue
        spec.setdefault("added_tokens", [])
        spec["added_tokens"] = [*(spec["added_tokens"] or []), special_token(next_id, mark)]
        next_id += 1
    settings |= {"eos_token": IM_END, "chat_template": CHATML}
    settings["bos_token"] = settings.get("bos_token") or tokenizer.eot_token
    # Files that list special tokens again would contradict these.
    files = {
        n: content
        for n, content in tokenizer.files.items()
        if n not in ("special_tokens_map.json", "added_tokens.json")
    }
    files["tokenizer.json"] = json.dumps(spec, ensure_ascii=False).encode()
    files["tokenizer_config.json"] = (json.dumps(settings, indent=2, ensure_ascii=False) + "\n").encode()
    return Tokenizer(files, name=tokenizer.name)


def chat_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """A tokenizer with a chat template: its own, else ChatML."""
    return tokenizer if own_template(tokenizer) else with_chatml(tokenizer)


def end_of_turn(tokenizer: Tokenizer) -> int | None:
    """The token that ends the assistant's turn in the tokenizer's chat template; None without a template that works."""
    if own_template(tokenizer) is None:
        return None
    try:
        return ChatEncoder(tokenizer).end_of_turn
    except UserError:
        return None


class ChatEncoder:
    """Conversations as token ids. UserError at construction for a tokenizer without a valid chat template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        text = own_template(tokenizer)
        if text is None:
            raise UserError(f"{tokenizer.name} has no chat template: tune a model on conversations first")
        settings = _settings(tokenizer)
        added = {token["content"]: token["id"] for token in tokenizer.spec.get("added_tokens") or []}
        self._ids = {name: id for name, id in added.items() if id in tokenizer.special_ids}
        self.without_reasoning = 0
        """Answers so far whose reasoning the template does not write."""
        self._tokenizer = tokenizer
        self._prepends = _prepends_space(tokenizer.spec)
        self._split = re.compile(f"({'|'.join(map(re.escape, sorted(self._ids, key=len, reverse=True))) or '(?!)'})")
        self.template = ChatTemplate(
            text,
            bos=_content(settings.get("bos_token")),
            eos=_content(settings.get("eos_token")),
            control_tokens=tuple(self._ids),
            name=tokenizer.name,
            moment=_moment(settings),
        )

    def conversation(self, document: str) -> tuple[np.ndarray, np.ndarray, Rendered]:
        """Ids and what is scored of a conversation (``formats.to_document``). Raises TemplateRefusesError."""
        rendered = self.template.render(from_document(document))
        self.without_reasoning += rendered.without_reasoning
        return (*self.tokens(rendered), rendered)

    def pair(self, document: str) -> tuple[tuple[np.ndarray, np.ndarray], ...] | None:
        """Ids and what is scored of the chosen and of the rejected conversation; None where it is no pair.

        Only what follows their common beginning is scored. Raises TemplateRefusesError.
        """
        conversation = from_document(document)
        both = [conversation["messages"], conversation.get("rejected")]
        if not both[1] or both[0] == both[1]:
            return None
        common = next((at for at, (a, b) in enumerate(zip(*both, strict=False)) if a != b), min(map(len, both)))
        found = []
        for messages in both:
            ids, scored = self.tokens(self.template.render(conversation | {"messages": messages}))
            answers = sum(each["role"] == "assistant" for each in messages[common:])
            begins = np.flatnonzero(scored & ~np.append(False, scored[:-1]))
            if 0 < answers < len(begins):
                scored[: begins[-answers]] = False
            found.append((ids, scored & bool(answers)))
        return tuple(found)

    @property
    def end_of_turn(self) -> int | None:
        """The token that ends the assistant's turn; None where a template ends it with none, or does not render."""
        document = to_document({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
        try:
            ids, scored, _ = self.conversation(document)
        except TemplateRefusesError:
            return None
        last = int(ids[scored][-1])
        return last if last in self._ids.values() else None

    def prompt(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> list[int]:
        """Ids of the messages, up to where the assistant goes on."""
        return self.tokens(self.template.prompt(messages, tools))[0].tolist()

    def tokens(self, rendered: Rendered) -> tuple[np.ndarray, np.ndarray]:
        """``np.int32[n]`` ids and ``bool[n]`` scored.

        The text is cut where the assistant begins and ends to write, as it is in generation: a token never reaches over
        the end of a prompt.
        """
        ids: list[int] = []
        scored: list[bool] = []
        at = 0
        for begin, end in [*rendered.scored, (len(rendered.text), len(rendered.text))]:
            for start, stop, counts in ((at, begin, False), (begin, end, True)):
                new = self._encode(rendered.text, start, stop, rendered.literal)
                ids += new
                scored += [counts] * len(new)
            at = end
        return np.array(ids, dtype=np.int32), np.array(scored, dtype=bool)

    def _encode(self, text: str, start: int, stop: int, literal: tuple[tuple[int, int], ...]) -> list[int]:
        """Ids of a part of the text: control tokens outside of literal spans are parsed."""
        ids: list[int] = []
        at = start
        begins = start == 0 or text.endswith(tuple(self._ids), 0, start)
        for begin, end in [*literal, (stop, stop)]:
            begin, end = min(max(begin, at), stop), min(max(end, at), stop)
            for piece in self._split.split(text[at:begin]):
                if piece:
                    ids += [self._ids[piece]] if piece in self._ids else self._plain(piece, begins=begins)
                    begins = piece in self._ids
            if begin < end:
                ids += self._plain(text[begin:end], begins=begins)
                begins = False
            at = max(at, end)
        return ids

    def _plain(self, text: str, *, begins: bool) -> list[int]:
        """Ids of text without control tokens. ``begins``: whether it is the first, or comes after such a token; else it
        goes on with other text, and has no space of its own before it."""
        if begins or not self._prepends:
            return self._tokenizer.encode(text)
        before, both = self._tokenizer.encode("\n"), self._tokenizer.encode("\n" + text)
        return both[len(before) :] if both[: len(before)] == before else self._tokenizer.encode(text)


def _prepends_space(spec: dict[str, Any]) -> bool:
    """Whether a tokenizer puts a space before each text (SentencePiece's way)."""
    normalizer, pre = spec.get("normalizer") or {}, spec.get("pre_tokenizer") or {}
    steps = [*(normalizer.get("normalizers") or [normalizer]), *(pre.get("pretokenizers") or [pre])]
    return any(
        each.get("type") == "Prepend" or (each.get("type") == "Metaspace" and each.get("prepend_scheme") != "never")
        for each in steps
    )


def _moment(settings: dict[str, Any]) -> datetime.datetime | None:
    """The moment that a run's chat template prints; None where none is kept."""
    try:
        return datetime.datetime.fromisoformat(settings[MOMENT])
    except (KeyError, TypeError, ValueError):
        return None


def _settings(tokenizer: Tokenizer) -> dict[str, Any]:
    return json.loads(tokenizer.files.get("tokenizer_config.json", b"{}"))


def _content(token: Any) -> str:
    """A token of ``tokenizer_config.json``: text, or an object with it."""
    return (token.get("content") if isinstance(token, dict) else token) or ""
