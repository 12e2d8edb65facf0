"""Records in the shape of published data sets: what is learned of each, and its text next to transformers'.

The records are generated. Each layout is read, rendered by three templates, compared with transformers' own rendering
of the same messages, and the parts that are scored are compared with what the layout's answers are.
"""

import csv
import json
import random

import pytest
from transformers import AutoTokenizer

from slm.data.chat.formats import read_record, to_document
from slm.data.chat.template import CHATML
from slm.data.chat.tokens import ChatEncoder
from slm.data.sources.conversations import chat_records
from tests.helpers import chat_model
from tests.helpers import tool_templates as templates

CITY = {"city": "Oslo"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "weather", "description": "of a city", "parameters": SCHEMA}
TOOL = {"type": "function", "function": WEATHER}
CALL = {"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": json.dumps(CITY)}}
CALLED = '\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
"""The call in ChatML."""
HERMES_CALL = "<tool_call>\n{'name': 'weather', 'arguments': {'city': 'Oslo'}}\n</tool_call>"
HERMES_SYSTEM = 'You call functions.\n<tools>\n[{"type": "function", "function": {"name": "weather"}}]\n</tools>'
ASKED, SAID = {"role": "user", "content": "How are you?"}, {"role": "assistant", "content": "Fine."}
NO = {"role": "assistant", "content": "Go away."}
HH = "\n\nHuman: How are you?\n\nAssistant: {}\n\nHuman: Sure?\n\nAssistant: {}"
GLAIVE = (
    "USER: Weather in Oslo?\n\n\nASSISTANT: <functioncall> "
    '{"name": "weather", "arguments": \'{"city": "Oslo"}\'} <|endoftext|>'
    "\n\n\nFUNCTION RESPONSE: rain\n\n\nASSISTANT: It rains. <|endoftext|>\n\n\n"
)
OASST = {
    "message_tree_id": "t",
    "prompt": {
        "text": "How are you?",
        "role": "prompter",
        "replies": [
            {"text": "Bad.", "role": "assistant", "rank": 1, "replies": []},
            {
                "text": "Fine.",
                "role": "assistant",
                "rank": 0,
                "replies": [{"text": "And now?", "role": "prompter", "rank": None, "replies": []}],
            },
        ],
    },
}


def _node(parent: str | None, role: str, content: dict) -> dict:
    return {"parent": parent, "children": [], "message": {"author": {"role": role}, "content": content}}


CHATGPT = {
    "title": "t",
    "current_node": "d",
    "mapping": {
        "root": {"parent": None, "children": ["a"], "message": None},
        "a": _node("root", "system", {"content_type": "text", "parts": [""]}),
        "b": _node("a", "user", {"content_type": "text", "parts": ["How are you?"]}),
        "c": _node("b", "assistant", {"content_type": "text", "parts": ["Bad."]}),
        "d": _node("b", "assistant", {"content_type": "text", "parts": ["Fine."]}),
    },
}
GEMINI = {
    "systemInstruction": {"role": "system", "parts": [{"text": "Be kind."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Weather in Oslo?"}]},
        {
            "role": "model",
            "parts": [{"text": "Hm.", "thought": True}, {"functionCall": {"name": "weather", "args": CITY}}],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "weather", "response": {"sky": "rain"}}}]},
        {"role": "model", "parts": [{"text": "It rains."}]},
    ],
    "tools": [{"functionDeclarations": [WEATHER]}],
}
BEDROCK = {
    "system": [{"text": "Be kind."}],
    "messages": [
        {"role": "user", "content": [{"text": "Weather in Oslo?"}]},
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "toolu0001", "name": "weather", "input": CITY}}]},
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "toolu0001", "content": [{"json": {"sky": "rain"}}]}}],
        },
        {"role": "assistant", "content": [{"text": "It rains."}]},
    ],
    "toolConfig": {
        "tools": [{"toolSpec": {"name": "weather", "description": "of a city", "inputSchema": {"json": SCHEMA}}}]
    },
}
RESPONSES = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
        {"type": "function_call", "call_id": "call00001", "name": "weather", "arguments": json.dumps(CITY)},
        {"type": "function_call_output", "call_id": "call00001", "output": "rain"},
    ],
    "output": [{"role": "assistant", "content": [{"type": "output_text", "text": "It rains."}]}],
    "tools": [{"type": "function", **WEATHER}],
}

