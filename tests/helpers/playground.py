"""Steps on the server's page in a browser."""

from __future__ import annotations

import json
from typing import Any

from tests.helpers.browser_page import Page

REPLY = "[...document.querySelectorAll('.assistant .text')].at(-1)"


def ask(page: Page, text: str = "hello", **settings: Any) -> None:
    """Fill in settings by their elements' ids, and send a message."""
    settings = {"max_tokens": 24, "seed": 3, **settings}
    for name, value in settings.items():
        page.run(f"document.getElementById('{name}').value = {json.dumps(str(value))}")
    page.run("document.getElementById('prompt').focus()")
    page.type(text)
    page.press("Enter")


def finished(page: Page) -> None:
    """Wait for the end of the reply."""
    page.wait("document.getElementById('stop').disabled && document.getElementById('figures').textContent")


def show_probabilities(page: Page) -> None:
    """Ask for tokens with their probabilities from now on."""
    page.click("#probabilities")


def sent(page: Page) -> dict[str, Any]:
    """The body of the last request that has one."""
    return json.loads(next(each.post_data for each in reversed(page.requests) if each.post_data))


def stored(page: Page) -> list[dict[str, Any]]:
    """The conversations that the browser keeps."""
    return page.run(
        """new Promise((resolve, reject) => {
          const opening = indexedDB.open("slm", 1);
          opening.onerror = () => reject(opening.error);
          opening.onsuccess = () => {
            const all = opening.result.transaction("conversations").objectStore("conversations").getAll();
            all.onsuccess = () => { opening.result.close(); resolve(all.result); };
          };
        })"""
    )
