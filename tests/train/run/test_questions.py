"""A run's own questions: drawn once, asked within their time, shown and counted before, during and after training."""

import json
from pathlib import Path

import pytest
import torch

from slm.data.chat.tokens import with_chatml
from slm.evaluate.exam.answers import Reply
from slm.model.checkpoint import save_model
from slm.model.transformer import LanguageModel
from slm.runs import QUESTIONS
from slm.train.report import run_view, sections
from slm.train.report.html import render
from slm.train.report.run_record import RunRecord
from slm.train.resolve import resolve
from slm.train.run import questions
from slm.train.run.questions import RunQuestions, exam_line, prepare, score_line
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.chat_model import base_tokenizer
from tests.helpers.programs import Program
from tests.helpers.run_files import ParsedPage
from tests.helpers.small_run import QUICK, records, write_corpus


def write_chats(folder: Path, count: int = 60, answer: str = "cat") -> Path:
    path = folder / "chats.jsonl"
    made = [{"instruction": f"Say {index}", "output": answer} for index in range(count)]
    path.write_text("\n".join(map(json.dumps, made)))
    return path


def asked(folder: Path, chats: Path, *more: str, main: bool = True) -> RunQuestions:
    config = resolve(["preset=tiny", "data=chat", f"data.files=[{chats}]", *more], choose)
    return prepare(config, folder, main=main)


def choose(*_):
    raise AssertionError("no micro-batch is to be measured")


def attached(made: RunQuestions) -> RunQuestions:
    tokenizer = with_chatml(base_tokenizer())
    torch.manual_seed(1)
    made.attach(LanguageModel(tiny.config(vocab_size=tokenizer.vocab_size)), tokenizer)
    return made


def test_questions_come_from_what_is_held_out_and_stay_the_same(tmp_path, monkeypatch):
    chats = write_chats(tmp_path)
    made = asked(tmp_path, chats, "data.val_fraction=0.2")
    assert made.held_out
    kept = [json.loads(line) for line in (tmp_path / QUESTIONS).read_text().splitlines()]
    assert 5 <= len(kept) <= 20, "about a fifth of 60"
    again = asked(tmp_path, chats, "data.val_fraction=0.5")
    assert again._asked == made._asked
    questions.remove(tmp_path)
    monkeypatch.setattr(questions, "SCORED_QUESTIONS", 4)
    assert len(asked(tmp_path, chats, "data.val_fraction=0.2")._asked) == 4


def test_where_nothing_is_held_out_it_is_said(tmp_path):
    unlearned = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]}
    (tmp_path / "apart.jsonl").write_text(json.dumps(unlearned))
    made = asked(tmp_path, write_chats(tmp_path), f"data.val_files=[{tmp_path / 'apart.jsonl'}]")
    assert not made.held_out
    assert "trained on (none is held out)" in score_line(attached(made).before(1.0)[0], made.what)


def test_where_validations_score_what_is_learned_nothing_is_held_out(tmp_path):
    assert not asked(tmp_path, write_chats(tmp_path), "data.val_fraction=0").held_out


def test_only_the_first_process_asks_and_only_about_conversations(tmp_path):
    chats = write_chats(tmp_path)
    assert not asked(tmp_path, chats, main=False)
    words = ["preset=tiny", "data=local", f"data.files=[{write_corpus(tmp_path / 'd.jsonl')}]"]
    text = resolve(words, choose)
    assert not prepare(text, tmp_path, main=True)
    assert not (tmp_path / QUESTIONS).exists()


class Slow:
    """Stands for a clock: a group of questions takes this many seconds."""

    def __init__(self, monkeypatch, seconds: float) -> None:
        self.now, self._seconds = 0.0, seconds
        monkeypatch.setattr(questions, "perf_counter", lambda: self.now)

    def continued(self, prompts, most):
        self.now += self._seconds
        return [Reply("cat", True) for _ in prompts]


