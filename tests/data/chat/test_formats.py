"""Records of the usual formats become the same conversation, and what is none says why."""

import datetime
import json
from decimal import Decimal

import pytest

from slm.data.chat.formats import BadRecordError, format_of, from_document, plain_text, read_record, to_document

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


def messages_of(record, **columns) -> list[dict]:
    return read_record(record, columns).conversation["messages"]


def test_nulls_say_nothing_and_hide_nothing():
    """As Arrow pads columns, and as tables that were joined have one spelling of a column in some of their rows."""
    null = float("nan")  # pandas' own
    assert messages_of({"instruction": "a", "output": None, "response": "b", "history": None}) == messages_of(
        {"instruction": "a", "output": "", "completion": null, "response": "b"}
    )
    turns = [{"role": None, "from": "human", "content": None, "value": "How are you?"}, ANSWERED | {"tool_calls": None}]
    assert messages_of({"messages": None, "conversations": turns, "chosen": None}) == [ASKED, ANSWERED]
    parts = [{"type": "text", "text": None}, None, {"type": "text", "text": "How are you?", "image_url": None}]
    assert messages_of({"messages": [{"role": "user", "content": parts}, None, ANSWERED]}) == [ASKED, ANSWERED]
    assert messages_of({"prompt": None, "question": "How are you?", "answer": "Fine."}) == [ASKED, ANSWERED]
    assert messages_of({"prompt": "How are you?", "system": null, "completion": "Fine."}) == [ASKED, ANSWERED]


