import json
import os
import shutil
from pathlib import Path

import pytest

from tests.helpers import tiny_gguf
from tests.helpers.servers import running_server

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless browser for one file of tests.

    While it is open, Playwright's event loop is the running loop of this thread, and ``asyncio.run`` is refused. So it
    must be closed before a worker goes on with the tests of other folders.
    """
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser: install Debian's chromium (looked for {', '.join(PROGRAMS)})")
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'slm[dev]'")
    from tests.helpers.browser_page import FLAGS

    home = {**os.environ, "HOME": str(tmp_path_factory.mktemp("browser"))}
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS, env=home)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """An empty tab, 1200 x 800, light."""
    from tests.helpers.browser_page import Page

    page = Page(browser)
    yield page
    page.close()


@pytest.fixture(scope="session")
def start_server():
    return running_server


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A model with a chat template, slow enough that a reply can be caught in the middle."""
    folder = tmp_path_factory.mktemp("web")
    model = tiny_gguf.write(folder / "chatty.gguf", chat_template=tiny_gguf.CHAT_TEMPLATE, n_ctx=4096, n_layers=6)
    with running_server(folder / "server.log", model) as server:
        yield server


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Where screenshots go: SLM_SCREENSHOTS, if somebody wants to look at them."""
    folder = Path(os.environ.get("SLM_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


LOOKS = tuple((scheme, size) for scheme in ("light", "dark") for size in ((1200, 800), (360, 780)))


@pytest.fixture
def look(page, pictures):
    """Checks a screen as it is: accessible and no wider than the window, on a desk and on a telephone, light and dark.

    SLM_SCREENSHOTS: a picture of each for somebody to look at.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install 'slm[dev]'").Axe()

    def check(name: str) -> None:
        for scheme, size in LOOKS:
            page.scheme(scheme)
            page.size(*size)
            page.tab.wait_for_timeout(50)  # until it is drawn anew
            assert page.run("document.documentElement.scrollWidth <= innerWidth"), (name, scheme, size)
            if "SLM_SCREENSHOTS" in os.environ:
                page.tab.screenshot(path=pictures / f"studio-{name}-{scheme}-{size[0]}.png", full_page=True)
            found = axe.run(page.tab, options={"resultTypes": ["violations"]}).response["violations"]
            serious = [each for each in found if each["impact"] in ("serious", "critical")]
            assert not serious, (name, scheme, size, [(each["id"], each["nodes"][0]["html"]) for each in serious])
        page.scheme("light")
        page.size(*LOOKS[0][1])

    return check


_CONTRAST = """(selector) => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const layers = [];
  const element = document.querySelector(selector);
  for (let each = element; each; each = each.parentElement) layers.push(parse(getComputedStyle(each).backgroundColor));
  const over = (below, [r, g, b, alpha = 1]) => [r, g, b].map((v, i) => alpha * v + (1 - alpha) * below[i]);
  const behind = layers.reverse().reduce(over, [255, 255, 255]);
  const a = light(parse(getComputedStyle(element).color));
  const b = light(behind);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


@pytest.fixture(scope="session")
def contrast():
    """The ratio of WCAG 2 between an element's text and what is behind it, translucent marks included."""
    return lambda page, selector: page.run(f"({_CONTRAST})({json.dumps(selector)})")
