"""Records of the usual formats become the same conversation, and what is none says why."""

import json

import pytest

from data.chat.formats import BadRecordError, format_of, from_document, plain_text, read_record, to_document

ASKED, ANSWERED = {"role": "user", "content": "How are you?"}, {"role": "assistant", "content": "Fine."}
SAME = {
    "messages": {"messages": [ASKED, ANSWERED]},
    "conversations": {"conversations": [{"from": "human", "value": "How are you?"}, {"from": "gpt", "value": "Fine."}]},
    "instruction": {"instruction": "How are you?", "input": "", "output": "Fine."},
    "prompt/completion": {"prompt": "How are you?", "completion": "Fine."},
    "preference": {"prompt": "How are you?", "chosen": "Fine.", "rejected": "Go away."},
}


@pytest.mark.parametrize("kind", SAME)
def test_every_format_gives_the_same_conversation(kind):
    found, conversation, _ = read_record(SAME[kind])
    assert found == kind
    rejected = [ASKED, {"role": "assistant", "content": "Go away."}]
    assert conversation == {"messages": [ASKED, ANSWERED]} | ({"rejected": rejected} if kind == "preference" else {})


def test_variants_that_data_sets_have():
    parts = [{"type": "text", "text": "How are "}, {"type": "text", "text": "you?"}]
    assert read_record({"messages": [{"role": "user", "content": parts}, ANSWERED]})[1]["messages"] == [ASKED, ANSWERED]
    as_text = {"messages": json.dumps([ASKED, ANSWERED])}
    assert read_record(as_text)[1]["messages"] == [ASKED, ANSWERED]
    whole = {"chosen": [ASKED, ANSWERED], "rejected": [ASKED, {"role": "assistant", "content": "No."}]}
    assert read_record(whole)[1]["messages"] == [ASKED, ANSWERED]
    with_system = SAME["conversations"] | {"system": "Be kind."}
    assert read_record(with_system)[1]["messages"][0] == {"role": "system", "content": "Be kind."}
    with_input = {"instruction": "Add.", "input": "2 and 3", "output": "5", "history": [["Hi", "Hello"]]}
    assert [each["content"] for each in read_record(with_input)[1]["messages"]] == [
        "Hi",
        "Hello",
        "Add.\n\n2 and 3",
        "5",
    ]
    roles = {"conversations": [{"role": "developer", "content": "s"}, ASKED, ANSWERED]}
    assert [each["role"] for each in read_record(roles)[1]["messages"]] == ["system", "user", "assistant"]


def test_tool_calls_keep_their_arguments_as_an_object():
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}
    record = {
        "tools": [{"type": "function", "function": {"name": "add"}}],
        "messages": [
            ASKED,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "5"},
            ANSWERED,
        ],
    }
    conversation = read_record(record)[1]
    made = conversation["messages"][1]
    assert made["content"] == ""
    assert made["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 2}}
    assert conversation["messages"][2]["role"] == "tool"
    assert conversation["tools"] == record["tools"]
    sharegpt = {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": '{"name": "f"}'}]}
    assert read_record(sharegpt)[1]["messages"][1]["tool_calls"][0]["function"]["name"] == "f"


def test_what_nobody_answers_is_taken_away():
    assert read_record({"messages": [ASKED, ANSWERED, ASKED]})[1]["messages"] == [ASKED, ANSWERED]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ([1], "a list, not an object"),
        ({"text": "plain"}, r"fields \(text\) are of no known format; expected messages"),
        ({"messages": []}, "list of messages is empty"),
        ({"messages": [ASKED]}, "no assistant answers"),
        ({"messages": [ANSWERED]}, "nothing is asked"),
        ({"messages": [ASKED, {"role": "assistant", "content": " "}]}, "message 2 is empty"),
        ({"messages": [{"role": "king", "content": "a"}, ANSWERED]}, "message 1 has the role 'king'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, ANSWERED]}, "message 1 is not text"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": [{"function": {}}]}]}, "has no name"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": 5}]}, "tool calls of message 2 are no list"),
        ({"instruction": "a", "output": "b", "history": 5}, "its history is no list"),
        ({"chosen": "a", "rejected": "b"}, "there is no prompt"),
        ({"prompt": "a", "completion": None}, "no known format"),
    ],
)
def test_bad_records_say_why(record, why):
    with pytest.raises(BadRecordError, match=why):
        read_record(record)


