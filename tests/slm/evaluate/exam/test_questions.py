"""Conversations become questions with expected answers, each with the score that fits its answer."""

import json

import pytest

from slm.data.chat.formats import read_record, to_document
from slm.data.errors import UserError
from slm.evaluate.exam import questions
from slm.evaluate.exam.questions import choose_scores, collect, of_conversation, sample


def said(*turns: str) -> dict:
    """A conversation of user and assistant in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(turns)]}


def qa(asked: str, answer: str) -> dict:
    return said(asked, answer)


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
WITH_TOOL = {
    "messages": [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"sky": "blue"}', "name": "weather"},
        {"role": "assistant", "content": "Blue sky."},
    ],
    "tools": [WEATHER],
}


def test_the_last_answer_is_expected_and_what_stands_before_is_asked():
    (question,) = of_conversation(said("Hello", "Hi!", "What is 2 + 2?", "4"))
    assert [each["content"] for each in question.messages] == ["Hello", "Hi!", "What is 2 + 2?"]
    assert (question.asked, question.expected_text) == ("What is 2 + 2?", "4")


def test_each_answer_after_the_last_message_of_the_user_is_expected():
    call, answer = of_conversation(WITH_TOOL)
    assert call.expected_text == 'weather({"city": "Rome"})'
    assert call.tools == [WEATHER]
    assert (len(answer.messages), answer.expected_text) == (3, "Blue sky.")


def test_answers_that_are_not_learned_are_not_expected_and_counted():
    unlearned = said("a", "b")
    unlearned["messages"][1]["weight"] = 0
    found = collect(map(to_document, [unlearned, qa("c", "d")]))
    assert (len(found.questions), found.unanswered) == (1, 1)
    assert "1 conversations without a last answer" in found.lines(1)[0]


def test_repeated_questions_are_asked_once():
    found = collect(map(to_document, [qa("a", "b"), qa("c", "d")] * 100))
    assert (len(found.questions), found.repeated) == (2, 198)


def test_a_sample_is_always_the_same():
    made = [of_conversation(qa(f"q{n}", f"a{n}"))[0] for n in range(50)]
    first = sample(made, 10)
    assert first == sample(made, 10)
    assert len({each.asked for each in first}) == 10
    assert first != made[:10]
    assert sample(made, 60) == made


LONG = "A long answer, which nobody would give word for word. " * 5


@pytest.mark.parametrize(
    ("conversations", "scores"),
    [
        ([qa("Capital of France?", "Paris."), qa("Of Italy?", "Rome.")], ["exact", "exact"]),
        ([qa("Tell", LONG), qa("Tell more", LONG + "End.")], ["likelihood", "likelihood"]),
        ([qa("Extract", '{"name": "Ada"}'), qa("Extract", '```json\n{"name": "Bob"}\n```')], ["json", "json"]),
        ([WITH_TOOL], ["tools", "exact"]),
        ([qa("Tell", LONG), WITH_TOOL], ["likelihood", "tools", "likelihood"]),
        ([qa("Say {x}", "{x} is no JSON")], ["exact"]),
    ],
)
def test_the_score_follows_from_the_expected_answers(conversations, scores):
    found = collect(to_document(read_record(each)[1]) for each in conversations)
    assert [each.score for each in choose_scores(found.questions)] == scores


def test_a_score_can_be_set_where_it_can_judge():
    found = collect(map(to_document, [qa("a", "b")])).questions
    assert [each.score for each in choose_scores(found, "contains")] == ["contains"]
    with pytest.raises(UserError, match=r"score=json compares JSON objects.*'b'.*exact"):
        choose_scores(found, "json")
    with pytest.raises(UserError, match=r"score=exact compares texts.*weather.*score=tools"):
        choose_scores(of_conversation(WITH_TOOL)[:1], "exact")


def test_files_of_any_format_are_read(tmp_path):
    path = tmp_path / "mixed.jsonl"
    records = [
        qa("a", "b"),
        {"instruction": "c", "output": "d"},
        {"prompt": "e", "chosen": "f", "rejected": "g"},
        {"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "i"}]},
        {"text": "no conversation"},
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    found, line = questions.read([str(path)])
    assert [each.expected_text for each in found.questions] == ["b", "d", "f", "i"]
    assert "left out 1 bad record, the first" in line
    assert "mixed.jsonl:5" in line


def test_nothing_to_ask_is_one_line(tmp_path):
    path = tmp_path / "none.jsonl"
    unlearned = said("a", "b")
    unlearned["messages"][1]["weight"] = 0
    path.write_text(json.dumps(unlearned))
    with pytest.raises(UserError, match=r"ask nothing.*end in the assistant's message"):
        questions.read([str(path)])
    with pytest.raises(UserError, match="nowhere"):
        questions.read([str(tmp_path / "nowhere.jsonl")])
