"""The web page in a real browser, against a real server."""

import json
import time

import httpx
import pytest

from tests.helpers.playground import REPLY, ask, finished, sent, show_probabilities, stored


def test_it_loads_alone_and_tells_about_the_model(page, server):
    page.open(server.url + "/")
    facts = page.text("#facts")
    for part in ("llama", "M parameters", "MiB", "context 4096", "chat template"):
        assert part in facts
    assert page.text("#model") == "chatty"
    assert page.focused() == "prompt"
    assert page.errors == []
    assert page.requested()
    assert all(url.startswith(server.url + "/") for url in page.requested())
    headers = httpx.get(server.url + "/").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert httpx.get(server.url + "/web/nothing.js").status_code == 404
    assert httpx.get(server.url + "/web/..%2fapp.py").status_code == 404


def to_max_tokens(route):
    """Send a request on so that its reply has all the tokens that it may have."""
    route.continue_(post_data={**route.request.post_data_json, "ignore_eos": True})


def test_a_chat_streams_and_shows_its_figures(page, server):
    page.open(server.url + "/")
    page.run(
        f"window.lengths = new Set(); new MutationObserver(() => lengths.add({REPLY}?.textContent.length || 0))"
        ".observe(document.querySelector('#output'), {childList: true, characterData: true, subtree: true})"
    )
    page.tab.route("**/v1/chat/completions", to_max_tokens)
    ask(page, "hello", max_tokens=1500)
    assert page.text(".user .text") == "hello"
    finished(page)
    page.tab.unroute("**/v1/chat/completions")
    # None, some of it, all of it; how many in between is up to how often a busy machine paints. The model is so fast
    # that a short reply is there before such a machine has painted twice.
    assert page.run("lengths.size") > 3, "the reply came in one piece"
    figures = page.text("#figures")
    for part in ("tokens", "first after", "tokens/s", "prompt", "ended at max tokens"):
        assert part in figures
    page.wait(f"{REPLY}.textContent")
    # The next message brings the conversation along.
    ask(page, "and then?", max_tokens=5)
    finished(page)
    assert page.run("document.querySelectorAll('.assistant').length") == 2
    body = sent(page)
    assert [each["role"] for each in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == stored(page)[0]["turns"][1]["content"]
    assert page.errors == []


def test_the_text_is_the_servers(page, server):
    page.open(server.url + "/")
    show_probabilities(page)
    ask(page, "hello", temperature=0, max_tokens=40)
    finished(page)
    with_marks = page.run(f"{REPLY}.textContent")
    body = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 40}
    said = httpx.post(server.url + "/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
    # Bytes that make no character show as one replacement or another.
    assert with_marks.replace("\ufffd", "") == said.replace("\ufffd", "")
    page.click("#tab-completion")
    page.click("#probabilities")
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 40}
    said = httpx.post(server.url + "/v1/completions", json=body).json()["choices"][0]["text"]
    ask(page, "hello", temperature=0, max_tokens=40)
    finished(page)
    assert page.text("#output .text") == "hello" + said
    assert page.run("document.querySelectorAll('#output .token').length") == 0


