"""A person's own questions: a model is asked, its replies are judged by each question's score, and a table shows it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from slm import report
from slm.data.chat.template import TemplateRefusesError
from slm.evaluate.exam.answers import Answers, Likelihood, Reply
from slm.evaluate.exam.grading import Z_95, Grade, grade, interval
from slm.evaluate.exam.questions import Question, in_order
from slm.evaluate.exam.reading import END_OF_THINK, THINK
from slm.evaluate.perplexity import Progress
from slm.evaluate.progress import progress_bar
from slm.report import plain

ASKED_CHARS, SAID_CHARS = 300, 300
"""Most characters of a question, and of an answer, that are printed."""


@dataclass(frozen=True)
class Wrong:
    """A reply that is not what was expected."""

    asked: str
    expected: str
    given: str


def show_wrong(wrong: Sequence[Wrong], n_shown: int, title: str = "wrong") -> None:
    """Print the first this many, three lines each."""
    for each in wrong[:n_shown]:
        print(f"  {title}: {shortened(each.asked, ASKED_CHARS)}")
        print(f"    expected: {shortened(each.expected, SAID_CHARS)}")
        print(f"    given:    {shortened(each.given, SAID_CHARS) or '(nothing)'}", flush=True)


def shortened(text: str, most: int) -> str:
    """The text in one line that can do nothing to a terminal; of a long one beginning and end, which often hold the
    question of a story or document."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-(most // 2) :]}"


def too_long_line(name: str, count: int, context: int) -> str:
    """What is said of questions that a model cannot be asked."""
    return f"{name}: {count:,} questions do not fit its context of {context:,} tokens: they count as wrong"


LONGER, MORE_TOKENS, MOST_TOKENS = 1.5, 24, 1024
"""Most tokens of a reply: this many times those of its expected answer and this many more, up to a limit."""


@dataclass
class Outcome:
    """What came of a model's questions. Lists have an entry for each question that was asked, in their order."""

    asked: list[Question] = field(default_factory=list)
    replies: list[Reply | None] = field(default_factory=list)
    """None where the score is the likelihood."""
    grades: list[Grade | None] = field(default_factory=list)
    likelihoods: list[Likelihood | None] = field(default_factory=list)
    """None where the score is another, or the question does not fit the model's context."""
    refused: int = 0
    """Questions that the chat template refuses; they are not asked."""
    first_refusal: str = ""
    seconds: float = 0.0

    @property
    def right(self) -> int:
        return sum(each is not None and each.right for each in self.grades)

    @property
    def judged(self) -> int:
        """Questions with replies that are right or wrong."""
        return sum(each is not None for each in self.grades)

    @property
    def too_long(self) -> int:
        """Questions that do not fit the model's context. They count as wrong."""
        in_replies = sum(each is not None and not each.fits for each in self.replies)
        unlikely = zip(self.asked, self.likelihoods, strict=True)
        return in_replies + sum(q.score == "likelihood" and found is None for q, found in unlikely)

    def nats(self) -> tuple[float, float] | None:
        """Mean nats per token of the expected answers, and its standard error; None where no likelihood was asked."""
        found = [each for each in self.likelihoods if each is not None]
        tokens = sum(each.tokens for each in found)
        if not tokens:
            return None
        mean = sum(each.nats for each in found) / tokens
        # The tokens of one answer are no independent draws, the answers are.
        residuals = sum((each.nats - mean * each.tokens) ** 2 for each in found)
        return mean, math.sqrt(residuals) / tokens

    def text(self) -> str:
        """The result in a few words: ``44 of 50 right``, ``1.23 nats per token``, or both."""
        parts = []
        if self.judged:
            parts.append(f"{self.right:,} of {self.judged:,} right")
        if (nats := self.nats()) is not None:
            parts.append(f"{nats[0]:.3f} nats per token of the expected answers")
        return ", ".join(parts) or "nothing"


