"""Ollama's Modelfile: a template taken apart gives the same text when put together, and a person's own file stays."""

import re

import pytest

from slm.data.chat.template import CHATML
from slm.data.chat.tokens import ChatEncoder
from slm.export import modelfile
from slm.exported import MODELFILE
from tests.helpers import tool_templates as templates
from tests.helpers.chat_model import base_tokenizer, with_template, write_chat_gguf

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello, you!"},
    {"role": "assistant", "content": "Hello.\n\nHow are you?"},
    {"role": "user", "content": "{{ fine }}"},
]
CASES = {
    "chatml": (CHATML, templates.CHATML_MARKS, "<|endoftext|>", "<|im_end|>"),
    "llama3": (templates.LLAMA3, templates.LLAMA3_MARKS, "<|begin_of_text|>", "<|end_of_text|>"),
    "qwen": (templates.QWEN, templates.CHATML_MARKS, "<|endoftext|>", "<|im_end|>"),
}


def tokenizer_of(name):
    template, marks, bos, eos = CASES[name]
    return with_template(base_tokenizer(), template, marks, bos=bos, eos=eos)


def go(template: str, messages: list[dict]) -> str:
    """What Go's text/template makes of the few actions that are used."""
    system = "\n\n".join(each["content"] for each in messages if each["role"] == "system")
    begin, body, end = re.fullmatch(r"(.*?)\{\{ range \.Messages \}\}(.*)\{\{ end \}\}(.*)", template, re.S).groups()
    if found := re.fullmatch(r"\{\{ if \.System \}\}(.*?)(?:\{\{ else \}\}(.*?))?\{\{ end \}\}", begin, re.S):
        begin = found[1].replace("{{ .System }}", system) if system else found[2] or ""
    roles = dict(re.findall(r'\{\{ if eq \.Role "(\w+)" \}\}(.*?)\{\{ end \}\}', body, re.S))
    said = [roles.get(each["role"], "").replace("{{ .Content }}", each["content"]) for each in messages]
    return begin + "".join(said) + end


@pytest.mark.parametrize("name", CASES)
def test_the_template_for_ollama_gives_the_models_text(name):
    template = ChatEncoder(tokenizer_of(name)).template
    pieces = modelfile.take_apart(template)
    for messages in (TALK, TALK[1:], TALK[1:2], TALK[:2]):
        assert go(pieces.for_ollama(), messages) == template.text(messages, prompt=True)
    bos = "<|begin_of_text|>" if name == "llama3" else ""
    without = modelfile.take_apart(template, bos)
    assert bos + go(without.for_ollama(), TALK) == template.text(TALK, prompt=True)


def test_a_template_that_does_more_is_left_to_ollama():
    marks = templates.GEMMA3_MARKS
    gemma = with_template(base_tokenizer(), templates.GEMMA3, marks, bos="<bos>", eos="<eos>")
    encoder = ChatEncoder(gemma)
    assert modelfile.take_apart(encoder.template) is None  # its system message stands inside the first turn
    text = modelfile.text(encoder, gemma, "mine-1M-v1.0-F16.gguf", adds_bos=True)
    assert "FROM ./mine-1M-v1.0-F16.gguf\n" in text
    assert 'TEMPLATE """' not in text
    assert 'PARAMETER stop "<end_of_turn>"' in text


def test_the_file_names_one_of_the_exported_and_a_persons_own_stays(tmp_path):
    tokenizer = tokenizer_of("chatml")
    gguf = write_chat_gguf(tmp_path, tokenizer)
    files = [tmp_path / f"mine-{kind}.gguf" for kind in ("F16", "Q8_0", "Q4_K_M")]
    for path in files:
        path.hardlink_to(gguf)
    assert modelfile.write(tmp_path, base_tokenizer(), files) is None  # it does not chat
    path = modelfile.write(tmp_path, tokenizer, files)
    assert path == tmp_path / MODELFILE
    said = path.read_text()
    assert said.startswith(modelfile.MARK)
    assert "\nFROM ./mine-Q4_K_M.gguf\n" in said
    assert '\nTEMPLATE """{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}' in said
    assert '\nPARAMETER stop "<|im_end|>"\n' in said
    modelfile.write(tmp_path, tokenizer, files[:2])
    assert "FROM ./mine-Q8_0.gguf" in path.read_text()
    path.write_text(said.replace(modelfile.MARK + "\n", ""))
    assert modelfile.write(tmp_path, tokenizer, files) is None
    assert "Q4_K_M" in path.read_text()
