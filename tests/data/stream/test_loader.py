"""The loader: exact resume, no lost or invented text, errors and Ctrl-C as the person should see them."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest

from slm.data.config import DataConfig, SourceConfig, TokenizerConfig
from slm.data.errors import UserError
from slm.data.stream.loader import SPREAD, EndOfTextError, Loader, at_saved_commits, validation_text
from slm.data.tales.story import story
from slm.data.tokenizers.make import make_tokenizer
from slm.data.tokenizers.tokenizer import Tokenizer, special_token, token_first


@pytest.fixture(scope="module")
def tokenizer():
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    return make_tokenizer(config, lambda: (story(0, index) for index in range(300)))


@pytest.fixture
def corpus(tmp_path):
    """Three epochs of it are 2,000 blocks or so."""
    for part in range(3):
        rows = [f"{part} {i} " + "the cat sat on the mat. " * (i % 9) for i in range(60)]
        (tmp_path / f"{part}.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    return tmp_path


def files(corpus, **options):
    return DataConfig(kind="files", files=[str(corpus)], shuffle_buffer=16, val_fraction=0.1, **options)


def mixture(corpus):
    return DataConfig(
        kind="mixture",
        sources=[
            SourceConfig(kind="files", files=[str(corpus)], weight=1.0),
            SourceConfig(kind="tales", weight=0.5),
        ],
        shuffle_buffer=16,
        val_fraction=0.1,
    )


def loader(config, tokenizer, **options):
    return Loader(config, tokenizer, **({"seq_len": 32, "micro_batch": 3, "seed": 7, "workers": 0} | options))


@pytest.fixture
def books(tmp_path_factory):
    """Two books: fewer documents than there may be workers."""
    folder = tmp_path_factory.mktemp("books")
    for number in range(2):
        text = "\n\n".join(f"{number} {i} " + "the cat sat on the mat. " * (i % 9) for i in range(60))
        (folder / f"{number}.txt").write_text(text)
    return folder


def books_and_tales(books):
    sources = [SourceConfig(kind="files", files=[str(books)]), SourceConfig(kind="tales", weight=0.5)]
    return DataConfig(kind="mixture", sources=sources, shuffle_buffer=16, val_fraction=0.1)


@pytest.mark.parametrize(
    ("kind", "workers"),
    [*itertools.product(["files", "mixture", "tales", "books", "books and tales"], [0, 2]), ("files", 1)],
)
def test_resumes_bit_for_bit_at_any_batch(corpus, books, tokenizer, workers, kind):
    config = {
        "files": files(corpus),
        "mixture": mixture(corpus),
        "tales": DataConfig(kind="tales", shuffle_buffer=0),
        "books": files(books),
        "books and tales": books_and_tales(books),
    }[kind]
    total = 600 if workers == 0 else 200
    with loader(config, tokenizer, workers=workers) as whole:
        expected = [next(whole) for _ in range(total)]
    assert all(batch.shape == (3, 33) and batch.dtype == np.int32 for batch in expected)
    cuts = [0, 1, 2, 7, 50, 133] if workers == 0 else [5, 121]
    found, state = [], None
    for cut in [*cuts, total]:  # left and resumed again and again
        with loader(config, tokenizer, workers=workers) as part:
            if state is not None:
                part.load_state_dict(state)
            found += [next(part) for _ in range(cut - len(found))]
            state = json.loads(json.dumps(part.state_dict()))
    assert np.array_equal(found, expected)
    if kind == "files" and workers == 0:
        assert state["streams"][0]["start"]["documents"]["start"]["epoch"] >= 2


def test_workers_give_what_their_shards_give(corpus, tokenizer):
    """Processes change who reads, not what: with two workers blocks come in turn from the two shards."""
    from slm.data.sources.documents import make_plans
    from slm.data.stream.pipeline import open_pipeline

    config = files(corpus)
    shards = [
        open_pipeline(
            plans=make_plans(config, "train"),
            tokenizer=tokenizer,
            seq_len=32,
            seed=7,
            shuffle_buffer=16,
            endless=True,
            shard_index=index,
            num_shards=2,
        )
        for index in range(2)
    ]
    expected = [next(shards[i % 2]) for i in range(30)]
    with loader(config, tokenizer, workers=2) as two:
        assert np.array_equal(np.concatenate([next(two) for _ in range(10)]), expected)


def test_ranks_read_different_text(corpus, tokenizer):
    batches = []
    for rank in range(2):
        one = loader(files(corpus), tokenizer, rank=rank, world_size=2)
        batches.append(" ".join(tokenizer.decode(row) for _ in range(20) for row in next(one)))
    seen = [set(re.findall(r"(\d \d+) the cat", text)) for text in batches]
    assert min(map(len, seen)) > 10
    assert not seen[0] & seen[1]


def test_an_epoch_holds_every_token_once(corpus, tokenizer):
    """Unshuffled, the stream is the training documents in order, then again."""
    from slm.data.sources.documents import iter_documents

    config = DataConfig(kind="files", files=[str(corpus / "0.jsonl")], shuffle_buffer=0, val_fraction=0.1)
    stream = [t for text in iter_documents(config, "train", 7) for t in [*tokenizer.encode(text), tokenizer.eot_id]]
    batches = loader(config, tokenizer, micro_batch=1)
    got = []
    while len(got) < 2 * len(stream):
        got += next(batches)[0, :-1].tolist()
    assert got == (stream * 3)[: len(got)]


def test_two_books_have_two_ends(books, tokenizer):
    """An epoch's blocks are the two books, whatever their order, with one end-of-text token after each."""
    from slm.data.sources.documents import iter_documents

    texts = list(iter_documents(files(books), "train", 7))
    n_tokens = sum(len(tokenizer.encode(text)) + 1 for text in texts)
    batches = loader(files(books), tokenizer, micro_batch=1)
    rows = [next(batches)[0] for _ in range(n_tokens // 32 - 1)]
    assert sum(int((row[1:] == tokenizer.eot_id).sum()) for row in rows) in (1, 2)


def test_ranks_share_the_blocks_of_few_books(books, tokenizer):
    """Every process has text, though there are fewer documents than processes, and no two have the same."""
    whole = loader(files(books), tokenizer, micro_batch=1)
    expected = [next(whole)[0].tobytes() for _ in range(60)]
    ranks = [loader(files(books), tokenizer, micro_batch=1, rank=rank, world_size=3) for rank in range(3)]
    found = [[next(each)[0].tobytes() for _ in range(20)] for each in ranks]
    assert [block for turn in zip(*found, strict=True) for block in turn] == expected


def test_validation_is_from_all_books(books, tokenizer):
    ids = validation_text(files(books), tokenizer, 8, 1000, 7).blocks
    text = tokenizer.decode(ids[:, 1:].ravel())
    assert re.search(r"\b0 \d+ the cat", text)
    assert re.search(r"\b1 \d+ the cat", text)


def test_micro_batch_may_change_on_resume(corpus, tokenizer):
    one = loader(files(corpus), tokenizer, micro_batch=2)
    first = [row for _ in range(6) for row in next(one)]
    state = one.state_dict()
    other = loader(files(corpus), tokenizer, micro_batch=4)
    other.load_state_dict(state)
    rest = [row for _ in range(3) for row in next(other)]
    whole = loader(files(corpus), tokenizer, micro_batch=24)
    assert np.array_equal([*first, *rest], next(whole))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"seed": 8}, "seed"),
        ({"seq_len": 16}, "seq_len"),
        ({"workers": 2}, "workers"),
        ({"world_size": 2}, "world_size"),
    ],
)
def test_a_position_of_another_run_is_refused(corpus, tokenizer, options, field):
    state = loader(files(corpus), tokenizer).state_dict()
    with pytest.raises(UserError, match=f"is for {field}="):
        loader(files(corpus), tokenizer, **options).load_state_dict(state)


