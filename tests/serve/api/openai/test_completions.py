"""Bodies of completions, built from events without a server. Keys are in OpenAI's order."""

import pytest

from slm.serve.api.openai.completions import CompletionBuilder
from slm.serve.engine.protocol import Delta, PrefillDone, TokenLogprob


def entry(piece: bytes, logprob: float | None, *top: tuple[bytes, float], offset: int = 0) -> TokenLogprob:
    tops = tuple((i, *each) for i, each in enumerate(top))
    return TokenLogprob(token=1, piece=piece, logprob=logprob, top=tops, offset=offset)


def test_whole_and_in_chunks():
    builder = CompletionBuilder(model="tiny", n_choices=2, n=2, with_logprobs=False)
    for index, finish in enumerate(("stop", "length")):
        prompted = PrefillDone(id="a", prompt_tokens=3, cached_tokens=2, prefill_s=0.01)
        builder.add(index, prompted)
        assert builder.chunks(index, prompted) == []
        assert builder.finish_reason == (None, "stop")[index]
        counts = {"completion_tokens": 4, "drafted_tokens": 5, "accepted_tokens": 3}
        delta = Delta(id="a", text="fox", finish=finish, decode_s=0.2 + 0.2 * index, **counts)
        builder.add(index, delta)
        (chunk,) = builder.chunks(index, delta)
        # Only the very last one has the timings.
        last = ["timings"] if index else []
        assert list(chunk) == ["id", "object", "created", "model", "system_fingerprint", "choices", *last]
        choice = {"index": index, "text": "fox", "logprobs": None, "finish_reason": finish}
        assert chunk["choices"] == [choice]
        assert list(chunk["choices"][0]) == list(choice)
    body = builder.body()
    assert list(body) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"]
    assert body["object"] == "text_completion"
    assert body["id"].startswith("cmpl-")
    assert [each["finish_reason"] for each in body["choices"]] == ["stop", "length"]
    assert builder.finish_reason == "length,stop"
    # Both choices are of one prompt.
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 8,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"accepted_prediction_tokens": 6, "rejected_prediction_tokens": 4},
    }
    timings = body.pop("timings")
    assert timings == chunk["timings"]
    assert {name: round(value, 6) for name, value in timings.items()} == {
        "cache_n": 2,
        "prompt_n": 1,
        "prompt_ms": 10.0,
        "prompt_per_token_ms": 10.0,
        "prompt_per_second": 100.0,
        "predicted_n": 8,
        "predicted_ms": 400.0,
        "predicted_per_token_ms": 66.666667,
        "predicted_per_second": 15.0,
        "draft_n": 10,
        "draft_n_accepted": 6,
    }
    assert builder.usage_chunk() == {**body, "choices": []}


@pytest.mark.parametrize("echoed", ["", "the "])
def test_logprobs_and_the_echo(echoed):
    builder = CompletionBuilder(model="tiny", n_choices=1, n=1, with_logprobs=True)
    own = (entry(b"the ", None),) if echoed else ()
    builder.add(0, PrefillDone(id="a", prompt_tokens=1, text=echoed, logprobs=own))
    # Two halves of a character: one spelling, which the more likely one keeps. JSON has no minus infinity.
    half = entry(b"\xc3", float("-inf"), (b"\xc3", -0.5), (b"\xa4", -1.5), offset=2)
    delta = Delta(id="a", text="x", logprobs=(half,), completion_tokens=1, finish="stop")
    builder.add(0, delta)
    expected = {
        "tokens": ["\ufffd"],
        "token_logprobs": [-9999.0],
        "top_logprobs": [{"\ufffd": -0.5}],
        "text_offset": [2 + len(echoed)],
    }
    assert builder.chunks(0, delta)[0]["choices"][0]["logprobs"] == expected
    whole = builder.body()["choices"][0]
    assert whole["text"] == echoed + "x"
    assert whole["logprobs"] == (
        {
            "tokens": ["the ", "\ufffd"],
            "token_logprobs": [None, -9999.0],
            "top_logprobs": [None, {"\ufffd": -0.5}],
            "text_offset": [0, 6],
        }
        if echoed
        else expected
    )
