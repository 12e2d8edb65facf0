"""Models that answer: a checkpoint in torch and a GGUF file in llama.cpp, several questions at a time, greedily.

Shape suffixes: none.

Tested in tests/slm/evaluate/exam/test_own.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slm.data.chat.formats import to_document
from slm.data.chat.template import ChatTemplate, Rendered, TemplateRefusesError
from slm.evaluate.continuations import Request, score_continuations
from slm.evaluate.exam.questions import Question
from slm.evaluate.perplexity import Progress

if TYPE_CHECKING:
    from slm.data.tokenizers.tokenizer import Tokenizer
    from slm.model.transformer import LanguageModel

Message = dict[str, Any]
AT_ONCE = 32
"""Most questions that a model answers together."""
BATCH_TOKENS = 4096
"""Most tokens of prompts and replies that are in memory together."""


@dataclass(frozen=True)
class Reply:
    """What a model says."""

    text: str
    stopped: bool
    """Whether it ended its turn by itself."""
    fits: bool = True
    """Whether the question fits the model's context; where it does not, the model was not asked."""


@dataclass(frozen=True, kw_only=True)
class Likelihood:
    """How likely a model finds an expected answer."""

    nats: float
    """Minus the log-probability of its tokens, with the one that ends the turn, after the question."""
    tokens: int


Ids = list[int]


