"""The schema's page at /docs in a real browser, against a real server."""

import json
import shlex
import shutil
import subprocess

import httpx
import pytest


def operations(page):
    return page.run("document.querySelectorAll('.operation').length")


def test_every_route_is_there_and_nothing_comes_from_elsewhere(page, server):
    page.open(server.url + "/docs")
    schema = httpx.get(server.url + "/openapi.json").json()
    wanted = {f"{method.upper()}{path}" for path, methods in schema["paths"].items() for method in methods}
    shown = page.run("[...document.querySelectorAll('.operation h2')].map((h) => h.textContent)")
    assert set(shown) == wanted
    assert {"POST/v1/chat/completions", "POST/v1/embeddings", "GET/metrics"} <= wanted
    assert page.run("document.querySelectorAll('nav a').length") == len(wanted)
    assert page.errors == []
    assert page.requested()
    assert all(url.startswith(server.url + "/") for url in page.requested())
    headers = httpx.get(server.url + "/docs").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    # A field with its limits, its default and its meaning.
    rows = "[...document.querySelectorAll('#post-v1-completions tr')]"
    text = page.run(f"{rows}.find((row) => row.cells[0].textContent == 'temperature').textContent")
    for part in ("number", "0 to 10", "default: the model's", "most likely token"):
        assert part in text
    # What must be given comes first.
    assert page.run(f"{rows}.slice(0, 2).map((row) => row.cells[0].textContent)") == ["prompt needed", "model"]


def test_each_example_works_as_it_stands(page, server):
    """What the page gives to copy, given to a shell."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    page.open(server.url + "/docs")
    commands = page.run(
        "[...document.querySelectorAll('.examples')].flatMap((each) => {"
        "  const buttons = [...each.querySelectorAll('[aria-pressed]')];"
        "  if (!buttons.length) return [each.querySelector('code').textContent];"
        "  return buttons.map((b) => { b.click(); return each.querySelector('code').textContent; });"
        "})"
    )
    assert len(commands) > 12
    for command in commands:
        assert command.startswith("curl -s")
        if "%7Bid%7D" in command:
            kept = httpx.post(server.url + "/v1/responses", json={"input": "x", "max_output_tokens": 2}).json()["id"]
            command = command.replace("%7Bid%7D", kept)
        command = command.replace("/NAME", "/chatty") + " -w '\\n%{http_code}'"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        body, _, status = done.stdout.rpartition("\n")
        # The model has no tokens for filling in the middle, and says so.
        wanted = "501" if "/infill" in command else "200"
        assert status == wanted, (command, done.stdout, done.stderr)
        if '"stream": true' in command:
            assert body.rstrip().endswith("data: [DONE]")


def test_copying(page, server):
    page.open(server.url + "/docs")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#post-v1-chat-completions .copy")
    page.wait("document.getElementById('copied').textContent == 'Copied'")
    copied = page.run("navigator.clipboard.readText()")
    assert copied == page.text("#post-v1-chat-completions pre code")
    assert json.loads(shlex.split(copied)[-1])["messages"]


def test_nested_fields_and_places(page, server):
    page.open(server.url + "/docs#post-v1-embeddings")
    page.wait("document.querySelector('nav [aria-current]')?.textContent == '/v1/embeddings'")
    # Schemas that refer to each other end somewhere.
    inner = page.run(
        "[...document.querySelectorAll('#post-v1-chat-completions summary')].map((each) => each.textContent)"
    )
    assert "Fields of Message" in inner
    assert "Fields of JsonSchema" in inner
    assert page.run("[...document.querySelectorAll('.type')].every((each) => each.textContent)")


def test_the_key_is_asked_for(page, tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path, "serve.api_keys=[sesame]") as server:
        page.open(server.url + "/docs")
        assert operations(page) == 0
        assert page.focused() == "key"
        page.type("sesame")
        page.press("Enter")
        page.wait("document.querySelectorAll('.operation').length > 5")
        assert page.run("document.getElementById('key-form').hidden")
        assert "Authorization: Bearer $SLM_API_KEY" in page.text("#post-v1-completions pre code")
        # The file itself, which a plain link could not show.
        page.click("#raw")
        page.wait("document.body.textContent.includes('\"openapi\"')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_light_and_dark_wide_and_narrow(page, server, pictures, contrast, scheme, width, height):
    page.scheme(scheme)
    (page.phone if width < 760 else page.size)(width, height)
    page.open(server.url + "/docs")
    page.screenshot(pictures / f"docs-{scheme}-{width}.png")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    for selector in (
        "body", "header p", "nav a", "nav h2", ".method", ".method.get", ".path", "pre code", ".copy",
        "[aria-pressed=true]", ".name", ".type", ".limits", ".needed", ".status", "summary",
    ):  # fmt: skip
        assert contrast(page, selector) >= 4.5, selector
    page.run("document.querySelector('#post-v1-chat-completions .fields').scrollIntoView()")
    page.run("document.querySelector('#post-v1-chat-completions .fields details').open = true")
    page.screenshot(pictures / f"docs-fields-{scheme}-{width}.png")
