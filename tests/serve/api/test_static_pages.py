import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from slm.serve.api.errors import ApiError
from slm.serve.api.static_pages import is_page, page_routes


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/docs", "text/html"),
        ("/web/app.js", "text/javascript"),
        ("/web/style.css", "text/css"),
        ("/web/colors.css", "text/css"),
        ("/web/icon.svg", "image/svg+xml"),
        ("/web/chats/store.js", "text/javascript"),
        ("/web/vendor/LICENSE.txt", "text/plain"),
    ],
)
def test_the_files(path, kind):
    response = TestClient(Starlette(routes=page_routes())).get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == f"{kind}; charset=utf-8"
    assert response.headers["content-security-policy"].startswith("default-src 'none'")
    assert response.content
    assert is_page(path)


def test_a_font_has_no_character_set():
    response = TestClient(Starlette(routes=page_routes())).get("/web/vendor/katex/fonts/KaTeX_Main-Regular.woff2")
    assert response.headers["content-type"] == "font/woff2"
    assert response.content.startswith(b"wOF2")
    assert "font-src 'self'" in response.headers["content-security-policy"]


def test_a_file_that_the_browser_has_is_not_sent_again():
    client = TestClient(Starlette(routes=page_routes()))
    first = client.get("/web/app.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/web/app.js", headers={"if-none-match": f"W/{first.headers['etag']}"})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert client.get("/web/app.js", headers={"if-none-match": '"other"'}).content == first.content
    assert first.headers["etag"] != client.get("/web/dom.js").headers["etag"]


def test_other_paths():
    client = TestClient(Starlette(routes=page_routes()))
    with pytest.raises(ApiError, match=r"GET /web/other\.js: Not Found"):
        client.get("/web/other.js")
    assert not any(map(is_page, ("/health", "/v1/models", "/docs/x", "//")))
