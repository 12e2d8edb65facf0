"""What stands around the text: colours, search, files, presets, tools, figures, the word of a server that is away."""

import json
from itertools import pairwise

import pytest

from tests.helpers import tiny_gguf, tool_templates
from tests.helpers.playground import REPLY, ask, finished, sent

TEXTS = "[...document.querySelectorAll('.turn .text')].map((each) => each.textContent)"
NAMES = "[...document.querySelectorAll('#chat-list .name')].map((each) => each.textContent)"


def ended(page):
    finished(page)
    page.wait(f"{REPLY}.textContent && document.querySelector('.turn:last-child > .actions')")


def test_the_colours_are_chosen_and_kept(page, server):
    page.open(server.url + "/")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.run(ground)
    labels = []
    for _ in range(3):
        labels.append((page.run("document.getElementById('theme').ariaLabel"), page.run(ground) == light))
        page.open(page.tab.url)
        assert page.run("document.getElementById('theme').ariaLabel") == labels[-1][0]
        page.click("#theme")
    assert labels == [("Colours: as the system", True), ("Colours: light", True), ("Colours: dark", False)]
    page.scheme("dark")
    assert page.run(ground) != light, "as the system again"
    page.click("#theme")
    assert page.run(ground) == light, "light, whatever the system says"