def asked_with_call(arguments, **more):
    function = {"name": "f", "arguments": arguments}
    return {"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [{"function": function}]} | more]}


NAN = float("nan")
SAYING_NOTHING = [
    *({"messages": [ASKED, ANSWERED | {"tool_calls": each}]} for each in ("null", "None", "[]", "", [None], [{}])),
    *(
        {"messages": [ASKED, ANSWERED | {"tool_calls": [{"id": None, "function": each}]}]}
        for each in (None, {"name": None, "arguments": None}, {"name": "", "arguments": ""})
    ),
    *({"messages": [each, ASKED, ANSWERED]} for each in (None, {}, {"role": None, "content": None})),
    *({"messages": [{"role": "system", "content": each}, ASKED, ANSWERED]} for each in (None, NAN)),
    *({"messages": [ASKED, ANSWERED], "system": each} for each in ("null", NAN, [None], {"content": None}, [])),
    *({"messages": [ASKED, ANSWERED], "tools": each} for each in ("null", "None", "[]", [None], [{"name": None}], NAN)),
    *({"messages": each, "conversations": [ASKED, ANSWERED]} for each in ([], [None], [{"role": None}], "null")),
    *(
        {"instruction": "How are you?", "output": "Fine.", "history": each}
        for each in ("null", "None", "[]", NAN, [None], [[None, None]], [["", None]])
    ),
    *({"instruction": "How are you?", "input": each, "output": "Fine."} for each in ("None", "<noinput>", "nan", NAN)),
    *({"question": "How are you?", "response": each, "answer": "Fine."} for each in ("null", [None], {"text": None})),
    *(
        {"messages": [{"role": "user", "content": each}, ANSWERED]}
        for each in (
            [None, {"type": "text", "text": None}, {"type": "text", "text": "How are you?"}],
            [{"type": "text", "value": "How are you?", "image_url": None}],
            [{"type": "text", "text": {"value": "How are you?", "annotations": []}}],
        )
    ),
    {"question": "How are you?", "answers": {"text": [None, "Fine."]}},
]


@pytest.mark.parametrize("number", range(len(SAYING_NOTHING)))
def test_what_says_nothing_in_any_spelling_is_not_there(number):
    assert read_record(SAYING_NOTHING[number]).conversation == {"messages": [ASKED, ANSWERED]}


def test_values_of_tables_are_their_own_text():
    for value, text in ((datetime.date(2020, 1, 2), "2020-01-02"), (Decimal("5.10"), "5.10"), (5, "5"), (True, "true")):
        assert messages_of({"question": "a", "answer": value})[1]["content"] == text


@pytest.mark.parametrize("arguments", [[], "[]", {}, "{}"])
def test_nothing_in_a_list_of_arguments_is_none(arguments):
    (call,) = messages_of(asked_with_call(arguments))[1]["tool_calls"]
    assert call["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ["None", "{'a': None, 'b': True}", '{"a": null, "b": true}'])
@pytest.mark.parametrize("content", [None, "None", "null", NAN])
def test_calls_as_python_writes_them_are_calls(arguments, content):
    wanted = {} if arguments == "None" else {"a": None, "b": True}
    answer = messages_of(asked_with_call(arguments, content=content))[1]
    assert answer["content"] == ""
    assert answer["tool_calls"][0]["function"]["arguments"] == wanted
    calls = str([{"name": "f", "arguments": wanted}])
    of_text = messages_of({"query": "How are you?", "tools": [{"name": "f"}], "answers": calls})[1]
    assert of_text["tool_calls"][0]["function"]["name"] == "f"


def test_a_field_of_a_call_that_is_not_used_is_named():
    call = {"name": "f", "kwargs": {"a": 1}, "values": {"b": 2}}
    found = read_record({"messages": [ASKED, {"role": "assistant", "tool_calls": [call]}]})
    assert found.conversation["messages"][1]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert set(found.reading.unused) == {"tool_calls.values"}


def test_a_history_as_text_and_questions_as_messages():
    for history in ('[["a", "b"]]', "[['a', 'b'], None]", ["a", "b"], [{"user": "a", "assistant": "b"}]):
        found = messages_of({"instruction": "How are you?", "output": "Fine.", "history": history})
        assert [each["content"] for each in found] == ["a", "b", "How are you?", "Fine."]
    for asked in ([ASKED], {"messages": [ASKED]}):
        for answer in ("Fine.", [ANSWERED]):
            assert messages_of({"input": asked, "output": answer}) == [ASKED, ANSWERED]
    two = {"question": "Who?", "contexts": ["One.", None, "Two."], "answer": "Ann"}
    assert messages_of(two)[0]["content"] == "Who?\n\nOne.\n\nTwo."


def test_reasoning_of_any_shape_is_kept():
    for thought in ("Hm.", ["Hm."], [{"type": "text", "text": "Hm."}], {"content": "Hm."}):
        assert messages_of({"messages": [ASKED, ANSWERED | {"reasoning": thought}]})[1]["reasoning_content"] == "Hm."
    assert set(read_record({"messages": [ASKED, ANSWERED | {"thinking": {"a": [1]}}]}).reading.unused) == {
        "messages.thinking"
    }


@pytest.mark.parametrize(
    ("record", "what"),
    [
        ({"messages": [ASKED | {"content": None}, ANSWERED]}, "empty messages of the user kept"),
        ({"question": "a", "answer": "None"}, "answers that say only None, null or the like kept"),
        (asked_with_call({}, content="None"), "texts such as None and null beside calls taken as empty"),
        ({"instruction": "a", "input": "None", "output": "b"}, "texts such as None and null taken as empty"),
    ],
)
def test_what_is_guessed_of_nulls_is_counted(record, what):
    assert read_record(record).reading.changed == {what: 1}


def test_an_empty_answer_of_a_history_is_kept_and_not_learned():
    _, conversation, reading = read_record({"instruction": "And?", "output": "a", "history": [["q0", None], None]})
    assert [each["content"] for each in conversation["messages"]] == ["q0", "", "And?", "a"]
    assert conversation["messages"][1]["weight"] == 0
    assert reading.changed == {"empty answers of a history not learned": 1}


def call_of(arguments, **more) -> dict:
    call = {"function": {"name": "f", "arguments": arguments} | more}
    return messages_of({"messages": [ASKED, {"role": "assistant", "content": None, "tool_calls": [call]}]})[1]


@pytest.mark.parametrize("arguments", [None, "null", "", " ", "{}", {}, '"null"', float("nan"), {"a": None}])
def test_a_call_without_arguments_has_none(arguments):
    assert call_of(arguments)["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}


def test_nulls_that_arrow_pads_are_no_arguments_and_those_in_text_are():
    padded = {"city": "Oslo", "unit": None, "in": {"a": 1, "b": None}, "list": [{"c": None, "d": 2}]}
    found = call_of(padded)["tool_calls"][0]["function"]["arguments"]
    assert found == {"city": "Oslo", "in": {"a": 1}, "list": [{"d": 2}]}
    assert call_of('{"unit": null}')["tool_calls"][0]["function"]["arguments"] == {"unit": None}
    assert call_of([("city", "Oslo"), ("unit", None)])["tool_calls"][0]["function"]["arguments"] == {"city": "Oslo"}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": {"type": "x", "enum": None}}}, "b": None}
    record = {"messages": [ASKED, ANSWERED], "tools": [tool, None]}
    _, conversation, reading = read_record(record)
    assert conversation["tools"] == [
        {"type": "function", "function": {"name": "f", "parameters": {"a": {"type": "x"}}}}
    ]
    assert reading.changed == {"null keys of calls and tools taken as absent": 1}
    nothing = {"id": None, "function": {"name": None, "arguments": None}}
    assert messages_of({"messages": [ASKED, ANSWERED | {"tool_calls": [nothing, None]}]}) == [ASKED, ANSWERED]


@pytest.mark.parametrize("arguments", ["[1]", [1], "5", 5, "true", [["a", 1]]])
def test_arguments_that_are_no_object_are_refused_with_their_place(arguments):
    with pytest.raises(BadRecordError, match=r"the arguments of the tool call of message 2 are .*, not an object"):
        call_of(arguments)


@pytest.mark.parametrize("mark", ["weight", "train", "trainable", "loss", "training"])
@pytest.mark.parametrize("value", [False, 0, "0", "false", 0.0, "False"])
def test_an_answer_that_is_marked_is_not_learned(mark, value):
    first, second = messages_of({"messages": [ASKED, ANSWERED | {mark: value}, ASKED, ANSWERED]})[1::2]
    assert first == ANSWERED | {"weight": 0}
    assert second == ANSWERED
    kept = messages_of({"messages": [ASKED | {mark: value}, ANSWERED | {mark: True}]})
    assert kept == [ASKED, ANSWERED]
    with pytest.raises(BadRecordError, match="marked not to be learned"):
        read_record({"messages": [ASKED, ANSWERED], mark: value})


def test_a_mark_that_says_nothing_is_named():
    _, conversation, reading = read_record({"messages": [ASKED, ANSWERED | {"weight": 0.5, "loss": "high"}]})
    assert conversation["messages"] == [ASKED, ANSWERED]
    assert set(reading.changed) == {"weights other than 0 and 1 taken as 1"}
    assert set(reading.unused) == {"messages.loss"}


@pytest.mark.parametrize("name", ["system", "system_prompt", "System Message"])
def test_a_system_message_of_the_record_stands_first(name):
    system = {"role": "system", "content": "Be kind."}
    for record in SAME.values():
        assert messages_of({name: "Be kind.", **record}) == [system, ASKED, ANSWERED]
    found = read_record({name: "Be kind.", "messages": [system | {"content": "Other."}, ASKED, ANSWERED]})
    assert found.conversation["messages"][0]["content"] == "Other."
    assert set(found.reading.unused) == {name}


def test_fields_that_are_not_used_are_named():
    message = ANSWERED | {"name": "ann", "refusal": None, "audio": "x"}
    _, _, reading = read_record({"messages": [ASKED, message], "id": 7, "meta": {}, "source": "web"})
    assert set(reading.unused) == {"id", "source", "messages.audio"}
    with pytest.raises(BadRecordError, match=r"of no known format; .* data.columns=\{user: NAME, assistant: NAME\}"):
        read_record({"frage": "a", "antwort": "b"})


@pytest.mark.parametrize("result", [{"t": 1}, [{"t": 1}], [1, 2], 5, True])
def test_a_tools_result_is_its_json_text(result):
    turns = [ASKED, {"role": "tool", "content": result}, ANSWERED]
    assert messages_of({"messages": turns})[1]["content"] == json.dumps(result)


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content", "thought"])
def test_reasoning_is_kept_by_one_name(name):
    wanted = [ASKED, ANSWERED | {"reasoning_content": "Hm."}]
    assert messages_of({"messages": [ASKED, ANSWERED | {name: "Hm."}]}) == wanted
    assert messages_of({"question": "How are you?", name: "Hm.", "answer": "Fine."}) == wanted


def test_columns_are_named():
    record = {"q": "How are you?", "a": "Fine.", "note": "x", "s": "Be kind.", "output": "no"}
    kind, conversation, reading = read_record(record, {"user": "q", "assistant": "a", "system": "s"})
    assert kind == "question/answer"
    assert conversation["messages"] == [{"role": "system", "content": "Be kind."}, ASKED, ANSWERED]
    assert set(reading.unused) == {"note", "output"}
    with pytest.raises(BadRecordError, match=r"has no column 'b'; its columns are 'q'.*: set data.columns"):
        read_record(record, {"user": "q", "assistant": "b"})


def test_calls_that_follow_each_other_are_one_answer():
    """As in ms-swift's data, where each call is a separate turn."""
    call = {"role": "tool_call", "content": json.dumps({"name": "f", "arguments": {"a": 1}})}
    turns = [
        ASKED,
        {"role": "assistant", "content": "Let me see."},
        call,
        call,
        {"role": "tool_response", "content": "x"},
    ]
    found = messages_of({"messages": [*turns, ANSWERED]})
    assert [each["role"] for each in found] == ["user", "assistant", "tool", "assistant"]
    assert len(found[1]["tool_calls"]) == 2


def test_characters_that_text_cannot_hold_are_replaced():
    _, conversation, reading = read_record({"prompt": "a\ud83db\0", "completion": "c"})
    assert conversation["messages"][0]["content"] == "a\ufffdb\ufffd"
    assert set(reading.changed) == {"characters that text cannot hold replaced by U+FFFD"}
    to_document(conversation).encode()


def test_an_answer_that_is_not_wanted_is_left_out():
    with pytest.raises(BadRecordError, match="not wanted"):
        read_record({"prompt": "a", "completion": "b", "label": False})
    assert read_record({"prompt": "a", "completion": "b", "label": True})


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"messages": [ASKED, {"role": "assistant", "content": {"a": 1}}]}, "content of message 2 is not text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWERED]}, "a part of the type 'image'"),
        ({"question": "a", "answer": {"b": 1}}, "its answer is an object, not text"),
        ({"question": " ", "answer": "b", "context": None}, "its question is empty"),
        ({"messages": [ASKED, ANSWERED], "tools": [{"description": "x"}]}, "one of its tools has no name"),
        ({"messages": [ASKED, ANSWERED], "tools": "{["}, "its tools are text that is not JSON"),
        ({"messages": [ASKED, ANSWERED], "system": 5}, "its system message is a number"),
        ({"prompt": "a", "completion": ["b", "c"]}, "its completion is a list of texts"),
        ({"message_id": "a", "parent_id": "b", "text": "c", "role": "assistant"}, "one message of a tree"),
        ([1], "a list, not an object"),
        ({"text": "plain"}, r"fields \(text\) are of no known format; expected messages"),
        ({"messages": []}, "list of messages is empty"),
        ({"messages": [ASKED]}, "no assistant answers"),
        ({"messages": [ANSWERED]}, "nothing is asked"),
        ({"messages": [ASKED, {"role": "assistant", "content": " "}]}, "message 2 is empty"),
        ({"messages": [{"role": "king", "content": "a"}, ANSWERED]}, "message 1 has the role 'king'"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, ANSWERED]}, "message 1 is not text"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": [{"id": "a", "function": {}}]}]}, "has no name"),
        ({"messages": [ASKED, {"role": "assistant", "tool_calls": 5}]}, "tool calls of message 2 are no list"),
        ({"instruction": "a", "output": "b", "history": 5}, "its history is no list"),
        ({"chosen": "a", "rejected": "b"}, "there is no prompt"),
        ({"prompt": "a", "completion": None}, "its completion is empty"),
        ({"prompt": "a", "chosen": None, "rejected": "b"}, "the chosen one is empty"),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, "the rejected one is empty"),
        ({"question": "a", "context": "b", "answers": {"text": []}}, "its answers is empty"),
        ({"query": "a", "tools": [{"name": "f"}], "answers": "[{"}, "its calls are text that is not JSON"),
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
    """As in ultrafeedback_binarized, where chosen and rejected are whole conversations."""
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
    # A whole conversation with the same first and last question; its earlier answer is spelt otherwise.
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


