"""Resuming compares what was read by its content: where files are and what follows the position may change."""

import gzip
import json
import os
import shutil

import numpy as np
import pytest

from slm.data.config import DataConfig, TokenizerConfig
from slm.data.errors import UserError
from slm.data.sources.documents import file_order, make_plans
from slm.data.stream.loader import Loader, validation_text
from slm.data.tales.story import story
from slm.data.tokenizers.make import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    return make_tokenizer(config, lambda: (story(0, index) for index in range(200)))


def rows(part):
    return [json.dumps({"text": f"{part} {i} " + "the cat sat on the mat. " * (i % 9)}) for i in range(80)]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for part in range(2):
        (folder / f"{part}.jsonl").write_text("\n".join(rows(part)) + "\n")
    (folder / "2.jsonl.gz").write_bytes(gzip.compress("\n".join(rows(2)).encode()))
    return folder


def open_loader(folder, tokenizer, *, shuffle_buffer=8, **options):
    config = DataConfig(kind="files", files=[str(folder)], shuffle_buffer=shuffle_buffer, val_fraction=0.1, cache=False)
    return Loader(config, tokenizer, **({"seq_len": 32, "micro_batch": 2, "seed": 7, "workers": 0} | options))


def run(folder, tokenizer, n_batches, state=None, **options):
    with open_loader(folder, tokenizer, **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        batches = [next(loader) for _ in range(n_batches)]
        return batches, json.loads(json.dumps(loader.state_dict()))


def order(folder):
    """The names of the files in the order in which the first epoch reads them."""
    (plan,) = make_plans(DataConfig(kind="files", files=[str(folder)], val_fraction=0.1), "train")
    return [os.path.basename(plan.files[file]) for file in file_order(plan, 7, 0, 3)]


def change(path, old, new):
    """Replace the first ``old`` in a file, which may be compressed."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        content = file.read()
    assert old in content
    with opened(path, "wb") as file:
        file.write(content.replace(old, new, 1))


@pytest.mark.parametrize("n_batches", [0, 3, 100, 400])
def test_a_moved_corpus_resumes_exactly(corpus, tmp_path, tokenizer, n_batches):
    whole, _ = run(corpus, tokenizer, n_batches + 20)
    _, state = run(corpus, tokenizer, n_batches)
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(corpus, moved)
    shutil.rmtree(corpus)
    rest, _ = run(moved, tokenizer, 20, state)
    assert np.array_equal(rest, whole[n_batches:])


def test_what_was_read_may_not_change_and_what_follows_may(corpus, tokenizer):
    first, middle, last = order(corpus)
    unshuffled = {"shuffle_buffer": 0}  # what is read ahead to be shuffled counts as read
    _, state = run(corpus, tokenizer, 85, **unshuffled)
    before = state["files"][0]
    assert before["place"][:2] == [0, 1]
    assert len(before["whole"]) == 1
    part = first[0]
    change(corpus / last, b" 79 ", b" seventy-nine ")  # not read yet
    with open(corpus / last, "ab") as file:
        more = json.dumps({"text": "one more line"}).encode()
        file.write(gzip.compress(b"\n" + more) if last.endswith(".gz") else more)
    rest, _ = run(corpus, tokenizer, 5, state, **unshuffled)
    assert len(rest) == 5
    change(corpus / first, f"{part} 40 ".encode(), f"{part} 4x ".encode())
    with pytest.raises(UserError, match=rf"{first} is not what the run has read of it"):
        run(corpus, tokenizer, 1, state, **unshuffled)
    change(corpus / first, f"{part} 4x ".encode(), f"{part} 40 ".encode())
    if not first.endswith(".gz"):  # which has a time stamp
        run(corpus, tokenizer, 1, state, **unshuffled)
        change(corpus / middle, f"{middle[0]} 0 ".encode(), b"other ")
        with pytest.raises(UserError, match=rf"{middle} is not what the run has read of it"):
            run(corpus, tokenizer, 1, state, **unshuffled)


def test_a_repaired_file_goes_on_as_if_it_had_been_whole(corpus, tokenizer):
    """The end of the last file is torn off; the run stops there, and resumes when the file is whole."""
    last = order(corpus)[-1]
    path = corpus / last
    intact = path.read_bytes()
    expected, _ = run(corpus, tokenizer, 200)
    blocks = [validation_text(open_loader(corpus, tokenizer)._config, tokenizer, 32, 50, 7).blocks]
    _, state = run(corpus, tokenizer, 100)
    path.write_bytes(intact[:-30])
    with pytest.raises(UserError, match=last):
        run(corpus, tokenizer, 200)  # it does not even start: the corpus is small
    path.write_bytes(intact)
    rest, _ = run(corpus, tokenizer, 100, state)
    assert np.array_equal(rest, expected[100:])
    # Text that is added does not change what is held out of the text that was there.
    with open(corpus / "1.jsonl", "ab") as file:
        file.writelines(json.dumps({"text": f"new {i} " + "words " * 200}).encode() + b"\n" for i in range(300))
    blocks.append(validation_text(open_loader(corpus, tokenizer)._config, tokenizer, 32, 50, 7, position=state).blocks)
    old = [set(tokenizer.decode(each.ravel()).split("the cat")) for each in blocks]
    assert len(old[0] & old[1]) > 0.5 * len(old[0])


def test_another_number_of_files_is_refused(corpus, tokenizer):
    _, state = run(corpus, tokenizer, 3)
    (corpus / "3.jsonl").write_text("\n".join(rows(3)))
    with pytest.raises(UserError, match=r"has 4 files, and had 3 when the run was saved"):
        run(corpus, tokenizer, 1, state)
