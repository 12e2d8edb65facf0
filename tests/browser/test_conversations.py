"""Conversations on the server's page: kept over a reload, listed, renamed, deleted, edited, exported and imported."""

import json
from itertools import pairwise

import pytest

from tests.helpers import tiny_gguf, tool_templates
from tests.helpers.playground import REPLY, ask, finished, sent, show_probabilities, stored

NAMES = "[...document.querySelectorAll('#chat-list .name')].map((each) => each.textContent)"
TEXTS = "[...document.querySelectorAll('.turn .text')].map((each) => each.textContent)"
LEFT = "Object.keys(localStorage).filter((key) => key.startsWith('slm.conversation.'))"
WHO = "[...document.querySelectorAll('.turn')].map((each) => each.classList[1])"


def reload(page):
    page.open(page.tab.url)


def chat(page, text, **settings):
    ask(page, text, **{"max_tokens": 8, **settings})
    finished(page)
    page.wait(f"{REPLY}.textContent")


def load(page, tmp_path, value, name="import.json"):
    """Give a file to the page's import."""
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    page.tab.set_input_files("#import-file", path)
    page.wait("!document.getElementById('notice').hidden")


def put(page, *records):
    """Write records into the browser's storage as another program would."""
    page.run(
        """new Promise((resolve) => {
          const opening = indexedDB.open("slm", 1);
          opening.onsuccess = () => {
            const transaction = opening.result.transaction("conversations", "readwrite");
            for (const each of RECORDS) transaction.objectStore("conversations").put(each);
            transaction.oncomplete = () => { opening.result.close(); resolve(); };
          };
        })""".replace("RECORDS", json.dumps(records))
    )


def conversation(*contents, **more):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(contents)], **more}


def test_they_are_kept_over_a_reload(page, server):
    page.open(server.url + "/")
    assert page.run(NAMES) == []
    page.run("document.getElementById('system').focus()")
    page.type("Be brief.")
    chat(page, "hello there")
    texts = page.run(TEXTS)
    assert page.run(NAMES) == ["hello there"]
    reload(page)
    assert page.run(NAMES) == ["hello there"]
    assert page.run(TEXTS) == texts
    assert page.run("document.getElementById('system').value") == "Be brief."
    chat(page, "and then?")
    body = sent(page)
    assert [each["role"] for each in body["messages"]] == ["system", "user", "assistant", "user"]
    assert all(set(each) == {"role", "content"} for each in body["messages"])
    assert page.errors == []


def test_settings_are_kept_and_can_be_reset(page, server):
    page.open(server.url + "/")
    page.tab.fill("#temperature", "0.3")
    page.tab.select_option("#response_format", "json_schema")
    reload(page)
    assert page.run("document.getElementById('temperature').value") == "0.3"
    assert page.tab.is_visible("#schema")
    page.click("#defaults")
    reload(page)
    assert page.run("document.getElementById('temperature').value") == "0.8"
    assert not page.tab.is_visible("#schema")


def test_several_new_renamed_deleted(page, server):
    page.open(server.url + "/")
    chat(page, "first question")
    page.click("#new")
    assert page.run(TEXTS) == []
    chat(page, "second question")
    assert page.run(NAMES) == ["second question", "first question"]
    page.click("text=first question")
    assert page.run(TEXTS)[0] == "first question"
    assert page.run("document.querySelector('[aria-current]').textContent") == "first question"
    page.click("#chat-list >> text=Rename")
    page.tab.keyboard.press("Control+A")
    page.type("<b>Mine</b>")
    page.press("Enter")
    assert page.run(NAMES) == ["second question", "<b>Mine</b>"]
    assert page.run("document.querySelectorAll('#chat-list b').length") == 0
    page.click("#chat-list >> text=Rename")
    page.type("not this")
    page.press("Escape")
    assert page.run(NAMES)[1] == "<b>Mine</b>"
    reload(page)
    assert page.run(TEXTS)[0] == "first question"  # the one that was open
    page.click("#chat-list >> text=Delete")
    assert page.run(NAMES) == ["second question"]
    page.click("text=Undo")
    assert page.run(NAMES) == ["second question", "<b>Mine</b>"]
    assert page.run(TEXTS)[0] == "first question"
    page.click("#chat-list >> text=Delete")
    reload(page)
    assert page.run(NAMES) == ["second question"]


