"""A GGUF teacher is its own process: what llama.cpp computes arrives to the bit, and its death is one line."""

import os
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from slm.data.errors import UserError
from slm.llama import verdict
from slm.llama.context import Batch, Context
from slm.llama.model import Model
from slm.llama.quantize import quantize
from slm.train.objective.batch import segments, split
from slm.train.objective.gguf_teacher import GGUFTeacher, vocabulary
from tests.helpers import broken_llama
from tests.helpers.chat_model import base_tokenizer, write_chat_gguf
from tests.helpers.small_run import SmallRun, losses, write_corpus
from tests.train.objective.test_teacher import conversations


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    made = write_chat_gguf(tmp_path_factory.mktemp("gguf"), base_tokenizer())
    quantize(made, made.with_name("q8_0.gguf"), "q8_0")
    return made.with_name("q8_0.gguf")


def teacher_of(path: Path) -> GGUFTeacher:
    n_ids = base_tokenizer().vocab_size
    return GGUFTeacher(path, seq_len=40, n_ids=n_ids, n_threads=1, eot_id=None)


def test_logits_are_those_of_llama_cpp_to_the_bit(model):
    teacher, n_ids = teacher_of(model), base_tokenizer().vocab_size
    blocks = conversations()
    with Model(model) as here, Context(here, n_ctx=40, n_batch=40, n_threads=1) as context:
        assert vocabulary(model) == here.spellings
        for part in (blocks[:1], blocks, blocks[::-1]):  # the shared memory grows, and is used again
            found = teacher.targets(split(part))
            for text in segments(split(part), None):
                context.clear()
                batch = Batch(40)
                for position, token in enumerate(text.ids.tolist()):
                    batch.add(token, position, 0, position in text.scored)
                context.decode(batch)
                wanted = np.stack([context.row(int(position))[:n_ids] for position in text.scored])
                for row, position in zip(wanted, text.begin + text.scored, strict=True):
                    assert np.array_equal(found.logits(slice(position, position + 1))[0].numpy(), row)


def test_what_llama_cpp_refuses_is_one_line_and_it_goes_on(model):
    teacher, batch = teacher_of(model), split(conversations())
    with pytest.raises(UserError, match=f"the teacher {model}: a token id outside the vocabulary"):
        teacher.targets(batch._replace(ids=batch.ids + 10**6))
    assert teacher.targets(batch).logits(slice(0, 1)).shape == (1, base_tokenizer().vocab_size)


def test_its_process_ends_with_it_and_its_end_is_one_line(model):
    teacher = teacher_of(model)
    pid = teacher._child._process.pid
    os.kill(pid, signal.SIGTERM)  # of a system that ends all of a run's processes: the run still finishes its step
    assert teacher.targets(split(conversations())).logits(slice(0, 1)).isfinite().all()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(
        UserError, match=f"ended by SIGKILL while it computed what the teacher {model} predicts.*smaller"
    ):
        teacher.targets(split(conversations()))
    other = teacher_of(model)
    pid = other._child._process.pid
    del other
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs LD_PRELOAD")
def test_a_crash_of_llama_cpp_is_one_line_and_the_run_goes_on_from_its_last_checkpoint(model, tmp_path):
    verdict.examine()  # this build's: what dies later passes the trial
    broken_llama.environment(tmp_path, broken_llama.LATER.replace("{rows}", str(4 * 4 * 32 + 40)))
    words = ("name=taught", f"data.files=[{write_corpus(tmp_path / 'text.jsonl')}]", f"distill.teacher={model}")
    words += ("tokenizer=file", f"tokenizer.path={model.parent}", "train.max_steps=6", "train.checkpoint_every=2")
    run = SmallRun(tmp_path, *words, prepare=partial(broken_llama.preload, tmp_path / "wrong.so"))
    assert run.wait() == 2
    (line,) = run.err.splitlines()
    assert line.startswith(f"error: llama.cpp died with SIGSEGV while it computed what the teacher {model} predicts; ")
    assert "the checkpoints that the run has are whole; " in line
    assert line.endswith("builds llama.cpp again for this processor, and the same command goes on from there")
    before = losses(run.root)
    assert max(before) == 4
    assert not list(run.root.glob("checkpoints/.*"))
    again = SmallRun(tmp_path, *words).finish()
    assert "from step-00000004" in again.out
    assert losses(run.root).keys() == set(range(1, 7))
    assert {step: loss for step, loss in losses(run.root).items() if step <= 4} == before