def test_calls_and_contents_in_odd_wrappings_are_read_or_refused():
    """A call's whole function as text was the function's name, and training wrote it."""
    for function in ('{"name": "now", "arguments": {"at": 1}}', "{'name': 'now', 'arguments': '{\"at\": 1}'}"):
        called = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": function}]}
        (call,) = read_record({"messages": [ASKED, called]})[1]["messages"][1]["tool_calls"]
        assert call == {"type": "function", "id": "c", "function": {"name": "now", "arguments": {"at": 1}}}
    torn = {"role": "assistant", "content": "", "tool_calls": [{"function": '{"name": "now'}]}
    with pytest.raises(BadRecordError, match="holds a function that is not JSON"):
        read_record({"messages": [ASKED, torn]})
    for content in ({"text": "Fine."}, {"parts": ["Fine."], "content_type": "text"}, {"content": [{"text": "Fine."}]}):
        found = read_record({"messages": [ASKED, {"role": "assistant", "content": content}]})[1]["messages"]
        assert found == [ASKED, ANSWERED]
    with pytest.raises(BadRecordError, match="is not text"):
        read_record({"messages": [ASKED, {"role": "assistant", "content": {"type": "image", "text": "Fine."}}]})
    squad = {"question": "How are you?", "answers": [{"text": "Fine.", "answer_start": 3}]}
    assert read_record(squad)[1]["messages"] == [ASKED, ANSWERED]


@pytest.mark.parametrize("null", ["None", "null", ["nan", None], {"text": "None"}])
def test_reasoning_that_spells_null_is_none(null):
    """Training wrote "None" as what a model thinks."""
    for record in (
        {"messages": [ASKED, ANSWERED | {"reasoning": null}]},
        {"question": "How are you?", "answer": "Fine.", "reasoning": null},
    ):
        _, found, reading = read_record(record)
        assert found["messages"] == [ASKED, ANSWERED]
        assert reading.changed == {"texts such as None and null taken as empty": 1}