def test_documents_begin_with_the_token_of_a_tokenizer_that_writes_one(corpus, tokenizer):
    starting, config = with_bos(tokenizer), files(corpus)
    with loader(config, tokenizer) as before, loader(config, starting) as now:
        old, new = ([next(each) for _ in range(20)] for each in (before, now))
        assert "begins" not in before.state_dict()
        position = before.state_dict() | {"tokenizer": now.state_dict()["tokenizer"]}
        stream = np.concatenate([block[:-1] for batch in new for block in batch])
    bos = starting.begins[0]
    ends = np.flatnonzero(stream[:-1] == starting.eot_id)
    assert (stream[ends + 1] == bos).all() and (stream == bos).sum() >= len(ends) > 20  # noqa: PT018
    assert not any((batch == bos).any() for batch in old)
    with loader(config, starting) as fresh, pytest.raises(UserError, match=r"begins=None, not \[300\]"):
        fresh.load_state_dict(position)


def with_bos(tokenizer):
    """The tokenizer with <s> before each text, as Llama's post-processor writes it."""
    spec = json.loads(tokenizer.files["tokenizer.json"])
    spec["added_tokens"].append(special_token(tokenizer.vocab_size, "<s>"))
    spec["post_processor"] = token_first("<s>", {"<s>": tokenizer.vocab_size})
    return Tokenizer(tokenizer.files | {"tokenizer.json": json.dumps(spec).encode()}, name="starting")


