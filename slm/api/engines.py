"""The two engines behind ``slm.load``: a checkpoint in torch, f32, and a GGUF file in llama.cpp.

Each reads tokens one sequence at a time and gives the logits of the next one. Shape suffixes: N texts, T positions,
D width, V vocabulary.

Tested in tests/slm/api/test_api.py.
"""

import codecs
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from slm.evaluate.exam.answers import Answers, GGUFAnswers, checkpoint_answers

_BATCH = 512
"""Tokens of a prompt that llama.cpp reads at once."""


class Tokenizer(Protocol):
    """Text to token ids and back, without special tokens."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text; what spells a special token is text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        ...


class Engine(Protocol):
    """What a model computes."""

    @property
    def answers(self) -> Answers:
        """What renders chats and scores texts."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's own."""
        ...

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a text or a turn."""
        ...

    def start(self, text: str) -> list[int]:
        """The ids of a prompt, with the token that begins a text where the model was trained with one."""
        ...

    def logits(self, ids: list[int]) -> Generator[np.ndarray, int, None]:
        """f32 [V] of the token after ``ids``; each next item after the token that was sent. A generator."""
        ...

    def embeddings(self, ids: list[int]) -> np.ndarray:
        """f32 [T, D]: the last layer's normed output of each token."""
        ...

    def text(self, pieces: Iterator[int]) -> Iterator[str]:
        """The text of tokens as they come. A character that takes several tokens comes with its last one."""
        ...

    def close(self) -> None:
        """Free what the model takes."""
        ...


class TorchEngine:
    """A checkpoint."""

    def __init__(self, directory: Path, threads: int) -> None:
        self.answers = checkpoint_answers(directory, threads)
        self.tokenizer: Any = self.answers.tokenizer
        self.stop_ids = self.answers.stop_ids

    def start(self, text: str) -> list[int]:
        """See ``Engine``."""
        own = self.answers.tokenizer
        return [*own.begins, *own.encode(text)] or [*own.document_start]

    def logits(self, ids: list[int]) -> Generator[np.ndarray, int, None]:
        """See ``Engine``."""
        import torch

        model = self.answers.model
        cache = model.new_cache()
        while True:
            with torch.no_grad():  # not around the yield: it would reach the caller
                row_V = model(torch.tensor([ids]), cache)[0, -1].float().numpy()
            token: int = yield row_V
            ids = [token]

    def embeddings(self, ids: list[int]) -> np.ndarray:
        """See ``Engine``."""
        import torch

        with torch.no_grad():
            found: np.ndarray = self.answers.model.hidden_states(torch.tensor([ids]))[0].float().numpy()
        return found

    def text(self, pieces: Iterator[int]) -> Iterator[str]:
        """See ``Engine``."""
        ids: list[int] = []
        before = done = 0  # ids[before:] are decoded each time, so that a piece's leading space is seen in its place
        for token in pieces:
            ids.append(token)
            shown, now = self.tokenizer.decode(ids[before:done]), self.tokenizer.decode(ids[before:])
            if len(now) > len(shown) and not now.endswith("\ufffd"):
                yield now[len(shown) :]
                before, done = done, len(ids)
        rest = self.tokenizer.decode(ids[before:])[len(self.tokenizer.decode(ids[before:done])) :]
        if rest:
            yield rest

    def close(self) -> None:
        """See ``Engine``."""


class _LlamaTokenizer:
    """llama.cpp's tokenizer of a GGUF file."""

    def __init__(self, llama: Any) -> None:
        self._llama = llama

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._llama.tokenize(text, add_special=False, parse_special=False)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(self._llama.token_to_piece(each) for each in ids).decode("utf-8", "replace")


class LlamaEngine:
    """A GGUF file."""

    def __init__(self, path: Path, threads: int) -> None:
        self.answers = GGUFAnswers(path, threads)
        self._llama, self._threads = self.answers.llama, threads
        self.tokenizer = _LlamaTokenizer(self._llama)
        self.stop_ids = frozenset(each for each in range(self._llama.n_vocab) if self._llama.is_eog(each))

    def start(self, text: str) -> list[int]:
        """See ``Engine``."""
        ids: list[int] = self._llama.tokenize(text, add_special=True, parse_special=False)
        return ids or [self._llama.bos if self._llama.bos >= 0 else self._llama.eos]

    def logits(self, ids: list[int]) -> Generator[np.ndarray, int, None]:
        """See ``Engine``."""
        from slm.llama.context import Batch, Context

        batch = Batch(_BATCH)
        with Context(self._llama, n_ctx=self.answers.context, n_batch=_BATCH, n_threads=self._threads) as context:
            at = 0
            while True:
                for start in range(0, len(ids), _BATCH):
                    batch.clear()
                    part = ids[start : start + _BATCH]
                    last = batch.extend(part, at, 0, True)
                    context.decode(batch)
                    at += len(part)
                token: int = yield context.row(last).copy()
                ids = [token]

    def embeddings(self, ids: list[int]) -> np.ndarray:
        """See ``Engine``."""
        from slm.llama.context import Batch, Context

        batch = Batch(_BATCH)
        rows = []
        with Context(self._llama, n_ctx=len(ids), n_batch=_BATCH, n_threads=self._threads, embeddings=True) as context:
            for start in range(0, len(ids), _BATCH):
                batch.clear()
                part = ids[start : start + _BATCH]
                batch.extend(part, start, 0, True, every=True)
                context.decode(batch)
                rows.append(context.embeddings_all(len(part)).copy())
        return np.concatenate(rows)

    def text(self, pieces: Iterator[int]) -> Iterator[str]:
        """See ``Engine``."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in pieces:
            if text := decoder.decode(self._llama.token_to_piece(token)):
                yield text
        if rest := decoder.decode(b"", True):
            yield rest

    def close(self) -> None:
        """See ``Engine``."""
        self.answers.close()
