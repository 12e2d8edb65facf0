"""A page that somebody visits cannot use a server of this machine that takes no key."""

import httpx
import pytest

from slm.data.errors import UserError
from slm.serve.config import ServerOptions

BODY = '{"prompt": "x", "max_tokens": 1}'


def post(server, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(server.url + "/v1/completions", content=BODY, headers=headers, timeout=30)


@pytest.fixture(scope="module")
def named(tmp_path_factory, tiny_path, start_server):
    with start_server(tmp_path_factory.mktemp("log") / "log", tiny_path, "serve.hosts=[Chat.lan]") as server:
        yield server


def test_names_that_an_attacker_could_own(named):
    for host in ("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "x", "127.1"):
        refused = post(named, host=host)
        assert refused.status_code == 403, host
        assert refused.json()["error"]["code"] == "host_not_allowed"
        assert httpx.get(named.url + "/", headers={"host": host}).status_code == 403
        assert httpx.get(named.url + "/health", headers={"host": host}).status_code == 200
    good = (
        "localhost",
        "LOCALHOST:1",
        "me.localhost",
        "localhost.",
        "127.0.0.1:80",
        "127.9.9.9",
        "[::1]:80",
        "10.0.0.5",
    )
    for host in (*good, "chat.lan", "CHAT.LAN:8080"):
        assert post(named, host=host).status_code == 200, host
    assert "serve.hosts=[NAME]" in post(named, host="evil.example").json()["error"]["message"]


def test_bodies_that_a_page_may_send_without_asking(named):
    form, text = "application/x-www-form-urlencoded", "text/plain;charset=UTF-8"
    for headers in (
        {"content_type": text},
        {"content_type": "multipart/form-data; boundary=x"},
        {"content_type": form, "origin": "http://evil.example"},
        {"content_type": form, "origin": "null"},
        {"content_type": form, "sec_fetch_site": "cross-site"},
        {"origin": "http://evil.example"},  # a Blob without a type
    ):
        refused = post(named, **headers)
        assert refused.status_code == 415, headers
        assert "Content-Type: application/json" in refused.json()["error"]["message"]
    for kind in ("application/json", "application/json; charset=utf-8", "application/vnd.api+json", "APPLICATION/JSON"):
        assert post(named, content_type=kind, origin="http://localhost:3000").status_code == 200
    # curl's own type, and none: programs send no origin.
    assert post(named, content_type=form).status_code == 200
    assert post(named).status_code == 200
    assert httpx.delete(named.url + "/v1/models/x", headers={"origin": "null"}).status_code == 415


def test_a_key_is_enough(tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path, "serve.api_keys=[secret]") as server:
        key = {"authorization": "Bearer secret"}
        assert post(server, host="chat.example", content_type="text/plain", **key).status_code == 200


def test_a_host_is_a_name():
    with pytest.raises(UserError, match="give it without scheme and port"):
        ServerOptions(hosts=["http://chat.lan"])
    assert ServerOptions(hosts=["*"]).hosts == ["*"]
