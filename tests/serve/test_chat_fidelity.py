"""200 conversations have the same token ids in transformers, in llama.cpp with the GGUF's template, and in our server.

Templates in the manner of ChatML, Llama 3, Qwen and Gemma 3; conversations with system messages, tools with their calls
and results, several turns, odd white space and emoji.
"""

import random
from dataclasses import fields
from pathlib import Path

import pytest

from slm.data.chat.template import CHATML
from slm.data.tokenizers.tokenizer import Tokenizer
from slm.llama.model import Model
from slm.model.special_tokens import read_special_tokens
from slm.serve.chat_template import ChatPrompt
from slm.serve.engine.protocol import ModelInfo
from slm.serve.engine.tokenize import tokenize_within
from tests.helpers import tool_templates as templates
from tests.helpers.chat_model import base_tokenizer, with_template, write_chat_gguf

CASES = {
    "chatml": (CHATML, templates.CHATML_MARKS, "<|endoftext|>", "<|im_end|>", "<|im_end|>"),
    "llama3": (templates.LLAMA3, templates.LLAMA3_MARKS, "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
    "qwen": (templates.QWEN, templates.CHATML_MARKS, "<|endoftext|>", "<|im_end|>", "<|im_end|>"),
    "gemma3": (templates.GEMMA3, templates.GEMMA3_MARKS, "<bos>", "<eos>", "<end_of_turn>"),
}
WITHOUT_TOOLS = {"gemma3"}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "  Wie ist's? <b> & 日本語 😀",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def conversations(n: int = 200, *, tools: bool = True) -> list[tuple[list[dict], list[dict]]]:
    """Prompts that end with what a user or a tool says, and their tools: in every fifth, the assistant calls one."""
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
            if tools and turn > 0 and number % 5 == 0:
                function = {"name": "weather", "arguments": {"city": said(), "days": [1, None, {"a": said()}]}}
                call = {"id": f"call_{turn}", "type": "function", "function": function}
                messages.append({"role": "assistant", "content": said() if turn == 2 else "", "tool_calls": [call]})
                result = {"role": "tool", "name": "weather", "tool_call_id": f"call_{turn}", "content": said()}
                messages.append(result)
            else:
                if turn:
                    messages.append({"role": "assistant", "content": said()})
                messages.append({"role": "user", "content": said()})
        made.append((messages, [TOOL] if tools and number % 5 == 0 else []))
    return made


@pytest.fixture(scope="module", params=CASES)
def model(request, tmp_path_factory) -> tuple[Path, Path, Tokenizer, str, str]:
    """Directory, GGUF, tokenizer, the token that ends a turn, and the template's name."""
    template, marks, bos, eos, turn = CASES[request.param]
    tokenizer = with_template(base_tokenizer(), template, marks, bos=bos, eos=eos)
    folder = tmp_path_factory.mktemp(request.param)
    return folder, write_chat_gguf(folder, tokenizer), tokenizer, turn, request.param


def test_the_prompts_ids_are_equal_in_all_three(model):
    from llama_cpp.llama_chat_format import Jinja2ChatFormatter
    from transformers import AutoTokenizer

    folder, gguf, _, _, name = model
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
        assert server.call_form.own == (name in WITHOUT_TOOLS)
        for messages, tools in conversations(tools=name not in WITHOUT_TOOLS):
            wanted = theirs.apply_chat_template(messages, tools=tools or None, add_generation_prompt=True)
            wanted = wanted if isinstance(wanted, list) else wanted["input_ids"]
            text = formatter(messages=messages, tools=tools or None).prompt
            in_llama = llama.tokenize(text, add_special=False, parse_special=True)
            rendered = server.render(messages, tools)
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
    folder, gguf, tokenizer, turn, _ = model
    token = {each["content"]: each["id"] for each in tokenizer.spec["added_tokens"]}[turn]
    assert read_special_tokens(folder, 10_000).ids["eot"] == token
    with Model(gguf) as llama:
        assert llama.is_eog(token)
        assert llama.is_eog(llama.eos)
        assert llama.metadata()["tokenizer.ggml.eot_token_id"] == str(token)