def test_probabilities_by_mouse_and_by_keyboard(page, server):
    page.open(server.url + "/")
    show_probabilities(page)
    ask(page)
    finished(page)
    page.tab.hover("#output .token")
    page.wait("!document.getElementById('tip').hidden")
    rows = page.run("[...document.querySelectorAll('#tip tr')].map((row) => row.cells[1].textContent)")
    assert len(rows) >= 5
    shares = [float(row.removesuffix(" %")) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100.5
    assert page.run("document.querySelectorAll('#tip .picked').length") == 1
    page.press("Escape")
    assert page.run("document.getElementById('tip').hidden")
    page.run("document.getElementById('output').focus()")
    for _ in range(3):
        page.press("ArrowRight")
    tokens = "[...document.querySelectorAll('#output .token')].filter((token) => token.textContent)"
    chosen = f"{tokens}.indexOf(document.querySelector('.chosen'))"
    assert page.run(chosen) == 2
    page.press("ArrowLeft")
    assert page.run(chosen) == 1
    assert not page.run("document.getElementById('tip').hidden")


@pytest.mark.parametrize("by_key", [True, False])
def test_stop(page, server, by_key):
    page.open(server.url + "/")
    show_probabilities(page)
    # A text that cannot end early.
    page.run("document.getElementById('response_format').value = 'json_schema'")
    ask(page, max_tokens=3000, schema='{"type": "string", "minLength": 2900}')
    page.wait("document.querySelectorAll('#output .token').length > 5")
    assert page.run("document.getElementById('send').disabled")
    if by_key:
        page.press("Escape")
    else:
        page.click("#stop")
    finished(page)
    assert "stopped by you" in page.text("#figures")
    assert server.wait(lambda: server.metrics()["slm_sequences_in_flight"] == 0) < 1
    n = page.run("document.querySelectorAll('#output .token').length")
    time.sleep(0.3)
    assert page.run("document.querySelectorAll('#output .token').length") == n
    assert page.focused() == "prompt"


def test_completion_goes_on_from_the_text(page, server):
    page.open(server.url + "/")
    page.click("#tab-completion")
    assert page.text("#send") == "Continue"
    ask(page, "once upon a time", temperature=0)
    finished(page)
    body = {"prompt": "once upon a time", "temperature": 0, "max_tokens": 24}
    said = httpx.post(server.url + "/v1/completions", json=body).json()["choices"][0]["text"]
    assert page.text("#output .text") == "once upon a time" + said
    assert page.text(".given") == "once upon a time"


def test_json_of_a_schema(page, server):
    page.open(server.url + "/")
    page.tab.select_option("#response_format", "json_schema")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    ask(page, schema=json.dumps(schema), max_tokens=200)
    finished(page)
    page.wait(f"{REPLY}.textContent.includes('}}')")
    assert json.loads(page.text(".assistant pre")).keys() == {"ok"}
    ask(page, schema="{", max_tokens=200)
    assert "not valid JSON" in page.text("#problem")
    ask(page, schema='{"type": "string", "pattern": "(?=a)"}')
    page.wait("!document.getElementById('problem').hidden")
    assert "'pattern'" in page.text("#problem")
    assert page.focused() == "schema"


def test_mistakes_are_shown_and_the_message_is_kept(page, server):
    page.open(server.url + "/")
    ask(page, "hello", temperature=-1)
    assert page.text("#problem").startswith("Temperature: ")
    assert page.focused() == "temperature"
    ask(page, " there", temperature=1, max_tokens=3)
    finished(page)
    assert page.run("document.getElementById('problem').hidden")
    ask(page, "long " * 5000)
    page.wait("!document.getElementById('problem').hidden")
    assert "maximum context length" in page.text("#problem")
    assert page.run("document.getElementById('prompt').value").startswith("long")
    assert page.run("document.querySelectorAll('.user').length") == 1


CUT_OFF = """: ping

data: {"dropped_messages": 2, "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}

data: {"choices": [{"index": 0, "delta": {"content": "Well"}, "finish_reason": null}]}

: ping

data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length", "stopped_by": "%s"}]}

data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 5000, "total_tokens": 5009}}

data: [DONE]

"""


@pytest.mark.parametrize(("stopped_by", "said"), [("context", "the end of the context"), ("timeout_s", "time limit")])
def test_the_server_says_what_cut_a_reply_off(page, server, stopped_by, said):
    """The page does not guess it from numbers: here they would say something else."""
    page.open(server.url + "/")
    page.tab.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(content_type="text/event-stream", body=CUT_OFF % stopped_by),
    )
    ask(page)
    finished(page)
    page.wait(f"document.getElementById('figures').textContent.endsWith('{said}')")
    assert "2 oldest messages dropped" in page.text("#figures")


