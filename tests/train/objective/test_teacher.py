"""Teachers: a checkpoint and its GGUF say the same, texts that do not see each other are apart, tokens are compared."""

import gguf
import numpy as np
import pytest
import torch

from slm.data.errors import UserError
from slm.data.stream import marks
from slm.llama import random_model
from slm.model.checkpoint import load_model
from slm.train.config import TrainConfig
from slm.train.environment import Environment
from slm.train.objective.batch import segments, split
from slm.train.objective.teacher import Named, frozen_teacher
from tests.helpers.chat_model import base_tokenizer, write_chat_gguf

PLAIN = Environment(threads=1, precision="f32", compile=False, notes=())
TRAIN = TrainConfig(max_steps=1, seq_len=40, micro_batch=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("teacher")
    write_chat_gguf(made, base_tokenizer())
    return made


def named(path, tokenizer=None, **changes) -> Named:
    options = {"eot_id": None, "short": True} | changes
    return Named(str(path), tokenizer or base_tokenizer(), TRAIN, PLAIN, **options)


def conversations() -> np.ndarray:
    """Two blocks: three conversations and one, of which a part is scored."""
    chance, blocks = np.random.default_rng(1), []
    for lengths in ((9, 20, 12), (41,)):
        parts = [marks.mark(chance.integers(1, 600, n), np.arange(n) > n // 2) for n in lengths]
        blocks.append(np.concatenate(parts))
    return np.stack(blocks).astype(np.int32)


def test_a_gguf_says_what_its_checkpoint_says(folder):
    batch = split(conversations())
    dense = [named(path).load() for path in (folder, folder / "model.gguf")]
    scored = (batch.targets != -100).flatten()
    one, two = (each.targets(batch).probabilities(slice(0, scored.numel()))[scored] for each in dense)
    assert one.shape == (int(scored.sum()), base_tokenizer().vocab_size)
    torch.testing.assert_close(one.exp().sum(1), torch.ones(len(one)))
    torch.testing.assert_close(two, one, atol=5e-3, rtol=0)


def test_what_does_not_see_each_other_is_apart():
    batch = split(conversations())
    found = segments(batch, None)
    assert [(len(each.ids), each.begin) for each in found] == [(9, 0), (20, 9), (11, 29), (40, 40)]
    scored = (batch.targets != -100).flatten().numpy()
    assert sorted(np.concatenate([each.begin + each.scored for each in found])) == np.flatnonzero(scored).tolist()
    text = split(np.array([[5, 6, 0, 7, 8, 9, 0, 3, 4]], dtype=np.int32))
    assert [len(each.ids) for each in segments(text, None)] == [8]
    assert [(each.ids.tolist(), each.begin) for each in segments(text, 0)] == [
        ([5, 6, 0], 0),
        ([7, 8, 9, 0], 3),
        ([3], 7),
    ]


def test_documents_that_do_not_see_each_other_are_apart_for_the_teacher_too(folder):
    model = load_model(folder).eval()
    eot = base_tokenizer().eot_id
    block = np.array([[5, 6, eot, 7, 8, 9, 10, 11]], dtype=np.int32)
    teachers = [
        frozen_teacher(model, PLAIN, 500, eot),
        named(folder / "model.gguf", eot_id=eot).load(),
    ]
    with torch.no_grad():
        alone = model(torch.tensor([[7, 8, 9, 10]]))[0, :, :500].log_softmax(-1)
    for teacher in teachers:
        found = teacher.targets(split(block)).probabilities(slice(3, 7))[:, :500].log_softmax(-1)
        torch.testing.assert_close(found, alone, atol=5e-3, rtol=0)


def test_other_tokens_are_refused_in_one_line(folder):
    other = base_tokenizer(600)
    for path in (folder, folder / "model.gguf"):
        with pytest.raises(UserError, match=r"has another tokenizer: .* name a teacher with the tokenizer"):
            named(path, base_tokenizer(750))
    for name in ("nothing", "models.gguf"):
        with pytest.raises(UserError, match="does not exist"):
            named(folder / name)
    writer = gguf.GGUFWriter(adapter := folder.parent / "adapter.gguf", "llama")
    writer.add_type("adapter")
    random_model.finish(writer)
    with pytest.raises(UserError, match=r"adapter.gguf is a LoRA adapter, no model: name the GGUF file of its base"):
        named(adapter)
    assert other.vocab_size < base_tokenizer().vocab_size
    short = named(folder).path
    assert short == folder
    with pytest.raises(UserError, match="longer than the context of the teacher"):
        Named(
            str(folder),
            base_tokenizer(),
            TrainConfig(max_steps=1, seq_len=10**6, micro_batch=1),
            PLAIN,
            eot_id=None,
            short=False,
        )


def test_a_teacher_is_recognised_by_its_weights(folder, tmp_path):
    write_chat_gguf(tmp_path / "again", base_tokenizer())  # other random weights
    assert named(folder).digest() == named(folder).digest() != named(tmp_path / "again").digest()
    assert named(folder / "model.gguf").digest() != named(tmp_path / "again" / "model.gguf").digest()