def test_a_position_in_other_text_is_refused(corpus, tokenizer):
    one = loader(files(corpus), tokenizer)
    next(one)
    state = one.state_dict()
    (corpus / "0.jsonl").write_text('{"text": "new"}\n')
    with pytest.raises(UserError, match=r"0\.jsonl is not what the run has read of it"):
        loader(files(corpus), tokenizer).load_state_dict(state)


def test_more_workers_than_documents(tmp_path, tokenizer):
    rows = ["a b c", "d e f", "g h i"]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    config = DataConfig(kind="files", files=[str(tmp_path)], val_fraction=0.1)
    with loader(config, tokenizer, workers=4, seq_len=8) as many:
        batches = [next(many) for _ in range(3)]
        state = many.state_dict()
        rest = next(many)
        many.load_state_dict(state)
        assert np.array_equal(next(many), rest)
    assert batches[0].shape == (3, 9)


def test_validation_ends_and_does_not_depend_on_workers(corpus, tokenizer):
    config = files(corpus)
    blocks = validation_text(config, tokenizer, 32, 5, 1).blocks
    assert blocks.shape == (5, 33)
    assert blocks.dtype == np.int32
    assert np.array_equal(blocks, validation_text(config, tokenizer, 32, 5, 1).blocks)
    everything = validation_text(config, tokenizer, 32, 10**9, 1).blocks
    assert len(everything) > 5
    for workers in (0, 2):
        with loader(config, tokenizer, split="validation", workers=workers, micro_batch=4) as batches:
            rows = list(batches)
        assert sum(map(len, rows)) in (len(everything), len(everything) - 1, len(everything) - 2)
        assert all(len(batch) == 4 for batch in rows[:-1])


def test_validation_files_are_scored_throughout_and_held_out_text_from_its_beginning(tmp_path, tokenizer):
    """One book after another: the first blocks would all be of the first one."""
    books = [[f"book {number} line {line}" for line in range(200)] for number in range(4)]
    rows = "".join(json.dumps({"text": line}) + "\n" for book in books for line in book)
    (tmp_path / "validation.jsonl").write_text(rows)
    (tmp_path / "train.jsonl").write_text(json.dumps({"text": "other text"}) + "\n")
    own = DataConfig(
        kind="files",
        files=[str(tmp_path / "train.jsonl")],
        val_files=[str(tmp_path / "validation.jsonl")],
        shuffle_buffer=0,
    )
    everything = validation_text(own, tokenizer, 32, 10**9, 1).blocks
    few = len(everything) // SPREAD  # so that the whole text is within reach
    blocks = validation_text(own, tokenizer, 32, few, 1).blocks
    assert len(blocks) == few
    found = {number for block in blocks.tolist() for number in re.findall(r"book (\d) line", tokenizer.decode(block))}
    assert found == {"0", "1", "2", "3"}
    held_out = DataConfig(kind="files", files=[str(tmp_path / "validation.jsonl")], val_fraction=0.5, shuffle_buffer=0)
    first = validation_text(held_out, tokenizer, 32, few, 1).blocks
    assert np.array_equal(first, validation_text(held_out, tokenizer, 32, 10**9, 1).blocks[:few])


def test_too_little_validation_text(corpus, tokenizer):
    with pytest.raises(UserError, match=r"validation text is \d+ tokens, less than one block of seq_len \+ 1 = 100001"):
        validation_text(files(corpus), tokenizer, 100_000, 4, 1)


def drain(batches, limit=100_000):
    for _ in range(limit):
        next(batches)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_workers_mistake_is_the_persons_one_line(tmp_path, tokenizer, workers):
    good = "".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(500))
    (tmp_path / "a.jsonl").write_text(good + "oops\n")
    (tmp_path / "v.txt").write_text("validation text")
    config = DataConfig(
        kind="files", files=[str(tmp_path / "a.jsonl")], val_files=[str(tmp_path / "v.txt")], shuffle_buffer=0
    )
    with (
        loader(config, tokenizer, workers=workers, micro_batch=1) as batches,
        pytest.raises(UserError, match=r"a\.jsonl:501: not a line of JSON"),
    ):
        drain(batches)


def test_a_workers_bad_records_are_left_out_and_said_once(tmp_path, tokenizer, capfd):
    """Two epochs find the same two lines; the parent says so, with the count at the end."""
    rows = [json.dumps({"text": f"row {i} " + "words " * 20}) for i in range(60)]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows[:20], "oops", *rows[20:40], "oops", *rows[40:]]))
    (tmp_path / "v.txt").write_text("validation text")
    options = {"files": [str(tmp_path / "a.jsonl")], "val_files": [str(tmp_path / "v.txt")], "shuffle_buffer": 0}
    config = DataConfig(kind="files", on_bad="skip", max_epochs=2, **options)
    with loader(config, tokenizer, workers=1, micro_batch=1) as batches, pytest.raises(EndOfTextError):
        drain(batches)
    found = [line for line in capfd.readouterr().err.splitlines() if "not a line of JSON" in line]
    assert found[0].startswith("text: 1 left out (data.on_bad=skip): not a line of JSON; the first: ")
    assert f"{tmp_path}/a.jsonl:21 (" in found[0]
    assert [line[:18] for line in found] == ["text: 1 left out (", "text: 2 left out ("]


