"""What becomes of fields that clients send: one table, which the docs show."""

import json

import httpx
import pytest

from slm.serve.api.anthropic.requests import MessagesRequest
from slm.serve.api.client_fields import HEADER, RULES, header_value, table
from slm.serve.api.core.parsing import parse
from slm.serve.api.core.requests import ChatRequest, CompletionRequest
from slm.serve.api.core.token_requests import EmbeddingRequest
from slm.serve.api.errors import ApiError
from slm.serve.api.openai.responses import ResponsesRequest
from tests.helpers import REPOSITORY
from tests.helpers.api import error

HELLO = [{"role": "user", "content": "hello"}]
BODIES = {
    ChatRequest: {"messages": HELLO},
    CompletionRequest: {"prompt": "x"},
    ResponsesRequest: {"input": "x"},
    MessagesRequest: {"messages": HELLO, "max_tokens": 3},
    EmbeddingRequest: {"input": "x"},
}
CLASSES = {cls.route: cls for cls in BODIES}


def read(cls, more, **how):
    return parse(cls, json.dumps({**BODIES[cls], **more}).encode(), **how)


def test_the_docs_show_the_table():
    assert table() in (REPOSITORY / "docs" / "serving.md").read_text()


def test_every_rule_is_followed_on_every_route_that_it_names():
    for rule in RULES:
        for route in rule.routes or CLASSES:
            cls = CLASSES[route]
            for name in rule.names:
                if name in cls.model_fields:
                    assert not rule.routes, f"{name} is a field of {route}: its rule is never used"
                    continue
                if rule.means:
                    assert getattr(read(cls, {name: 1}), rule.means) == 1
                elif rule.only is None:
                    assert read(cls, {name: "x"}).ignored == [name]
                    if not rule.strict:
                        with pytest.raises(ApiError, match="Unknown parameter"):
                            read(cls, {name: "x"}, strict=True)
                else:
                    for value in rule.only:
                        assert read(cls, {name: value}).ignored == []
                    said = error(cls, {**BODIES[cls], name: {"x": 1}})
                    assert (said["param"], said["code"]) == (name, "unsupported")
                    assert rule.why in said["message"]


def test_a_name_has_one_rule_for_a_route():
    for route in CLASSES:
        names = [name for rule in RULES if not rule.routes or route in rule.routes for name in rule.names]
        assert len(names) == len(set(names))


@pytest.mark.parametrize("cls", BODIES, ids=lambda cls: cls.route)
def test_unknown_fields(cls):
    assert read(cls, {"nothing": 1, "user": "me", "x-y": None}).ignored == ["nothing", "user"]
    assert error(cls, {**BODIES[cls], "models": "x"})["code"] == "unknown_parameter"
    with pytest.raises(ApiError, match="Unknown parameter 'nothing'"):
        read(cls, {"nothing": 1}, strict=True)
    assert read(cls, {"user": "me"}, strict=True).ignored == ["user"]


def test_a_field_of_another_route_is_refused_unless_it_asks_for_nothing():
    for cls, name, value in (
        (ResponsesRequest, "stop", ["x"]),
        (ResponsesRequest, "max_tokens", 3),
        (MessagesRequest, "response_format", {"type": "json_object"}),
        (ChatRequest, "max_output_tokens", 3),
        (CompletionRequest, "reasoning_effort", "low"),
    ):
        said = error(cls, {**BODIES[cls], name: value})
        assert (said["param"], said["code"]) == (name, "unsupported")
    assert read(ResponsesRequest, {"stop": [], "n": 1, "echo": False}).ignored == ["stop", "n", "echo"]


def test_fields_within_objects():
    said = {
        "role": "user",
        "content": [{"type": "text", "text": "x", "cache_control": {}}],
        "type": "message",
        "id": "1",
    }
    tool = {"type": "function", "function": {"name": "f", "x-order": 1}, "cache_control": {"type": "ephemeral"}}
    found = read(ChatRequest, {"messages": [said, said], "tools": [tool]})
    assert sorted(found.ignored) == [
        *("messages.content.cache_control", "messages.id", "messages.type"),
        *("tools.cache_control", "tools.function.x-order"),
    ]
    body = {**BODIES[ChatRequest], "tools": [{"type": "function", "function": {"name": "f", "parametrs": {}}}]}
    assert error(ChatRequest, body)["param"] == "tools.0.function.parametrs"


def test_the_header_is_a_line_of_ascii():
    assert header_value(["a", "é\n:", ""]) == "a, ???, ?"
    assert header_value([f"f{i}" for i in range(25)]).endswith("f19, and 5 more")


