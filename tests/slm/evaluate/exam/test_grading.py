"""Right and wrong replies of each score, and the interval of a share."""

import pytest

from slm.evaluate.exam.grading import Grade, contains, grade, interval
from slm.evaluate.exam.questions import Question
from slm.evaluate.exam.reading import calls_in, json_in


def verdict(score: str, expected: str, reply: str, calls: list | None = None, spelled: str = "") -> Grade:
    message = {"role": "assistant", "content": expected} | ({"tool_calls": calls} if calls else {})
    return grade(Question(messages=[], expected=message, score=score), reply, spelled)


@pytest.mark.parametrize(
    ("expected", "reply", "right"),
    [
        ("Paris", " paris\n", True),
        ("49 euros  a month", "49 EUROS a\nmonth", True),
        ("Café", "Cafe\u0301", True),  # one character, or a letter and its accent
        ("Paris", "It is Paris.", False),
        ("Paris", "<think>Rome? No.</think>\nParis", True),
        ("Paris", "", False),
    ],
)
def test_exact_ignores_white_space_and_case(expected, reply, right):
    assert verdict("exact", expected, reply).right == right


@pytest.mark.parametrize(
    ("expected", "reply", "right"),
    [
        ("Paris.", "It is Paris, of course", True),
        ("4", "It is 42", False),
        ("4", "2 + 2 = 4.", True),
        ("C++", "I write C++ daily", True),
        ("(a)", "answer (a)", True),
        ("東京", "首都は東京です", True),  # a script without spaces between words
        ("Straße", "in der Hauptstraße", False),
        (".", "anything.", False),
    ],
)
def test_contains_finds_whole_words(expected, reply, right):
    assert contains(reply, expected) == right
    assert verdict("contains", expected, reply).right == right


@pytest.mark.parametrize(
    ("expected", "reply", "right", "fields"),
    [
        ('{"a": 1, "b": "x"}', '{"b": "x", "a": 1.0}', True, 1.0),
        ('{"a": 1, "b": "x"}', 'Here: ```json\n{"a": 1, "b": "y"}\n```', False, 0.5),
        ('{"a": 1}', '{"a": 1, "more": 2}', False, 1.0),
        ('{"a": true}', '{"a": 1}', False, 0.0),
        ('{"a": {"b": [1, 2]}}', '{"a": {"b": [1, 2]}} and so on', True, 1.0),
        ('{"a": 1}', '{"a": 1', False, 0.0),
        ('{"a": 1}', "no", False, 0.0),
        ("{}", "{}", True, 1.0),
    ],
)
def test_json_fields(expected, reply, right, fields):
    assert verdict("json", expected, reply) == Grade(right=right, fields=fields)


CALL = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
OTHER = {"function": {"name": "mul", "arguments": {}}}


@pytest.mark.parametrize(
    ("calls", "reply", "right"),
    [
        ([CALL], '<tool_call>\n{"name": "add", "arguments": {"b": 2, "a": 1}}\n</tool_call>', True),
        ([CALL], '{"name": "add", "parameters": {"a": 1, "b": 2}}', True),  # Llama 3's form
        ([CALL], '[{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}]', True),
        ([CALL], '{"name": "add", "arguments": {"a": 1}}', False),
        ([CALL], '{"name": "sub", "arguments": {"a": 1, "b": 2}}', False),
        ([CALL], "3", False),
        ([CALL, OTHER], '{"name": "mul", "arguments": {}} {"name": "add", "arguments": {"a": 1, "b": 2}}', True),
        ([CALL, CALL], '{"name": "add", "arguments": {"a": 1, "b": 2}}', False),
        (None, "just text", True),  # none is expected
        (None, '{"name": "add", "arguments": {"a": 1}}', False),
    ],
)
def test_calls_are_compared_by_name_and_arguments(calls, reply, right):
    assert verdict("tools", "text", reply, calls).right == right


def test_calls_in_another_form_are_compared_as_the_template_spells_them():
    spelled = '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}'
    assert verdict("tools", "", '[TOOL_CALLS]add[ARGS]{"b":2,"a":1}', [CALL], spelled).right
    assert not verdict("tools", "", '[TOOL_CALLS]add[ARGS]{"b":3,"a":1}', [CALL], spelled).right


def test_json_in_hostile_text_is_found_or_not_and_never_raises():
    assert json_in("[" * 100_000) is None
    assert calls_in('{"name": "f", "arguments": ' * 200) == []
    assert json_in('{bad} {"a": 1}') == {"a": 1}
    assert json_in('{"a": 1} rest', whole=True) is None


def test_the_interval_is_wilsons():
    low, high = interval(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)
    assert interval(0, 0) == (0.0, 1.0)
    assert interval(10, 10)[1] == 1.0
    assert round(interval(0, 10)[1], 4) == 0.2775
