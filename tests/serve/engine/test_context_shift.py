"""A text goes on when the context is full: what is left after the oldest tokens is computed again, so that every part
is what a fresh request for it would give."""

import pytest

from slm.data.errors import UserError
from slm.serve.engine.config import EngineConfig
from slm.serve.engine.engine import Engine
from slm.serve.engine.protocol import Delta, Failure, Generate, PrefillDone, SamplingParams
from tests.helpers import tiny_checkpoint, tiny_gguf

CONTEXT = 96
GREEDY = SamplingParams(temperature=0, ignore_eos=True)
PROMPT = tuple(7 + (5 * i * i + i) % 90 for i in range(20))


def engine(path, **more):
    options = {"threads": 1, "kv_type": "f32", "flash_attn": False, "context": CONTEXT, "slots": 2} | more
    return Engine(EngineConfig(model_path=path, **options))


def tokens_of(one, *requests):
    """The ids that each request gets, and its last event."""
    events = [event for request in requests for event in one.handle(request)]
    while one.busy:
        events += one.step()
    assert not any(isinstance(event, Failure) for event in events), events
    assert sum(isinstance(event, PrefillDone) for event in events) == len(requests), "its prompt is computed once"
    out = {}
    for request in requests:
        deltas = [event for event in events if isinstance(event, Delta) and event.id == request.id]
        out[request.id] = [token for delta in deltas for token in delta.tokens], deltas[-1]
    return out


def request(key="a", prompt=PROMPT, **more):
    return Generate(id=key, prompt=prompt, sampling=GREEDY, return_tokens=True, **more)


def in_parts(path, n, keep, discard):
    """The same text from requests that each begin with what is left, to a server without shifts."""
    window, out = list(PROMPT), []
    one = engine(path, prefix_cache=False)
    while len(out) < n:
        made, _ = tokens_of(one, request(prompt=tuple(window), max_tokens=min(CONTEXT - len(window), n - len(out))))[
            "a"
        ]
        out += made
        window += made
        gone = discard or (len(window) - keep + 1) // 2
        del window[keep : keep + gone]
    one.close()
    return out


@pytest.mark.parametrize(
    ("asked", "keep", "discard"),
    [({}, 1, 0), ({"n_keep": 8, "n_discard": 10}, 8, 10), ({"n_keep": -1}, 20, 0), ({"n_keep": 1000}, 48, 0)],
)
def test_a_text_is_longer_than_the_context(tmp_path, asked, keep, discard):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", n_ctx=256)
    one = engine(path, context_shift=True)
    keep = max(keep, int(one._model.add_bos)) if asked else int(one._model.add_bos)
    made, last = tokens_of(one, request(max_tokens=250, **asked))["a"]
    assert (last.finish, last.stopped_by, last.completion_tokens) == ("length", "max_tokens", 250)
    assert last.dropped_tokens >= len(PROMPT) + 250 - CONTEXT
    assert made == in_parts(path, 250, keep, discard)
    one.close()


@pytest.mark.parametrize("more", [{"kv_tokens": 128}, {"speculate": "lookup", "draft_tokens": 4}])
def test_it_does_so_next_to_others(tmp_path, more):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", n_ctx=256)
    one = engine(path, context_shift=True, **more)
    alone = in_parts(path, 200, int(one._model.add_bos), 0)
    made = tokens_of(one, *(request(key, max_tokens=200) for key in "abc"))
    assert [each for each, _ in made.values()] == [alone] * 3
    one.close()


def test_models_without_cells_compute_all_of_it_again(tmp_path):
    path = tiny_checkpoint.gguf_file(tmp_path / "m.gguf", arch="lfm2", seq_len=256, n_layers=4)
    one = engine(path, context_shift=True)
    made, last = tokens_of(one, request(max_tokens=150, n_keep=8))["a"]
    assert (len(made), last.finish) == (150, "length")
    assert made == in_parts(path, 150, 8, 0)
    one.close()


def test_without_it_the_text_ends_with_the_context(tmp_path):
    path = tiny_gguf.write(tmp_path / "tiny.gguf", n_ctx=256)
    one = engine(path)
    made, last = tokens_of(one, request(max_tokens=250))["a"]
    assert (len(made), last.stopped_by, last.dropped_tokens) == (CONTEXT - len(PROMPT), "context", 0)
    one.close()
    with pytest.raises(UserError, match="context_shift"):
        EngineConfig(model_path=path, exact=True, context_shift=True)
