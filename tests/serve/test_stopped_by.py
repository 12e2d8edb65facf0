"""A text that ended with ``finish_reason`` "length" names what cut it off: ``stopped_by``."""

import json

import httpx
import pytest


@pytest.mark.parametrize("stream", [False, True])
def test_what_cut_a_text_off(server, stream):
    """``finish_reason`` is OpenAI's word for all three."""

    def last(**body):
        asked = {"prompt": "once", "ignore_eos": True, "stream": stream, **body}
        answer = httpx.post(server.url + "/v1/completions", json=asked, timeout=60)
        assert answer.status_code == 200, answer.text
        if not stream:
            return answer.json()["choices"][0]
        events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
        assert not any("stopped_by" in event for event in events[:-1])
        return json.loads(events[-1])["choices"][0]

    assert last(max_tokens=3)["stopped_by"] == "max_tokens"
    assert last(max_tokens=5000)["stopped_by"] == "context"
    stopped = last(max_tokens=400, ignore_eos=False, grammar='root ::= "ab"')
    assert stopped["finish_reason"] == "stop"
    assert "stopped_by" not in stopped


def test_what_cut_a_chat_off(chat_server):
    messages = [{"role": "user", "content": "hello"}]
    body = {"messages": messages, "max_tokens": 3, "ignore_eos": True}
    answer = httpx.post(chat_server.url + "/v1/chat/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["stopped_by"] == "max_tokens"
    streamed = httpx.post(chat_server.url + "/v1/chat/completions", json={**body, "stream": True}, timeout=60).text
    chunks = [json.loads(line[6:])["choices"][0] for line in streamed.splitlines() if line.startswith("data: {")]
    assert [chunk.get("stopped_by") for chunk in chunks[-2:]] == [None, "max_tokens"]