def chat(**more):
    return read(ChatRequest, more)


def variables(**more):
    return {name: value for name, (_, value) in chat(**more).template_options().items()}


def test_how_clients_turn_reasoning_on_and_off():
    on, off = ({"enable_thinking": value, "thinking": value} for value in (True, False))
    for more in ({"enable_thinking": False}, {"think": False}, {"thinking": {"type": "disabled"}}, {"thinking": False}):
        assert variables(**more) == off
    for more in ({"think": True}, {"thinking": {"type": "adaptive"}}, {"thinking": {"type": "enabled"}}):
        assert variables(**more) == on
    assert variables(reasoning_effort="none") == {**off, "reasoning_effort": "none"}
    assert variables(reasoning={"effort": "low"}, verbosity="high") == {
        **on,
        "reasoning_effort": "low",
        "verbosity": "high",
    }
    assert variables(think="high") == {**on, "reasoning_effort": "high"}
    assert "enable_thinking" not in variables(think=True, chat_template_kwargs={"enable_thinking": False})
    assert not chat(reasoning_format="none").separates_reasoning
    assert chat(reasoning_format="auto").separates_reasoning
    given = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "low"}}
    body = read(MessagesRequest, {**given, "context_management": {"edits": []}})
    assert body.as_chat().template_options()["reasoning_effort"] == ("reasoning_effort", "low")
    assert sorted(body.ignored) == ["context_management"]
    schema = {"type": "object", "properties": {}}
    formed = read(MessagesRequest, {"output_config": {"format": {"type": "json_schema", "schema": schema}}})
    assert formed.as_chat().response_format.json_schema.schema_ == schema
    effort = read(ResponsesRequest, {"reasoning": {"effort": "low", "summary": "auto"}, "include": [], "store": False})
    assert effort.as_chat().template_options()["reasoning_effort"] == ("reasoning", "low")
    assert effort.ignored == ["reasoning.summary"]


def test_limits_seeds_and_stops_that_mean_none():
    assert chat(max_tokens=-1).limit() is None
    assert chat(max_completion_tokens=-1, max_tokens=5).limit() == 5
    assert read(CompletionRequest, {"max_tokens": -1}).max_tokens == 2**31 - 1
    assert read(ResponsesRequest, {"max_output_tokens": -1}).max_output_tokens is None
    assert chat(seed=-1).seed is None
    assert chat(seed=-2).seed == -2
    assert chat(stop="").stops() == chat(stop=["", ""]).stops() == ()
    assert chat(stop=["", "x"]).stops() == ("x",)
    assert chat(repeat_last_n=-1).repeat_last_n == -1


def test_biases_as_pairs_and_by_text():
    assert chat(logit_bias=[[5, 1.5], [" fox", False]]).logit_bias == {"5": 1.5, " fox": -100}
    assert chat(logit_bias={" fox": 2}).logit_bias == {" fox": 2}
    for bad in ([5], [[5]], [[None, 1]], [[5, 101]], [[5, "x"]]):
        assert error(ChatRequest, {"messages": HELLO, "logit_bias": bad})["param"].startswith("logit_bias")


def test_contents_in_every_spelling():
    for content in (
        "ab",
        ["a", "b"],
        {"type": "text", "text": "ab"},
        [{"type": "input_text", "text": "a"}, {"text": "b"}],
        [{"type": "output_text", "text": "ab", "annotations": []}],
    ):
        assert chat(messages=[{"role": "user", "content": content}]).messages[0].text() == "ab"
        said = read(ResponsesRequest, {"input": [{"role": "user", "content": content}]}).as_chat()
        assert said.messages[0].text() == "ab"
    history = [
        *HELLO,
        {"role": "assistant", "content": None, "reasoning": "hm", "reasoning_content": "hm", "refusal": None},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "assistant", "content": "", "thinking": "hm", "annotations": [], "audio": None},
        {"role": "developer", "content": "Be brief."},
        *HELLO,
    ]
    found = chat(messages=history)
    assert [each.text() for each in found.messages] == ["hello", "", "No.", "", "Be brief.", "hello"]
    assert [each.reasoning_content for each in found.messages] == [None, "hm", None, "hm", None, None]
    assert found.ignored == []
    part = {"type": "image_url", "image_url": {"url": "x"}}
    said = error(ChatRequest, {"messages": [{"role": "user", "content": [part]}]})
    assert "'image_url' is not supported; this server reads text" in said["message"]
    assert said["param"] == "messages.0.content"


