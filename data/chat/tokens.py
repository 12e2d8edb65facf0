"""A tokenizer that chats: its template, its marks as special tokens, and conversations as marked token ids."""

import datetime
import json
from typing import Any, Literal

import numpy as np

from slm.data.chat.formats import from_document, to_document
from slm.data.chat.template import CHATML, IM_END, IM_START, ChatTemplate, Rendered, TemplateRefusesError
from slm.data.errors import UserError
from slm.data.tokenizers.parts import PartEncoder
from slm.data.tokenizers.tokenizer import Tokenizer, special_token, token_text

BOS = "{{- bos_token -}}\n"
"""Before ChatML, where texts of a model begin with a token."""

MOMENT = "chat_template_moment"
"""The key of ``tokenizer_config.json`` that holds the moment which the chat template prints, in ISO 8601."""


def own_template(tokenizer: Tokenizer) -> str | None:
    """The chat template that came with the tokenizer; None for a base model's."""
    if "chat_template.jinja" in tokenizer.files:
        return tokenizer.files["chat_template.jinja"].decode("utf-8")
    template = tokenizer.settings.get("chat_template")
    if isinstance(template, list):  # several by name
        named = {each.get("name"): each.get("template") for each in template if isinstance(each, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


def with_chatml(tokenizer: Tokenizer) -> Tokenizer:
    """``tokenizer`` with ChatML as its template, its two marks among the special tokens, and turns that end in one.

    The token that ended documents stays what a text begins with. Ids of before do not change. Where the tokenizer
    writes a token before each text, the template prints it, so that transformers' chats have it, too.
    """
    spec, settings = json.loads(tokenizer.files["tokenizer.json"]), tokenizer.settings
    known = {token["content"]: token for token in spec.get("added_tokens") or []}
    next_id = tokenizer.vocab_size
    for mark in (IM_START, IM_END):
        if mark in known:
            known[mark]["special"] = True
            continue
        spec.setdefault("added_tokens", [])
        spec["added_tokens"] = [*(spec["added_tokens"] or []), special_token(next_id, mark)]
        next_id += 1
    names = {token["id"]: token["content"] for token in spec.get("added_tokens") or []}
    begins = "".join(names.get(id, "") for id in tokenizer.begins)
    settings |= {"eos_token": IM_END, "chat_template": BOS + CHATML if begins else CHATML}
    settings["bos_token"] = begins or settings.get("bos_token") or tokenizer.eot_token
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


def template_fault(tokenizer: Tokenizer) -> str | None:
    """Why no chat works with the tokenizer's own chat template; None where one does, and without a template."""
    if own_template(tokenizer) is None:
        return None
    try:
        ChatEncoder(tokenizer).template.prompt([{"role": "user", "content": "Hello"}])
    except (UserError, TemplateRefusesError) as error:
        return str(error)
    return None


class ChatEncoder:
    """Conversations as token ids. UserError at construction for a tokenizer without a valid chat template."""

    def __init__(self, tokenizer: Tokenizer, *, train_on: Literal["all", "last"] = "all") -> None:
        """``train_on``: ``last`` scores no answers but those after the user's last message (``data.train_on``)."""
        text = own_template(tokenizer)
        if text is None:
            raise UserError(f"{tokenizer.name} has no chat template: tune a model on conversations first")
        settings = tokenizer.settings
        self.without_reasoning = 0
        """Answers so far with reasoning that the template does not write."""
        self.rewritten = 0
        """Answers so far that are not learned, since the template writes them otherwise than where it asks for them."""
        self._tokenizer, self._train_on = tokenizer, train_on
        self._parts = PartEncoder(tokenizer)
        self.template = ChatTemplate(
            text,
            bos=token_text(settings.get("bos_token")),
            eos=token_text(settings.get("eos_token")),
            control_tokens=tuple(self._parts.special_ids),
            name=tokenizer.name,
            moment=_moment(settings),
        )

    def conversation(self, document: str) -> tuple[np.ndarray, np.ndarray, Rendered]:
        """Ids and what is scored of a conversation (``formats.to_document``). Raises TemplateRefusesError."""
        conversation = from_document(document)
        if self._train_on == "last":
            conversation = conversation | {"messages": _last_answers(conversation["messages"])}
        rendered = self.template.render(conversation)
        self.without_reasoning += rendered.without_reasoning
        self.rewritten += rendered.rewritten
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
        return last if last in self._parts.special_ids.values() else None

    def prompt(self, messages: list[dict[str, Any]], tools: list[Any] | None = None) -> list[int]:
        """Ids of the messages, up to where the assistant goes on."""
        return self.tokens(self.template.prompt(messages, tools))[0].tolist()

    def tokens(self, rendered: Rendered) -> tuple[np.ndarray, np.ndarray]:
        """``np.int32[n]`` ids and ``bool[n]`` scored.

        The text is cut where the assistant begins and ends to write, as it is in generation: a token never reaches over
        the end of a prompt. What the tokenizer writes before a text stands before it once, whether the template prints
        it or not: so llama.cpp and the server send it.
        """
        cuts = [at for span in rendered.scored for at in span]
        parts = self._parts.encode(rendered.text, cuts, rendered.literal)
        ids = [id for part in parts for id in part]
        scored = [number % 2 == 1 for number, part in enumerate(parts) for _ in part]
        begins = self._tokenizer.begins
        if begins and tuple(ids[: len(begins)]) != begins:
            ids, scored = [*begins, *ids], [*([False] * len(begins)), *scored]
        return np.array(ids, dtype=np.int32), np.array(scored, dtype=bool)


def _last_answers(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages, answers before the user's last question that is answered marked as not to be learned."""
    roles = [each["role"] for each in messages]
    last = max((at for at, role in enumerate(roles) if role == "assistant"), default=-1)
    begins = max((at for at, role in enumerate(roles[: last + 1]) if role == "user"), default=-1)
    return [
        each | {"weight": 0} if each["role"] == "assistant" and at < begins else each
        for at, each in enumerate(messages)
    ]


def _moment(settings: dict[str, Any]) -> datetime.datetime | None:
    """The moment that a run's chat template prints; None where none is kept."""
    try:
        return datetime.datetime.fromisoformat(settings[MOMENT])
    except (KeyError, TypeError, ValueError):
        return None
