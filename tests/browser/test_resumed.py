"""A reply that was arriving when the page was left goes on when it is loaded again."""

import json

import httpx

from tests.helpers.playground import REPLY, ask, finished, stored

TEXTS = "[...document.querySelectorAll('.turn .text')].map((each) => each.textContent)"
POSTS = "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/v1/chat/completions')).length"
LENGTH = 600
SLOW = {
    "max_tokens": 1500,
    "response_format": "json_schema",
    "schema": json.dumps({"type": "string", "minLength": LENGTH, "maxLength": LENGTH}),
}


def test_a_reply_goes_on_after_a_reload(page, server):
    page.open(server.url + "/")
    ask(page, "slow", **SLOW)
    page.wait(f"{REPLY}.textContent.length > 20")
    begun = page.run(f"{REPLY}.textContent")
    stream = stored(page)[0]["arriving"]["stream"]
    page.open(page.tab.url)
    page.wait("document.querySelector('.assistant .actions') && document.getElementById('stop').disabled")
    page.wait(f"{REPLY}.textContent.length > {LENGTH}")
    turns = stored(page)[0]["turns"]
    assert [each["role"] for each in turns] == ["user", "assistant"]
    assert len(json.loads(turns[1]["content"])) == LENGTH
    assert page.run(TEXTS)[1].startswith(begun)
    assert page.run(POSTS) == 0
    assert "arriving" not in stored(page)[0]
    # The same is there for another client that knows the name, until somebody ends it.
    address = f"{server.url}/v1/stream?conv_id={stream}"
    again = httpx.get(address)
    assert again.text.endswith("data: [DONE]\n\n")
    assert httpx.get(f"{address}&from={len(again.content) - 8}").text == "[DONE]\n\n"
    assert httpx.get(f"{address}&from=-1").status_code == 400
    assert httpx.delete(address).status_code == 204
    assert httpx.get(address).status_code == 404
    assert page.errors == []


def test_stop_ends_a_reply_that_goes_on(page, server):
    page.open(server.url + "/")
    ask(page, "slow", **{**SLOW, "max_tokens": 3900, "schema": '{"type": "string", "minLength": 2900}'})
    page.wait(f"{REPLY}.textContent.length > 20")
    page.open(page.tab.url)
    page.wait("document.querySelector('.turn.busy')")
    page.click("#stop")
    finished(page)
    assert server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 0) < 5
    assert "arriving" not in stored(page)[0]


def test_a_reply_that_is_gone_is_said_once(page, server):
    page.open(server.url + "/")
    turns = [
        {"id": "a", "parent": None, "role": "user", "content": "hello"},
        {"id": "b", "parent": "a", "role": "assistant", "content": "What had arrived"},
    ]
    arriving = {"stream": "0123456789abcdef", "after": "a", "turn": "b", "begun": None, "model": "m"}
    record = {"id": "c", "name": "hello", "updated": 1, "system": "", "turns": turns, "end": "b", "arriving": arriving}
    page.run(
        """new Promise((resolve) => {
          localStorage.setItem("slm.open", "c");
          const opening = indexedDB.open("slm", 1);
          opening.onsuccess = () => {
            const transaction = opening.result.transaction("conversations", "readwrite");
            transaction.objectStore("conversations").put(RECORD);
            transaction.oncomplete = () => { opening.result.close(); resolve(); };
          };
        })""".replace("RECORD", json.dumps(record))
    )
    page.open(page.tab.url)
    page.wait("!document.getElementById('notice').hidden")
    assert "rest of this reply is gone" in page.text("#notice")
    assert page.run(TEXTS) == ["hello", "What had arrived"]
    page.wait("document.getElementById('stop').disabled")
    page.tab.wait_for_timeout(100)
    page.open(page.tab.url)
    page.tab.wait_for_timeout(100)
    assert not page.tab.is_visible("#notice")