LAYOUTS = {
    "openai": ({"messages": [{"role": "system", "content": "Be kind."}, ASKED, SAID]}, ["Fine."]),
    "openai with tools": (
        {
            "messages": [
                {"role": "user", "content": "Weather in Oslo?"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "call00001", "content": "rain"},
                {"role": "assistant", "content": "It rains."},
            ],
            "tools": [TOOL],
        },
        [CALLED, "It rains."],
    ),
    "openai with functions": (
        {
            "messages": [
                {"role": "user", "content": "Weather in Oslo?"},
                {"role": "assistant", "content": None, "function_call": CALL["function"]},
                {"role": "function", "name": "weather", "content": {"sky": "rain"}},
                {"role": "assistant", "content": "It rains."},
            ],
            "functions": [WEATHER],
        },
        [CALLED, "It rains."],
    ),
    "openai fine-tuning with weights": ({"messages": [ASKED, SAID | {"weight": 0}, ASKED, SAID]}, ["Fine."]),
    "anthropic": (
        {
            "system": "Be kind.",
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "Let me look."},
                        {"type": "tool_use", "id": "toolu0001", "name": "weather", "input": CITY},
                    ],
                },
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu0001", "content": "rain"}]},
                {"role": "assistant", "content": "It rains."},
            ],
            "tools": [{"name": "weather", "description": "of a city", "input_schema": SCHEMA}],
        },
        ["Let me look." + CALLED, "It rains."],
    ),
    "sharegpt": (
        {
            "id": "x_0",
            "conversations": [{"from": "human", "value": "How are you?"}, {"from": "gpt", "value": "Fine."}],
            "system": "Be kind.",
        },
        ["Fine."],
    ),
    "sharegpt with functions": (
        {
            "conversations": [
                {"from": "human", "value": "Weather in Oslo?"},
                {"from": "function_call", "value": json.dumps({"name": "weather", "arguments": CITY})},
                {"from": "observation", "value": "rain"},
                {"from": "gpt", "value": "It rains."},
            ],
            "tools": json.dumps([WEATHER]),
        },
        [CALLED, "It rains."],
    ),
    "alpaca": ({"instruction": "Add.", "input": "2 and 3", "output": "5", "text": "Below is ..."}, ["5"]),
    "alpaca with history": (
        {"instruction": "And now?", "input": "", "output": "5", "history": [["Hi", "Hello"]]},
        ["Hello", "5"],
    ),
    "dolly": (
        {"instruction": "Who?", "context": "Ann sat down.", "response": "Ann", "category": "closed_qa"},
        ["Ann"],
    ),
    "oasst": (OASST, ["Fine."]),
    "guanaco": (
        {"text": "### Human: How are you?### Assistant: Fine.### Human: Sure?### Assistant: Yes."},
        ["Fine.", "Yes."],
    ),
    "ultrachat": ({"id": "0", "data": ["How are you?", "Fine.", "Sure?", "Yes."]}, ["Fine.", "Yes."]),
    "ultrachat_200k": ({"prompt": "How are you?", "prompt_id": "a", "messages": [ASKED, SAID]}, ["Fine."]),
    "openorca": ({"id": "1", "system_prompt": "Be kind.", "question": "How are you?", "response": "Fine."}, ["Fine."]),
    "hermes function calling": (
        {
            "id": "1",
            "conversations": [
                {"from": "system", "value": HERMES_SYSTEM},
                {"from": "human", "value": "Weather in Oslo?"},
                {"from": "gpt", "value": HERMES_CALL},
                {"from": "tool", "value": "<tool_response>\nrain\n</tool_response>"},
                {"from": "gpt", "value": "It rains."},
            ],
            "tools": json.dumps([TOOL]),
            "category": "Weather",
        },
        [HERMES_CALL, "It rains."],
    ),
    "xlam": (
        {
            "id": 0,
            "query": "Weather in Oslo?",
            "answers": json.dumps([{"name": "weather", "arguments": CITY}]),
            "tools": json.dumps([WEATHER]),
        },
        [CALLED],
    ),
    "glaive": (
        {
            "system": "SYSTEM: You are a helpful assistant with access to the following functions. "
            "Use them if required -\n" + json.dumps(WEATHER, indent=4),
            "chat": GLAIVE,
        },
        [CALLED, "It rains."],
    ),
    "prompt and completion": ({"prompt": [ASKED], "completion": [SAID]}, ["Fine."]),
    "pairs of texts": ({"prompt": "How are you?", "chosen": "Fine.", "rejected": "Go away."}, ["Fine."]),
    "pairs of conversations": (
        {"prompt": "How are you?", "chosen": [ASKED, SAID], "rejected": [ASKED, NO], "score_chosen": 8.0},
        ["Fine."],
    ),
    "pairs of whole texts": (
        {"chosen": HH.format("Fine.", "Yes."), "rejected": HH.format("Fine.", "No.")},
        ["Fine.", "Yes."],
    ),
    "pairs of turns": (
        {
            "conversations": [{"from": "human", "value": "How are you?"}],
            "chosen": {"from": "gpt", "value": "Fine."},
            "rejected": {"from": "gpt", "value": "Go away."},
        },
        ["Fine."],
    ),
    "pairs with a question": (
        {"system": "", "question": "How are you?", "chosen": "Fine.", "rejected": "Go away."},
        ["Fine."],
    ),
    "squad": (
        {"title": "t", "context": "Ann sat.", "question": "Who?", "answers": {"text": ["Ann"], "answer_start": [0]}},
        ["Ann"],
    ),
    "question and answer": ({"Question": "How are you?", "Answer": "Fine."}, ["Fine."]),
    "input and target": ({"input": "How are you?", "target": "Fine."}, ["Fine."]),
    "reasoning": (
        {"messages": [ASKED, SAID | {"reasoning": "Hm."}], "source": "x"},
        ["Fine."],
    ),
    "llama 2": (
        {
            "text": "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHow are you? [/INST] Fine. </s>"
            "<s>[INST] Sure? [/INST] Yes, see </s>. </s>"
        },
        ["Fine.", "Yes, see </s>."],
    ),
    "zephyr": ({"text": "<|system|>\nBe kind.</s>\n<|user|>\nHow are you?</s>\n<|assistant|>\nFine.</s>\n"}, ["Fine."]),
    "vicuna": (
        {"text": "USER: How are you?\nASSISTANT: Fine.</s>USER: Sure? ASSISTANT:\nASSISTANT: Yes."},
        ["Fine.", "Yes."],
    ),
    "oig": ({"text": "<human>: How are you?\n<bot>: Fine.\n<human>: Sure?\n<bot>: Yes."}, ["Fine.", "Yes."]),
    "lima": ({"conversations": ["How are you?", "Fine."], "source": "x"}, ["Fine."]),
    "wildchat": ({"conversation": [ASKED | {"toxic": False}, SAID | {"toxic": False}], "turn": 1}, ["Fine."]),
    "kto": ({"prompt": "How are you?", "completion": "Fine.", "label": True}, ["Fine."]),
    "metamath": ({"query": "How are you?", "response": "Fine.", "type": "y"}, ["Fine."]),
    "openai preference": (
        {
            "input": {"messages": [ASKED], "parallel_tool_calls": True},
            "preferred_output": [SAID],
            "non_preferred_output": [NO],
        },
        ["Fine."],
    ),
    "flan": ({"inputs": "How are you?", "targets": "Fine.", "task": "x"}, ["Fine."]),
    "gemini": (GEMINI, [CALLED, "It rains."]),
    "bedrock": (BEDROCK, [CALLED, "It rains."]),
    "openai responses": (RESPONSES, [CALLED, "It rains."]),
    "an exported chat of chatgpt": (CHATGPT, ["Fine."]),
    "an exported chat of claude": (
        {
            "uuid": "1",
            "chat_messages": [{"sender": "human", "text": "How are you?"}, {"sender": "assistant", "text": "Fine."}],
        },
        ["Fine."],
    ),
    "cohere": (
        {
            "chat_history": [{"role": "USER", "message": "Hi"}, {"role": "CHATBOT", "message": "Hello"}],
            "message": "How are you?",
            "response": "Fine.",
        },
        ["Hello", "Fine."],
    ),
    "pairs in a turn": ({"conversation": [{"system": "", "input": "How are you?", "output": "Fine."}]}, ["Fine."]),
}
PAIRS = [name for name in LAYOUTS if name.startswith("pairs of")] + ["pairs with a question", "openai preference"]
COLUMNS = {"question and answer": json.dumps, "alpaca": json.dumps, "openai with tools": json.dumps, "xlam": str}
"""Layouts that are also read as tables, and how a table holds what is no text: as JSON, or as pandas writes it."""
TEMPLATES = {
    "chatml": (CHATML, templates.CHATML_MARKS, "<|endoftext|>", "<|im_end|>"),
    "qwen": (templates.QWEN, templates.CHATML_MARKS, "<|endoftext|>", "<|im_end|>"),
    "llama": (templates.LLAMA3, templates.LLAMA3_MARKS, "<|begin_of_text|>", "<|eot_id|>"),
}


