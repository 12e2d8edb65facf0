"""The embedded conversations are sound: answers stand in their stories, splits are apart, and the exam can fail."""

import json
from collections import Counter

import pytest

from slm.data.chat import questions
from slm.data.chat.story_chat import conversation, exam
from slm.data.chat.story_facts import HELD_OUT_NAMES, NotingTeller
from slm.data.tales.plots import PLOTS


def test_the_same_number_is_always_the_same_conversation():
    assert conversation(1, 5) == conversation(1, 5)
    assert len({json.dumps(conversation(1, index)) for index in range(400)}) > 370  # small talk repeats


def test_every_conversation_alternates_and_ends_with_an_answer():
    for index in range(300):
        messages = conversation(2, index)["messages"]
        assert [each["role"] for each in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert all(each["content"].strip() for each in messages)


def test_training_never_speaks_of_held_out_names_nor_in_held_out_wordings():
    kept = [each.wordings[-1] for each in questions.ASKS]
    for index in range(400):
        text = " ".join(each["content"] for each in conversation(1, index)["messages"])
        assert not any(f" {name} " in text for name in HELD_OUT_NAMES)
        assert not any(wording in text for wording in kept if "{" not in wording)


def test_training_and_validation_share_no_story():
    train = {conversation(1, index)["messages"][0]["content"] for index in range(300)}
    held_out = [conversation(1, index, held_out=True)["messages"][0]["content"] for index in range(300)]
    assert not [each for each in held_out if len(each) > 200 and each in train]


@pytest.mark.parametrize("plot", range(len(PLOTS)))
def test_facts_are_in_the_story(plot):
    seen = 0
    for number in range(60 * len(PLOTS)):
        facts = NotingTeller(f"test/{number}", held_out_names=False).tell()
        if facts.plot != PLOTS[plot].__name__:
            continue
        seen += 1
        for ask in questions.ASKS:
            for wording in ask.wordings:
                question = ask.question(facts, wording)
                if question is not None:
                    assert question.expected.lower() in facts.story.lower(), (facts.plot, question)
                    assert "{" not in question.text + question.answer
    assert seen > 10


def test_the_exam_asks_new_questions_of_every_family_and_kind():
    asked = exam(120)
    assert Counter(each.family for each in asked) == {"stories": 60, "names": 30, "wordings": 30}
    assert Counter(each.question.kind for each in asked) == {"who": 40, "where": 40, "what": 40}
    train = " ".join(each["content"] for index in range(300) for each in conversation(1, index)["messages"])
    for each in asked:
        assert each.messages[0]["content"] not in train
        assert each.is_right(each.question.answer), each
        assert each.is_right(each.question.expected.upper())


def test_wrong_answers_are_wrong():
    asked = exam(60)
    for one, other in zip(asked[::3], asked[3::3], strict=False):
        if one.question.expected != other.question.expected:
            assert not one.is_right(other.question.answer)
    first = asked[0]
    assert not first.is_right("")
    assert not first.is_right(" ".join(questions.NAMES))  # naming everybody is no answer
    assert not first.is_right(first.question.expected + "y")


def test_there_are_more_than_a_million():
    ways = [NotingTeller(f"ways/{number}", held_out_names=False) for number in range(50)]
    for each in ways:
        each.tell()
    assert min(each.ways for each in ways) > 1e6
