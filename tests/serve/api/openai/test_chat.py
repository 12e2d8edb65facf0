"""Bodies of chat completions, built from events without a server. Keys are in OpenAI's order."""

from slm.serve.api.openai.chat import ChatCompletionBuilder
from slm.serve.engine.protocol import Delta, PrefillDone, TokenLogprob


def test_whole_and_in_chunks():
    builder = ChatCompletionBuilder(model="tiny", n_choices=1, n=1, with_logprobs=True)
    top = ((7, b"a", -0.5),)
    given = TokenLogprob(token=7, piece=b"a", logprob=-0.5, top=top, offset=0)
    end = TokenLogprob(token=2, piece=b"", logprob=-0.1, top=(), offset=1, is_eog=True)
    events = [
        PrefillDone(id="a", prompt_tokens=3),
        Delta(id="a", text="a", logprobs=(given,), completion_tokens=1),
        Delta(id="a", text="", logprobs=(end,), completion_tokens=2, finish="stop"),
    ]
    chunks = []
    for event in events:
        builder.add(0, event)
        chunks.extend(builder.chunks(0, event))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"] for choice in choices] == [{"role": "assistant", "content": None}, {"content": "a"},
                                                       {"content": ""}, {}]  # fmt: skip
    assert [choice["finish_reason"] for choice in choices] == [None, None, None, "stop"]
    assert list(choices[0]) == ["index", "delta", "logprobs", "finish_reason"]
    content = [{"token": "a", "bytes": [97], "logprob": -0.5}]
    content[0]["top_logprobs"] = [dict(content[0])]
    # The end-of-text token is no part of the message.
    expected = [None, {"content": content, "refusal": None}, {"content": [], "refusal": None}, None]
    assert [choice["logprobs"] for choice in choices] == expected
    for chunk in chunks:
        last = ["timings"] if chunk is chunks[-1] else []
        assert list(chunk) == ["id", "object", "created", "model", "system_fingerprint", "choices", *last]
        assert chunk["object"] == "chat.completion.chunk"
    body = builder.body()
    assert list(body) == ["id", "object", "created", "model", "system_fingerprint", "choices", "usage", "timings"]
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert list(choice) == ["index", "message", "logprobs", "finish_reason"]
    assert choice["message"] == {"role": "assistant", "content": "a", "refusal": None}
    assert choice["logprobs"] == {"content": content, "refusal": None}
    assert builder.usage_chunk()["usage"] == body["usage"]
    assert "completion_tokens_details" not in body["usage"]
