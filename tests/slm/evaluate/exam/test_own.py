"""A model is asked its own questions: the replies of both engines, the row, the table, what is left out."""

import json
import math

import pytest

from slm.data.chat.formats import to_document
from slm.data.chat.tokens import with_chatml
from slm.evaluate.exam import own
from slm.evaluate.exam.answers import AT_ONCE, CheckpointAnswers, GGUFAnswers, Reply, groups
from slm.evaluate.exam.own import shortened
from slm.evaluate.exam.questions import choose_scores, collect
from slm.model.transformer import LanguageModel
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.chat_model import base_tokenizer, write_chat_gguf


def asked(*pairs: tuple[str, str], score: str = "auto"):
    made = [{"messages": [{"role": "user", "content": q}, {"role": "assistant", "content": a}]} for q, a in pairs]
    return choose_scores(collect(map(to_document, made)).questions, score)


class Knows(CheckpointAnswers):
    """A model of the tests' own tokenizer that says what it is told to say, in place of computing."""

    def __init__(self, says: dict[str, Reply]) -> None:
        tokenizer = with_chatml(base_tokenizer())
        super().__init__(LanguageModel(tiny.config(vocab_size=tokenizer.vocab_size, seq_len=64)), tokenizer, "m")
        self._says = says

    def continued(self, prompts, most):
        texts = [self.tokenizer.decode(ids) for ids in prompts]
        return [next(reply for q, reply in self._says.items() if q in text) for text in texts]


def test_the_row_counts_right_replies_and_the_wrong_ones_are_shown(capsys):
    questions = asked(("Capital of France?", "Paris"), ("Of Italy?", "Rome"), ("Of Spain?", "Madrid"))
    model = Knows({"France": Reply("paris", True), "Italy": Reply("It is Rome.", True), "Spain": Reply("", False)})
    row = own.ask(model, questions, None, 3)
    out = capsys.readouterr().out
    assert "wrong: Of Italy?\n    expected: Rome\n    given:    It is Rome.\n" in out
    assert "wrong: Of Spain?\n    expected: Madrid\n    given:    (nothing)\n" in out
    assert "France" not in out
    assert (row["right"], row["judged"], row["contains"], row["stopped"]) == (1, 3, 2, 2)
    assert (row["scores"], row["share"], row["low"], row["high"]) == ({"exact": 3}, 0.3333, 0.0615, 0.7923)
    own.show("Title", [row])
    table = capsys.readouterr().out
    assert "1 of 3 (33.3%)" in table
    assert "6.2% to 79.2%" in table
    assert "nats" not in table, "a column that nothing is in"
    assert "1 wrong reply contains the expected answer: score=contains counts" in table
    own.show("Title", [row | {"contains": 1}])
    assert "score=contains counts" not in capsys.readouterr().out


def test_replies_that_end_in_their_reasoning_are_said(capsys):
    says = {"France": Reply("<think>France is", False), "Italy": Reply("<think>?</think>Rome", True)}
    row = own.ask(Knows(says), asked(("Capital of France?", "Paris"), ("Of Italy?", "Rome")), None, 0)
    assert row["right"] == 1
    assert "m: 1 replies were cut off in their reasoning: raise max_tokens" in capsys.readouterr().out


def test_what_does_not_fit_the_context_counts_as_wrong_and_is_said(capsys):
    questions = asked(("Capital of France?", "Paris"), ("Long " * 80, "yes"))
    row = own.ask(Knows({"France": Reply("Paris", True)}), questions, None, 0)
    assert (row["right"], row["judged"], row["too_long"]) == (1, 2, 1)
    assert "1 questions do not fit its context of 64 tokens" in capsys.readouterr().out


def test_both_engines_say_and_weigh_the_same(tmp_path):
    """Untrained weights: greedy replies and likelihoods agree, whatever is asked together."""
    tokenizer = with_chatml(base_tokenizer())
    gguf = write_chat_gguf(tmp_path / "chat", tokenizer)
    from slm.evaluate.exam.answers import checkpoint_answers

    in_torch = checkpoint_answers(tmp_path / "chat", 1)
    pairs = [("Who is it? " * (n % 5 + 1), f"It is <|im_end|> number {n}.") for n in range(9)]
    worded, weighed = asked(*pairs, score="exact"), asked(*pairs, score="likelihood")
    with GGUFAnswers(gguf, 1) as in_llama:
        for each in worded:
            assert in_torch.prompt(each.messages) == in_llama.prompt(each.messages)
            assert in_torch.expected(each) == in_llama.expected(each)
        one, other = (own.examine(model, worded, 6) for model in (in_torch, in_llama))
        assert one.replies == other.replies
        alone = [own.examine(in_llama, [each], 6).replies[0] for each in worded]
        assert alone == other.replies
        one, other = (own.examine(model, weighed).nats() for model in (in_torch, in_llama))
        assert one == pytest.approx(other, abs=1e-3 * one[0])  # the interval is a difference of such numbers
        assert math.log(2) < one[0] < 2 * math.log(tokenizer.vocab_size)


def test_the_likelihood_is_of_the_answer_with_its_end_after_the_question():
    tokenizer = with_chatml(base_tokenizer())
    model = CheckpointAnswers(LanguageModel(tiny.config(vocab_size=tokenizer.vocab_size)), tokenizer, "m")
    (question,) = asked(("Hi", "Hello there"), score="likelihood")
    before, said = model.expected(question)
    assert tokenizer.decode(said) == "Hello there"
    assert said[-1] == tokenizer.eot_id
    assert before == model.prompt(question.messages)


def test_without_a_chat_template_the_first_paragraph_counts(capsys):
    tokenizer = base_tokenizer()
    model = CheckpointAnswers(LanguageModel(tiny.config(vocab_size=tokenizer.vocab_size)), tokenizer, "base")
    assert own.given_text(model, Reply("Paris\n\nAnd more", False)) == "Paris"
    (question,) = asked(("Capital?", "Paris"))
    assert tokenizer.decode(model.prompt(question.messages)) == "Capital?\n\n"
    own.ask(model, [question], 4, 0)
    assert "base has no chat template" in capsys.readouterr().out


def test_questions_of_like_length_go_together():
    lengths = [100, 5000, 120, 90, 4000]
    found = list(groups(range(5), lengths))
    assert found == [[3, 0, 2], [4], [1]]
    assert max(map(len, groups(range(100), [1] * 100))) == AT_ONCE


def test_a_stop_leaves_the_rest_unasked():
    questions = asked(*((f"France {n}", "Paris") for n in range(AT_ONCE + 8)))
    calls = iter([False, True])
    out = own.examine(Knows({"France": Reply("Paris", True)}), questions, 4, stop=lambda: next(calls))
    assert (len(out.asked), out.right) == (AT_ONCE, AT_ONCE)


def test_long_texts_are_shown_by_beginning_and_end():
    assert shortened("a\n b\x1b", 9) == "a b␛" or "\x1b" not in shortened("a\n b\x1b", 9)
    assert shortened("x" * 50 + "y" * 50, 20) == "x" * 10 + " … " + "y" * 10
    assert json.dumps(shortened("one\ntwo", 20)) == '"one two"'