def test_a_reply_goes_to_the_conversation_that_asked(page, server):
    page.open(server.url + "/")
    long = {"max_tokens": 3000, "response_format": "json_schema", "schema": '{"type": "string", "minLength": 1000}'}
    ask(page, "slow question", **long)
    page.wait(f"{REPLY}.textContent.length > 20")
    page.click("#new")
    assert page.run(TEXTS) == []
    page.wait("document.getElementById('stop').disabled")
    assert page.run(TEXTS) == []
    assert page.run(NAMES) == ["slow question"]
    page.click("text=slow question")
    assert len(page.run(TEXTS)) == 2
    # One that is deleted meanwhile does not come back with its reply.
    ask(page, "another", **long)
    page.wait("document.querySelectorAll('.assistant').length == 2")
    page.click("#chat-list >> text=Delete")
    page.wait("document.getElementById('stop').disabled")
    assert page.run(NAMES) == []
    assert page.run(TEXTS) == []


def test_what_has_arrived_is_kept_when_the_page_is_left(page, server):
    page.open(server.url + "/")
    ask(page, "slow", max_tokens=3000, response_format="json_schema", schema='{"type": "string", "minLength": 1000}')
    page.wait(f"{REPLY}.textContent.length > 20")
    # What the database is given while the page is left need not arrive there.
    page.run("void (IDBObjectStore.prototype.put = () => {})")
    reload(page)
    assert page.run(TEXTS)[0] == "slow"
    page.wait(f"{REPLY}.textContent.length > 20")
    page.click("#stop")  # it goes on: test_resumed.py
    finished(page)
    assert len(stored(page)[0]["turns"][1]["content"]) > 20
    assert page.run(LEFT) == []


NOTHING_ARRIVES = """
    void (window.transaction = IDBDatabase.prototype.transaction,
          IDBDatabase.prototype.transaction = () => ({objectStore: () => ({put() {}, delete() {}})}))
"""


def test_what_was_done_last_is_kept_when_the_page_is_left(page, server):
    page.open(server.url + "/")
    for text in ("first", "second", "third"):
        chat(page, text)
        page.click("#new")
    page.run(NOTHING_ARRIVES)
    page.click("text=third")
    page.click("#chat-list >> text=Delete")
    page.click("text=first")
    page.click("#chat-list >> text=Rename")
    page.tab.keyboard.press("Control+A")
    page.type("the oldest")
    page.press("Enter")
    for _ in range(2):
        reload(page)
        assert page.run(NAMES) == ["second", "the oldest"]
        assert page.run(LEFT) == []
    # A page that comes back as it was left goes on: what it does then counts.
    page.run(NOTHING_ARRIVES)
    page.click("#chat-list >> text=Delete")
    page.run("void (IDBDatabase.prototype.transaction = window.transaction)")
    page.run("dispatchEvent(new PageTransitionEvent('pagehide', {persisted: true}))")
    page.run("dispatchEvent(new PageTransitionEvent('pageshow', {persisted: true}))")
    page.click("text=Undo")
    reload(page)
    assert len(page.run(NAMES)) == 2


def test_a_message_is_kept_when_the_page_is_left_before_the_reply(page, server):
    page.open(server.url + "/")
    chat(page, "first")
    page.tab.route("**/v1/chat/completions", lambda route: None)  # no answer comes
    for text, turns in (("second", 3), ("third", 5)):
        ask(page, text, max_tokens=8)
        page.wait("document.getElementById('send').disabled")
        reload(page)
        assert page.run(TEXTS)[-1] == text
        assert len(page.run(TEXTS)) == turns
        page.tab.unroute("**/v1/chat/completions")
        page.run("document.getElementById('max_tokens').value = 8")
        page.tab.click(".turn:last-child >> text=Get a reply")
        finished(page)
        page.wait(f"document.querySelectorAll('.assistant .actions').length == {turns // 2 + 1}")
        assert page.run(WHO)[-2:] == ["user", "assistant"]
        page.tab.route("**/v1/chat/completions", lambda route: None)
    # In a new conversation, too; and one whose request is refused leaves nothing behind.
    page.click("#new")
    ask(page, "alone", max_tokens=8)
    page.wait("document.getElementById('send').disabled")
    reload(page)
    assert page.run(TEXTS) == ["alone"]
    page.tab.unroute("**/v1/chat/completions")
    page.click("#new")
    ask(page, "long " * 5000)
    page.wait("!document.getElementById('problem').hidden")
    assert page.run(NAMES) == ["alone", "first"]
    reload(page)
    assert page.run(NAMES) == ["alone", "first"]


