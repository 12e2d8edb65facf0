"""What a run asks its model: questions from its held-out conversations, with expected and given answers, before the
first step, at validations and at the end."""

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from slm.cli import spelled
from slm.data.chat.formats import to_document
from slm.data.config import DataConfig
from slm.data.errors import UserError
from slm.data.sources.documents import make_plans, open_stream
from slm.data.sources.plan import Split
from slm.data.storage import atomic_write_text
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.evaluate.exam import own, questions
from slm.evaluate.exam.answers import CheckpointAnswers
from slm.evaluate.exam.own import ASKED_CHARS, SAID_CHARS, shortened
from slm.evaluate.exam.questions import Question
from slm.exported import shown as typed
from slm.model.transformer import LanguageModel
from slm.runs import QUESTIONS
from slm.train.config import RunConfig
from slm.train.report.samples import answered

SCORED_SHARE, SHOWN_SHARE = 0.02, 0.02
"""Shares of a run's time: for the score before the first step (and again at the end), and for all validations' answers
together."""
LEAST_SECONDS = 3.0
"""For the score of a short run."""
MOST_TOKENS, MORE_TOKENS = 256, 8
"""Tokens of a reply; and how many more than the expected answer where it must be the same: a longer one is wrong."""
SHOWN_QUESTIONS, SHOWN_TOKENS = 3, 32
"""Questions shown with expected and given answers before the first step, at validations and at the end, and the
most tokens of such an answer where it is scored by its likelihood."""
SCORED_QUESTIONS = 50
"""Most of those that are counted as right or wrong before the first step and at the end; fewer where they take long."""
DRAWN_FROM = 500
"""Held-out questions from which those of a run are drawn."""
FEW = 8
"""Questions in a group; its time is looked at before the next."""


class RunQuestions:
    """The questions of a run; none where it reads no conversations.

    ``held_out``: whether they come from conversations that are not trained on.
    """

    def __init__(self, config: RunConfig, asked: list[Question], *, held_out: bool) -> None:
        self._config, self._asked, self.held_out = config, asked, held_out
        self._model: CheckpointAnswers | None = None
        self._spent = 0.0
        """Seconds of answers at validations."""
        self._last = 0.0
        """Seconds of the last ones."""
        self.closing_seconds = 0.0
        """What the score at the end takes, as far as is known."""
        self.shown_at = 0
        """The step at which answers were shown last."""
        self._outcome: own.Outcome | None = None
        """What came of all questions at that step, where no more are asked than are shown."""
        self.limited = False
        """Whether answers at a validation were left out because of their time."""

    def __bool__(self) -> bool:
        return bool(self._asked)

    @property
    def what(self) -> str:
        """What the questions are called."""
        return "held-out questions" if self.held_out else "questions that are trained on (none is held out)"

    def attach(self, model: LanguageModel, tokenizer: Tokenizer) -> None:
        """Use this model. What its chat template refuses is not asked."""
        if not self._asked:
            return
        try:
            self._model = CheckpointAnswers(model, tokenizer, "the model")
        except UserError:
            self._asked = []  # no template that renders: the model cannot be asked
            return
        self._asked = [each for each in self._asked if self._model.refuses(each) is None]

    def before(self, seconds_of_run: float, stop: Callable[[], bool] = lambda: False) -> tuple[own.Outcome, list[str]]:
        """The score of the model that the run begins with, and the texts of the answers that are shown.

        ``seconds_of_run``: that time ends it after; infinite where steps do.
        """
        began = perf_counter()
        first, rest = self._shown(), self._asked[len(self._shown()) : SCORED_QUESTIONS]
        out = self._examine(first, stop)
        train = self._config.train
        if seconds_of_run == float("inf"):
            # Few replies at once are limited by memory: a token of a step takes about a quarter of one of theirs.
            per_token = out.seconds / max(1, sum(self._tokens(each) for each in first)) / 4
            seconds_of_run = train.max_steps * train.tokens_per_step * per_token
        allowed = max(LEAST_SECONDS, SCORED_SHARE * seconds_of_run)
        for start in range(0, len(rest), FEW):
            if stop() or perf_counter() - began > allowed:
                break
            out = joined(out, self._examine(rest[start : start + FEW], stop))
        self._asked = self._asked[: max(len(first), len(out.asked))]
        self.closing_seconds = perf_counter() - began
        return out, self._texts(first, out)

    def resume(self, before: dict[str, Any] | None) -> None:
        """The score at the end has the questions of the one ``before``, a record; None: the run began without one."""
        count = before["questions"] if before else SHOWN_QUESTIONS + FEW
        self._asked, self.closing_seconds = self._asked[:count], before["seconds"] if before else 0.0

    def after(self, stop: Callable[[], bool] = lambda: False) -> tuple[own.Outcome, list[str]]:
        """The score of the same questions at the end, and the texts of the answers that are shown."""
        out = self._examine(self._asked, stop)
        return out, self._texts(self._shown(), out)

    def answered_at(self, step: int) -> own.Outcome | None:
        """The score of the same questions by the weights of ``step``, where a validation has asked all of them; they
        have been shown, too."""
        return self._outcome if self.shown_at == step else None

    def at_validation(self, step: int, elapsed: float, *, last: bool) -> list[str]:
        """The texts of the answers that are shown at this step; none where all so far would take more than
        ``SHOWN_SHARE`` of the ``elapsed`` seconds. The first validation and the ``last`` one always have them."""
        if not self or (self._last and not last and self._spent + self._last > SHOWN_SHARE * elapsed):
            self.limited = self.limited or bool(self)
            return []
        began, self.shown_at = perf_counter(), step
        out = self._examine(self._shown())
        texts = self._texts(self._shown(), out)
        self._outcome = out if len(self._shown()) == len(self._asked) else None
        self._last = perf_counter() - began
        self._spent += self._last
        return texts

    def _shown(self) -> list[Question]:
        return self._asked[:SHOWN_QUESTIONS]

    def _tokens(self, question: Question) -> int:
        assert self._model is not None
        return sum(map(len, self._model.expected(question)))

    def _examine(self, asked: list[Question], stop: Callable[[], bool] = lambda: False) -> own.Outcome:
        assert self._model is not None
        return own.examine(self._model, asked, stop=stop, most_tokens=MOST_TOKENS, more_tokens=MORE_TOKENS)

    def _texts(self, shown: list[Question], out: own.Outcome) -> list[str]:
        """The texts of these questions with the expected answer and the given one."""
        assert self._model is not None
        given = {id(question): reply for question, reply in zip(out.asked, out.replies, strict=True)}
        missing = [each for each in shown if given.get(id(each)) is None]  # scored by their likelihood
        most = SHOWN_TOKENS
        replies = self._model.replies([(each.messages, each.tools) for each in missing], most)
        given |= {id(question): reply for question, reply in zip(missing, replies, strict=True)}
        return [
            answered(
                shortened(each.asked, ASKED_CHARS),
                shortened(each.expected_text, SAID_CHARS),
                shortened(reply.text, SAID_CHARS) or "(nothing)",
            )
            for each in shown
            if (reply := given[id(each)]) is not None
        ]