def test_a_score_takes_its_share_of_a_run_and_is_asked_again_with_the_same(tmp_path, monkeypatch):
    made = attached(asked(tmp_path, write_chats(tmp_path, 200), "data.val_fraction=0.5"))
    clock = Slow(monkeypatch, 3.0)
    made._model.continued = clock.continued
    out, texts = made.before(450.0)  # 9 seconds: the three that are shown, then three groups
    assert (len(out.asked), out.right, made.closing_seconds) == (3 + 3 * questions.FEW, 27, 12.0)
    assert [text.partition("\n")[2] for text in texts] == ["expected: cat\ngiven: cat"] * 3
    after, _ = made.after()
    assert after.asked == out.asked
    resumed = attached(asked(tmp_path, tmp_path / "chats.jsonl", "data.val_fraction=0.5"))
    resumed.resume({"questions": 27, "seconds": 12.0})
    assert (resumed._asked, resumed.closing_seconds) == (out.asked, 12.0)
    resumed.resume(None)
    assert len(resumed._asked) == 3 + questions.FEW, "a run that began before there were questions"


def test_answers_at_validations_take_little_of_the_time(tmp_path, monkeypatch):
    made = attached(asked(tmp_path, write_chats(tmp_path)))
    clock = Slow(monkeypatch, 2.0)
    made._model.continued = clock.continued
    shown = [bool(made.at_validation(step, 10.0 * step, last=step == 30)) for step in range(1, 31)]
    assert [step for step, texts in enumerate(shown, 1) if texts] == [1, 20, 30]
    assert made.limited


def test_long_answers_are_weighed_and_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(questions, "SHOWN_TOKENS", 3)
    made = attached(asked(tmp_path, write_chats(tmp_path, answer="It is long. " * 20)))
    out, texts = made.before(1.0)
    assert (out.judged, len(texts)) == (0, 2)
    assert 3 < out.nats()[0] < 20
    assert "nats per token of the expected answers" in score_line(out, made.what)
    assert all("expected: It is long. It is" in text for text in texts)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[Path, str]:
    """A run that is tuned on sixty conversations, and what it printed."""
    folder = tmp_path_factory.mktemp("tuned")
    base, tokenizer = folder / "base", base_tokenizer()
    base.mkdir()
    torch.manual_seed(1)
    save_model(base, LanguageModel(tiny.config(vocab_size=tokenizer.vocab_size, n_layers=1, tie_embeddings=True)))
    tokenizer.save(base)
    options = [f"base={base}", f"runs_dir={folder}/runs", "data=chat", f"data.files=[{write_chats(folder)}]"]
    options += [*QUICK, "train.seq_len=64", "train.micro_batch=4", "train.eval_blocks=2"]
    options += ["data.max_epochs=99", "train.max_steps=30", "train.eval_every=15", "train.checkpoint_every=15"]
    # The base is random: its first gradients are far larger than the later ones, and must be forgotten.
    options += [
        "optim=adamw",
        "optim.betas=[0.9,0.95]",
        "optim.lr=5e-3",
        "optim.warmup_steps=2",
        "name=tuned",
        "data.val_fraction=0.2",
    ]
    program = Program("slm.train.tune.__main__", options, folder)
    out, err = program.communicate(timeout=240)
    assert program.returncode == 0, out + err
    return folder / "runs" / "tuned", out


def test_a_tuned_run_shows_what_it_learned(tuned):
    root, out = tuned
    first, last = (each for each in records(root) if each.get("event") == "asked")
    assert (first["step"], first["right"]) == (0, 0)
    assert last["questions"] == first["questions"] >= 3
    assert last["right"] == last["questions"], "one answer to all questions is learned"
    assert f"step 0: before training, {first['questions']} held-out questions: 0 of {first['judged']} right" in out
    n = last["questions"]
    assert f"after training (step-00000030), {n} held-out questions: {n} of {n} right; before training: 0 of {n}" in out
    assert exam_line(root) in out


def test_its_answers_are_kept_and_shown_in_report_and_watch(tuned):
    root, _ = tuned
    run = RunRecord(root)
    run.update()
    by_step = {sample.step for sample in run.samples}
    assert by_step == {0, 15, 30}
    groups = sections.sample_groups(run)
    assert groups[0]["step"] == "0"
    assert groups[-1]["texts"][0]["prompt"].endswith("\nexpected: cat\n")
    assert groups[-1]["texts"][0]["rest"] == "given: cat"
    assert "expected: cat" in ParsedPage(render([run], ["finished"])).text
    from rich.console import Console

    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(run_view.view(run, "finished", console))
    shown = console.export_text()
    assert "answers of step 30" in shown
    assert shown.count("expected: cat") == 3