def test_a_conversation_travels_as_one_line():
    conversation = read_record(SAME["messages"])[1]
    document = to_document(conversation)
    assert "\n" not in document
    assert from_document(document) == conversation
    assert plain_text(document) == "How are you?\n\nFine."
    assert format_of(conversation) == "messages"


@pytest.mark.parametrize("system", [None, "Be kind."])
def test_answers_that_repeat_the_prompt_hold_it_once(system):
    """As in ultrafeedback_binarized, whose chosen and rejected are whole conversations."""
    no = {"role": "assistant", "content": "No."}
    record = {"prompt": "How are you?", "chosen": [ASKED, ANSWERED], "rejected": [ASKED, no]}
    start = [] if system is None else [{"role": "system", "content": system}]
    _, found, _ = read_record(record | ({} if system is None else {"system": system}))
    assert found == {"messages": [*start, ASKED, ANSWERED], "rejected": [*start, ASKED, no]}
    completed = {"prompt": [ASKED], "completion": [ASKED, ANSWERED]}
    assert read_record(completed)[1]["messages"] == [ASKED, ANSWERED]


def test_the_whole_conversation_beside_its_last_question_is_taken_once():
    asked = {"role": "user", "content": "And you?"}
    record = {"prompt": "And you? ", "chosen": [{"role": "system", "content": "s"}, asked, ANSWERED], "rejected": "No."}
    _, found, _ = read_record(record)
    assert found["messages"] == [{"role": "system", "content": "s"}, asked, ANSWERED]
    turns = [ASKED, ANSWERED, asked, ANSWERED]
    assert read_record({"prompt": "And you?", "completion": turns})[1]["messages"] == turns
    # Its last question once more, behind what came before it.
    found = read_record({"prompt": [ASKED, ANSWERED, asked], "completion": [asked, ANSWERED]})
    assert found[1]["messages"] == turns
    again = [{"role": "system", "content": "s"}, asked, ANSWERED]
    found = read_record({"prompt": [again[0], ASKED, ANSWERED, asked], "completion": again})[1]["messages"]
    assert found == [again[0], *turns]
    # A whole conversation whose first question is its last one, too, and whose earlier answer is spelt otherwise.
    spelt = [asked, ANSWERED | {"content": "Fine"}, asked, ANSWERED]
    assert read_record({"prompt": [asked, ANSWERED, asked], "completion": spelt})[1]["messages"] == spelt
    # Another question after an answer goes on, too.
    assert read_record({"prompt": turns[:2], "completion": turns[2:]})[1]["messages"] == turns
    # What goes on from the prompt begins with the assistant, or with what the assistant has asked of a tool.
    assert read_record({"prompt": [ASKED], "completion": turns[1:]})[1]["messages"] == turns
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "now", "arguments": "{}"}}]}
    shown = {"role": "tool", "content": "noon"}
    found = read_record({"prompt": [ASKED, call], "completion": [shown, ANSWERED]})[1]["messages"]
    assert [each["role"] for each in found] == ["user", "assistant", "tool", "assistant"]


def test_what_openai_and_reasoning_models_add_is_kept():
    answer = {"role": "assistant", "content": "Fine.", "reasoning_content": "hm", "weight": 0}
    last = {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": "{}"}}
    found = read_record({"messages": [ASKED, answer, ASKED, last]})[1]["messages"]
    assert found[1] == answer
    none = ANSWERED | {"function_call": {"name": None, "arguments": None}}
    assert read_record({"messages": [ASKED, none]})[1]["messages"] == [ASKED, ANSWERED]
    assert found[3]["tool_calls"] == [{"type": "function", "function": {"name": "now", "arguments": {}}}]
