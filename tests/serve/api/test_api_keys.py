"""Wrong keys and other origins, on every route that the application has. Numbers refer to the reliability list
(docs/results/serving-reliability.md)."""

import httpx
import pytest

from slm.serve.api.routes.table import api_routes
from slm.serve.api.static_pages import is_page, page_routes
from slm.serve.config import ServerOptions
from slm.serve.engine.config import EngineConfig
from slm.serve.pool.model_pool import Pool, Served


def every_route(model_path) -> list[tuple[str, str]]:
    """(method, path) of all routes, from the application itself: one that is added is checked, too."""
    pool = Pool([Served("tiny", EngineConfig(model_path=model_path))], budget=None, max_waiting=1)
    routes = [*api_routes(pool, ServerOptions(), keyed=True), *page_routes()]
    return sorted((method, route.path) for route in routes for method in route.methods)


KEYED = ["serve.api_keys=[first,1_000,c2xtLWtleQ==]", "serve.cors_origins=[http://friend.example,localhost]"]
WRONG = [
    {},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer firs"},
    {"Authorization": "Bearer firstt"},
    {"Authorization": "Bearer FIRST"},
    {"Authorization": "Basic first"},
    {"Authorization": "first"},
    {"Authorization": "Bearer first, Bearer first"},
    {"X-Api-Key": "firs"},
    {"X-Api-Key": "Bearer first"},
    {"Authorization": "Bearer firs", "X-Api-Key": "first"},
    {b"Authorization": "Bearer ü".encode()},
]


@pytest.fixture(scope="module")
def keyed(tmp_path_factory, tiny_path, start_server):
    log = tmp_path_factory.mktemp("log") / "server.log"
    with start_server(log, tiny_path, *KEYED, env={"SLM_API_KEY": "second"}) as server:
        yield server


def test_a_wrong_key_opens_nothing_but_health_and_the_page(keyed, tiny_path):
    """List, 21: 401 on every route but /health and the page's own files, whatever is wrong with the key."""
    routes = every_route(tiny_path)
    assert {path for _, path in routes} >= {"/health", "/metrics", "/v1/models", "/v1/completions", "/docs", "/"}
    n_closed = 0
    client = httpx.Client()
    for method, path in [*routes, ("GET", "/nothing"), ("POST", "/"), ("GET", "//health"), ("GET", "/health/")]:
        url = keyed.url + path.replace("{name}", "app.js").replace("{model:path}", "tiny").replace("{model}", "tiny")
        open_to_all = path in ("/health", "/v1/health") or is_page(path)
        n_closed += not open_to_all
        for headers in WRONG:
            answer = client.request(method, url, headers=headers, content=b"{}" if method == "POST" else None)
            if open_to_all:
                assert answer.status_code in (200, 404, 405), (method, path)
            else:
                assert answer.status_code == 401, (method, path, headers)
                assert answer.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":  # which has no body
                    error = answer.json()["error"]
                    if path.startswith("/api/"):
                        assert error.startswith("A key is needed")
                    elif "/messages" in path:
                        assert error["type"] == "authentication_error"
                    else:
                        assert error["code"] == "invalid_api_key"
                assert "tiny" not in answer.text
    assert n_closed >= 10
    for key in ("first", "second"):
        for headers in ({"Authorization": f"Bearer {key}"}, {"authorization": f"bearer   {key}"}, {"x-api-key": key}):
            assert httpx.get(keyed.url + "/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("key", ["first", "1_000", "c2xtLWtleQ=="])
def test_keys_are_taken_as_they_are_typed(keyed, key):
    answer = httpx.get(keyed.url + "/v1/models", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 200


def test_a_line_end_behind_a_key_is_none_of_it(tmp_path, tiny_path, start_server, monkeypatch):
    monkeypatch.setenv("SLM_API_KEY", "of-a-file\n")
    with start_server(tmp_path / "log", tiny_path) as server:
        url = server.url + "/v1/models"
        assert httpx.get(url, headers={"Authorization": "Bearer of-a-file"}).status_code == 200
        assert httpx.get(url).status_code == 401


def test_no_other_origin_may_read(keyed, server):
    """List, 21: CORS is off by default; where origins are named, only those may call."""
    preflight = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    key = {"Authorization": "Bearer first"}
    for base in (server.url, keyed.url):
        for method, more in (("GET", {}), ("OPTIONS", preflight)):
            headers = {"Origin": "http://evil.example", **key, **more}
            answer = httpx.request(method, base + "/v1/models", headers=headers)
            assert "access-control-allow-origin" not in answer.headers
    answer = httpx.get(keyed.url + "/v1/models", headers={"Origin": "http://friend.example", **key})
    assert answer.headers["access-control-allow-origin"] == "http://friend.example"


def test_pages_of_this_machine_by_a_word(keyed):
    """On every port; a name that only begins like it is another machine's."""
    ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin in ("http://localhost", "http://localhost:3000", "https://127.0.0.1:3000", "http://[::1]:5173"):
        answer = httpx.options(keyed.url + "/v1/completions", headers={"Origin": origin, **ask})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, origin)
    for origin in (
        "http://localhost.evil.com",
        "http://notlocalhost",
        "http://127.0.0.1.evil.com",
        "http://localhost:x",
    ):
        answer = httpx.options(keyed.url + "/v1/completions", headers={"Origin": origin, **ask})
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("access-control")]