def test_a_killed_worker_is_noticed(corpus, tokenizer):
    with loader(files(corpus), tokenizer, workers=1) as batches:
        next(batches)
        worker = batches._sources[0]._process
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(UserError, match=r"a data worker was killed .* fewer train\.workers"):
            drain(batches)


def test_close_ends_the_processes_and_iterating_starts_them_again(corpus, tokenizer):
    batches = loader(files(corpus), tokenizer, workers=2)
    first = next(batches)
    pids = [source._process.pid for source in batches._sources]
    assert all(psutil.pid_exists(pid) for pid in pids)
    second = next(batches)
    batches.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    third = next(batches)
    batches.close()
    with loader(files(corpus), tokenizer, workers=2) as again:
        assert np.array_equal([next(again) for _ in range(3)], [first, second, third])


SCRIPT = """
import os, signal, sys, time
from slm.data.config import DataConfig
from slm.data.stream.loader import Loader
from slm.data.tokenizers.make import load_tokenizer

def main():
    loader = Loader(DataConfig(kind="tales", shuffle_buffer=0), load_tokenizer(sys.argv[1]),
                    seq_len=32, micro_batch=4, seed=1, workers=2)
    try:
        next(loader)
        print(*(source._process.pid for source in loader._sources), flush=True)
        while True:
            next(loader)
            time.sleep(0.01)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        loader.close()

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def child(tmp_path, tokenizer, repository):
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "tokenizer")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(repository)},
        start_new_session=True,
    )
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2, process.stderr.read()
    yield process, pids
    if process.poll() is None:
        process.kill()
    process.wait()


def gone(pids, seconds=5):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_workers_die_with_their_parent(child):
    process, pids = child
    process.kill()
    assert gone(pids)
    assert process.stderr.read() == ""


def test_ctrl_c_is_the_parents_alone(child):
    process, pids = child
    os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it: to every process of the group
    output, errors = process.communicate(timeout=10)
    assert output.strip() == "interrupted"
    assert errors == ""
    assert process.returncode == 0
    assert gone(pids)


def test_importing_the_room_is_light(repository):
    code = (
        "import sys, slm.data.stream.loader, slm.data.stream.worker, slm.data.tokenizers.tokenizer\n"
        "import slm.data.sources.plan, slm.data.sources.wikitext, slm.data.tokenizers.make\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'pyarrow', 'pandas', 'httpx', 'tiktoken', 'requests'}"
        " & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_a_moved_branch_is_named(corpus, tokenizer):
    """As after a new commit to the data set on the Hub; tests/data/sources/test_retry.py has the Hub itself."""
    batches = loader(files(corpus), tokenizer)
    state = batches.state_dict() | {"revision": "abc"}
    with pytest.raises(UserError, match=r"in the commit abc of the data set .*: name the revision that it began with"):
        batches.load_state_dict(state)


def test_a_position_of_another_version_is_named(corpus, tokenizer):
    batches = loader(files(corpus), tokenizer)
    with pytest.raises(UserError, match=r"begun by another version of slm.*\(2, not 3\).*model=runs/NAME"):
        batches.load_state_dict(batches.state_dict() | {"version": 2})


def test_a_resumed_run_reads_the_commits_that_it_began_with():
    one = DataConfig(kind="hub", path="owner/one")
    assert at_saved_commits(one, {"revision": "abc"}).revision == "abc"
    assert at_saved_commits(one, None) == at_saved_commits(one, {"revision": ""}) == one
    named = replace(one, revision="v1")
    assert at_saved_commits(named, {"revision": "abc"}) == named
    assert at_saved_commits(named, {"revision": "abc"}, began_with="v1").revision == "abc"
    assert at_saved_commits(one, {"revision": "abc"}, began_with="v1").revision == "abc"  # left out this time
    parts = [SourceConfig(kind="hub", path="a/b"), SourceConfig(kind="tales"), SourceConfig(kind="chat", path="c/d")]
    mixed = DataConfig(kind="mixture", sources=parts)
    found = at_saved_commits(mixed, {"revision": "abc, def"})
    assert [each.revision for each in found.sources] == ["abc", "", "def"]
    named = replace(mixed, sources=[replace(parts[0], revision="main"), *parts[1:]])
    assert at_saved_commits(named, {"revision": "abc, def"}).sources[0].revision == "abc"