def test_search(page, server, tmp_path):
    page.open(server.url + "/")
    texts = [
        ("Apples", "how do apples grow?", "On a TREE near the river."),
        ("Boats", "what floats?", "A <b>boat</b>."),
    ]
    value = [
        {"name": name, "messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]}
        for name, q, a in texts
    ]
    path = tmp_path / "all.json"
    path.write_text(json.dumps(value))
    page.tab.set_input_files("#import-file", path)
    page.wait(f"{NAMES}.length == 2")
    for words, names, place in (
        ("tree grow", ["Apples"], "TREE"),
        ("<B>boat", ["Boats"], "<b>boat</b>"),
        ("apples", ["Apples"], None),
        ("nothing", [], None),
    ):
        page.tab.fill("#search", words)
        assert page.run(NAMES) == names
        found = page.run("[...document.querySelectorAll('.place')].map((each) => each.textContent)")
        assert found == [] if place is None else place in found[0]
        assert page.run("document.getElementById('no-chats').hidden") == bool(names)
    page.tab.fill("#search", "")
    assert len(page.run(NAMES)) == 2


def test_files_go_with_a_message(page, server, tmp_path):
    page.open(server.url + "/")
    (tmp_path / "notes.md").write_text("# Notes\n```\nx\n```\n")
    (tmp_path / "other.txt").write_text("other")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x00\xff")
    page.tab.set_input_files("#attach-file", [tmp_path / each for each in ("notes.md", "other.txt", "picture.png")])
    page.wait("document.querySelectorAll('#files li').length == 2")
    assert page.text("#notice") == "Not attached: picture.png is not text in UTF-8."
    page.click("[aria-label='Remove other.txt']")
    ask(page, "What is this?", max_tokens=4)
    ended(page)
    content = "notes.md:\n````\n# Notes\n```\nx\n```\n````\n\nWhat is this?"
    assert sent(page)["messages"][0]["content"] == content
    assert page.run("document.querySelectorAll('#files li').length") == 0
    for _ in range(2):
        assert page.text(".user .attached summary").startswith("notes.md · 18 characters")
        assert page.text(".user .text") == "What is this?"
        page.open(page.tab.url)
    # What is not sent comes back.
    page.tab.set_input_files("#attach-file", tmp_path / "other.txt")
    page.wait("document.querySelectorAll('#files li').length == 1")
    ask(page, "long " * 5000, truncation="disabled")
    page.wait("!document.getElementById('problem').hidden")
    assert page.text("#files li") == "other.txt"
    assert page.run("document.querySelectorAll('.user').length") == 1
    assert page.errors == ["Failed to load resource: the server responded with a status of 400 (Bad Request)"]


def test_presets(page, server):
    page.open(server.url + "/")
    page.tab.fill("#system", "Be a pirate.")
    page.tab.fill("#temperature", "0.3")
    page.click("#preset-save")
    page.type("Pirate")
    page.press("Enter")
    page.tab.fill("#system", "Be brief.")
    page.tab.fill("#temperature", "0.9")
    page.tab.fill("#top_k", "7")
    page.open(page.tab.url)
    assert page.run("document.getElementById('temperature').value") == "0.9"
    page.tab.select_option("#preset", "Pirate")
    values = page.run("['system', 'temperature', 'top_k'].map((each) => document.getElementById(each).value)")
    assert values == ["Be a pirate.", "0.3", "40"]
    ask(page, "Hello", max_tokens=3)
    ended(page)
    assert sent(page)["messages"][0] == {"role": "system", "content": "Be a pirate."}
    assert sent(page)["temperature"] == 0.3
    page.click("#preset-delete")
    page.open(page.tab.url)
    assert page.run("document.getElementById('preset').options.length") == 1


CALL = {"name": "weather", "arguments": {"city": "Bonn"}}


def test_tools_that_a_person_defines_and_answers(page, tmp_path, start_server):
    script = ["assistant\n", "<tool_call>\n", json.dumps(CALL), "\n</tool_call>", "<|im_end|>"]
    path = tiny_gguf.write(
        tmp_path / "caller.gguf", chat_template=tool_templates.QWEN, n_ctx=1024, script=dict(pairwise(script))
    )
    with start_server(tmp_path / "log", path) as server:
        page.open(server.url + "/")
        page.click("#tool-new")
        page.tab.fill("#tool-name", "the weather")
        page.click("text=Save tool")
        assert "letters, digits" in page.text("#tool-problem")
        assert page.focused() == "tool-name"
        page.tab.fill("#tool-name", "weather")
        page.tab.fill("#tool-parameters", "{")
        page.click("text=Save tool")
        assert "not valid JSON" in page.text("#tool-problem")
        schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        page.tab.fill("#tool-parameters", json.dumps(schema))
        page.click("text=Save tool")
        page.open(page.tab.url)  # it is kept
        assert page.text("#tool-list label") == "weather"
        ask(page, "What is the weather in Bonn?", max_tokens=60, temperature=0)
        finished(page)
        assert sent(page)["tools"][0]["function"]["parameters"] == schema
        page.wait("document.querySelector('.answers textarea')")
        assert page.text(".call p") == "Tool call: weather"
        page.open(page.tab.url)  # also after a reload
        page.tab.fill(".answers textarea", "Sunny")
        page.run("document.getElementById('figures').textContent = ''")
        page.click("text=Send the result")
        finished(page)
        messages = sent(page)["messages"]
        assert [each["role"] for each in messages] == ["user", "assistant", "tool"]
        assert messages[2]["content"] == "Sunny"
        assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]
        assert page.text(".turn.tool .text") == "Sunny"
        # One that is switched off is not sent.
        page.click("#tool-list input")
        page.click("#new")
        ask(page, "Hello", max_tokens=3)
        finished(page)
        assert "tools" not in sent(page)
        assert page.errors == []


def test_the_context_meter(page, server):
    page.open(server.url + "/")
    assert page.run("document.getElementById('context').hidden")
    ask(page, "Hello", max_tokens=20)
    ended(page)
    said = page.text("#context-text")
    assert said.endswith(" of 4,096 tokens of context")
    n = int(said.split()[0])
    assert 20 < n < 100
    assert page.run("[document.getElementById('meter').value, document.getElementById('meter').max]") == [n, 4096]
    page.open(page.tab.url)
    assert page.text("#context-text") == said
    page.click("#new")
    assert page.run("document.getElementById('context').hidden")


