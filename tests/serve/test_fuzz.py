"""No body, however strange, makes the server fail or its engine die."""

import json

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

GOOD = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/embeddings": {"input": "x"},
    "/tokenize": {"content": "x"},
    "/detokenize": {"tokens": [1]},
}
_NAMES = """model prompt messages input tokens content max_tokens temperature top_p top_k min_p typical_p repeat_penalty
repeat_last_n frequency_penalty presence_penalty logit_bias seed stop n ignore_eos stream stream_options response_format
grammar logprobs top_logprobs echo text instructions max_output_tokens encoding_format dimensions tools include
add_special"""
FIELDS = _NAMES.split()
SPECIAL = st.sampled_from(
    [
        "", "\0", "\ud800", "é🙂", "<|endoftext|>", "x" * 5000, 0, 1, -1, 2**31, 2**63, -(2**70), 0.5, 1e308, -0.0,
        [], [[]], [0], [316], [317], [[1], [2]], [1.5], {}, {"1": 5}, {"1": -100}, {"x": 1}, True,
        {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "boolean"}}},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#"}}}, {"include_usage": True},
        'root ::= "a"', "root ::= root", "root ::= [", {"format": {"type": "json_object"}},
        [{"role": "user", "content": "\ud800"}], [{"role": "user", "content": [{"type": "text", "text": ""}]}],
    ]
)  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(sorted(GOOD)),
    changes=st.dictionaries(st.sampled_from(FIELDS), SPECIAL | ANYTHING, min_size=1, max_size=3),
)
def test_any_body_gets_an_answer(server, path, changes):
    body = {**GOOD[path], **changes}
    # What asks for work without end asks for what it should get; not here.
    if not isinstance(body.get("max_tokens", 0), bool) and body.get("max_tokens", 0) not in (0, 1, 2):
        body["max_tokens"] = 2
    answer = httpx.post(server.url + path, content=json.dumps(body), timeout=20)
    assert answer.status_code in (200, 400, 404), (body, answer.text)
    if answer.status_code != 200:
        assert answer.json()["error"]["message"]
    else:
        assert b'"error":{' not in answer.content
    assert server.metrics()["slm_engine_restarts_total"] == 0
