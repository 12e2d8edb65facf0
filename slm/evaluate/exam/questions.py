"""Questions with expected answers, from conversations: the last answers of each are expected, what stands before them
is asked."""

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from slm.data.chat.formats import from_document
from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.sources import files
from slm.data.sources.conversations import chat_files
from slm.data.sources.corpus import CorpusStream
from slm.data.sources.plan import open_whole_corpus, plan_sources
from slm.evaluate.exam.config import ScoreName
from slm.evaluate.exam.reading import calls_in, json_in
from slm.hub.name import hub_name

Score = Literal["exact", "contains", "json", "tools", "likelihood"]
Message = dict[str, Any]

SHORT_CHARS = 160
"""An expected answer of at most this many characters is compared word for word; of a longer one the likelihood
counts."""
SHORT_SHARE = 0.8
"""Share of the expected texts that have to be short for all of them to be compared word for word."""
MOST_BYTES = 64 << 20
"""Most bytes of conversations read to draw questions from."""
SEED = 62


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked, and the answer that is expected."""

    messages: list[Message]
    """Everything before the answer."""
    expected: Message
    """The assistant's message: ``content``, perhaps ``tool_calls``."""
    tools: list[Any] | None = None
    score: Score = "exact"

    @property
    def conversation(self) -> dict[str, Any]:
        """Question and expected answer together, as ``slm.data.chat.formats`` has it."""
        return {"messages": [*self.messages, self.expected]} | ({"tools": self.tools} if self.tools else {})

    @property
    def asked(self) -> str:
        """The last message before the answer, for people."""
        return str(self.messages[-1]["content"] or "") if self.messages else ""

    @property
    def expected_text(self) -> str:
        """The expected answer for people: its text, and calls as ``name({...})``."""
        calls = [
            f"{each['function']['name']}({json.dumps(each['function']['arguments'], ensure_ascii=False)})"
            for each in self.expected.get("tool_calls") or []
        ]
        return "\n".join(filter(None, [self.expected["content"], *calls]))


@dataclass
class Found:
    """The questions of some conversations, and what was not used of them."""

    questions: list[Question] = field(default_factory=list)
    conversations: int = 0
    repeated: int = 0
    """Questions that were left out because they came before with the same answer."""
    unanswered: int = 0
    """Conversations with a last answer that is not to be learned (``weight: 0``), or have nothing before them."""
    complete: bool = True
    """Whether everything was read."""

    def lines(self, asked: int) -> list[str]:
        """What is said once about what is not asked."""
        out = []
        if not self.complete:
            out.append(f"questions come from the first {MOST_BYTES >> 20} MiB of conversations; the rest is not read")
        if self.repeated:
            out.append(f"{self.repeated:,} repeated questions are asked once")
        if self.unanswered:
            out.append(f"{self.unanswered:,} conversations without a last answer to expect are left out")
        if asked < len(self.questions):
            out.append(f"{asked:,} of {len(self.questions):,} questions are asked (questions={asked}), a fixed sample")
        return out


def of_conversation(conversation: dict[str, Any]) -> list[Question]:
    """A question for each answer after the last message of the user, each with all that stands before it.

    It is one question where a conversation ends in an answer, and two where it ends in a tool call, its result and
    an answer.
    """
    messages, tools = conversation["messages"], conversation.get("tools")
    roles = [each["role"] for each in messages]
    last_user = max((at for at, role in enumerate(roles) if role == "user"), default=-1)
    return [
        Question(messages=messages[:at], expected=messages[at], tools=tools)
        for at in range(max(1, last_user + 1), len(messages))
        if roles[at] == "assistant" and messages[at].get("weight") != 0
    ]


