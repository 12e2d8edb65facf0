"""A page in a real browser, driven by Playwright."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Error, Request

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
TIMEOUT_S = 15


class Page:
    """One tab in a separate profile. ``tab`` is Playwright's page, for what is not worth a method here."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._scheme = "light"
        self._renew(viewport={"width": 1200, "height": 800})

    def _renew(self, **options: Any) -> None:
        self.context = self._browser.new_context(color_scheme=self._scheme, **options)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(1000 * TIMEOUT_S)
        self.requests: list[Request] = []
        self.errors: list[str] = []
        """Exceptions, errors and warnings in the console, violations of the content policy."""
        self.tab.on("request", lambda request: self.requests.append(request))
        self.tab.on("console", self._on_console)
        self.tab.on("pageerror", lambda error: self.errors.append(str(error)))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def renew(self, **options: Any) -> None:
        """Go on in an empty tab of a new profile, for properties that are fixed when a profile is made."""
        self.context.close()
        self._renew(**options)

    def open(self, url: str) -> None:
        """Load a page of ours and wait for its script."""
        self.requests.clear()
        self.errors.clear()
        self.tab.goto(url)
        self.wait("document.body.dataset.ready")

    def run(self, script: str) -> Any:
        """The value of an expression in the page (a promise is waited for)."""
        return self.tab.evaluate(script)

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, at most ``TIMEOUT_S``.

        Playwright's own ``wait_for_function`` evaluates strings in the page, which the content policies forbid.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while not self._holds(condition):
            assert time.monotonic() < deadline, (condition, self.run("document.body.innerText"), self.errors)
            self.tab.wait_for_timeout(50)

    def _holds(self, condition: str) -> bool:
        try:
            return self.run(f"Boolean({condition})")
        except Error as error:
            if "Execution context was destroyed" in str(error):  # the page is being left for another one
                return False
            raise

    def size(self, width: int, height: int) -> None:
        self.tab.set_viewport_size({"width": width, "height": height})

    def phone(self, width: int, height: int) -> None:
        """Go on in an empty tab of a telephone: a touch screen and a mobile viewport."""
        self.renew(viewport={"width": width, "height": height}, is_mobile=True, has_touch=True)

    def scheme(self, name: str) -> None:
        """``light`` or ``dark``, also for the tabs that follow."""
        self._scheme = name
        self.tab.emulate_media(color_scheme=name)

    def type(self, text: str) -> None:
        self.tab.keyboard.insert_text(text)

    def press(self, key: str) -> None:
        self.tab.keyboard.press(key)

    def click(self, selector: str) -> None:
        self.tab.click(selector)

    def text(self, selector: str) -> str:
        return self.tab.text_content(selector) or ""

    def focused(self) -> str:
        return self.run("document.activeElement.id || document.activeElement.tagName")

    def requested(self) -> list[str]:
        return [request.url for request in self.requests]

    def screenshot(self, path: Path) -> None:
        self.tab.screenshot(path=path)

    def close(self) -> None:
        self.context.close()