def test_a_chat_that_outgrows_the_context_goes_on(page, server, tmp_path):
    page.open(server.url + "/")
    text = "the old fox and the little bird went to the river " * 20
    messages = [{"role": role, "content": text} for _ in range(8) for role in ("user", "assistant")]
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"messages": messages}))
    page.tab.set_input_files("#import-file", path)
    page.wait("document.querySelector('#chat-list .name')")
    page.click("#chat-list .name")
    page.tab.select_option("#truncation", "disabled")
    ask(page, "hello", max_tokens=4)
    page.wait("!document.getElementById('problem').hidden")
    assert "truncation" in page.text("#problem")
    page.tab.select_option("#truncation", "auto")
    page.run("document.getElementById('prompt').value = ''")
    ask(page, "hello", max_tokens=4)
    page.wait("document.getElementById('figures').textContent.includes('oldest messages dropped')")
    assert page.run("document.querySelectorAll('.turn').length") == 18, "the page still shows all of them"
    # The other mode has no such field.
    page.click("#tab-completion")
    assert not page.tab.is_visible("#truncation")
    ask(page, "hello", max_tokens=4)
    finished(page)
    assert page.run("document.getElementById('problem').hidden")


def test_text_of_a_model_is_text(page, server):
    page.open(server.url + "/")
    page.click("#tab-completion")
    ask(page, "<img src=x onerror=alert(1)><b>bold</b>", max_tokens=2)
    finished(page)
    assert page.run("document.querySelectorAll('#output img, #output b').length") == 0
    assert page.errors == []


def test_a_base_model_begins_with_completion(page, tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path) as server:
        page.open(server.url + "/")
        assert "base model" in page.text("#facts")
        assert page.run("document.querySelector('[role=tab][aria-selected=true]').dataset.mode") == "completion"


def test_several_models(page, tmp_path, tiny_path, server, pictures, start_server):
    """A picker; the second model is loaded when it is asked, and has its own facts."""
    chatty = httpx.get(server.url + "/v1/models").json()["data"][0]["meta"]
    other = next(tmp_path.parent.glob("web*/chatty.gguf"))
    with start_server(tmp_path / "log", tiny_path, f"serve.models=[{other}]") as both:
        page.open(both.url + "/")
        assert page.run("document.getElementById('model').hidden")
        names = page.run("[...document.getElementById('models').options].map((each) => each.value)")
        assert names == ["tiny", "chatty"]
        assert "base model" in page.text("#facts")
        ask(page, "once", max_tokens=3)
        finished(page)
        page.tab.select_option("#models", "chatty")
        assert f"context {chatty['context']}" in page.text("#facts")
        assert "loaded when asked" in page.text("#facts")
        page.click("#tab-chat")
        ask(page, "hello", max_tokens=8)
        finished(page)
        page.wait("!document.getElementById('facts').textContent.includes('loaded when asked')")
        assert page.run("document.getElementById('models').value") == "chatty"
        bodies = [json.loads(request.post_data or "{}") for request in page.requests]
        assert [body["model"] for body in bodies if "model" in body] == ["tiny", "chatty"]
        page.screenshot(pictures / "models.png")
        assert page.errors == []


def test_the_key_is_asked_for(page, tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path, "serve.api_keys=[sesame]") as server:
        page.open(server.url + "/")
        assert page.focused() == "prompt" or page.focused() == "key"
        assert not page.run("document.getElementById('key-form').hidden")
        assert "key is needed" in page.text("#problem")
        for key, right in (("wrong", False), ("sesame", True)):
            page.run("document.getElementById('key').value = ''; document.getElementById('key').focus()")
            page.type(key)
            page.press("Enter")
            if right:
                page.wait("document.getElementById('key-form').hidden")
                assert "tiny" in page.text("#model")
        ask(page, "x", max_tokens=3)
        finished(page)


TEXTS = (
    "body",
    "#facts",
    ".user .text",
    ".who",
    "#figures",
    "#send",
    "#stop",
    "#prompt",
    ".actions button",
    "#chat-list .name",
    "#new",
    "#export",
    ".legend .p1",
    ".legend .p4",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844), (320, 640)])