class Answers:
    """What both engines share. ``name`` and ``engine`` stand in a table's row."""

    name: str
    engine: str
    chats: bool
    """Whether the model has a chat template. Without one it continues the question as plain text."""
    context: int
    """Tokens."""

    def prompt(self, messages: list[Message], tools: list[Any] | None = None) -> Ids:
        """The ids of a question. Raises TemplateRefusesError."""
        raise NotImplementedError

    def expected(self, question: Question) -> tuple[Ids, Ids]:
        """The ids of a question, and those of its expected answer. Raises TemplateRefusesError."""
        raise NotImplementedError

    def spelled(self, question: Question) -> str:
        """The expected answer as the chat template writes it; its plain text where there is none."""
        raise NotImplementedError

    def continued(self, prompts: Sequence[Ids], most: Sequence[int]) -> list[Reply]:
        """Replies to prompts that fit together (``groups``), each of at most this many tokens."""
        raise NotImplementedError

    def scorer(self) -> Any:
        raise NotImplementedError

    def refuses(self, question: Question) -> str | None:
        """Why the chat template cannot write the question; None where it can."""
        try:
            self.expected(question) if question.score == "likelihood" else self.prompt(
                question.messages, question.tools
            )
        except TemplateRefusesError as error:
            return str(error)
        return None

    def replies(
        self,
        questions: Sequence[tuple[list[Message], list[Any] | None]],
        most: Sequence[int] | int,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[Reply | None]:
        """The replies to messages with their tools, in that order. ``most``: most tokens of a reply.

        ``stop`` is asked before each group; what is not asked then is None. Raises TemplateRefusesError.
        """
        prompts = [self.prompt(messages, tools) for messages, tools in questions]
        limits = [most] * len(prompts) if isinstance(most, int) else list(most)
        found: list[Reply | None] = [None] * len(prompts)
        for at, ids in enumerate(prompts):
            if len(ids) >= self.context:
                found[at] = Reply("", False, fits=False)
        asked = [at for at, each in enumerate(found) if each is None]
        for group in groups(asked, [len(ids) + limit for ids, limit in zip(prompts, limits, strict=True)]):
            if stop():
                break
            new = self.continued([prompts[at] for at in group], [limits[at] for at in group])
            for at, reply in zip(group, new, strict=True):
                found[at] = reply
            if progress:
                progress(len(group))
        return found

    def likelihoods(self, questions: Sequence[Question], progress: Progress | None = None) -> list[Likelihood | None]:
        """How likely the expected answers are; None for one that does not fit the context with its question."""
        parts = [self.expected(each) for each in questions]
        fitting = [at for at, (asked, said) in enumerate(parts) if said and len(asked) + len(said) <= self.context]
        found: list[Likelihood | None] = [None] * len(parts)
        for start in range(0, len(fitting), AT_ONCE):
            group = fitting[start : start + AT_ONCE]
            requests = [Request(context=parts[at][0], continuation=parts[at][1]) for at in group]
            for at, each in zip(group, score_continuations(self.scorer(), requests), strict=True):
                found[at] = Likelihood(nats=-each.logprob, tokens=len(parts[at][1]))
            if progress:
                progress(len(group))
        return found

    def close(self) -> None:
        """Free what the model takes."""

    def __enter__(self) -> "Answers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def groups(asked: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """The questions in groups of like length that fit ``BATCH_TOKENS`` together, or one alone where it is longer."""
    group: list[int] = []
    for at in sorted(asked, key=lambda at: lengths[at]):
        if group and (len(group) == AT_ONCE or (len(group) + 1) * lengths[at] > BATCH_TOKENS):
            yield group
            group = []
        group.append(at)
    if group:
        yield group


def plain(messages: list[Message]) -> str:
    """The messages as text for a model without a chat template to continue."""
    return "\n\n".join(each["content"] for each in messages) + "\n\n"


class CheckpointAnswers(Answers):
    """A model in torch, f32, that is in memory already."""

    engine = "torch"

    def __init__(self, model: "LanguageModel", tokenizer: "Tokenizer", name: str) -> None:
        from slm.data.chat.tokens import ChatEncoder, own_template

        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.context = model.config.seq_len
        self._chat = ChatEncoder(tokenizer) if own_template(tokenizer) else None
        self.chats = self._chat is not None
        ends = (tokenizer.eot_id, self._chat.end_of_turn if self._chat else None)
        self.stop_ids = frozenset(each for each in ends if each is not None)

    def prompt(self, messages: list[Message], tools: list[Any] | None = None) -> Ids:
        if self._chat:
            return self._chat.prompt(messages, tools)
        return [*self._start(), *self.tokenizer.encode(plain(messages))]

    def expected(self, question: Question) -> tuple[Ids, Ids]:
        if self._chat is None:
            said = question.expected_text.strip()
            return self.prompt(question.messages), self.tokenizer.encode(said)
        ids, scored, _ = self._chat.conversation(to_document(question.conversation))
        begin, end = last_answer(scored)
        return ids[:begin].tolist(), ids[begin:end].tolist()

    def spelled(self, question: Question) -> str:
        if self._chat is None:
            return question.expected_text
        try:
            return spelled(self._chat.template, question)
        except TemplateRefusesError:
            return question.expected_text

    def continued(self, prompts: Sequence[Ids], most: Sequence[int]) -> list[Reply]:
        from slm.model.generate import continue_many

        found = []
        for new in continue_many(self.model, prompts, most, stop_ids=self.stop_ids):
            stopped = bool(new) and new[-1] in self.stop_ids
            found.append(Reply(self.tokenizer.decode(new[:-1] if stopped else new), stopped))
        return found

    def _start(self) -> Ids:
        return [] if self.tokenizer.eot_id is None else [self.tokenizer.eot_id]

    def scorer(self) -> Any:
        from slm.evaluate.scorers import TorchScorer

        return TorchScorer(
            self.model, self.tokenizer.encode, name=self.name, bos=None, document_start=self.tokenizer.eot_id
        )


def checkpoint_answers(directory: Path, threads: int) -> CheckpointAnswers:
    """The model of a checkpoint directory."""
    import torch

    from slm.data.tokenizers.make import load_tokenizer
    from slm.model.checkpoint import load_model

    torch.set_num_threads(threads)
    return CheckpointAnswers(load_model(directory), load_tokenizer(directory), directory.name)


class GGUFAnswers(Answers):
    """A GGUF file in llama.cpp, with the chat template inside it. Close it, or use ``with``."""

    engine = "llama.cpp"

    def __init__(self, path: Path, threads: int) -> None:
        from slm.evaluate.scorers import GGUFScorer

        self.name, self._threads = path.name, threads
        self._score = GGUFScorer(path, context=1 << 30, n_threads=threads)
        self.llama = llama = self._score.llama
        self.context = llama.n_ctx_train
        self._bos, eos = (llama.token_name(token) for token in (llama.bos, llama.eos))
        text, names = llama.chat_template(), llama.control_names()
        self.chats = bool(text)
        self._template = (
            ChatTemplate(text, bos=self._bos, eos=eos, control_tokens=names, name=path.name) if text else None
        )

    def prompt(self, messages: list[Message], tools: list[Any] | None = None) -> Ids:
        if self._template is None:
            return self.llama.tokenize(plain(messages), add_special=True, parse_special=False)
        return self._ids(self._template.prompt(messages, tools))

    def expected(self, question: Question) -> tuple[Ids, Ids]:
        if self._template is None:
            said = question.expected_text.strip()
            answer = self.llama.tokenize(said, add_special=False, parse_special=False)
            return self.prompt(question.messages), answer
        rendered = self._template.render(question.conversation)
        begin, end = rendered.scored[-1]
        return self._ids(rendered, 0, begin), self._ids(rendered, begin, end)

    def spelled(self, question: Question) -> str:
        if self._template is None:
            return question.expected_text
        try:
            return spelled(self._template, question)
        except TemplateRefusesError:
            return question.expected_text

    def _ids(self, rendered: Rendered, start: int = 0, stop: int | None = None) -> Ids:
        """The ids of a part of a conversation. What a message spells is text, not a control token."""
        text, stop = rendered.text, len(rendered.text) if stop is None else stop
        ids: Ids = []
        at, first = start, start == 0 and not (self._bos and text.startswith(self._bos))
        for begin, end in [*rendered.literal, (stop, stop)]:
            begin, end = min(max(begin, at), stop), min(max(end, at), stop)
            for part, special in ((text[at:begin], True), (text[begin:end], False)):
                if part:
                    ids += self.llama.tokenize(part, add_special=first, parse_special=special)
                    first = False
            at = end
        return ids

    def continued(self, prompts: Sequence[Ids], most: Sequence[int]) -> list[Reply]:
        from slm.llama.context import Batch, Context

        llama = self.llama
        lengths = [min(len(ids) + limit, self.context) for ids, limit in zip(prompts, most, strict=True)]
        n_batch = 512
        batch = Batch(max(n_batch, len(prompts)), len(prompts))
        pieces: list[list[bytes]] = [[] for _ in prompts]
        stopped = [False] * len(prompts)
        with Context(
            llama, n_ctx=sum(lengths), n_batch=batch.capacity, n_seq_max=len(prompts), n_threads=self._threads
        ) as context:
            chosen: dict[int, int] = {}
            """The newest token of each reply that goes on."""
            for row, ids in enumerate(prompts):
                for start in range(0, len(ids), n_batch):
                    batch.clear()
                    last = batch.extend(ids[start : start + n_batch], start, row, True)
                    context.decode(batch)
                chosen[row] = context.likeliest(last)
            while chosen:
                for row, token in list(chosen.items()):
                    stopped[row] = llama.is_eog(token)
                    if not stopped[row]:
                        pieces[row].append(llama.token_to_piece(token))
                    if stopped[row] or len(prompts[row]) + len(pieces[row]) >= lengths[row]:
                        del chosen[row]
                if not chosen:
                    break
                batch.clear()
                at = {
                    row: batch.add(token, len(prompts[row]) + len(pieces[row]) - 1, row, True)
                    for row, token in chosen.items()
                }
                context.decode(batch)
                chosen = {row: context.likeliest(place) for row, place in at.items()}
        texts = [b"".join(each).decode("utf-8", "replace") for each in pieces]
        return [Reply(text, ended) for text, ended in zip(texts, stopped, strict=True)]

    def scorer(self) -> Any:
        return self._score

    def close(self) -> None:
        self._score.close()


def last_answer(scored: np.ndarray) -> tuple[int, int]:
    """Where the last run of scored tokens begins and ends, ``bool[n]``."""
    end = int(np.flatnonzero(scored)[-1]) + 1
    before = np.flatnonzero(~scored[:end])
    return (int(before[-1]) + 1 if len(before) else 0), end


def spelled(template: ChatTemplate, question: Question) -> str:
    """The expected answer as a template writes it, without the control tokens at its end. Raises
    TemplateRefusesError."""
    rendered = template.render(question.conversation)
    begin, end = rendered.scored[-1]
    text = rendered.text[begin:end]
    while (at := template.first_control(text)) is not None and at:
        text = text[:at]
    return text