def joined(one: own.Outcome, other: own.Outcome) -> own.Outcome:
    """Two outcomes as one."""
    return own.Outcome(
        asked=[*one.asked, *other.asked],
        replies=[*one.replies, *other.replies],
        grades=[*one.grades, *other.grades],
        likelihoods=[*one.likelihoods, *other.likelihoods],
        refused=one.refused + other.refused,
        first_refusal=one.first_refusal or other.first_refusal,
        seconds=one.seconds + other.seconds,
    )


def prepare(config: RunConfig, root: Path, *, main: bool) -> RunQuestions:
    """The questions of a run, in its directory: made once, so that they stay the same when it resumes.

    Only the ``main`` process asks.
    """
    if not main or not config.data.has_chat:
        return RunQuestions(config, [], held_out=True)
    path = root / QUESTIONS
    if not path.is_file():
        found, held_out = _draw(config)
        lines = [json.dumps({**each.conversation, "held_out": held_out}, ensure_ascii=False) for each in found]
        atomic_write_text(path, "".join(line + "\n" for line in lines))
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    asked = questions.collect(to_document(each) for each in records).questions
    held_out = all(each.get("held_out", True) for each in records)
    return RunQuestions(config, questions.choose_scores(asked), held_out=held_out)


def remove(root: Path) -> None:
    """Remove a run's questions: a new start makes them from its own settings."""
    (root / QUESTIONS).unlink(missing_ok=True)


def _draw(config: RunConfig) -> tuple[list[Question], bool]:
    """Questions of held-out conversations, or where there are none of those that are trained on; whether they are held
    out."""
    own = [each for each in config.data.all_sources() if each.is_chat and each.validated]
    held_out = config.data.val_fraction > 0 or any(each.val_files or each.val_split for each in own)
    splits: tuple[Split, ...] = ("validation", "train") if held_out else ("train",)
    for split in splits:
        if found := _of_split(config.data, split, config.train.seed):
            return questions.sample(found, SCORED_QUESTIONS), split == "validation"
    return [], True


def _of_split(data: DataConfig, split: Split, seed: int) -> list[Question]:
    try:
        plans = [plan for plan in make_plans(data, split) if plan.source.is_chat and plan.source.validated]
    except UserError:
        return []  # nothing is held out
    found: list[Question] = []
    for plan in plans:
        stream = open_stream(plan, seed=seed, shuffle_buffer=data.shuffle_buffer, wrap=lambda corpus: corpus)
        documents = (str(each) for each in _items(stream))
        # Each once, though conversations may be repeated.
        found += questions.collect(documents, most=-(-DRAWN_FROM // len(plans))).questions
    return found


def _items(stream: Any) -> Any:
    while True:
        try:
            yield next(stream)
        except StopIteration:
            return


def score_line(out: own.Outcome, what: str, before: dict[str, Any] | None = None, chosen: str = "") -> str:
    """The line of the score before the first step or, with the name of the ``chosen`` checkpoint, of that at the end.
    ``before``: the facts of the first one, where there is one."""
    when = f"after training ({chosen})" if chosen else "before training"
    text = f"{when}, {len(out.asked):,} {what}: {out.text()}"
    return text if before is None else f"{text}; before training: {before['text']}"


def exam_line(root: Path) -> str:
    """How to ask the exported files the same."""
    asks = spelled("exam", run=typed(root), data=typed(root / QUESTIONS))
    return f"ask its exported files the same questions, or your own: {asks}"
