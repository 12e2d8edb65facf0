"""The embedded exam counts what is right and what stops, for a model that answers and one that does not."""

from slm.data.chat.story_chat import exam
from slm.evaluate.exam.answers import Answers, Reply, plain
from slm.evaluate.exam.stories import ask

QUESTIONS = exam(60)


class Model(Answers):
    name, engine, chats, context = "m", "torch", True, 1000

    def __init__(self, replies: list[Reply]) -> None:
        self._replies = iter(replies)

    def prompt(self, messages, tools=None):
        return [0]

    def continued(self, prompts, most):
        return [next(self._replies) for _ in prompts]


def test_a_model_that_knows_is_right_everywhere():
    row = ask(Model([Reply(each.question.answer, True) for each in QUESTIONS]), QUESTIONS, 64)
    assert (row["right"], row["stopped"], row["questions"]) == (60, 60, 60)
    assert (row["share"], row["low"], row["high"]) == (1.0, 0.9398, 1.0)
    assert row["by_kind"] == {"who": 1.0, "where": 1.0, "what": 1.0}
    assert row["by_family"] == {"stories": 1.0, "names": 1.0, "wordings": 1.0}


def test_a_model_that_repeats_the_story_is_wrong_and_does_not_stop(capsys):
    row = ask(Model([Reply("Lily and Tom and Max", False)] * 60), QUESTIONS, 64, n_shown=2)
    assert row["right"] < 5
    assert row["stopped"] == 0
    assert capsys.readouterr().out.count("wrong: ") == 2


def test_a_base_model_gets_plain_text():
    assert plain([{"role": "user", "content": "A story.\n\nWho?"}]) == "A story.\n\nWho?\n\n"
