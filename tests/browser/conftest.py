import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def _load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


_here = Path(__file__).parent
devtools = _load("slm_tests_devtools", _here / "devtools.py")
serving = _load("slm_tests_serving", _here.parent / "serve" / "conftest.py")


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip(f"no browser: install Debian's chromium (looked for {', '.join(PROGRAMS)})")
    browser = devtools.Browser(program, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser):
    page = browser.page()
    page.size(1200, 800)
    page.scheme("light")
    yield page
    page.close()


@pytest.fixture(scope="session")
def start_server():
    return serving.running_server


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return serving.tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A model with a chat template, slow enough that a reply can be caught in the middle."""
    folder = tmp_path_factory.mktemp("web")
    model = serving.tiny_gguf.write(
        folder / "chatty.gguf", chat_template=serving.tiny_gguf.CHAT_TEMPLATE, n_ctx=4096, n_layers=6
    )
    with serving.running_server(folder / "server.log", model) as server:
        yield server


@pytest.fixture
def pictures(tmp_path) -> Path:
    """Where screenshots go: SLM_SCREENSHOTS, if somebody wants to look at them."""
    folder = Path(os.environ.get("SLM_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_CONTRAST = """(selector) => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const seen = (element) => (([r, g, b, a = 1]) => a)(parse(getComputedStyle(element).backgroundColor));
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = (text) => {
    const [r, g, b] = parse(text).slice(0, 3).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = document.querySelector(selector);
  let behind = element;
  while (!seen(behind) && behind.parentElement) behind = behind.parentElement;
  const a = light(getComputedStyle(element).color);
  const b = light(getComputedStyle(behind).backgroundColor);
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""


@pytest.fixture(scope="session")
def contrast():
    """The ratio of WCAG 2 between an element's text and what is behind it."""
    return lambda page, selector: page.run(f"({_CONTRAST})({json.dumps(selector)})")