def test_light_and_dark_wide_and_narrow(page, server, pictures, contrast, scheme, width, height):
    page.scheme(scheme)
    (page.phone if width < 760 else page.size)(width, height)
    page.open(server.url + "/")
    page.run("document.getElementById('probabilities').checked = true")
    ask(page, "Tell me of the old fox and the little bird.", max_tokens=70)
    finished(page)
    ask(page, "averyveryverylongwordwithoutanyspace" * 5, max_tokens=5)
    finished(page)
    page.run("document.getElementById('output').focus()")
    page.press("ArrowRight")
    page.wait("!document.getElementById('tip').hidden")
    page.screenshot(pictures / f"{scheme}-{width}.png")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    for selector in (*TEXTS, "#tip td"):
        assert contrast(page, selector) >= 4.5, selector
    small = page.run(
        "[...document.querySelectorAll('main button')].filter((b) => b.offsetParent && b.offsetHeight < 36).length"
    )
    assert small == 0
    dark = page.run("getComputedStyle(document.body).backgroundColor") != "rgb(246, 247, 249)"
    assert dark == (scheme == "dark")


def test_everything_can_be_reached_with_the_tab_key(page, server):
    page.open(server.url + "/")
    page.run("document.activeElement.blur()")
    seen = []
    for _ in range(40):
        page.press("Tab")
        seen.append(page.focused())
    for name in (
        "tab-chat",
        "output",
        "prompt",
        "send",
        "new",
        "export",
        "system",
        "max_tokens",
        "temperature",
        "seed",
        "response_format",
    ):
        assert name in seen, (name, seen)
    missing = page.run(
        "[...document.querySelectorAll('input, select, textarea')].filter((e) => !e.labels?.length).map((e) => e.id)"
    )
    assert missing == []


def test_labels_are_the_names_that_errors_use(page, server):
    """Each label is its field's name in the API, in words."""
    page.open(server.url + "/")
    labels = page.run(
        "[...document.querySelectorAll('#controls label')].map((each) => [each.htmlFor, each.textContent.trim()])"
    )
    fields = httpx.get(server.url + "/openapi.json").json()["components"]["schemas"]["ChatRequest"]["properties"]
    for name, label in labels:
        if name in ("schema", "probabilities"):
            continue
        api_name = name.removesuffix("_text")
        assert api_name in fields
        assert label.lower().startswith(api_name.replace("_", " ")), (name, label)
    # An error of the server leads to the field that it names.
    ask(page, stop_text="x" * 300)
    page.wait("!document.getElementById('problem').hidden")
    assert "stop" in page.text("#problem")
    assert page.focused() == "stop_text"


def test_stop_looks_and_is_disabled_when_nothing_runs(page, server):
    page.open(server.url + "/")
    look = (
        "((s) => [s.backgroundColor, s.borderStyle, s.color].join())(getComputedStyle(document.getElementById('stop')))"
    )
    at_rest = page.run(look)
    assert page.run("document.getElementById('stop').disabled")
    ask(page, max_tokens=3000, response_format="json_schema", schema='{"type": "string", "minLength": 1000}')
    page.wait("!document.getElementById('stop').disabled")
    assert page.run(look) != at_rest
    page.click("#tab-completion")  # ends the request
    page.wait("document.getElementById('stop').disabled")
    assert page.run(look) == at_rest
    ask(page, "long " * 5000, response_format="text")
    page.wait("!document.getElementById('problem').hidden")
    assert page.run("document.getElementById('stop').disabled")


