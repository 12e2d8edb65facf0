import pytest

from serve.api.openai.parsing import parse
from serve.api.openai.requests import ChatRequest, CompletionRequest
from tests.helpers.api import error


def test_unknown_and_unsupported_parameters():
    said = error(CompletionRequest, {"prompt": "x", "temprature": 1})
    assert said["code"] == "unknown_parameter"
    assert "temperature" in said["message"]
    assert error(ChatRequest, {"messages": [], "functions": [{}]})["code"] == "unsupported"
    parse(ChatRequest, b'{"messages": [{"role": "user", "content": "x"}], "tools": [], "store": true}')


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "temperature": -Infinity}',
        b'{"prompt": ' + b"[" * 100_000,
    ],
)
def test_malformed_bodies(raw):
    assert error(CompletionRequest, raw)["code"] == "invalid_json"
