"""Other versions of a turn: edited messages, regenerated, edited and continued replies."""

import json

from tests.helpers.playground import REPLY, ask, finished, sent, stored

TEXTS = "[...document.querySelectorAll('.turn .text')].map((each) => each.textContent)"
COUNTS = "[...document.querySelectorAll('.versions .quiet')].map((each) => each.textContent)"


def chat(page, text, **settings):
    ask(page, text, **{"max_tokens": 8, **settings})
    ended(page)


def ended(page):
    finished(page)
    page.wait(f"{REPLY}.textContent && document.querySelector('.turn:last-child > .actions')")


def test_versions_of_messages_and_replies(page, server):
    page.open(server.url + "/")
    chat(page, "one", seed=1)
    chat(page, "two", seed=1)
    first = page.run(TEXTS)
    assert page.run(COUNTS) == []
    page.run("document.getElementById('seed').value = '2'")
    page.click(".turn:last-child .regenerate")
    page.wait(f"{COUNTS}.length == 1")
    ended(page)
    again = page.run(TEXTS)
    assert again[:3] == first[:3]
    assert again[3] != first[3]
    assert page.run(COUNTS) == ["2/2"]
    # Arrows lead there and back, by mouse and by keyboard, and the focus stays where one can go on.
    page.click(".turn:last-child [aria-label='Previous version']")
    assert page.run(TEXTS) == first
    assert page.run(COUNTS) == ["1/2"]
    assert page.run("document.activeElement.ariaLabel") == "Next version"
    page.press("Enter")
    assert page.run(TEXTS) == again
    # Another version of the first message has another continuation.
    page.click(".turn.user >> nth=0 >> text=Edit")
    page.tab.keyboard.press("Control+A")
    page.type("uno")
    page.run("document.getElementById('figures').textContent = ''")
    page.press("Enter")
    ended(page)
    assert page.run(TEXTS)[0] == "uno"
    assert len(page.run(TEXTS)) == 2
    assert [each["content"] for each in sent(page)["messages"]] == ["uno"]
    page.click(".turn.user >> nth=0 >> [aria-label='Previous version']")
    assert page.run(TEXTS) == again
    assert page.run(COUNTS) == ["1/2", "2/2"]
    # What is sent next follows what is shown, and all of it is there after a reload.
    page.click(".turn:last-child [aria-label='Previous version']")
    chat(page, "three")
    assert [each["content"] for each in sent(page)["messages"]] == [*first, "three"]
    shown = page.run(TEXTS)
    page.open(page.tab.url)
    assert page.run(TEXTS) == shown
    assert page.run(COUNTS) == ["1/2", "1/2"]
    assert len(stored(page)[0]["turns"]) == 9
    assert page.errors == []


def test_a_failed_version_leaves_what_was_shown(page, server):
    page.open(server.url + "/")
    chat(page, "one")
    before = page.run(TEXTS)
    page.run("document.getElementById('stop_text').value = 'x'.repeat(300)")
    for way in (".regenerate", "text=Continue"):
        page.click(f".turn:last-child >> {way}")
        page.wait("!document.getElementById('problem').hidden && document.getElementById('stop').disabled")
        assert page.run(TEXTS) == before
        assert page.run(COUNTS) == []
        assert len(stored(page)[0]["turns"]) == 2


def test_a_reply_is_edited_and_continued(page, server):
    page.open(server.url + "/")
    chat(page, "one", seed=5)
    first = page.run(TEXTS)[1]
    page.click(".assistant >> text=Edit")
    assert page.run("document.activeElement.value") == first
    page.tab.keyboard.press("Control+A")
    page.type("Once upon")
    page.run("document.getElementById('figures').textContent = ''")
    page.click("text=Save and continue")
    ended(page)
    longer = page.run(TEXTS)[1]
    assert longer.startswith("Once upon")
    assert len(longer) > len("Once upon")
    assert [each["content"] for each in sent(page)["messages"]] == ["one", "Once upon"]
    assert page.run(COUNTS) == ["2/2"]
    # On from there, in place.
    page.run("document.getElementById('figures').textContent = ''")
    page.click(".assistant > .actions >> text=Continue")
    ended(page)
    assert page.run(TEXTS)[1].startswith(longer)
    assert len(page.run(TEXTS)[1]) > len(longer)
    assert page.run(COUNTS) == ["2/2"]
    # Saved without a request.
    n = len(page.requests)
    page.click(".assistant >> text=Edit")
    page.tab.keyboard.press("Control+A")
    page.type("Mine")
    page.click("text=Save >> nth=0")
    assert page.run(TEXTS)[1] == "Mine"
    assert page.run(COUNTS) == ["3/3"]
    assert not [each for each in page.requests[n:] if each.post_data]
    page.click("[aria-label='Previous version']")
    page.click("[aria-label='Previous version']")
    assert page.run(TEXTS)[1] == first


def test_versions_are_exported_and_imported(page, server, tmp_path):
    turns = [
        {"id": "a", "parent": None, "role": "user", "content": "q", "files": [{"name": "n.txt", "text": "a ``` b"}]},
        {"id": "b", "parent": "a", "role": "assistant", "content": "first"},
        {"id": "c", "parent": "a", "role": "assistant", "content": "second"},
    ]
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"name": "x", "turns": turns, "end": "b"}))
    page.open(server.url + "/")
    page.tab.set_input_files("#import-file", path)
    page.click("#chat-list .name")
    for _ in range(2):
        assert page.run(TEXTS) == ["q", "first"]
        assert page.run(COUNTS) == ["1/2"]
        with page.tab.expect_download() as waiting:
            page.click("#export")
        waiting.value.save_as(path)
        value = json.loads(path.read_text())["conversations"][0]
        # OpenAI's form has what is shown, with the file in the text; the rest is there, too.
        assert [each["content"] for each in value["messages"]] == ["n.txt:\n````\na ``` b\n````\n\nq", "first"]
        assert [each["content"] for each in value["turns"]] == ["q", "first", "second"]
        page.renew()
        page.open(server.url + "/")
        page.tab.set_input_files("#import-file", path)
        page.click("#chat-list .name")
    for parent, why in (("c", "earlier turn"), ("zz", "earlier turn")):
        turns[1]["parent"] = parent
        path.write_text(json.dumps({"turns": turns}))
        page.tab.set_input_files("#import-file", path)
        page.wait(f"document.getElementById('notice').textContent.includes('{why}')")
