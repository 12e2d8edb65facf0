"""Model files that are damaged, or hostile. Numbers refer to the reliability list
(docs/results/serving-reliability.md).

SLM_GGUF_CASES sets how many damaged files are loaded (2,000 for the whole proof), SLM_GGUF_SEED which.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import gguf
import httpx
import pytest

from tests.helpers import REPOSITORY, programs, tiny_gguf

N_CASES = int(os.environ.get("SLM_GGUF_CASES", "120"))
SEED = int(os.environ.get("SLM_GGUF_SEED", "0"))


def test_damaged_files_are_an_error_or_work(tmp_path, tiny_path):
    """List, 11: corrupt, truncated and oversized headers, tensors and weights: each file gives a message or works, in
    a second; llama.cpp aborts on none of them."""
    command = [sys.executable, "-m", "tests.helpers.gguf_fuzz", str(tiny_path), str(N_CASES), str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=REPOSITORY, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    print(result)
    assert result["faults"] == []
    assert result["outcomes"]["works"] > N_CASES / 20
    assert result["outcomes"]["error"] > N_CASES / 4


def with_field(path: Path, target: Path, key: bytes, value: bytes) -> Path:
    """A copy with other bytes after a metadata key's name (its type and value)."""
    raw = path.read_bytes()
    at = raw.index(key) + len(key)
    target.write_bytes(raw[:at] + value + raw[at + len(value) :])
    return target


def array(kind: gguf.GGUFValueType, count: int) -> bytes:
    return struct.pack("<iiQ", gguf.GGUFValueType.ARRAY, kind, count)


@pytest.mark.parametrize("name", ["truncated", "huge array", "oversized field", "empty"])
def test_the_server_says_what_is_wrong_with_a_file(tmp_path, tiny_path, name):
    """List, 11: the command ends in one line, at once; the parent that reads it is this very test."""
    bad, raw = tmp_path / "bad.gguf", tiny_path.read_bytes()
    if name == "truncated":
        bad.write_bytes(raw[: len(raw) // 3])
    elif name == "huge array":
        with_field(tiny_path, bad, b"tokenizer.ggml.tokens", array(gguf.GGUFValueType.STRING, 2**61))
    elif name == "oversized field":
        with_field(tiny_path, bad, b"general.name", struct.pack("<iQ", gguf.GGUFValueType.STRING, 2**62))
    else:
        bad.write_bytes(b"")
    programs.run("platform", [], tmp_path)  # the fork server is there
    began = time.perf_counter()
    said = programs.run("slm.serve", [f"model={bad}", "port=0"], tmp_path, status=2)
    assert time.perf_counter() - began < 15
    (line,) = said.strip().splitlines()
    assert "bad.gguf" in line
    assert "damaged" in line or "not a GGUF" in line


def test_a_file_that_breaks_while_it_is_served(tmp_path, tiny_path, start_server):
    """List, 11 and 22: an engine that cannot start again does not take the server with it; once the file is whole,
    requests are served again."""
    model = tmp_path / "model.gguf"
    model.write_bytes(tiny_path.read_bytes())
    with start_server(tmp_path / "log", model) as server:
        ask = {"prompt": "x", "max_tokens": 1}
        assert httpx.post(server.url + "/v1/completions", json=ask).status_code == 200
        broken = tmp_path / "broken"
        broken.write_bytes(tiny_path.read_bytes()[:5000])
        broken.replace(model)  # another file under the name: the pages of the first stay mapped
        os.kill(server.engine_pid(), signal.SIGKILL)
        server.wait(lambda: "does not start" in server.log.read_text(), 20)
        assert httpx.get(server.url + "/health").status_code == 503
        answer = httpx.post(server.url + "/v1/completions", json=ask)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        whole = tmp_path / "whole"
        whole.write_bytes(tiny_path.read_bytes())
        whole.replace(model)
        server.wait(lambda: httpx.get(server.url + "/health").status_code == 200, 30)
        assert httpx.post(server.url + "/v1/completions", json=ask).status_code == 200
        assert "Traceback" not in server.log.read_text()


TEMPLATES = {
    "globals": "{{ cycler.__init__.__globals__.os.system('touch MARKER') }}",
    "subclasses": "{% for c in ''.__class__.__mro__[1].__subclasses__() %}{{ c }}{% endfor %}",
    "attr": "{{ messages|attr('__class__')|attr('__mro__') }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "function": "{{ raise_exception.__globals__['__builtins__']['open']('MARKER', 'w') }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}{{ os.system('touch MARKER') }}",
    "change": "{% if messages.append(messages[0]) %}{% endif %}{{ messages.__setitem__(0, 1) }}",
    "large text": "{{ 'x' * 10**11 }}",
    "large power": "{{ 99999 ** 99999999 }}",
    "recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "depth": "{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}",
    "blocks": "{% for a in messages %}" * 30 + "{% endfor %}" * 30,
    "syntax": "{% for %}",
    "error": "{{ 1 / 0 }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_hostile_template_does_nothing(tmp_path, name):
    """List, 13: code in a file's chat template reaches nothing of the machine, and does not stop the server's work."""
    from dataclasses import fields

    from slm.serve.chat_template import ChatPrompt, ChatTemplateError
    from slm.serve.engine.protocol import ModelInfo

    marker = tmp_path / "marker"
    blank = {field.name: 0 for field in fields(ModelInfo)}
    template = TEMPLATES[name].replace("MARKER", str(marker))
    messages = [{"role": "user", "content": "hello"}]
    began = time.perf_counter()
    try:
        chat = ChatPrompt(
            ModelInfo(**{**blank, "chat_template": template, "bos": "", "eos": "</s>", "control_tokens": ("</s>",)})
        )
        text = chat.render(messages).text
    except ChatTemplateError:
        pass
    else:
        # The plain form for what is no template; nothing for names that the sandbox hides.
        assert text in ("User: hello\n\nAssistant:", "", "[]")
    assert time.perf_counter() - began < 5
    assert messages == [{"role": "user", "content": "hello"}]
    assert not marker.exists()


def test_a_server_with_a_hostile_template(tmp_path, start_server):
    """List, 13: over HTTP it is a 400 that says so; plain completions go on."""
    marker = tmp_path / "marker"
    template = f"{{% set x = 99999 ** 99999999 %}}{{{{ cycler.__init__.__globals__.os.system('touch {marker}') }}}}"
    model = tiny_gguf.write(tmp_path / "hostile.gguf", chat_template=template)
    with start_server(tmp_path / "log", model) as server:
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
        for stream in (False, True):
            answer = httpx.post(server.url + "/v1/chat/completions", json={**chat, "stream": stream})
            assert answer.status_code == 400
            assert "template" in answer.json()["error"]["message"]
        assert httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
        assert not marker.exists()
        assert "Traceback" not in server.log.read_text()
