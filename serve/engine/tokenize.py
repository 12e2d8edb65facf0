"""Texts to tokens without holding up those who stream: a text of megabytes takes seconds."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from serve.engine.messages import Event, Failure, Reply, Tokenize
from slm.llama.errors import LlamaError
from slm.llama.model import Model

_CHARACTERS = 8
"""Of a text, this many per token that it may have are looked at first."""
_SHORT = 16_384
"""Characters that are turned to tokens at once."""


def tokenize_within(
    model: Model, text: str, limit: int, *, add_special: bool, parse_special: bool
) -> tuple[list[int], bool]:
    """The tokens of a text and True; for a text that has more than ``limit``, perhaps only those of a beginning that
    has more than ``limit`` by itself, and False."""
    size = max(_CHARACTERS * limit, _SHORT)
    while size < len(text):
        tokens = model.tokenize(text[:size], add_special=add_special, parse_special=parse_special)
        # Where the text is cut, a word may have other tokens than in the whole text; not by so many.
        if len(tokens) > limit + limit // 4 + 64:
            return tokens, False
        size *= 4
    return model.tokenize(text, add_special=add_special, parse_special=parse_special), True


class SlowTokenizer:
    """Turns long texts into tokens in a thread. llama.cpp does not hold Python's lock meanwhile, and the vocabulary
    does not change."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._thread: ThreadPoolExecutor | None = None
        self._asked: dict[str, Future[list[int]]] = {}

    @property
    def busy(self) -> bool:
        """Whether ``step`` has something to wait for."""
        return bool(self._asked)

    def add(self, question: Tokenize) -> list[Event]:
        """The answer to a short question; a long one's comes from ``step``. Raises ``LlamaError``."""

        def work() -> list[int]:
            return self._model.tokenize(
                question.text, add_special=question.add_special, parse_special=question.parse_special
            )

        if len(question.text) <= _SHORT:
            return [Reply(id=question.id, value=work())]
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "tokenize")
        self._asked[question.id] = self._thread.submit(work)
        return []

    def cancel(self, question_id: str) -> None:
        """Forgets a question."""
        asked = self._asked.pop(question_id, None)
        if asked is not None:
            asked.cancel()

    def step(self, *, patient: bool) -> list[Event]:
        """Answers that are there; ``patient``: waits a moment where there is none."""
        if patient:
            wait(self._asked.values(), timeout=0.02, return_when=FIRST_COMPLETED)
        events: list[Event] = []
        for question_id in [key for key, asked in self._asked.items() if asked.done()]:
            try:
                events.append(Reply(id=question_id, value=self._asked.pop(question_id).result()))
            except LlamaError as error:
                events.append(Failure(id=question_id, code="invalid_request", message=str(error)))
        return events

    def close(self) -> None:
        """Waits for the thread, which uses the model."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
