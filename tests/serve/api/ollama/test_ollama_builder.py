"""Replies in Ollama's form, built from events without a server."""

import json

import pytest

from slm.serve.api.core.replies import ReplyForm
from slm.serve.api.errors import ApiError
from slm.serve.api.ollama.builder import OllamaBuilder
from slm.serve.engine.protocol import Delta, PrefillDone, TokenLogprob
from slm.serve.tools.call_form import OWN_FORM

ARGUMENTS = '{"a": 1}'
CALL = OWN_FORM.prefix + "add" + OWN_FORM.middle + ARGUMENTS
CALLS = CALL + (OWN_FORM.between or "") + "add" + OWN_FORM.middle + ARGUMENTS + OWN_FORM.suffix


def reply(*texts, kind="chat", form=None, finish="stop", with_logprobs=False, logprobs=()):
    builder = OllamaBuilder(model="tiny", kind=kind, form=form, with_logprobs=with_logprobs)
    events = [PrefillDone(id="x", prompt_tokens=4, prefill_s=0.5)]
    for i, text in enumerate(texts, 1):
        last = finish if i == len(texts) else None
        events.append(
            Delta(
                id="x", text=text, completion_tokens=i, decode_s=i / 4, finish=last, logprobs=logprobs if i == 1 else ()
            )
        )
    lines = []
    for event in events:
        builder.add(0, event)
        lines += [json.loads(builder.encode(each)) for each in builder.chunks(0, event)]
    return builder.body(), lines


@pytest.mark.parametrize(
    ("kind", "text"), [("chat", lambda x: x["message"]["content"]), ("generate", lambda x: x["response"])]
)
def test_text(kind, text):
    body, (*parts, last) = reply("a", "b", kind=kind, finish="length")
    assert text(body) == "ab"
    assert [text(each) for each in parts] == ["a", "b"]
    assert not any(each["done"] for each in parts)
    assert text(last) == ""
    for each in (body, last):
        assert (each["model"], each["done"], each["done_reason"]) == ("tiny", True, "length")
        assert (each["prompt_eval_count"], each["eval_count"]) == (4, 2)
        assert (each["prompt_eval_duration"], each["eval_duration"]) == (500_000_000, 500_000_000)


def test_thinking_and_calls():
    form = ReplyForm(calls=OWN_FORM, reasoning="may")
    body, lines = reply("<think>hm</think>", "so ", CALLS[:9], CALLS[9:60], CALLS[60:], form=form)
    call = {"name": "add", "arguments": {"a": 1}}
    for each in (body["message"], {"tool_calls": [c for x in lines for c in x["message"].get("tool_calls", ())]}):
        assert [{k: v for k, v in c["function"].items() if k != "index"} for c in each["tool_calls"]] == [call, call]
        assert [c["function"]["index"] for c in each["tool_calls"]] == [0, 1]
    assert body["message"]["thinking"] == "".join(each["message"].get("thinking", "") for each in lines) == "hm"
    assert body["message"]["content"].strip() == "so"


def test_a_call_that_was_cut_off():
    body, lines = reply("x", CALL[:-2], form=ReplyForm(calls=OWN_FORM), finish="length")
    assert "tool_calls" not in body["message"]
    assert not any("tool_calls" in each["message"] for each in lines)
    assert lines[-1]["done_reason"] == "length"


def test_logprobs():
    entry = TokenLogprob(token=1, piece=b"a", logprob=-0.5, top=((1, b"a", -0.5),), offset=0)
    one = {"token": "a", "bytes": [97], "logprob": -0.5}
    body, lines = reply("a", "b", with_logprobs=True, logprobs=(entry,))
    assert body["logprobs"] == lines[0]["logprobs"] == [{**one, "top_logprobs": [one]}]
    assert "logprobs" not in lines[1]


def test_an_error_is_a_line():
    builder = OllamaBuilder(model="tiny", kind="chat", with_logprobs=False)
    line = builder.encode(builder.error_chunk(ApiError(500, "broken").body))
    assert line == b'{"error":"broken"}\n'
