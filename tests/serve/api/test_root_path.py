"""A path prefix behind a proxy."""

import re

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from slm.serve.api.server import WithoutPrefix
from slm.serve.api.static_pages import page_routes


async def path(request):
    return PlainTextResponse(request.url.path)


@pytest.mark.parametrize(
    ("asked", "seen"),
    [("/llm/v1/models", "/v1/models"), ("/v1/models", "/v1/models"), ("/llm/", "/"), ("/llmx", "/llmx"), ("/", "/")],
)
def test_with_and_without(asked, seen):
    client = TestClient(WithoutPrefix(Starlette(routes=[Route("/{any:path}", path)]), "/llm"))
    assert client.get(asked).text == seen


def test_the_page_is_in_the_folder():
    client = TestClient(WithoutPrefix(Starlette(routes=page_routes()), "/llm"))
    answer = client.get("/llm", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "/llm/")
    for page in ("/llm/", "/llm/docs"):
        text = client.get(page).text
        links = re.findall(r'(?:href|src)="([^"#]+)"', text)
        assert links
        assert not [each for each in links if each.startswith("/")]
        for each in links:
            if each not in ("metrics", "openapi.json"):  # of the API
                assert client.get("/llm/" + each.removeprefix("./")).status_code == 200, each
    for name in ("api.js", "docs.js", "app.js"):
        script = client.get(f"/llm/web/{name}").text
        assert not re.search(r'fetch\([`"]/', script)
