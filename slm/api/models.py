"""``slm.load``: a model in this process, for notebooks and scripts. Many users at once are ``slm.serve``'s.

Tested in tests/slm/api/test_api.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from slm.api.engines import Engine, LlamaEngine, TorchEngine
from slm.data.errors import UserError

Message = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How well a model predicts a text: sliding windows, every token scored once (docs/evaluation.md)."""

    perplexity: float
    """exp of the mean nats per token. It depends on the tokenizer."""
    stderr: float
    """One standard error of the perplexity."""
    bits_per_byte: float
    """Bits per UTF-8 byte of the text: it compares across tokenizers."""
    word_perplexity: float
    """exp of the nats per word, words being what white space separates."""
    tokens: int
    """Tokens scored."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the next token is chosen. With ``temperature=0`` it is the likeliest, and nothing else counts."""

    temperature: float = 0.8
    top_k: int = 40
    """The k likeliest stay; 0: all."""
    top_p: float = 0.95
    """The likeliest that have this probability together stay; 1: all."""
    min_p: float = 0.05
    """Those at least this times as likely as the likeliest stay; 0: all."""
    seed: int | None = None
    """None: another text each time."""

    def __post_init__(self) -> None:
        """UserError for a number that is out of its range."""
        for name, low, high in (("temperature", 0, 100), ("top_p", 0, 1), ("min_p", 0, 1)):
            if not low <= getattr(self, name) <= high:
                raise UserError(f"{name} is between {low} and {high}, not {getattr(self, name)}")

    def choose(self, logits_V: np.ndarray, random: np.random.Generator) -> int:
        """A token id."""
        if self.temperature == 0:
            return int(logits_V.argmax())
        count = min(self.top_k or len(logits_V), len(logits_V))
        kept = np.argpartition(logits_V, -count)[-count:]
        kept = kept[np.argsort(-logits_V[kept], kind="stable")]
        likely = np.exp(logits_V[kept].astype(np.float64) - logits_V[kept[0]])
        likely /= likely.sum()
        before = np.cumsum(likely) - likely
        stays = (before < self.top_p) & (likely >= self.min_p * likely[0])
        stays[0] = True
        kept, scores = kept[stays], logits_V[kept[stays]].astype(np.float64)
        weights = np.exp((scores - scores[0]) / self.temperature)
        return int(random.choice(kept, p=weights / weights.sum()))