@pytest.fixture(scope="module", params=TEMPLATES)
def both(request, tmp_path_factory):
    """Our encoder and transformers' tokenizer for the same files."""
    template, marks, bos, eos = TEMPLATES[request.param]
    tokenizer = chat_model.with_template(chat_model.base_tokenizer(), template, marks, bos=bos, eos=eos)
    folder = tmp_path_factory.mktemp(request.param)
    tokenizer.save(folder)
    return request.param, ChatEncoder(tokenizer), AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layouts_answers_are_learned_and_its_text_is_transformers(both, name):
    record, answers = LAYOUTS[name]
    which, encoder, theirs = both
    conversation = read_record(record).conversation
    if which == "llama" and name == "anthropic":
        pytest.skip("Llama's template drops what is said before a call")
    ids, scored, rendered = encoder.conversation(to_document(conversation))
    messages, tools = conversation["messages"], conversation.get("tools")
    assert rendered.text == theirs.apply_chat_template(messages, tools=tools, tokenize=False)
    assert ids.tolist() == theirs(rendered.text, add_special_tokens=False)["input_ids"]
    if which == "chatml":
        found = [rendered.text[begin:end] for begin, end in rendered.scored]
        assert found == [f"{answer}<|im_end|>" for answer in answers]
    said = [message for message in messages if message["role"] == "assistant" and message.get("weight") != 0]
    assert len(rendered.scored) == len(said) == len(answers)
    assert scored.sum() > 0


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_holds_the_same_conversation(tmp_path, name, delimiter):
    record = LAYOUTS[name][0] | ({"answers": [{"name": "weather", "arguments": CITY}]} if name == "xlam" else {})
    cells = {key: each if isinstance(each, str) else COLUMNS[name](each) for key, each in record.items()}
    with open(tmp_path / "a.csv", "w", newline="") as file:
        table = csv.DictWriter(file, cells, delimiter=delimiter)
        table.writeheader()
        table.writerow(cells)
    (row,) = chat_records.read(str(tmp_path / "a.csv"))
    assert read_record(row.value).conversation == read_record(LAYOUTS[name][0]).conversation


