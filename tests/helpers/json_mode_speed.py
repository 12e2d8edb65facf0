"""What a token costs with a grammar against plain text, in rounds in turn.

``python -m tests.helpers.json_mode_speed MODEL [rounds=5] [tokens=32] [threads=1] [clients=1,4,16] [KIND ...]``

prints, for each number of clients, the ratio of the time per token: by the clock, of the thread that decodes, and of
the process with those that compute masks. With a single computing thread the last two mean something on a busy machine;
with a thread per core (``threads=0``) the first does on a quiet one. MODEL is a GGUF file with weights, or one with a
vocabulary alone: that gets random weights of a small shape.
"""

import itertools
import statistics
import sys
import tempfile
import time
from pathlib import Path

import gguf

from slm.llama import random_model
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Cancel, Delta, Failure, Generate, SamplingParams
from slm.serve.grammar.forms import of_json

_NAMES = ("date_of_birth", "number_of_children", "preferred_language", "is_registered_member", "country_of_residence")
KINDS = {
    "plain": None,
    "json": of_json({"type": "array", "minItems": 1000}).text,  # any values, and no end before that of the round
    "forced": of_json(
        {"type": "object", "properties": {name: {"type": "boolean"} for name in _NAMES}, "required": list(_NAMES)}
    ).text,
}


def with_weights(vocabulary: Path, path: Path) -> Path:
    """A model of random weights with the vocabulary of another file."""
    read = gguf.GGUFReader(vocabulary)
    writer = gguf.GGUFWriter(path, "llama")
    n_vocab = len(read.fields["tokenizer.ggml.tokens"].data)
    random_model.add_shape(writer, n_vocab=n_vocab, n_ctx=512, n_layers=4)
    for key, each in read.fields.items():
        if key.startswith("tokenizer."):
            kind, *inner = each.types
            writer.add_key_value(key, each.contents(), kind, inner[-1] if inner else None)
    random_model.add_weights(writer, n_vocab=n_vocab, n_layers=4)
    random_model.finish(writer)
    return path


class Rounds:
    """Requests to one engine."""

    def __init__(self, engine: Engine, n_tokens: int) -> None:
        self._engine, self._n_tokens, self._ids = engine, n_tokens, itertools.count()

    def run(self, kind: str, n: int) -> tuple[float, float, float]:
        """Seconds per token by the clock, of the decoding thread and of the process, of ``n`` clients that ask again at
        once."""
        engine, tokens, done, running = self._engine, {}, 0, set()
        began = time.perf_counter(), time.thread_time(), time.process_time()
        while done + sum(tokens.values()) < n * self._n_tokens:
            while len(running) < n:
                name = f"{kind}{next(self._ids)}"
                seed = next(self._ids) % 1000
                sampling = SamplingParams(
                    seed=seed, grammar=KINDS[kind], temperature=0.8, top_k=40, top_p=0.95, ignore_eos=kind == "plain"
                )
                prompt = f"{len(running)} Tell me about yourself in JSON, as an object with some values:\n"
                assert engine.handle(Generate(id=name, prompt=prompt, max_tokens=200, sampling=sampling)) == []
                running.add(name)
            for event in engine.step():
                assert not isinstance(event, Failure), event
                if isinstance(event, Delta):
                    tokens[event.id] = event.completion_tokens
                    if event.finish is not None:
                        done += tokens.pop(event.id)
                        running.discard(event.id)
        made = done + sum(tokens.values())
        ended = time.perf_counter(), time.thread_time(), time.process_time()
        for name in running:
            engine.handle(Cancel(id=name))
        return tuple((b - a) / made for a, b in zip(began, ended, strict=True))


def main(model: str, *words: str) -> None:
    given = dict(word.split("=") for word in words if "=" in word)
    rounds, n_tokens, threads = (int(given.get(*each)) for each in (("rounds", 5), ("tokens", 32), ("threads", 1)))
    path, kinds = Path(model), tuple(word for word in words if "=" not in word) or tuple(KINDS)
    with tempfile.TemporaryDirectory() as folder:
        if not gguf.GGUFReader(path).tensors:
            path = with_weights(path, Path(folder) / "random.gguf")
        engine = Engine(EngineConfig(model_path=path, slots=16, context=512, threads=threads))
        try:
            print(f"{engine.info.n_vocab} ids")
            asked = Rounds(engine, n_tokens)
            for n in map(int, given.get("clients", "1,4,16").split(",")):
                for kind in kinds:
                    asked.run(kind, n)
                found = {kind: [] for kind in kinds}
                for i in range(rounds):
                    for kind in kinds if i % 2 else reversed(kinds):
                        found[kind].append(asked.run(kind, n))
                plain = found.pop("plain")
                print(n, "plain", *(f"{1000 * statistics.median(each):.3f} ms" for each in zip(*plain, strict=True)))
                for kind, took in found.items():
                    ratios = [[b / a for a, b in zip(*pair, strict=True)] for pair in zip(plain, took, strict=True)]
                    print(
                        n, kind, *(f"{statistics.median(each):.3f}" for each in zip(*ratios, strict=True)), flush=True
                    )
        finally:
            engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
