"""A run that is born again is two runs: by one command as by two, with the time of one, and resumed to the bit."""

import json
import shutil
from types import SimpleNamespace

import pytest

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.machine.hardware import process_seconds, restart_process_clock
from slm.train.beginning.two_runs import taught, teacher_of
from slm.train.components.teacher import Teacher
from slm.train.config import RunConfig
from slm.train.objective.distillation import DistillObjective
from tests.helpers.small_run import SmallRun, differences, newest_step, records, write_corpus

WORDS = (
    "name=mine",
    "optim=muon",
    "model.tie_embeddings=false",
    "distill.born_again=0.5",
    "distill.alpha=0.5",
    "train.max_steps=8",
    "train.checkpoint_every=2",
    "train.keep_last=9",
)
BAGS = "train.phases=[{bags:4,until:0.25},{seq_len:16,until:0.5}]"


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> tuple[str, ...]:
    corpus = write_corpus(tmp_path_factory.mktemp("text") / "documents.jsonl")
    return (*WORDS, f"data.files=[{corpus}]", BAGS)


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory) -> SmallRun:
    return SmallRun(tmp_path_factory.mktemp("whole"), *words).finish()


def last(run: SmallRun, end: str = ""):
    return run.root.with_name(f"{run.root.name}{end}") / "checkpoints" / "step-00000004"


def test_one_command_is_two_runs_to_the_bit(whole, words, tmp_path):
    teacher = whole.root.with_name("mine-teacher")
    assert f"{teacher} trains for 0.5 of the run; its model then teaches that of {whole.root}" in whole.out
    assert [each["step"] for each in records(teacher) if "teacher_kl" in each] == []
    assert [each["step"] for each in records(whole.root) if "teacher_kl" in each] == [1, 2, 3, 4]
    assert [each["step"] for each in records(teacher) if "bag" in each and "lr" in each] == [1]
    assert [each["step"] for each in records(whole.root) if "bag" in each] == []  # a teacher predicts single tokens
    by_hand = [word for word in words if not word.startswith(("distill.born_again", "train.phases", "name="))]
    by_hand += ["name=by-hand", "train.max_steps=4", "train.phases=[{seq_len:16,until:0.5}]"]
    by_hand += [f"distill.teacher={teacher}", "tokenizer=file", f"tokenizer.path={teacher}/tokenizer"]
    second = SmallRun(tmp_path, *by_hand).finish()
    assert differences(last(whole), last(second)) == []


def test_killed_in_the_first_run_and_stopped_in_the_second_it_comes_out_the_same(whole, words, tmp_path):
    run = SmallRun(tmp_path, *words)
    run.wait_for(lambda: newest_step(run.root.with_name("mine-teacher")) >= 2)
    run.kill()
    assert not run.root.exists(), "it was killed too late to prove anything"
    first = SmallRun(tmp_path, *words).finish()
    assert differences(last(whole, "-teacher"), last(first, "-teacher")) == []
    shutil.rmtree(last(first))
    again = SmallRun(tmp_path, *words).finish()
    assert "trains for 0.5" not in again.out
    assert "resuming" in again.out
    assert differences(last(whole), last(again)) == []
    assert "is finished" in SmallRun(tmp_path, *words).finish().out


def test_a_run_goes_on_with_the_weights_that_taught_it(whole):
    """What identifies them is in its checkpoints."""
    state = json.loads((last(whole) / "trainer_state.json").read_text())["teacher"]
    assert len(state["digest"]) == 32
    component = Teacher()
    config = config_of()
    component.run = SimpleNamespace(config=config, objective=DistillObjective(config.distill, None, teacher_digest="x"))
    component.load_state_dict({"digest": "x"})
    with pytest.raises(UserError, match="are not those that the run was taught by: bring them back, or begin anew"):
        component.load_state_dict(state)


def config_of(*words: str) -> RunConfig:
    return build(RunConfig, load_config("train", ["preset=tiny", "name=mine", "distill.born_again=0.4", *words]))


def test_what_is_for_the_end_is_the_second_runs():
    config = config_of("train.qat=q4_0", "train.patience=2", "train.phases=[{bags: 4, until: 0.1}]")
    first = teacher_of(config)
    second = taught(config, first, {"step": 800, "elapsed_s": 1.0, "setup_s": 0.0})
    assert (first.train.qat, first.train.patience, first.train.seed) == (None, 0, config.train.seed + 1)
    assert (second.train.qat, second.train.patience, second.train.seed) == ("q4_0", 2, config.train.seed)
    assert (first.root.name, second.root.name) == ("mine-teacher", "mine")
    assert (first.train.phases, second.train.phases) == (config.train.phases, ())
    assert second.distill.teacher == str(first.root)
    assert first.train.max_steps + second.train.max_steps == config.train.max_steps


@pytest.mark.parametrize(
    ("spent", "minutes"),
    [(0.0, 10 - 5), (360.0, 10 - 6)],
)
def test_both_have_the_time_of_one(spent, minutes):
    config = config_of("train.max_minutes=10", "train.max_steps=1000")
    first = teacher_of(config)
    assert first.train.max_minutes == 4.0
    state = {"step": 300, "elapsed_s": 240.0, "setup_s": 60.0}
    second = taught(config, first, state, spent)
    assert (second.train.max_minutes, second.train.max_steps) == (pytest.approx(minutes), 700)
    with pytest.raises(UserError, match="has taken all of the time that both runs may take"):
        taught(config, first, state | {"elapsed_s": 700.0})


def test_the_second_runs_time_begins_where_the_first_ends():
    before = process_seconds()
    assert before > 0.1
    restart_process_clock()
    assert process_seconds() < 0.1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["distill.born_again=1"], "must be a share of the run below 1, for example 0.35"),
        (["distill.teacher=runs/a"], "leave it 0 with distill.teacher"),
        (["init_from=runs/a"], "begins twice with new weights"),
    ],
)
def test_what_does_not_fit_is_said(words, message):
    with pytest.raises(UserError, match=message):
        config_of(*words)
