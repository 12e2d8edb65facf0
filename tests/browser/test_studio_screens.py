"""Every screen of studio over one prepared workspace: accessible, no wider than a telephone, all of it by keyboard."""

import json
import re
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.helpers import studio_workspace, tiny_gguf
from tests.helpers.studio import StudioProcess

DOWNLOADED = "downloaded.gguf"

# What a person can act on and sees; of radio buttons with a name one is reached by Tab, the others by the arrow keys.
_TARGETS = """() => {
  const found = [...document.querySelectorAll(
    "a[href], button:enabled, input:enabled, select:enabled, textarea:enabled, summary, [tabindex='0']")];
  const radios = new Set();
  return found.filter((each) => each.checkVisibility({ visibilityProperty: true })).filter((each) => {
    if (each.type !== "radio") return true;
    const before = radios.has(each.name);
    radios.add(each.name);
    return !before;
  }).length;
}"""
# The element that has the focus, with what shows it.
_FOCUSED = """() => {
  const each = document.activeElement, style = getComputedStyle(each), box = each.getBoundingClientRect();
  if (each === document.body) return null;
  globalThis.seen ??= new Set();
  const again = seen.has(each);
  seen.add(each);
  const outline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return { again, outline, html: each.outerHTML.slice(0, 120),
    inside: box.bottom > 0 && box.top < innerHeight && box.right > 0 && box.left < innerWidth };
}"""