def given_text(model: Answers, reply: Reply) -> str:
    """What counts of a reply: all of it, or without a chat template the first paragraph, since nothing ends a turn."""
    return reply.text if model.chats else reply.text.strip().partition("\n\n")[0]


def reply_limits(
    model: Answers, questions: Sequence[Question], most: int = MOST_TOKENS, more: int | None = None
) -> list[int]:
    """Most tokens of each reply where a person does not say it. ``more``: than the expected answer has, of a reply that
    must be the same."""

    def limit(question: Question) -> int:
        try:
            expected = len(model.expected(question)[1])
        except TemplateRefusesError:  # it writes the question, and changes what stands before the answer
            return most
        if more is not None and question.score == "exact":
            return min(most, expected + more)
        return min(most, math.ceil(LONGER * expected) + MORE_TOKENS)

    return [limit(each) for each in questions]


def examine(
    model: Answers,
    questions: Sequence[Question],
    max_tokens: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    most_tokens: int = MOST_TOKENS,
    more_tokens: int | None = None,
) -> Outcome:
    """Ask the questions. ``max_tokens``: of each reply; None: by its expected answer, ``most_tokens`` at most, and
    ``more_tokens`` more than it has where the reply must be the same.

    ``stop`` is asked before each group of questions; what follows it is not asked.
    """
    began, out = perf_counter(), Outcome()
    usable = []
    for each in questions:
        if (why := model.refuses(each)) is None:
            usable.append(each)
        else:
            out.refused, out.first_refusal = out.refused + 1, out.first_refusal or why
    worded = [each for each in usable if each.score != "likelihood"]
    limits = max_tokens or reply_limits(model, worded, most_tokens, more_tokens)
    replies = model.replies([(each.messages, each.tools) for each in worded], limits, progress, stop)
    for question, reply in zip(worded, replies, strict=True):
        if reply is not None:
            out.asked.append(question)
            out.replies.append(reply)
            out.likelihoods.append(None)
            spelled = model.spelled(question) if question.score == "tools" else ""
            out.grades.append(grade(question, given_text(model, reply), spelled))
    weighed = [each for each in usable if each.score == "likelihood"]
    if weighed and not stop():
        for question, found in zip(weighed, model.likelihoods(weighed, progress), strict=True):
            out.asked.append(question)
            out.replies.append(None)
            out.likelihoods.append(found)
            out.grades.append(None)
    out.seconds = perf_counter() - began
    return out


def ask(model: Answers, questions: Sequence[Question], max_tokens: int | None, n_shown: int) -> dict[str, Any]:
    """The model's row, after its wrong replies are printed."""
    if not model.chats:
        print(f"{model.name} has no chat template: it gets the questions as plain text, and its first paragraph counts")
    with progress_bar(model.name, len(questions), unit="questions") as progress:
        out = examine(model, questions, max_tokens, progress)
    if out.refused:
        print(f"{model.name}: its chat template refuses {out.refused:,} questions, the first so: {out.first_refusal}")
    if out.too_long:
        print(too_long_line(model.name, out.too_long, model.context))
    if cut := sum(
        reply is not None and THINK in reply.text and END_OF_THINK not in reply.text for reply in out.replies
    ):
        print(f"{model.name}: {cut:,} replies were cut off in their reasoning: raise max_tokens")
    show_wrong(wrong_ones(model, out), n_shown)
    show_unlikely(model, out, max_tokens, n_shown)
    return row(model, out)


def wrong_ones(model: Answers, out: Outcome) -> list[Wrong]:
    """The replies that are wrong."""
    return [
        Wrong(question.asked, question.expected_text, given_text(model, reply))
        for question, reply, verdict in zip(out.asked, out.replies, out.grades, strict=True)
        if verdict is not None and reply is not None and not verdict.right
    ]


