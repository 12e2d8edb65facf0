"""Grammars at work: compiled once, and their masks computed by threads while the model computes.

A constraint follows one sequence. After each of its tokens a thread computes the mask of the next one; the engine takes
it when the model has the logits. Where a mask is late, the engine keeps the logits and goes on with other sequences.

Limits are llguidance's, in work: the same request fails or succeeds on any machine.

Tested in tests/serve/engine/test_constraints.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from slm.llama.errors import GrammarDeadEndError
from slm.llama.model import Model
from slm.serve.grammar.work import LIMITS, deep_thread, first_line

_KEPT = 64
"""Compiled grammars that are kept, the last used ones."""
_SLOW_S = 0.005
"""A mask that took longer makes the next one of its sequence wait behind other slow ones, on a thread of low priority:
what many sequences need soon does not wait for it."""


class Constraint:
    """What a sequence may generate next."""

    def __init__(self, matcher: LLMatcher, n_words: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros(n_words, np.uint32)
        self._computed: Future[None] | None = None
        self.slow = False
        """Whether the last mask took long."""

    @property
    def finished(self) -> bool:
        """Whether the text is complete, so that nothing can follow."""
        return self._matcher.is_stopped()

    def accept(self, token: int) -> None:
        """The sequence has this token, which the last mask allows. Raises ``GrammarDeadEndError``."""
        self.wait()
        self._computed = None
        if not self._matcher.consume_token(token):
            raise GrammarDeadEndError(_failure(self._matcher))

    def allows(self, tokens: list[int]) -> bool:
        """Whether these tokens may come next, one after the other."""
        self.wait()
        return self._matcher.validate_tokens(tokens) == len(tokens)

    def forced(self, least: int, most: int) -> list[int]:
        """The tokens that must come next, at most ``most`` of them, none where they are fewer than ``least``."""
        tokens = self._matcher.compute_ff_tokens()
        return [] if len(tokens) < least else tokens[: max(most, 0)]

    def _compute(self) -> None:
        began = time.thread_time()
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, self._mask.nbytes)
        self.slow = time.thread_time() - began > _SLOW_S

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the mask is there, or none is being computed; waits for it."""
        if self._computed is None:
            return True
        try:
            self._computed.result(timeout_s)
        except TimeoutError:
            return False
        return True

    def mask(self) -> np.ndarray:
        """uint32: a bit for each token, the lowest first. Raises ``GrammarDeadEndError`` where the grammar costs too
        much work."""
        if self._computed is None:
            self._compute()
        self.wait()
        if self._matcher.is_error():
            raise GrammarDeadEndError(_failure(self._matcher))
        return self._mask


def compute(constraints: list[Constraint], thread: ThreadPoolExecutor) -> None:
    """Begins to compute the masks of the next tokens, one after the other."""

    def work() -> None:
        for each in constraints:
            each._compute()

    computed = thread.submit(work)
    for each in constraints:
        each._computed = computed


def _failure(matcher: LLMatcher) -> str:
    said = first_line(matcher.get_error())
    if matcher.stop_reason() in ("ParserTooComplex", "LexerTooComplex") or "max is" in said:
        return f"the grammar takes too much work; make it less ambiguous ({said})"
    return f"the grammar cannot go on: {said}"


class Constraints:
    """Compiles grammars and computes masks for the sequences of one engine."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._pending: dict[str, Future[Constraint]] = {}
        self._compiler: ThreadPoolExecutor | None = None
        self._next: list[Constraint] = []
        self._quick = deep_thread("mask")
        self._slow = deep_thread("slow-mask", _lower_priority)

    @property
    def busy(self) -> bool:
        """Whether grammars are being compiled."""
        return bool(self._pending)

    def warm(self) -> None:
        """Begins to read the vocabulary, which takes .2 s with 50,000 ids and .8 s with 150,000 (a core of an EPYC, Zen
        4), so that the first grammar does not wait for it."""
        self._compiling().submit(lambda: self._model.grammar_tokenizer)

    def begin(self, sequence_id: str, grammar: str) -> None:
        """Compiles a grammar for a sequence; ``take_ready`` gives the constraint."""
        self._pending[sequence_id] = self._compiling().submit(self._make, grammar)

    def _compiling(self) -> ThreadPoolExecutor:
        if self._compiler is None:
            self._compiler = deep_thread("grammar")
        return self._compiler

    def _make(self, grammar: str) -> Constraint:
        tokenizer: LLTokenizer = self._model.grammar_tokenizer
        matcher = self._compiled.get(grammar)
        if matcher is None:
            matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
            if matcher.is_error():
                raise GrammarDeadEndError(f"the grammar cannot be used: {first_line(matcher.get_error())}")
            self._compiled[grammar] = matcher
            if len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        constraint = Constraint(matcher.deep_copy(), (tokenizer.vocab_size + 31) // 32)
        compute([constraint], self._quick)
        return constraint

    def take_ready(self, *, patient: bool) -> list[tuple[str, Constraint | GrammarDeadEndError]]:
        """The sequences with compiled grammars. ``patient``: waits a moment where there is none."""
        if patient and self._pending:
            wait(self._pending.values(), timeout=0.02, return_when=FIRST_COMPLETED)
        ready: list[tuple[str, Constraint | GrammarDeadEndError]] = []
        for sequence_id in [key for key, each in self._pending.items() if each.done()]:
            try:
                ready.append((sequence_id, self._pending.pop(sequence_id).result()))
            except GrammarDeadEndError as error:
                ready.append((sequence_id, error))
        return ready

    def cancel(self, sequence_id: str) -> None:
        """Forgets a grammar that is being compiled."""
        pending = self._pending.pop(sequence_id, None)
        if pending is not None:
            pending.cancel()

    def compute(self, constraint: Constraint) -> None:
        """Has the next mask of a constraint computed from the next ``begin_masks`` on."""
        if constraint.slow:
            compute([constraint], self._slow)
        else:
            self._next.append(constraint)

    def begin_masks(self) -> None:
        """Begins to compute the masks that were asked for. A thread takes them together: to hand one over takes longer
        than most masks do."""
        if self._next:
            compute(self._next, self._quick)
            self._next = []

    def close(self) -> None:
        """Waits for the threads, which use the model."""
        for pool in (self._compiler, self._quick, self._slow):
            if pool is not None:
                pool.shutdown(cancel_futures=True)


def _lower_priority() -> None:
    if hasattr(os, "setpriority") and os.uname().sysname == "Linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