class Model:
    """A loaded model. ``with`` closes it; otherwise Python does."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name
        self.tokenizer = engine.tokenizer
        """``encode(text) -> ids`` and ``decode(ids) -> text``."""
        self.context: int = engine.answers.context
        """Most tokens of a prompt with its answer."""
        self.chats: bool = engine.answers.chats
        """Whether it has a chat template."""

    def __repr__(self) -> str:
        """Name and engine."""
        return f"<slm.Model {self.name} in {self._engine.answers.engine}, context {self.context}>"

    @overload
    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = ...,
        stop: Sequence[str] = ...,
        stream: Literal[False] = ...,
        **sampling: Any,
    ) -> str: ...
    @overload
    def generate(
        self, prompt: str, *, max_tokens: int = ..., stop: Sequence[str] = ..., stream: Literal[True], **sampling: Any
    ) -> Iterator[str]: ...
    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int = 256,
        stop: Sequence[str] = (),
        stream: bool = False,
        **sampling: Any,
    ) -> str | Iterator[str]:
        """The text that follows ``prompt``; with ``stream`` its pieces as they come.

        It ends with the model's own end, after ``max_tokens``, before one of ``stop``, or where the context is full.
        ``sampling``: the fields of ``slm.Sampling``. UserError where the prompt does not fit the context.
        """
        pieces = self._pieces(self._engine.start(prompt), max_tokens, tuple(stop), _sampling(sampling))
        return pieces if stream else "".join(pieces)

    @overload
    def chat(
        self, messages: str | list[Message], *, max_tokens: int = ..., stream: Literal[False] = ..., **more: Any
    ) -> str: ...
    @overload
    def chat(
        self, messages: str | list[Message], *, max_tokens: int = ..., stream: Literal[True], **more: Any
    ) -> Iterator[str]: ...
    def chat(
        self,
        messages: str | list[Message],
        *,
        tools: list[Any] | None = None,
        max_tokens: int = 512,
        stop: Sequence[str] = (),
        stream: bool = False,
        **sampling: Any,
    ) -> str | Iterator[str]:
        """The answer to ``messages`` (``[{"role": "user", "content": ...}]``, or a text: one message of the user's).

        UserError for a model without a chat template (``make tune`` gives it one), and for messages that the template
        refuses.
        """
        from slm.data.chat.template import TemplateRefusesError

        if not self.chats:
            raise UserError(f"{self.name} has no chat template: use generate(), or tune it on conversations first")
        asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        try:
            ids = self._engine.answers.prompt(asked, tools)
        except TemplateRefusesError as error:
            raise UserError(f"the chat template of {self.name} refuses these messages: {error}") from None
        pieces = self._pieces(ids, max_tokens, tuple(stop), _sampling(sampling))
        return pieces if stream else "".join(pieces)

    def perplexity(self, text: str, *, context: int | None = None) -> Perplexity:
        """How well the model predicts ``text``. ``context``: most tokens that it sees; default: what it was trained
        with. UserError for a text with less than two tokens."""
        from slm.evaluate import perplexity as p

        scorer = self._engine.answers.scorer()
        ids = scorer.tokenize(text)
        stream, windows = p.sliding_plan(scorer, ids, context or self.context)
        if not windows:
            raise UserError("perplexity needs a text of at least two tokens")
        score = p.reduce(scorer.nll(windows, stream))
        return Perplexity(
            perplexity=score.perplexity,
            stderr=score.stderr,
            bits_per_byte=p.bits_per_byte(score.nll, len(text.encode())),
            word_perplexity=p.word_perplexity(score.nll, len(text.split())),
            tokens=score.tokens,
        )

    @overload
    def embed(self, texts: str) -> np.ndarray: ...
    @overload
    def embed(self, texts: Sequence[str]) -> np.ndarray: ...
    def embed(self, texts: str | Sequence[str]) -> np.ndarray:
        """f32 [D] of a text, [N, D] of several: the mean of the last layer's output over the tokens, of length 1.

        UserError for a text that does not fit the context.
        """
        if not isinstance(texts, str):
            return np.stack([self.embed(each) for each in texts])
        ids = self._engine.start(texts)
        if not 0 < len(ids) <= self.context:
            raise UserError(f"the text has {len(ids)} tokens, and {self.name} embeds 1 to {self.context}")
        mean_D = self._engine.embeddings(ids).mean(axis=0)
        found: np.ndarray = (mean_D / max(float(np.linalg.norm(mean_D)), 1e-12)).astype(np.float32)
        return found

    def close(self) -> None:
        """Free what the model takes."""
        self._engine.close()

    def __enter__(self) -> "Model":
        """The model itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def _pieces(self, ids: list[int], most: int, stop: tuple[str, ...], sampling: Sampling) -> Iterator[str]:
        if len(ids) >= self.context:
            raise UserError(f"the prompt has {len(ids)} tokens, and the context of {self.name} is {self.context}")
        if not ids:
            raise UserError("generation needs a token to start from, and the prompt has none")
        return _until(self._engine.text(self._tokens(ids, most, sampling)), stop)

    def _tokens(self, ids: list[int], most: int, sampling: Sampling) -> Iterator[int]:
        random = np.random.default_rng(sampling.seed)
        steps = self._engine.logits(ids)
        row_V = next(steps)
        try:
            for left in reversed(range(min(most, self.context - len(ids)))):
                token = sampling.choose(row_V, random)
                if token in self._engine.stop_ids:
                    return
                yield token
                if left:
                    row_V = steps.send(token)
        finally:
            steps.close()


def _sampling(given: dict[str, Any]) -> Sampling:
    known = Sampling.__dataclass_fields__
    for name in given:
        if name not in known:
            from slm.data.errors import nearest

            raise UserError(f"there is no {name!r}; {nearest(name, list(known)) or 'there are: ' + ', '.join(known)}")
    return Sampling(**given)


def _until(pieces: Iterator[str], stop: tuple[str, ...]) -> Iterator[str]:
    """The pieces up to the first of ``stop``. What may be the beginning of one is held back."""
    held = ""
    for piece in pieces:
        held += piece
        places = [at for each in stop if (at := held.find(each)) >= 0]
        if places:
            if min(places):
                yield held[: min(places)]
            return
        hold = max((n for each in stop for n in range(1, len(each)) if held.endswith(each[:n])), default=0)
        if ready := held[: len(held) - hold]:
            yield ready
            held = held[len(ready) :]
    if held:
        yield held


def load(model: Any, *, threads: int | None = None) -> Model:
    """A model by what one calls it: a run or its name, a checkpoint, a Hugging Face directory, ``org/name`` on the Hub,
    or a GGUF file. ``threads``: default: one for each core.

    A GGUF file runs in llama.cpp, everything else in torch, f32. UserError where there is no such model.
    """
    from slm.hub import models as hub
    from slm.machine.hardware import compute_threads
    from slm.setup.llama import wait

    threads = threads or compute_threads()
    word = str(getattr(model, "path", model))
    if word.endswith(".gguf"):
        path = Path(word).expanduser()
        if not path.is_file():
            raise UserError(f"there is no file {path}")
        wait()
        return Model(LlamaEngine(path, threads), path.name)
    run = hub.resolve(word)
    return Model(TorchEngine(run.checkpoint(), threads), run.name)