NAMES = ("role", "from", "content", "value", "name", "weight", "train", "output", "response", "system", "tool_calls")


def padded(value, rng):
    """The value with keys that are null in its objects, as Arrow and joined tables have them, at random places."""
    if isinstance(value, list):
        return [padded(each, rng) for each in value]
    if not isinstance(value, dict):
        return value
    items = [(key, padded(each, rng)) for key, each in value.items()]
    more = [*NAMES, "messages", "conversations", "prompt", "chosen", "rejected", "history", "tools", "function_call"]
    items += [(key, None) for key in more if key not in value and rng.random() < 0.5]
    rng.shuffle(items)
    return dict(items)


@pytest.mark.parametrize("name", LAYOUTS)
def test_null_keys_anywhere_change_nothing(name):
    record = LAYOUTS[name][0]
    wanted = read_record(record)
    for seed in range(10):
        found = read_record(padded(record, random.Random(seed)))
        assert (found.kind, found.conversation) == (wanted.kind, wanted.conversation)
        assert set(found.reading.unused) == set(wanted.reading.unused)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_keep_both_answers(name):
    conversation = read_record(LAYOUTS[name][0]).conversation
    asked, chosen, rejected = conversation["messages"][0], conversation["messages"][-1], conversation["rejected"][-1]
    assert asked["content"] == "How are you?"
    assert (chosen["content"], rejected["content"]) in {("Fine.", "Go away."), ("Yes.", "No.")}
    assert conversation["rejected"][:-1] == conversation["messages"][:-1]


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("alpaca", {"text"}),
        ("dolly", {"category"}),
        ("ultrachat_200k", {"prompt_id"}),  # its prompt is the first question
        ("sharegpt", {"id"}),
        ("squad", {"title"}),
        ("pairs of conversations", {"score_chosen"}),
        ("openai with tools", set()),
        ("glaive", set()),
    ],
)
def test_what_is_not_used_is_named(name, unused):
    assert set(read_record(LAYOUTS[name][0]).reading.unused) == unused