def test_a_last_message_of_the_assistant_is_continued():
    begun = [*HELLO, {"role": "assistant", "content": "I am"}]
    assert chat(messages=begun).continues
    assert not chat(messages=begun).opens_turn()
    assert not chat(messages=begun, add_generation_prompt=True).continues
    assert chat(messages=begun, continue_final_message=False).opens_turn()
    assert not chat(messages=[*HELLO, {"role": "assistant", "content": None}]).continues


# -- over HTTP ----------------------------------------------------------------------------------------------------


def test_a_response_and_the_log_name_what_was_ignored(chat_server):
    body = {"messages": HELLO, "max_tokens": 1, "nothing_of_ours": 1, "think": True}
    for _ in range(2):
        answer = httpx.post(chat_server.url + "/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers[HEADER] == "nothing_of_ours, think"  # the template does not read it
    assert chat_server.log.read_text().count("note: clients send the field nothing_of_ours, which") == 1
    answer = httpx.post(chat_server.url + "/v1/chat/completions", json={"messages": HELLO, "max_tokens": 1})
    assert HEADER not in answer.headers
    assert answer.json()["system_fingerprint"].startswith("fp_")
    assert answer.json()["model"] == "tiny-chat"


def test_prompts_of_texts_and_ids(chat_server):
    def texts(prompt, **more):
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, **more}
        answer = httpx.post(chat_server.url + "/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return [choice["text"] for choice in answer.json()["choices"]], answer.json()["usage"]["prompt_tokens"]

    def ids(text, **more):
        return httpx.post(chat_server.url + "/tokenize", json={"content": text, **more}).json()["tokens"]

    fox, boat = ids("the fox"), ids(" boat")
    assert texts([*fox, " boat"]) == texts([*fox, *boat])
    several, n = texts(["the fox", boat, ["the fox", *boat]])
    assert several == [texts("the fox")[0][0], texts(boat)[0][0], texts([*fox, *boat])[0][0]]
    assert n == len(fox) + len(boat) + len(fox) + len(boat)
    turn = "<|im_start|>user\nhello<|im_end|>"
    assert texts(turn, parse_special=True)[1] == len(ids(turn, parse_special=True)) < texts(turn)[1]
    biased = {"logit_bias": [[" boat", 100]]}
    assert texts("the fox", **biased, max_tokens=len(boat))[0] != texts("the fox", max_tokens=len(boat))[0]


def test_a_control_token_as_a_stop_string(chat_server):
    """It adds nothing to the text, in which it could be found."""
    body = {"messages": HELLO, "max_tokens": 20, "temperature": 0, "logit_bias": {"<|im_start|>": 100}}
    url = chat_server.url + "/v1/chat/completions"
    assert httpx.post(url, json=body).json()["choices"][0]["finish_reason"] == "length"
    answer = httpx.post(url, json={**body, "stop": ["<|im_start|>"]}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == 1
    body = {**body, "stop_sequences": ["<|im_start|>"]}
    answer = httpx.post(chat_server.url + "/v1/messages", json=body).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "<|im_start|>")


def test_a_seed_keeps_the_prefix_cache(chat_server):
    def ask(**more):
        said = "the old fox and the little bird went to the river " * 4
        body = {"messages": [{"role": "user", "content": said}], "max_tokens": 6, "temperature": 1, **more}
        return httpx.post(chat_server.url + "/v1/chat/completions", json=body).json()

    first = ask(seed=7)
    again = ask(seed=7)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 50
    assert ask(seed=7, cache_prompt=False)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["choices"][0]["message"] == first["choices"][0]["message"]
    assert len({ask(seed=-1)["choices"][0]["message"]["content"] for _ in range(3)}) > 1


def test_strict_fields_and_sampling_of_the_server(tmp_path, chat_path, start_server):
    words = ["serve.strict_fields=true", "serve.sampling.temperature=0", "serve.sampling.top_k=7"]
    with start_server(tmp_path / "log", chat_path, *words) as server:
        url = server.url + "/v1/chat/completions"
        body = {"messages": HELLO, "max_tokens": 6}
        refused = httpx.post(url, json={**body, "nothing": 1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "nothing")
        texts = [httpx.post(url, json=body).json()["choices"][0]["message"]["content"] for _ in range(3)]
        assert len(set(texts)) == 1
        meta = httpx.get(server.url + "/v1/models").json()["data"][0]["meta"]
        assert meta["sampling"] == {
            **{"temperature": 0.0, "top_k": 7, "top_p": 0.95, "min_p": 0.05},
            **{"repeat_penalty": 1.0, "repeat_last_n": 64},
        }