def test_lines_are_short_enough_to_read(page, server):
    """A full line holds at most about 70 characters, however wide the window is."""
    page.size(1920, 1080)
    page.open(server.url + "/")
    page.run("document.getElementById('prompt').focus()")
    text = "the old fox and the little bird went to the river to find the red boat " * 12
    ask(page, text, max_tokens=2)
    lines = page.run(
        """(() => {
          const range = document.createRange();
          range.selectNodeContents(document.querySelector('.user .text'));
          return new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size;
        })()"""
    )
    assert 55 <= len(text) / lines <= 75


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_what_has_the_focus_shows_a_ring(page, server, scheme):
    page.scheme(scheme)
    page.open(server.url + "/")
    ask(page, max_tokens=3)
    finished(page)
    page.run("document.activeElement.blur()")
    seen = set()
    for _ in range(45):
        page.press("Tab")
        ring = page.run(
            """(() => {
              const { outlineStyle, outlineWidth, outlineColor } = getComputedStyle(document.activeElement);
              return [outlineStyle, parseFloat(outlineWidth), outlineColor];
            })()"""
        )
        name = page.focused()
        if name != "BODY":
            assert ring[0] == "solid", name
            assert ring[1] >= 2, name
            assert ring[2] == {"light": "rgb(52, 81, 199)", "dark": "rgb(143, 165, 255)"}[scheme], name
            seen.add(name)
    assert len(seen) > 20


def test_hints_fit_the_device_and_the_colours(page, server):
    """Arrow keys are named where there are keys; the marks' legend is right in the light and in the dark."""
    keys, tap = ".mouse", ".touch"
    shown = "(selector) => [...document.querySelectorAll(selector)].some((each) => each.offsetParent)"
    page.open(server.url + "/")
    page.click("#probabilities")
    assert page.run(f"({shown})('{keys}')")
    assert page.run(f"({shown})('.keys')")
    assert not page.run(f"({shown})('{tap}')")
    text = page.text("#legend")
    assert "stronger mark" in text
    assert "arker" not in text
    page.phone(390, 844)
    page.open(server.url + "/")
    page.click("#show-settings")
    page.click("#probabilities")
    assert not page.run(f"({shown})('{keys}')")
    assert not page.run(f"({shown})('.keys')")
    assert page.run(f"({shown})('{tap}')")
    # The legend has the tokens' classes, each more opaque than the one before.
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        alphas = page.run(
            "[...document.querySelectorAll('.legend .token')].map((each) => "
            "(getComputedStyle(each).backgroundColor.match(/[\\d.]+/g).map(Number))[3] ?? 1)"
        )
        assert len(alphas) == 5
        assert alphas == sorted(set(alphas))


def test_the_panels_of_a_phone(page, server, pictures):
    """One at a time over the text; the message field is always on the screen."""
    page.phone(390, 844)
    page.open(server.url + "/")
    assert not page.tab.is_visible("#temperature")
    page.click("#show-settings")
    assert page.tab.is_visible("#temperature")
    assert page.run("document.getElementById('show-settings').ariaExpanded") == "true"
    page.screenshot(pictures / "phone-settings.png")
    page.click("#show-chats")
    assert page.tab.is_visible("#new")
    assert not page.tab.is_visible("#temperature")
    page.click("#new")
    assert not page.tab.is_visible("#new")
    ask(page, "hello", max_tokens=60)
    finished(page)
    assert page.run("document.getElementById('send').getBoundingClientRect().bottom <= innerHeight")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")


def test_html_cannot_be_made_from_text(page, server):
    """The browser itself refuses to parse HTML from a script of the page."""
    page.open(server.url + "/")
    page.errors.clear()
    refused = page.run("(() => { try { document.body.innerHTML = '<b>x</b>'; } catch (e) { return e.name; } })()")
    assert refused == "TypeError"


SLOWLY = """(() => {
  const real = window.fetch;
  const parts = PARTS;
  window.fetch = (path, options) => {
    if (!path.endsWith("/chat/completions")) return real(path, options);
    const pull = async (stream) => {
      await new Promise((go) => setTimeout(go, 40));
      if (parts.length) stream.enqueue(new TextEncoder().encode(parts.shift()));
      else stream.close();
    };
    return Promise.resolve(new Response(new ReadableStream({ pull })));
  };
})()"""


