"""Limits of keys: requests at a time, requests and tokens in a minute."""

import concurrent.futures

import httpx
import openai
import pytest

from slm.serve.api.api_keys import _Account, _Bucket
from slm.serve.keys import Key, Limits


def test_a_minute_of_tokens():
    bucket = _Bucket(60)
    assert bucket.wait_s(100) == 0
    bucket.take(80, 100)
    assert bucket.wait_s(100) == 21  # one a second
    assert bucket.wait_s(120.5) == 0.5
    assert bucket.wait_s(121) == 0
    bucket.take(1, 1000)
    assert bucket.wait_s(1000) == 0  # a quiet hour does not fill it further
    bucket.take(60, 1000)
    assert bucket.wait_s(1000) == 2
    assert _Bucket(0).wait_s(5) == 0


def test_what_a_key_has_used():
    account = _Account(Key("s", "ann", Limits(parallel=1, requests_per_minute=2)))
    assert account.refusal(0) is None
    account.running = 1
    assert "The key ann may have 1 requests at a time." in account.refusal(0).body["error"]["message"]
    account.running = 0
    assert account.refusal(0) is None
    refused = account.refusal(0)
    assert refused.headers == {"Retry-After": "30"}
    assert account.refusal(30) is None


@pytest.fixture(scope="module")
def limited(tmp_path_factory, slow_path, start_server):
    folder = tmp_path_factory.mktemp("limits")
    (folder / "keys").write_text("ann one parallel=1\nbob two tokens_per_minute=30\nfree\n")
    with start_server(folder / "log", slow_path, f"serve.api_key_file={folder / 'keys'}") as server:
        yield server


def ask(server, key, **body):
    body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True, **body}
    return httpx.post(server.url + "/v1/completions", json=body, headers={"x-api-key": key}, timeout=30)


def test_requests_at_a_time(limited):
    long = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True, "stream": True}
    headers = {"x-api-key": "one"}
    with httpx.stream("POST", limited.url + "/v1/completions", json=long, headers=headers, timeout=30) as answer:
        lines = answer.iter_lines()  # held: the stream ends with it
        next(lines)
        refused = ask(limited, "one")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"] == "1"
        assert httpx.get(limited.url + "/v1/models", headers=headers).status_code == 200
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            others = pool.map(lambda _: ask(limited, "free").status_code, range(2))
            assert list(others) == [200, 200]
    limited.wait(lambda: ask(limited, "one").status_code == 200)  # the client that has left does not count


def test_tokens_in_a_minute(limited):
    assert [ask(limited, "two").status_code for _ in range(3)] == [200, 200, 429]
    api = openai.OpenAI(base_url=limited.url + "/v1", api_key="two", max_retries=0)
    with pytest.raises(openai.RateLimitError, match="The key bob may use 30 tokens a minute"):
        api.completions.create(model="slow", prompt="x", max_tokens=1)
