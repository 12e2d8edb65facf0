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