def show_unlikely(model: Answers, out: Outcome, max_tokens: int | None, n_shown: int) -> None:
    """Print the expected answers that are the least likely by token, with what the model says instead."""
    found = [(q, each) for q, each in zip(out.asked, out.likelihoods, strict=True) if each is not None]
    found.sort(key=lambda pair: -pair[1].nats / pair[1].tokens)
    chosen = [question for question, _ in found[:n_shown]]
    if not chosen:
        return
    replies = model.replies([(q.messages, q.tools) for q in chosen], max_tokens or reply_limits(model, chosen))
    texts = [Wrong(q.asked, q.expected_text, given_text(model, r)) for q, r in zip(chosen, replies, strict=True) if r]
    show_wrong(texts, n_shown, title="unlikely")


def row(model: Answers, out: Outcome) -> dict[str, Any]:
    """What the JSON line holds of a model."""
    low, high = interval(out.right, out.judged)
    contained = [each.contains for each in out.grades if each is not None and each.contains is not None]
    fields = [each.fields for each in out.grades if each is not None and each.fields is not None]
    nats = out.nats()
    replies = [each for each in out.replies if each is not None]
    return {
        "file": model.name,
        "engine": model.engine,
        "questions": len(out.asked),
        "scores": dict(in_order(out.asked)),
        "judged": out.judged,
        "right": out.right,
        "share": round(out.right / out.judged, 4) if out.judged else None,
        "low": round(low, 4) if out.judged else None,
        "high": round(high, 4) if out.judged else None,
        "contains": sum(contained) if contained else None,
        "fields": round(sum(fields) / len(fields), 4) if fields else None,
        "nats_per_token": round(nats[0], 5) if nats else None,
        "nats_stderr": round(nats[1], 5) if nats else None,
        "stopped": sum(each.stopped for each in replies) if replies else None,
        "too_long": out.too_long,
        "refused": out.refused,
        "seconds": round(out.seconds, 2),
    }


SCORES = {
    "exact": "exact: the reply is the expected answer, but for white space and case",
    "contains": "contains: the expected answer stands in the reply",
    "json": "json: all fields of the first JSON object in the reply are equal; fields: the share that is",
    "tools": "tools: the same functions are called with equal arguments",
    "likelihood": "nats per token: of the expected answers, ± the 95 % interval; less is better, one tokenizer only",
}


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """The table: columns that no model has anything for are left out."""

    def right(row: dict[str, Any]) -> str:
        return f"{row['right']:,} of {row['judged']:,} ({row['share']:.1%})" if row["judged"] else ""

    def nats(row: dict[str, Any]) -> str:
        found = row["nats_per_token"]
        return "" if found is None else f"{found:.3f} ± {Z_95 * row['nats_stderr']:.3f}"

    columns: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("file", lambda row: row["file"]),
        ("engine", lambda row: row["engine"]),
        ("questions", lambda row: f"{row['questions']:,}"),
        ("right", right),
        ("95 %", lambda row: f"{row['low']:.1%} to {row['high']:.1%}" if row["judged"] else ""),
        ("contains", lambda row: "" if row["contains"] is None else f"{row['contains']:,}"),
        ("fields", lambda row: "" if row["fields"] is None else f"{row['fields']:.1%}"),
        ("nats per token", nats),
        ("stopped", lambda row: "" if row["stopped"] is None else f"{row['stopped']:,}"),
        ("seconds", lambda row: f"{row['seconds']:.1f}"),
    ]
    used = [(name, cell) for name, cell in columns if any(cell(each) for each in rows)]
    scores = dict.fromkeys(name for each in rows for name in each["scores"])
    lines = [SCORES[name] for name in scores]
    if "exact" in scores:
        lines.append(SCORES["contains"])
    if any(each["stopped"] is not None for each in rows):
        lines.append("replies are greedy; stopped: those that the model ended by itself")
    report.table(
        title,
        [name for name, _ in used],
        [[cell(each) for _, cell in used] for each in rows],
        caption="\n".join(lines),
    )
    if set(scores) == {"exact"} and (longer := max((row["contains"] or 0) - row["right"] for row in rows)) > 0:
        replies = "reply contains" if longer == 1 else "replies contain"
        print(f"{longer:,} wrong {replies} the expected answer: score=contains counts such replies as right")
