"""When several clients ask an engine in the same moment: their first texts, tokens/s, and the pauses of their streams.

``python -m tests.helpers.burst_speed MODEL [clients=1,4,16] [words=100] [tokens=96] [rounds=1] [threads=1]
[clock=process] [long=TOKENS]``

There is no HTTP. With ``clock=process`` and one thread, all times are processor time, the engine's own included, so
that they mean something on a busy machine too. ``clock=wall`` and ``threads=0`` are for a quiet one. Each client asks
``rounds`` times, the next time when its answer has ended. ``long=TOKENS``: one stream runs all the time, and long
prompts come next to it one after the other; its pauses are printed.
"""

import itertools
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from slm.data.tales.story import story
from slm.serve.bench.measure import quantile
from slm.serve.engine import engine as engine_module
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Cancel, Delta, Failure, Generate, SamplingParams

_TEXT_S = 0.033
"""Texts that come faster are sent together."""
_SAMPLING = SamplingParams(seed=1, temperature=0.8, top_k=40, top_p=0.95, ignore_eos=True)


class Clients:
    """They ask one engine; ``clock`` gives seconds."""

    def __init__(self, engine: Engine, clock, n_words: int, n_tokens: int) -> None:
        self._engine, self._clock, self._n_tokens = engine, clock, n_tokens
        words = " ".join(story(0, i) for i in range(400)).split()
        self._texts = (" ".join(words[i : i + n_words]) for i in itertools.cycle(range(0, len(words) - n_words, 37)))
        self._ids = itertools.count()
        self.asked: dict[str, float] = {}
        self.texts: dict[str, list[float]] = {}

    def ask(self, prompt=None, n_tokens=None) -> str:
        """Sends a request; returns its name."""
        name = str(next(self._ids))
        request = Generate(
            id=name, prompt=prompt or next(self._texts), max_tokens=n_tokens or self._n_tokens, sampling=_SAMPLING
        )
        assert self._engine.handle(request) == []
        self.asked[name] = self._clock()
        return name

    def step(self) -> list[str]:
        """One step. Returns the requests that ended with it."""
        ended = []
        for event in self._engine.step():
            assert not isinstance(event, Failure), event
            if isinstance(event, Delta):
                self.texts.setdefault(event.id, []).append(self._clock())
                if event.finish is not None:
                    ended.append(event.id)
        return ended

    def pauses(self, name: str) -> list[float]:
        """Seconds between two texts of a stream as its client sees them."""
        last, *later = self.texts[name]
        found = []
        for at in later:
            if at - last >= _TEXT_S:
                found.append(at - last)
                last = at
        return found


def burst(clients: Clients, n: int, rounds: int, n_tokens: int, clock) -> str:
    """A line about ``n`` clients that begin at once."""
    began, left = clock(), n * (rounds - 1)
    running = {clients.ask() for _ in range(n)}
    while running:
        for name in clients.step():
            running.discard(name)
            if left:
                left -= 1
                running.add(clients.ask())
    names = list(clients.texts)
    seconds = clock() - began
    firsts = [clients.texts[name][0] - clients.asked[name] for name in names]
    pauses = [each for name in names for each in clients.pauses(name)]
    return (
        f"{n} clients: {n * rounds * n_tokens / seconds:.1f} tokens/s; first text {min(firsts):.2f}, "
        f"{statistics.median(firsts):.2f}, 95th percentile {quantile(firsts, 0.95):.2f}, last {max(firsts):.2f} s; "
        f"pauses {statistics.median(pauses):.3f}, 99th percentile {quantile(pauses, 0.99):.3f} s"
    )


def next_to_long(clients: Clients, n_prompt: int, n_prompts: int) -> str:
    """A line about the pauses of a stream, quiet and next to long prompts."""
    stream = clients.ask(n_tokens=3000)
    while len(clients.texts.get(stream, ())) < 100:
        clients.step()
    quiet = clients.pauses(stream)
    clients.texts[stream] = clients.texts[stream][-1:]
    for i in range(n_prompts):
        prompt = clients.ask(tuple(1000 + (7 * i + j) % 999 for j in range(n_prompt)), 1)
        while prompt not in clients.step():
            pass
    beside = clients.pauses(stream)
    clients._engine.handle(Cancel(id=stream))
    a, b = quantile(quiet, 0.99), quantile(beside, 0.99)
    return f"a stream's 99th percentile: {a:.3f} s, next to prompts of {n_prompt} tokens {b:.3f} s: {b / a:.1f} times"


def main(model: str, *given: str) -> None:
    """See above."""
    options = dict(each.split("=") for each in given)
    clock = time.process_time if options.get("clock", "process") == "process" else time.perf_counter
    engine_module.time = SimpleNamespace(perf_counter=clock, monotonic=clock)
    n_tokens, rounds = int(options.get("tokens", 96)), int(options.get("rounds", 1))
    counts = [int(each) for each in options.get("clients", "1,4,16").split(",")]
    engine = Engine(
        EngineConfig(
            model_path=Path(model),
            slots=16,
            context=4096 if "long" in options else 1024,
            threads=int(options.get("threads", 1)),
            adapt_threads=False,
            prefix_cache=False,
        )
    )
    for n in [1, *counts]:  # the first time warms up
        clients = Clients(engine, clock, int(options.get("words", 100)), n_tokens)
        line = burst(clients, n, rounds, n_tokens, clock)
        if n != 1 or counts[0] == 1:
            print(line, flush=True)
    if "long" in options:
        clients = Clients(engine, clock, int(options.get("words", 100)), n_tokens)
        print(next_to_long(clients, int(options["long"]), 4), flush=True)
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