def test_a_long_reply_stays_in_view(page, server):
    """Drawing comes after the text: a code block that appears is taller than what counts as the end."""
    page.open(server.url + "/")
    pieces = [f"line {n}\n\n```\n{n}\n```\n\n" for n in range(15)]
    events = [{"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in pieces]
    parts = [*(f"data: {json.dumps(event)}\n\n" for event in events), "data: [DONE]\n\n"]
    page.run(SLOWLY.replace("PARTS", json.dumps(parts)))
    ask(page, "hello")
    finished(page)
    page.wait("document.querySelectorAll('.code').length == 15")
    assert page.run("output.scrollHeight > 2 * output.clientHeight")
    assert page.run("output.scrollHeight - output.scrollTop - output.clientHeight") < 60


AT_ONCE = """(() => {
  const real = window.fetch;
  const parts = PARTS;
  window.fetch = (path, options) => {
    if (!path.endsWith("/chat/completions")) return real(path, options);
    const pull = async (stream) => {
      const door = new MessageChannel(); // a separate task, as what comes from a network
      await new Promise((go) => { door.port1.onmessage = go; door.port2.postMessage(0); });
      if (parts.length) stream.enqueue(new TextEncoder().encode(parts.shift()));
      else stream.close();
    };
    return Promise.resolve(new Response(new ReadableStream({ pull })));
  };
  window.frames = 0;
  window.drawn = 0;
  const count = () => { window.frames += 1; requestAnimationFrame(count); };
  requestAnimationFrame(count);
  const isToken = (node) => node.matches?.(".token");
  const seen = (all) => { window.drawn += all.some((each) => [...each.addedNodes].some(isToken)); };
  new MutationObserver(seen).observe(document.querySelector("#output"), { childList: true, subtree: true });
})()"""


def test_tokens_that_come_fast_are_drawn_once_a_frame(page, server):
    """Where each was drawn by itself, the whole reply was laid out for each, and a click waited for seconds."""
    page.open(server.url + "/")
    show_probabilities(page)
    entry = {"token": "ab", "logprob": -1.0, "bytes": [97, 98], "top_logprobs": []}
    choice = {"index": 0, "delta": {"content": "ab"}, "logprobs": {"content": [entry]}, "finish_reason": None}
    parts = [f"data: {json.dumps({'choices': [choice]})}\n\n"] * 400 + ["data: [DONE]\n\n"]
    page.run(AT_ONCE.replace("PARTS", json.dumps(parts)))
    ask(page, "hello")
    finished(page)
    assert page.run("document.querySelectorAll('#output .token').length") == 400
    frames, drawn = page.run("window.frames"), page.run("window.drawn")
    assert 0 < drawn <= frames + 2, (drawn, frames)


def test_a_server_started_again_with_another_model_is_noticed(page, tmp_path, tiny_path, start_server):
    other = tiny_path.with_name("another.gguf")
    other.write_bytes(tiny_path.read_bytes())
    with start_server(tmp_path / "log", tiny_path) as server:
        page.open(server.url + "/")
        assert page.text("#model") == "tiny"
        port = server.url.rpartition(":")[2]
    ask(page, "x", max_tokens=3)
    page.wait("!document.getElementById('away').hidden")
    assert page.text("#away").startswith("The server does not answer.")
    with start_server(tmp_path / "log", other, f"port={port}"):
        page.click("#retry")
        page.wait("document.getElementById('model').textContent == 'another'")
        assert page.run("document.getElementById('away').hidden")
        ask(page, "x", max_tokens=3)
        finished(page)


def test_a_server_that_comes_later_is_found(page, tmp_path, tiny_path, start_server):
    with start_server(tmp_path / "log", tiny_path) as server:
        page.tab.route("**/v1/models", lambda route: route.abort())
        page.open(server.url + "/")
        assert page.text("#away").startswith("The server does not answer.")
        page.tab.unroute("**/v1/models")
        page.wait("document.getElementById('model').textContent == 'tiny'")
        assert page.run("document.getElementById('away').hidden && document.getElementById('problem').hidden")
