"""200 conversations have the same token ids in transformers, in llama.cpp with the GGUF's template, and in our server.

Templates in the manner of ChatML, Llama 3 and Qwen; conversations with system messages, tools, several turns, odd white
space and emoji.
"""

import random
from dataclasses import fields
from pathlib import Path

import pytest

from data.chat.template import CHATML
from data.tokenizers.tokenizer import Tokenizer
from serve.chat_template import ChatPrompt
from serve.engine.messages import ModelInfo
from serve.engine.tokenize import tokenize_within
from slm.llama.model import Model
from slm.model.special_tokens import read_special_tokens
from tests.helpers.chat_model import base_tokenizer, with_template, write_chat_gguf

LLAMA3 = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim }}"
    "{{- '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
QWEN = (
    "{%- if messages[0].role != 'system' %}{{- '<|im_start|>system\nYou are a helper.<|im_end|>\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{%- if message.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}"
    "{%- else %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{%- endif %}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
CASES = {
    "chatml": (CHATML, ("<|im_start|>", "<|im_end|>"), "<|endoftext|>", "<|im_end|>", "<|im_end|>"),
    "llama3": (
        LLAMA3,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|eot_id|>",
    ),
    "qwen": (QWEN, ("<|im_start|>", "<|im_end|>"), "<|endoftext|>", "<|im_end|>", "<|im_end|>"),
}


def conversations(n: int = 200) -> list[list[dict]]:
    """Prompts that end with what a user or a tool says."""
    chance = random.Random(5)
    pieces = ["Hello!", "  two  spaces ", "\n\nlines\n", "tab\tand\r\n", "😀👍🏽", "naïve café", "x" * 40, "1234567"]
    pieces += [
        "<b>&amp;",
        "{{ 7 }}",
        "def f():\n    return 1\n",
        "日本語",
        "The fox lived by the sea.",
        " ",
        "don't stop",
    ]
    pieces += ["a\u00a0b"]
    made = []
    for number in range(n):

        def said() -> str:
            return "".join(chance.choices(pieces, k=chance.randint(1, 4)))

        messages = [{"role": "system", "content": said()}] if number % 3 == 0 else []
        for turn in range(chance.randint(1, 4)):
            if turn:
                messages.append({"role": "assistant", "content": said()})
            if turn and number % 5 == 0:
                messages.append({"role": "tool", "content": said()})
            else:
                messages.append({"role": "user", "content": said()})
        made.append(messages)
    return made


@pytest.fixture(scope="module", params=CASES)
def model(request, tmp_path_factory) -> tuple[Path, Path, Tokenizer, str]:
    """Directory, GGUF, tokenizer, and the token that ends a turn."""
    template, marks, bos, eos, turn = CASES[request.param]
    tokenizer = with_template(base_tokenizer(), template, marks, bos=bos, eos=eos)
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_chat_gguf(folder, tokenizer), tokenizer, turn


def test_the_prompts_ids_are_equal_in_all_three(model):
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter
    from transformers import AutoTokenizer

    folder, gguf, _, _ = model
    theirs = AutoTokenizer.from_pretrained(folder)
    with Model(gguf) as llama:
        bos, eos = (llama.token_to_piece(token, special=True).decode() for token in (llama.bos, llama.eos))
        info = {field.name: 0 for field in fields(ModelInfo)}
        info |= {
            "bos": bos,
            "eos": eos,
            "chat_template": llama.chat_template(),
            "control_tokens": llama.control_names(),
        }
        server = ChatPrompt(ModelInfo(**info))
        assert server.own
        formatter = Jinja2ChatFormatter(llama.chat_template(), eos_token=eos, bos_token=bos)
        for messages in conversations():
            wanted = theirs.apply_chat_template(messages, add_generation_prompt=True)
            wanted = wanted if isinstance(wanted, list) else wanted["input_ids"]
            text = formatter(messages=messages).prompt
            in_llama = llama.tokenize(text, add_special=False, parse_special=True)
            rendered = server.render(messages)
            ours, _ = tokenize_within(
                llama,
                rendered.text,
                10_000,
                add_special=rendered.add_special and llama.add_bos,
                parse_special=rendered.parse_special,
                literal_spans=rendered.literal_spans,
            )
            assert in_llama == wanted, messages
            assert ours == wanted, messages


def test_every_engine_ends_generation_at_the_end_of_the_turn(model):
    folder, gguf, tokenizer, turn = model
    token = {each["content"]: each["id"] for each in tokenizer.spec["added_tokens"]}[turn]
    assert read_special_tokens(folder, 10_000).ids["eot"] == token
    with Model(gguf) as llama:
        assert llama.is_eog(token)
        assert llama.is_eog(llama.eos)
        assert llama.metadata()["tokenizer.ggml.eot_token_id"] == str(token)