@pytest.fixture(scope="module")
def studio(tmp_path_factory) -> Iterator[StudioProcess]:
    """On a machine where llama.cpp has downloaded a model."""
    busy, downloads = subprocess.Popen(["sleep", "3600"]), tmp_path_factory.mktemp("downloads")
    tiny_gguf.write(downloads / DOWNLOADED, chat_template=tiny_gguf.CHAT_TEMPLATE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLAMA_CACHE", str(downloads))
        studio = StudioProcess(studio_workspace.write(tmp_path_factory.mktemp("workspace"), busy))
    yield studio
    studio.close()
    busy.kill()
    busy.wait()


@pytest.fixture
def screen(page, studio, look):
    """Opens a screen, waits for what it shows at the end, and checks it; ``before`` is done first."""

    def check(name: str, place: str, *shown: str) -> None:
        if not page.tab.url.startswith("http"):
            page.open(studio.url)
        page.run(f"location.hash = '#/{place}'")
        for each in shown:
            page.tab.wait_for_selector(each, timeout=60_000)
        look(name)
        by_keyboard(page, name)
        assert [
            each for each in page.errors if "400 (Bad Request)" not in each
        ] == []  # what a screen tells as its problem

    return check


def by_keyboard(page, name: str) -> None:
    """Tab reaches whatever can be acted on, and each shows that it has the focus."""
    page.run("(document.activeElement.blur(), globalThis.seen = new Set(), 0)")
    wanted, reached = page.tab.evaluate(_TARGETS), 0
    for _ in range(wanted + 3):
        page.press("Tab")
        found = page.tab.evaluate(_FOCUSED)
        if found is None:  # past the last one, the browser's own frame
            continue
        if found["again"]:
            break
        reached += 1
        assert found["outline"], (name, found)
        assert found["inside"], (name, found)
    assert reached == wanted, name


def test_models(page, screen):
    screen("home", "", "article:has-text('notes-chat')", "h2:has-text('Trash')")
    page.click("article:has(h3 a:text-is('notes')) button:has-text('Delete')")
    screen("home-really", "", "button:has-text('Really?')")
    page.click('button:has-text("Add llama.cpp\'s downloads")')
    screen("home-folder", "", f"article:has-text('{DOWNLOADED}')")
    assert page.tab.locator('button:has-text("Add llama.cpp\'s downloads")').count() == 0


def test_text_and_answers(page, screen):
    screen("text-empty", "text", ".drop")
    page.tab.fill("input[aria-label=Path]", "nowhere/")
    page.click("form button:has-text('Add')")
    screen("text-problem", "text", "main .problem")
    page.click("button:has-text('Remove')")
    page.tab.fill("input[aria-label=Path]", "texts")
    page.click("form button:has-text('Add')")
    page.tab.wait_for_selector("#start", timeout=60_000)
    page.click("button:has-text('Cancel')")  # the plan measures the machine
    assert page.tab.input_value("#name") == "texts"  # not the name of what was removed
    page.click("summary")
    screen("text", "text", "#start")
    screen("answers-empty", "answers", ".drop")
    page.tab.fill("input[aria-label=Path]", studio_workspace.LONG)
    page.click("form button:has-text('Add')")
    screen("answers", "answers", "#start")


def test_an_upload_tells_how_far_it_is_and_can_be_stopped(page, studio, tmp_path, look):
    large = tmp_path / "large.txt"
    large.write_bytes(b"The cat sat on the mat.\n" * 160_000)
    tab = page.tab
    page.open(f"{studio.url}#/text")
    network = page.context.new_cdp_session(tab)
    network.send("Network.enable")
    slow = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": 100_000}
    network.send("Network.emulateNetworkConditions", slow)
    tab.set_input_files("input[type=file] >> nth=0", large)
    tab.wait_for_selector("[role=progressbar][aria-label=Upload]:not([aria-valuenow='0'])", timeout=60_000)
    look("text-upload")
    page.click("button:has-text('Stop the upload')")
    tab.wait_for_selector("text=The upload was stopped.")
    assert tab.locator(".chosen li").count() == 0
    page.wait("!document.querySelector('[role=progressbar]')")
    uploads = studio.workspace / "runs" / ".studio" / "uploads"
    deadline = time.monotonic() + 20
    while left := [each.name for each in uploads.rglob("*") if each.is_file()]:
        assert time.monotonic() < deadline, left
        tab.wait_for_timeout(100)
    assert page.errors == []


def test_a_run(page, screen):
    screen("run", "run?run=runs/notes", ".chart .line", "input[type=range]", "h2:has-text('What happened')")
    assert "step 60" in page.text(".events li:has-text('saved: a checkpoint to resume from')")
    page.click("summary:has-text('Log')")
    screen("run-log", "run?run=runs/notes", "pre.log:has-text('loss 3.21')")
    screen("run-answers", "run?run=runs/notes-chat", ".asked:has-text('after training')")
    screen("run-live", "run?run=runs/live", "h1 .running")
    screen("run-failed", "run?run=runs/failing", "main .problem a")
    screen("run-none", "run?run=runs/nowhere", "main .problem")


def test_export_and_queue(page, screen):
    screen("export", "export?model=runs/notes", ".chart .point", "article")
    page.click("summary:has-text('Use it')")
    page.click("label:has-text('at most … MB')")
    screen("export-size", "export?model=runs/notes", "input[type=number]", ".command")
    screen("queue", "queue", "h2:has-text('Ended')", "h2:has-text('Waiting')")


def test_a_reply_that_pauses_goes_on_and_tells_each_tokens_probability(page, studio, look):
    """The server sends a sign of life every five seconds in which there is nothing to say."""
    tab = page.tab
    page.open(studio.url)
    tab.wait_for_selector("article:has-text('notes-chat')")
    if tab.locator(f"article:has-text('{DOWNLOADED}')").count() == 0:  # no other test has added the folder
        page.click('button:has-text("Add llama.cpp\'s downloads")')
        tab.wait_for_selector(f"article:has-text('{DOWNLOADED}')")
    page.click(f"article:has-text('{DOWNLOADED}') a:has-text('Chat')")
    tab.wait_for_selector(".column p:has-text('parameters')", timeout=180_000)
    page.click("summary")
    page.click("label:has-text('colour each token')")
    tab.fill("#prompt", "Once upon a time")
    kept = (studio.workspace / "runs" / ".studio" / "servers").glob("*.json")
    (server,) = [each for path in kept for each in json.loads(path.read_text())["processes"]]
    engines = psutil.Process(server["pid"]).children(recursive=True)
    for each in engines:
        each.suspend()
    page.click("button:has-text('Send')")
    tab.wait_for_timeout(7000)
    assert tab.locator(".turn .token").count() == 0, "there was no pause"
    for each in engines:
        each.resume()
    tab.wait_for_selector(".turn .token", timeout=180_000)
    tab.wait_for_selector(".turn .quiet:has-text('so far')", state="detached", timeout=180_000)
    assert tab.locator("main .problem").all_text_contents() == []
    tab.focus(".turn[role=group]")
    page.press("ArrowRight")
    assert re.fullmatch(r'(".*" [\d.]+ %( · )?){2,5}', page.text(".turn .readout")), page.text(".turn .readout")
    page.click("button:has-text('Clear')")
    tab.fill(".settings label:has-text('most tokens') input", "12")
    tab.fill("#prompt", "Once upon a time")
    page.click("button:has-text('Send')")
    tab.wait_for_selector(".turn .quiet:has-text('cut at the most tokens')", timeout=60_000)
    look("chat-reply")
    assert page.errors == []


def test_chat(page, screen):
    """Without a model that is loaded."""
    screen("chat", "chat", "select:has(option:nth-child(2))")
    page.click("button:has-text('Compare with another')")
    page.click("summary")
    screen("chat-two", "chat", ".column:nth-child(2)", ".settings")


def test_where_nothing_is_yet_and_without_the_token(page, tmp_path, look):
    studio = StudioProcess(tmp_path)
    try:
        page.open(studio.url)
        for name in ("", "export", "chat", "queue"):
            page.run(f"location.hash = '#/{name}'")
            page.tab.wait_for_selector("main .note")
            look(f"{name or 'home'}-new")
        page.renew()
        page.tab.goto(studio.url.split("?")[0])
        look("stranger")
    finally:
        studio.close()