def test_regenerate(page, server):
    page.open(server.url + "/")
    chat(page, "one", seed=1)
    chat(page, "two", seed=1, temperature=1)
    assert page.run("[...document.querySelectorAll('.regenerate')].filter((each) => each.offsetParent).length") == 1
    first = page.run(TEXTS)
    page.run("document.getElementById('seed').value = '2'")
    page.run("document.getElementById('figures').textContent = ''")
    page.tab.click(".turn:last-child .regenerate")
    finished(page)
    again = page.run(TEXTS)
    assert again[:3] == first[:3]
    assert len(again) == 4
    assert again[3] != first[3]
    body = sent(page)
    assert [each["role"] for each in body["messages"]] == ["user", "assistant", "user"]
    # A failure leaves the reply that was there.
    page.run("document.getElementById('stop_text').value = 'x'.repeat(300)")
    page.tab.click(".turn:last-child .regenerate")
    page.wait("!document.getElementById('problem').hidden")
    assert page.run(TEXTS) == again
    reload(page)
    assert page.run(TEXTS) == again


def test_edit_and_send_again(page, server):
    page.open(server.url + "/")
    chat(page, "one")
    chat(page, "two")
    before = page.run(TEXTS)
    page.tab.click(".turn.user >> nth=0 >> text=Edit")
    assert page.run("document.activeElement.value") == "one"
    page.press("Escape")
    assert page.run(TEXTS) == before
    page.tab.click(".turn.user >> nth=0 >> text=Edit")
    page.tab.keyboard.press("Control+A")
    page.type("uno")
    page.run("document.getElementById('figures').textContent = ''")
    page.click("text=Send again")
    finished(page)
    page.wait(f"{REPLY}.textContent")
    assert page.run(WHO) == ["user", "assistant"]
    assert page.run(TEXTS)[0] == "uno"
    reload(page)
    assert page.run(TEXTS)[0] == "uno"
    # A failure leaves the conversation and what was typed meanwhile.
    page.run("document.getElementById('prompt').value = 'draft'")
    before = page.run(TEXTS)
    page.tab.click(".turn.user >> text=Edit")
    page.type(" long" * 5000)
    page.press("Enter")
    page.wait("!document.getElementById('problem').hidden")
    page.wait("document.querySelector('.edit textarea')")
    assert " long" * 5000 in page.run("document.querySelector('.edit textarea').value"), "what was typed is lost"
    page.run("document.querySelector('.edit textarea').focus()")
    page.press("Escape")
    assert page.run(TEXTS) == before
    assert page.run("document.getElementById('prompt').value") == "draft"


def test_no_message_is_lost(page, server):
    """Neither where the next one is being typed when its request fails, nor where another conversation is opened."""
    page.open(server.url + "/")
    chat(page, "first")
    held = []
    page.tab.route("**/v1/chat/completions", lambda route: held.append(route))
    ask(page, "second")
    page.wait("document.getElementById('send').disabled")
    page.type("third")
    page.run("document.getElementById('system').focus()")
    held.pop().fulfill(status=503, json={"error": {"message": "too busy"}})
    page.wait("!document.getElementById('problem').hidden")
    assert page.run("document.getElementById('prompt').value") == "third"
    assert page.run(WHO) == ["user", "assistant", "user"]
    assert page.run(TEXTS)[-1] == "second"
    assert page.focused() == "system", "the focus was taken from a field in use"
    page.run("document.getElementById('prompt').value = ''")
    page.click("#new")
    ask(page, "alone")
    page.wait("document.getElementById('send').disabled")
    page.click("text=first")
    page.wait("!document.getElementById('send').disabled")
    assert page.run("document.getElementById('prompt').value") == ""
    assert page.run(NAMES) == ["alone", "first"]
    page.click("text=alone")
    assert page.run(TEXTS) == ["alone"]


def test_the_open_conversation_chosen_again_goes_on(page, server):
    page.open(server.url + "/")
    ask(page, "slow", max_tokens=3000, response_format="json_schema", schema='{"type": "string", "minLength": 1000}')
    page.wait(f"{REPLY}.textContent.length > 20")
    page.click("#chat-list .name")
    page.click("#tab-chat")
    finished(page)
    assert "stopped by you" not in page.text("#figures")
    assert page.run("document.querySelectorAll('.assistant .actions').length") == 1