def test_the_prompts_progress(page, server):
    page.open(server.url + "/")
    page.run(
        "window.seen = []; new MutationObserver(() => { if (!progress.hidden) seen.push([progress.value, progress.max,"
        "figures.textContent]) }).observe(document.getElementById('state'),"
        "{subtree: true, childList: true, attributes: true})"
    )
    ask(page, "word " * 250, max_tokens=4)
    ended(page)
    seen = page.run("seen")
    assert seen
    assert all(0 <= value < most for value, most, _ in seen)
    assert any(each.startswith("Reading the prompt: ") for _, _, each in seen)
    assert page.run("progress.hidden")


def test_thinking_is_switched_where_the_template_reads_it(page, server, tmp_path, start_server):
    page.open(server.url + "/")
    assert not page.tab.is_visible("#enable_thinking")
    template = tiny_gguf.CHAT_TEMPLATE + "{% if enable_thinking %}<think>{% endif %}"
    with start_server(tmp_path / "log", tiny_gguf.write(tmp_path / "t.gguf", chat_template=template)) as other:
        page.open(other.url + "/")
        for value, wanted in (("", None), ("true", True), ("false", False)):
            page.tab.select_option("#enable_thinking", value)
            ask(page, "Hello", max_tokens=3)
            finished(page)
            assert sent(page).get("enable_thinking") is wanted
            page.run("document.getElementById('figures').textContent = ''")


def test_a_server_that_is_away(page, server):
    """The message is not lost, the page asks again by itself, and a reply that was cut off can be continued."""
    page.open(server.url + "/")
    page.tab.route("**/v1/**", lambda route: route.abort())
    ask(page, "hello", max_tokens=6)
    page.wait("!document.getElementById('away').hidden")
    assert page.run("document.getElementById('prompt').value") == "hello"
    assert page.run("document.getElementById('problem').hidden"), "it is said once"
    page.click("#retry")
    page.wait("document.getElementById('away-text').textContent.includes('does not answer')")
    page.tab.unroute("**/v1/**")
    page.wait("document.getElementById('away').hidden")
    assert page.focused() == "prompt"
    page.press("Enter")
    ended(page)
    assert page.run(TEXTS)[0] == "hello"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 390)])
def test_it_breaks_no_rule_of_accessibility(page, server, tmp_path, pictures, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe: pip install 'slm[dev]'").Axe()
    call = {"id": "c", "function": {"name": "weather", "arguments": '{"city": "Bonn"}'}}
    text = "$$\\sum_i x_i$$ and $x$\n\n```py\ndef f(x): return 'a' + str(1)  # b\n```\n\n| a |\n|---|\n| b |"
    file = {"name": "n.txt", "text": "a"}
    turns = [
        {"id": "a", "parent": None, "role": "user", "content": "q", "files": [file]},
        {"id": "b", "parent": "a", "role": "assistant", "content": "first"},
        {"id": "c", "parent": "a", "role": "assistant", "content": text, "reasoning_content": "hm", "n_tokens": 50},
        {"id": "d", "parent": "c", "role": "user", "content": "and?"},
        {"id": "e", "parent": "d", "role": "assistant", "content": "", "tool_calls": [call]},
    ]
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"name": "x", "turns": turns}))
    page.scheme(scheme)
    (page.phone if width < 760 else page.size)(width, 844)
    page.open(server.url + "/")
    page.tab.set_input_files("#import-file", path)
    if width < 760:
        page.click("#show-chats")
    page.click("#chat-list .name")
    page.tab.set_input_files("#attach-file", path)
    page.wait("document.querySelector('#files li')")
    for panel in ("", "chats", "settings"):
        if panel and width < 760:
            page.click(f"#show-{panel}")
        if panel == "settings":
            page.click("#preset-save")
            page.click("#tool-new")
        page.tab.wait_for_timeout(100)
        page.screenshot(pictures / f"axe-{scheme}-{panel or 'text'}.png")
        assert page.run("document.documentElement.scrollWidth <= innerWidth")
        found = [each for each in axe.run(page.tab).response["violations"] if each["impact"] in ("serious", "critical")]
        assert not found, [(each["id"], [node["html"] for node in each["nodes"]]) for each in found]
    assert page.errors == []
