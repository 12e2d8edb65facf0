"""The embedded exam: held-out questions about embedded stories, each with one right answer.

The right answer is a few words of the story, so no judge is needed (``slm.data.chat.story_chat``).
"""

from collections import Counter
from time import perf_counter
from typing import Any

from slm import report
from slm.data.chat.story_chat import ExamQuestion
from slm.evaluate.exam.answers import Answers
from slm.evaluate.exam.grading import interval
from slm.evaluate.exam.own import Wrong, show_wrong, too_long_line
from slm.evaluate.progress import progress_bar

MOST_TOKENS = 64
"""Default for the most tokens of a reply."""


def ask(model: Answers, questions: list[ExamQuestion], max_tokens: int, n_shown: int = 0) -> dict[str, Any]:
    """The model's row: shares of right answers by kind and family, and of replies that stopped by themselves."""
    asked: Counter[str] = Counter()
    right: Counter[str] = Counter()
    began = perf_counter()
    with progress_bar(model.name, len(questions), unit="questions") as progress:
        replies = model.replies([(each.messages, None) for each in questions], max_tokens, progress)
    seconds = perf_counter() - began
    if too_long := sum(each is not None and not each.fits for each in replies):
        print(too_long_line(model.name, too_long, model.context))
    wrong: list[Wrong] = []
    stopped = 0
    for each, reply in zip(questions, replies, strict=True):
        assert reply is not None
        is_right = each.is_right(reply.text)
        stopped += reply.stopped
        for group in ("all", each.question.kind, each.family):
            asked[group] += 1
            right[group] += is_right
        if not is_right:
            wrong.append(Wrong(each.question.text, each.question.expected, reply.text))
    show_wrong(wrong, n_shown)
    low, high = interval(right["all"], len(questions))
    return {
        "file": model.name,
        "engine": model.engine,
        "questions": len(questions),
        "right": right["all"],
        "share": round(right["all"] / len(questions), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "seconds": round(seconds, 2),
        "stopped": stopped,
        "too_long": too_long,
        "by_kind": {kind: round(right[kind] / asked[kind], 4) for kind in ("who", "where", "what") if asked[kind]},
        "by_family": {
            family: round(right[family] / asked[family], 4)
            for family in ("stories", "names", "wordings")
            if asked[family]
        },
    }


def show(name: str, rows: list[dict[str, Any]]) -> None:
    """The table."""

    def percent(share: float | None) -> str:
        return "" if share is None else f"{share:.1%}"

    report.table(
        f"Held-out questions about stories, {name}",
        [
            *("file", "engine", "right", "95 %", "who", "where", "what"),
            *("new stories", "new names", "new wordings", "stopped", "seconds"),
        ],
        [
            [
                row["file"],
                row["engine"],
                f"{row['right']} of {row['questions']} ({row['share']:.1%})",
                f"{row['low']:.1%} to {row['high']:.1%}",
                *(percent(row["by_kind"].get(kind)) for kind in ("who", "where", "what")),
                *(percent(row["by_family"].get(family)) for family in ("stories", "names", "wordings")),
                f"{row['stopped']} of {row['questions']}",
                f"{row['seconds']:.1f}",
            ]
            for row in rows
        ],
        caption=(
            "right: the reply has the expected words of the story and those of no other possible answer (greedy)\n"
            "new names: tuning never speaks of anyone of that name; new wordings: nor asks in these words\n"
            "stopped: replies that the model ended by itself, within max_tokens"
        ),
    )