def test_copy(page, server, tmp_path):
    page.open(server.url + "/")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    text = "Use **this**:\n\n```py\nprint(1)\n```"
    load(page, tmp_path, conversation("how?", text))
    page.click("#chat-list .name")
    page.tab.click(".assistant > .actions >> text=Copy")
    assert page.run("navigator.clipboard.readText()") == text
    page.tab.click(".code-head >> text=Copy")
    page.wait("document.querySelector('.code-head button').textContent == 'Copied'")
    assert page.run("navigator.clipboard.readText()") == "print(1)"


def test_probabilities_can_be_shown_and_hidden_later(page, server):
    page.open(server.url + "/")
    show_probabilities(page)
    chat(page, "hello")
    assert page.run("document.querySelectorAll('#output .token').length") > 3
    page.click("#probabilities")
    assert page.run("document.querySelectorAll('#output .token').length") == 0
    assert page.run("document.querySelectorAll('#output .prose').length") == 1
    page.click("#probabilities")
    assert page.run("document.querySelectorAll('#output .token').length") > 3


def test_export_and_import(page, server, tmp_path):
    page.open(server.url + "/")
    page.tab.fill("#system", "Be brief.")
    chat(page, "hello there")
    page.click("#new")
    chat(page, "\U0001f98a <b>x</b>")
    with page.tab.expect_download() as waiting:
        page.click("#export")
    assert waiting.value.suggested_filename.startswith("slm-conversations-")
    exported = tmp_path / "exported.json"
    waiting.value.save_as(exported)
    value = json.loads(exported.read_text())
    assert value["format"] == "slm.conversations"
    assert [each["name"] for each in value["conversations"]] == ["\U0001f98a <b>x</b>", "hello there"]
    roles = [message["role"] for message in value["conversations"][1]["messages"]]
    assert roles == ["system", "user", "assistant"]
    names, texts = page.run(NAMES), page.run(TEXTS)
    # Another browser, which had none.
    page.renew()
    page.open(server.url + "/")
    load(page, tmp_path, exported.read_text())
    assert page.text("#notice") == "Imported 2 conversations."
    assert page.run(NAMES) == names
    page.click("#chat-list .name")
    assert page.run(TEXTS) == texts
    assert page.run("document.getElementById('system').value") == "Be brief."
    reload(page)
    assert page.run(NAMES) == names


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "no conversations"),
        ("3", '"messages" must be a list'),
        ("null", '"messages" must be a list'),
        ({"messages": "x"}, '"messages" must be a list'),
        ({"messages": [{"role": "wizard", "content": "x"}]}, 'Conversation 1 of the file: message 1: "role" must be'),
        ([conversation("a"), {"messages": [{"role": "user"}]}], "Conversation 2 of the file"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, '"content" must be text'),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, '"tool_calls" must be'),
    ],
)
def test_a_file_that_cannot_be_imported(page, server, tmp_path, value, reason):
    page.open(server.url + "/")
    load(page, tmp_path, value)
    assert page.text("#notice").startswith("Not imported. ")
    assert reason in page.text("#notice")
    assert page.run(NAMES) == []
    assert page.errors == []


def test_hostile_text_in_a_conversation_stays_text(page, server, tmp_path):
    page.open(server.url + "/")
    evil = "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script> [x](javascript:window.hacked=1)"
    calls = [{"id": "1", "function": {"name": evil, "arguments": json.dumps({evil: evil})}}]
    messages = [
        {"role": "system", "content": evil},
        {"role": "user", "content": evil},
        {"role": "assistant", "content": evil, "model": evil, "tool_calls": calls},
    ]
    load(page, tmp_path, {"name": evil, "messages": messages})
    page.click("#chat-list .name")
    for _ in range(2):
        assert page.run("document.querySelectorAll('#output img, #output script, #output a, nav img').length") == 0
        assert page.text(".assistant .prose p") == evil
        assert page.text(".user .text") == evil
        assert page.run("window.hacked ?? null") is None
        assert page.errors == []
        assert all(url.startswith(server.url) for url in page.requested())
        reload(page)