def collect(documents: Iterable[str], *, most: int | None = None) -> Found:
    """The questions of conversations (``formats.to_document``), each once. ``most``: stop at this many."""
    found, seen, size = Found(), set[str](), 0
    for document in documents:
        found.conversations += 1
        size += len(document)
        here = of_conversation(from_document(document))
        found.unanswered += not here
        for question in here:
            key = json.dumps(question.conversation, ensure_ascii=False, sort_keys=True)
            if key in seen:
                found.repeated += 1
                continue
            seen.add(key)
            found.questions.append(question)
        if most is not None and len(found.questions) >= most:
            del found.questions[most:]
            break
        if size > MOST_BYTES:
            found.complete = False
            break
    return found


def sample(questions: list[Question], most: int) -> list[Question]:
    """At most this many of them, in their order: always the same ones."""
    if len(questions) <= most:
        return questions
    chosen = sorted(random.Random(SEED).sample(range(len(questions)), most))
    return [questions[at] for at in chosen]


def read(names: list[str]) -> tuple[Found, str]:
    """The questions of files or of a data set on the Hub, and a line on the conversations that were found.

    UserError where there are none.
    """
    if len(names) == 1 and _is_hub(names[0]):
        (plan,) = plan_sources(DataConfig(kind="chat", path=names[0]), "train")
        line = f"conversations: {names[0]} on the Hub, split {plan.hub_split}"
        corpus = open_whole_corpus(plan)
    else:
        paths = tuple(files.expand(names, "data", plain_text=False))
        line = chat_files.inspect(paths).line()
        corpus = chat_files.ChatFileCorpus(paths, stop=False)
    found = collect(CorpusStream(corpus, order=lambda n_files: list(range(n_files))))
    if not found.questions:
        raise UserError(
            f"{', '.join(names)} ask nothing: none of {found.conversations:,} conversations ends in an answer that is "
            "to be learned; give conversations that end in the assistant's message"
        )
    return found, line


def _is_hub(name: str) -> bool:
    return hub_name(name) is not None and files.file_format(name) is None and not Path(name).expanduser().exists()


def choose_scores(questions: list[Question], score: ScoreName = "auto") -> list[Question]:
    """The questions with the score that each is judged by: the given one, else the one that fits its expected answer.

    Calls are compared as calls and JSON objects as JSON. The other texts are compared word for word if most of them
    are short, else the likelihood of the expected one is measured. UserError where the given score cannot judge an
    expected answer.
    """
    if score != "auto":
        for each in questions:
            _check_fits(each, score)
        return [replace(each, score=score) for each in questions]
    texts = [each for each in questions if _kind(each) == "text"]
    short = sum(len(each.expected["content"].strip()) <= SHORT_CHARS for each in texts)
    of_text: Score = "exact" if short >= SHORT_SHARE * len(texts) else "likelihood"
    chosen: dict[str, Score] = {"tools": "tools", "json": "json", "text": of_text}
    return [replace(each, score=chosen[_kind(each)]) for each in questions]


def _kind(question: Question) -> Literal["tools", "json", "text"]:
    if question.expected.get("tool_calls"):
        return "tools"
    text = question.expected["content"]
    if question.tools and calls_in(text):
        return "tools"  # calls that are written out as text
    found = json_in(text, whole=True)
    return "json" if isinstance(found, dict) else "text"


def _check_fits(question: Question, score: Score) -> None:
    text = question.expected_text
    if score == "json" and json_in(question.expected["content"], whole=True) is None:
        raise UserError(
            f"score=json compares JSON objects, and an expected answer is none ({_short(text)!r}): give score=exact, "
            "contains or likelihood, or leave score out"
        )
    if score in ("exact", "contains") and not question.expected["content"].strip():
        raise UserError(
            f"score={score} compares texts, and an expected answer is a tool call ({_short(text)!r}): give "
            "score=tools, or leave score out"
        )


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:60] + "…"


def in_order(questions: list[Question]) -> Iterator[tuple[Score, int]]:
    """Each score that is used, with the number of its questions."""
    scores: tuple[Score, ...] = get_args(Score)
    for score in scores:
        if count := sum(each.score == score for each in questions):
            yield score, count
