"""``make tune NPROC=2``: two processes tune as one does, share its step, and report mistakes before anything starts."""

import json

import pytest

from slm.data.chat.tokens import with_chatml
from slm.data.errors import UserError
from slm.model.checkpoint import save_model
from slm.model.transformer import LanguageModel
from slm.train.tune import __main__ as tune
from slm.train.tune import qat
from slm.train.tune.processes import shared_batch
from tests.helpers import chat_model
from tests.helpers import tiny_checkpoint as tiny
from tests.helpers.programs import Program
from tests.helpers.ranks import fork_ranks
from tests.helpers.small_run import losses, records

QUICK = (
    "train.kernels=eager",
    "train.threads=1",
    "train.sample_prompts=[]",
)
SHORT = ("train.seq_len=96", "train.max_steps=3", "train.eval_blocks=4", "optim.warmup_steps=1", "train.precision=f32")


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """Options of a tuning of a tiny chat model on answers of very different lengths."""
    folder = tmp_path_factory.mktemp("tune")
    tokenizer = with_chatml(chat_model.base_tokenizer())
    size = -(-tokenizer.vocab_size // 64) * 64
    (folder / "model").mkdir()
    save_model(folder / "model", LanguageModel(tiny.config(vocab_size=size, n_layers=1, eos_id=tokenizer.eot_id)))
    tokenizer.save(folder / "model")
    made = [{"instruction": f"Say {index}", "output": "cat " * (1 + index * index % 23)} for index in range(200)]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, made)))
    options = [f"base={folder}/model", f"runs_dir={folder}/runs", "data=chat", f"data.files=[{folder}/chats.jsonl]"]
    return [*options, *QUICK, *SHORT]


def test_two_processes_lose_as_one_does(words, tmp_path):
    """The same step of four sequences: its loss and gradient are means over the scored tokens of both processes."""
    roots = []
    step = ("train.micro_batch=2", "train.grad_accum=2")
    for name, more in (("one", ("train.workers=2", *step)), ("two", ("nproc=2", "train.workers=1", *step))):
        program = Program("slm.train.tune.__main__", [*words, f"name={name}", *more], tmp_path, prepare=fork_ranks)
        out, err = program.communicate(timeout=240)
        assert program.returncode == 0, out + err
        assert out.count("conversations: 200") == 1, out
        assert out.count("tuning ") == 1, out  # one process says what was chosen
        roots.append(tmp_path.joinpath(words[1].removeprefix("runs_dir=")) / name)
    assert "in each of 2 processes" in out
    one, two = (losses(root) for root in roots)
    assert len(one) == 3
    assert two == pytest.approx(one, rel=2e-5)
    (one, two) = ([each["val_loss"] for each in records(root) if "val_loss" in each] for root in roots)
    assert two == pytest.approx(one, rel=2e-5)


def test_a_step_is_shared_without_a_change(words):
    assert shared_batch(4, 1, 2) == {"train.micro_batch": 2, "train.grad_accum": 2}
    assert shared_batch(4, 1, 1) == {"train.micro_batch": 4, "train.grad_accum": 1}
    assert shared_batch(3, 4, 2) == {"train.micro_batch": 3, "train.grad_accum": 4}
    assert shared_batch(4, 3, 2) == {"train.micro_batch": 3, "train.grad_accum": 4}
    assert shared_batch(4, 1, 3) == {"train.micro_batch": 4, "train.grad_accum": 1}
    config = tune.tuning(words, processes=4)
    assert (config.train.micro_batch, config.train.grad_accum) == (1, 4)
    config = tune.tuning([*words, "train.micro_batch=4", "train.grad_accum=2"], processes=2)
    assert (config.train.micro_batch, config.train.grad_accum) == (4, 2)


def test_mistakes_are_one_line_before_a_process_is_started(words):
    """A number that is none and a missing ``main`` are the launcher's own (tests/train/distributed/test_launch.py)."""
    with pytest.raises(UserError, match="/nowhere"):
        tune.main([*words, "nproc=2", "base=/nowhere"])
    for command, data in ((tune.main, "chat"), (qat.main, "local")):
        given = [word.replace("data=chat", f"data={data}") for word in words]
        wrong = ["train.micro_batch=3", "train.grad_accum=1", "nproc=2"]
        with pytest.raises(UserError, match=r"cannot be divided over 2 processes: use train\.grad_accum=2"):
            command([*given, *wrong])