def test_broken_storage_is_no_end(page, server):
    """Entries of other programs or versions are left alone; a full storage is said, and the chat goes on."""
    page.open(server.url + "/")
    for key, value in {"slm.conversation.a": "{", "slm.conversation.b": "{}", "slm.settings": "[", "x": "y"}.items():
        page.run(f"localStorage.setItem({json.dumps(key)}, {json.dumps(value)})")
    put(page, {"id": "c"}, {"id": "d", "turns": [{"id": "1", "parent": "1", "role": "user", "content": "x"}]})
    reload(page)
    assert page.run(NAMES) == []
    assert page.errors == []
    assert page.run("localStorage.getItem('slm.conversation.a')") == "{"
    assert [each["id"] for each in stored(page)] == ["c", "d"]
    page.run("void (IDBObjectStore.prototype.put = () => { throw new DOMException('full', 'QuotaExceededError') })")
    chat(page, "hello")
    assert "storage is full" in page.text("#problem")
    assert page.run(WHO) == ["user", "assistant"]
    assert page.run(NAMES) == ["hello"]


def test_what_versions_before_kept_is_taken_over(page, server):
    page.open(server.url + "/")
    old = {"name": "Old", "updated": 5, "system": "Be brief.", **conversation("one", "two")}
    page.run(f"localStorage.setItem('slm.conversation.abc', {json.dumps(json.dumps(old))})")
    page.run("localStorage.setItem('slm.open', 'abc')")
    for _ in range(2):
        reload(page)
        assert page.run(NAMES) == ["Old"]
        assert page.run(TEXTS) == ["one", "two"]
        assert page.run("document.getElementById('system').value") == "Be brief."
        assert page.run("localStorage.getItem('slm.conversation.abc')") is None
        assert [each["id"] for each in stored(page)] == ["abc"]
    assert page.errors == []


def test_two_tabs(page, server):
    page.open(server.url + "/")
    other = page.context.new_page()
    other.goto(server.url + "/")
    chat(page, "from the first tab")
    other.wait_for_selector("#chat-list .name")
    assert other.text_content("#chat-list .name") == "from the first tab"
    # What one of them adds to the conversation that both have open is seen in the other.
    other.click("#chat-list .name")
    chat(page, "and more")
    other.wait_for_selector(".turn >> nth=3")
    assert other.text_content(".turn.user >> nth=1 >> .text") == "and more"


STREAM = """data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": null}]}

data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", \
"function": {"name": "weather", "arguments": ""}}]}, "finish_reason": null}]}

data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{\\"city\\": "}}]}, \
"finish_reason": null}]}

data: {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "\\"<b>Bonn</b>\\", \
\\"days\\": 2}"}}]}, "finish_reason": null}]}

data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}

data: [DONE]

"""


def test_a_tool_call(page, server, pictures):
    """As OpenAI's API streams one, for servers behind this page that make them: the stream is given here."""
    page.open(server.url + "/")
    page.tab.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=STREAM))
    ask(page, "What is the weather?")
    finished(page)
    for _ in range(2):
        page.wait("document.querySelector('.call')")
        assert page.text(".call p") == "Tool call: weather"
        assert page.run("[...document.querySelectorAll('.call dt')].map((each) => each.textContent)") == [
            "city",
            "days",
        ]
        assert page.run("[...document.querySelectorAll('.call dd')].map((each) => each.textContent)") == [
            "<b>Bonn</b>",
            "2",
        ]
        page.screenshot(pictures / "tool_call.png")
        reload(page)
    assert page.errors == []


def test_reasoning_is_shown_folded_and_kept(page, tmp_path, start_server):
    script = ["\n", "<think>", "Which day?", "</think>\n\n", "It is sunny.", "<|im_end|>"]
    path = tiny_gguf.write(
        tmp_path / "thinker.gguf",
        chat_template=tool_templates.QWEN_THINKING,
        n_ctx=1024,
        script=dict(pairwise(script)),
    )
    with start_server(tmp_path / "log", path) as server:
        page.open(server.url + "/")
        chat(page, "How is the weather?", temperature=0, max_tokens=60)
        for _ in range(2):
            page.wait("document.querySelector('.thought')")
            assert page.text(".thought summary") == "Reasoning"
            assert page.text(".thought div") == "Which day?"
            assert page.run("document.querySelector('.thought').open") is False
            assert page.text(".assistant .prose") == "It is sunny."
            reload(page)
        # A reply that ends within its reasoning stays, too, and the conversation goes on.
        chat(page, "And now?", temperature=0, max_tokens=3)
        page.wait("document.querySelectorAll('.thought').length === 2")
        assert page.run("[...document.querySelectorAll('.thought')].at(-1).open") is True
        assert page.run("document.querySelector('#prompt').value") == ""
        chat(page, "Really?", temperature=0, max_tokens=60)
        page.wait("document.querySelectorAll('.assistant .prose').length === 2")
        assert page.errors == []
