"""What is dropped from a conversation that outgrows the context: by the window itself, and by a server."""

import json
from itertools import pairwise

import httpx
import pytest

from slm.serve.history import HistoryWindow, prompt_limit


def talk(n, *, system="Be kind."):
    """``n`` turns and a question."""
    messages = [{"role": "system", "content": system}] if system else []
    for i in range(n):
        messages += [{"role": "user", "content": f"question {i}"}, {"role": "assistant", "content": f"answer {i}"}]
    return [*messages, {"role": "user", "content": "the last question"}]


def slid(messages, limit):
    """The window after the search, where each message has 10 tokens, and how many prompts were counted."""
    window, n_counted = HistoryWindow(messages, limit), 1
    while not window.counted(10 * len(window.messages)):
        n_counted += 1
        assert n_counted < 20
    return window, n_counted


def test_the_fewest_of_the_oldest_turns_are_dropped():
    for n in range(40):
        messages = talk(n)
        for limit in (10, 45, 60, 200, 10_000):
            window, n_counted = slid(messages, limit)
            kept = window.messages
            assert len(kept) + window.n_dropped == len(messages)
            assert kept == [messages[0], *messages[len(messages) - len(kept) + 1 :]]
            assert [each["role"] for each in kept[:2]] == ["system", "user"]
            assert n_counted <= 7
            fits = 10 * len(kept) <= limit
            assert fits or len(kept) == 2, "the last turn stays, whatever it holds"
            most_that_fit = limit // 10
            if 10 * len(messages) <= limit:
                assert window.n_dropped == 0
            elif fits and len(kept) > 2:
                assert len(kept) >= most_that_fit / 2 - 2, "at most half of what would fit is dropped as well"


def test_what_is_dropped_stays_the_same_for_several_turns():
    """A prompt that begins like the one before it is found in the prefix cache."""
    first_kept = [slid(talk(n), 330)[0].messages[1]["content"] for n in range(60)]
    changes = sum(one != other for one, other in pairwise(first_kept))
    assert 3 <= changes <= 8


@pytest.mark.parametrize(
    ("roles", "kept"),
    [
        ("auaua", "ua"),  # a greeting before the first question
        ("suauua", "suua"),  # two messages of the user are one turn
        ("suasua", "ssua"),  # system messages stay wherever they are
        ("uau", "u"),
        ("sss", "sss"),
        ("a", "a"),
    ],
)
def test_turns(roles, kept):
    names = {"s": "system", "u": "user", "a": "assistant"}
    messages = [{"role": names[each], "content": str(i)} for i, each in enumerate(roles)]
    window, _ = slid(messages, 0)
    assert "".join(each["role"][0] for each in window.messages) == kept
    assert window.messages[-1] == messages[-1]


def test_room_for_a_reply():
    assert prompt_limit(1000, None) == 750
    assert prompt_limit(1000, 100) == 900
    assert prompt_limit(1000, 100_000) == 750


def post(server, path="/v1/chat/completions", **body):
    asked = {"max_tokens": 4, "max_output_tokens": 4}
    asked.pop("max_tokens" if path == "/v1/responses" else "max_output_tokens")
    return httpx.post(server.url + path, json={**asked, **body}, timeout=60)


def events(answer):
    assert answer.status_code == 200, answer.text
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


def test_a_conversation_that_outgrows_the_context(chat_server):
    """An error by default, which names the field; with ``truncation`` the oldest turns are dropped, and counted."""
    messages = talk(40)
    refused = post(chat_server, messages=messages)
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "truncation" in refused.json()["error"]["message"]
    for stream in (False, True):
        assert post(chat_server, messages=messages, truncation="disabled", stream=stream).status_code == 400

    def dropped():
        return chat_server.metrics()["slm_messages_dropped_total"]

    before = dropped()
    whole = post(chat_server, messages=messages, truncation="auto", seed=1).json()
    n = whole["dropped_messages"]
    assert 0 < n < len(messages) - 2
    assert n % 2 == 0
    assert dropped() == before + n
    # The same as a request without those messages.
    short = post(chat_server, messages=[messages[0], *messages[1 + n :]], seed=1).json()
    assert short["choices"][0]["message"] == whole["choices"][0]["message"]
    assert short["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert "dropped_messages" not in short

    chunks = events(post(chat_server, messages=messages, truncation="auto", seed=1, stream=True, n=2))
    said = [chunk["dropped_messages"] for chunk in chunks if "dropped_messages" in chunk]
    assert said == [n, n], "once for each choice, in its first chunk"

    given = {"input": messages[1:], "instructions": "Be kind.", "truncation": "auto"}
    response = post(chat_server, "/v1/responses", **given).json()
    assert response["dropped_messages"] == n
    assert response["truncation"] == "auto"
    ended = events(post(chat_server, "/v1/responses", **given, stream=True))
    assert ended[0]["response"]["dropped_messages"] == ended[-1]["response"]["dropped_messages"] == n
    assert "dropped_messages" not in post(chat_server, "/v1/responses", input="hello", truncation="auto").json()

    # What does not fit alone is refused, as before, and nothing counts as dropped.
    before = dropped()
    alone = post(chat_server, messages=[*messages, {"role": "user", "content": "x " * 3000}], truncation="auto")
    assert alone.status_code == 400
    assert alone.json()["error"]["code"] == "context_length_exceeded"
    assert "alone" in alone.json()["error"]["message"]
    assert dropped() == before


def test_the_next_turns_find_their_prompt_in_the_prefix_cache(chat_path, tmp_path, start_server):
    """A client sends the whole conversation each time, and the server's option stands in for the request's field."""
    with start_server(tmp_path / "log", chat_path, "serve.truncation=auto", "serve.slots=1") as server:
        messages, usages = talk(20), []
        for i in range(6):
            whole = post(server, messages=messages).json()
            assert whole["dropped_messages"] > 0
            usages.append(whole["usage"])
            messages += [whole["choices"][0]["message"], {"role": "user", "content": f"and then, {i}?"}]
            del messages[-2]["refusal"]
        shares = [each["prompt_tokens_details"]["cached_tokens"] / each["prompt_tokens"] for each in usages[1:]]
        assert sorted(shares)[2] > 0.5, shares
        refused = post(server, messages=talk(40), truncation="disabled")
        assert refused.status_code == 400, "the request's own word counts"
