"""The API's page at /docs (Swagger UI) in a real browser, against a real server."""

import httpx
import pytest


def ready(page, n=1):
    page.wait(f"document.querySelectorAll('.opblock').length >= {n}")


def schema_of(server):
    return httpx.get(server.url + "/openapi.json").json()


def test_every_route_is_there_and_nothing_comes_from_elsewhere(page, server):
    page.open(server.url + "/docs")
    wanted = {f"{method}{path}" for path, methods in schema_of(server)["paths"].items() for method in methods}
    ready(page, len(wanted))
    shown = page.run(
        "[...document.querySelectorAll('.opblock')].map((each) => each.querySelector('.opblock-summary-method')"
        ".textContent.toLowerCase() + each.querySelector('.opblock-summary-path').dataset.path)"
    )
    assert set(shown) == wanted
    assert {"post/v1/chat/completions", "post/v1/embeddings", "get/metrics"} <= wanted
    assert page.errors == []
    assert page.requested()
    assert all(url.startswith((server.url + "/", "data:")) for url in page.requested())
    policy = httpx.get(server.url + "/docs").headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy


def test_each_example_works_as_it_stands(server):
    """What the page gives to try, sent."""
    n = 0
    for path, methods in schema_of(server)["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
            for name, example in body.get("examples", {}).items():
                n += 1
                at = path.replace("{model}", "chatty").replace("/slots/{slot}", "/slots/0?action=save")
                reply = httpx.request(method, server.url + at, json=example["value"])
                # The model has no tokens for filling in the middle and no adapter, the server no folder for slots.
                absent = "/infill" in path or "/slots/" in path
                expected = 501 if absent else 400 if path == "/lora-adapters" else 200
                assert reply.status_code == expected, (path, name, reply.text)
                if example["value"].get("stream") and path.startswith("/v1/c"):
                    assert reply.text.rstrip().endswith("data: [DONE]")
    assert n > 12


def try_out(page, path):
    """Open an operation, and send its first example. Returns the answer's status and text."""
    block = f".opblock:has([data-path='{path}'])"
    page.click(f"{block} .opblock-summary-control")
    page.click(f"{block} .try-out__btn")
    page.click(f"{block} .execute")
    live = f'document.querySelector("{block} .live-responses-table")'
    page.wait(live)
    status = page.run(f"{live}.querySelector('tbody .response-col_status').textContent")
    return int(status[:3]), page.run(f"{live}.textContent")


def test_a_request_is_tried_on_the_page(page, server):
    page.open(server.url + "/docs")
    ready(page)
    status, text = try_out(page, "/v1/chat/completions")
    assert status == 200
    assert "chat.completion" in text
    assert f"{server.url}/v1/chat/completions" in page.text(".curl-command"), "the command for a shell"
    assert page.errors == []


def test_the_key_is_asked_for(page, tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path, "serve.api_keys=[sesame]") as server:
        page.open(server.url + "/docs")
        assert page.run("document.querySelectorAll('.opblock').length") == 0
        assert page.focused() == "key"
        page.type("sesame")
        page.press("Enter")
        ready(page)
        assert page.run("document.getElementById('key-form').hidden")
        status, text = try_out(page, "/v1/models")
        assert status == 200
        assert '"tiny"' in text
        # The file itself, which a plain link could not show.
        page.click("#raw")
        page.wait("document.body.textContent.includes('\"openapi\"')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_light_and_dark_wide_and_narrow(page, server, pictures, contrast, scheme, width, height):
    page.scheme(scheme)
    (page.phone if width < 760 else page.size)(width, height)
    page.open(server.url + "/docs")
    ready(page)
    page.screenshot(pictures / f"docs-{scheme}-{width}.png")
    for selector in ("body", "header a", ".opblock-summary-path", ".opblock-summary-description", ".opblock-tag"):
        assert contrast(page, selector) >= 4.5, selector
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    page.click(".opblock-summary-control")
    page.wait("document.querySelector('.opblock-body .parameters-container, .opblock-body .opblock-section')")
    page.screenshot(pictures / f"docs-open-{scheme}-{width}.png")
