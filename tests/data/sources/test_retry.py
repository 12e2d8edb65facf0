"""A flaky Hub, by real sockets and the real ``datasets``: every document once, in order; a position that holds."""

import json
import os
import random
import subprocess
import sys
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from slm.data.errors import UserError
from slm.data.sources import retry
from tests.helpers import flaky_hub

READ = """
import json, sys, time
sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.01))  # every library's patience, shortened
from slm.data.config import DataConfig, TokenizerConfig
from slm.data.stream.loader import Loader
from slm.data.sources.documents import make_plans, open_documents
from slm.data.tokenizers.make import load_tokenizer

def documents(stream):
    found = []
    while True:
        try:
            found.append(next(stream)[:12])
        except StopIteration:
            return found

if __name__ == "__main__":
    tokenizer, cache, cut = load_tokenizer(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    named = {"path": "owner/stories", "subset": "sample-10BT"}
    config = DataConfig(kind="hub", **named, cache_dir=cache, shuffle_buffer=16, val_fraction=0.1)
    plans = make_plans(config, "train")
    whole = documents(open_documents(plans, seed=3))
    stream = open_documents(plans, seed=3)
    parts = [next(stream)[:12] for _ in range(cut)]
    state = json.loads(json.dumps(stream.state_dict()))
    stream = open_documents(plans, seed=3)
    stream.load_state_dict(state)
    parts += documents(stream)
    batches, state = [], None
    for _ in range(3):
        loader = Loader(config, tokenizer, seq_len=16, micro_batch=2, seed=3, workers=0)
        if state:
            loader.load_state_dict(state)
        assert json.loads(json.dumps(loader.state_dict()))["revision"] == plans[0].source.revision
        batches += [next(loader).tolist() for _ in range(40)]
        state = json.loads(json.dumps(loader.state_dict()))
    print(json.dumps({"whole": whole, "parts": parts, "batches": batches, "revision": plans[0].source.revision}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three parquet files of 120 rows, each read in several requests, in a folder that the data set's card names."""
    folder = tmp_path_factory.mktemp("stories")
    (folder / "sample").mkdir()
    card = "configs:\n- config_name: sample-10BT\n  data_files: [{split: train, path: sample/*}]"
    (folder / "README.md").write_text(f"---\n{card}\n---\n")
    rng = random.Random(1)
    for shard in range(3):
        rows = [f"{shard} {i:03d} " + rng.randbytes(rng.randrange(200)).hex() for i in range(120)]
        pq.write_table(pa.table({"text": rows}), folder / "sample" / f"00{shard}_00000.parquet", row_group_size=40)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    from slm.data.config import TokenizerConfig
    from slm.data.tokenizers.make import make_tokenizer

    tokenizer = make_tokenizer(TokenizerConfig(kind="bpe", vocab_size=300), lambda: iter(["0123456789abcdef " * 50]))
    tokenizer.save(tmp_path_factory.mktemp("tokenizer"))
    return tokenizer


@contextmanager
def reading(repository, folder, tmp_path, tokenizer, *, failing, seed=0, cut=100):
    """Reads in its own process; hands over a function that waits for what it read, its errors and the Hub."""
    tmp_path.mkdir(exist_ok=True)
    tokenizer.save(tmp_path / "tokenizer")
    (tmp_path / "read.py").write_text(READ)
    server = flaky_hub.FlakyHub(folder, failing=failing, seed=seed)
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {"HF_ENDPOINT": server.address, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "read.py"), str(tmp_path / "tokenizer"), str(tmp_path / "cache"), str(cut)],
        cwd=repository,
        env=environment | {"PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )

    def result():
        out, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors[-3000:]
        return json.loads(out.splitlines()[-1]), errors, server

    try:
        yield result
    finally:
        process.kill()
        process.communicate()
        server.stop()


@pytest.mark.slow
def test_every_document_once_and_in_order(repository, folder, tmp_path, tokenizer):
    with (
        reading(repository, folder, tmp_path / "steady", tokenizer, failing=0) as steadily,
        reading(repository, folder, tmp_path / "flaky", tokenizer, failing=0.4, seed=1, cut=130) as flakily,
    ):
        steady, errors, _ = steadily()
        assert errors == ""
        assert steady["whole"] == steady["parts"]
        assert 280 < len(set(steady["whole"])) == len(steady["whole"]) < 360  # the rest is held out
        assert steady["revision"] == "0123456789abcdef0123456789abcdef01234567"
        flaky, errors, server = flakily()
    assert flaky == steady
    assert sum(server.failed.values()) >= 8
    assert all(line.startswith("owner/stories: ") and "; trying again in " in line for line in errors.splitlines())
    assert errors


def test_patience_has_an_end_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(retry, "WAITS", (0.01, 0.01))
    calls, broken = [], []

    def action():
        calls.append(1)
        raise ConnectionResetError("by peer")

    with pytest.raises(UserError, match=r"host could not be read for .*ConnectionResetError: by peer.*run the same"):
        retry.retry(action, "host", lambda: broken.append(1))
    assert len(calls) == len(broken) == 3
    assert capsys.readouterr().err.splitlines() == ["host: ConnectionResetError: by peer; trying again in 0.01 s"] * 2


def test_waits_grow():
    assert retry.WAITS[:5] == (1, 2, 4, 8, 16)
    assert max(retry.WAITS) == 60


@pytest.mark.parametrize("error", [ValueError("no such split"), FileNotFoundError("x"), KeyError("text")])
def test_other_errors_are_not_tried_again(error):
    calls = []

    def action():
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        retry.retry(action, "host")
    assert len(calls) == 1


def test_which_answers_pass_by_themselves():
    import httpx

    def answer(status):
        response = httpx.Response(status, request=httpx.Request("GET", "http://host"))
        try:
            response.raise_for_status()
        except httpx.HTTPStatusError as error:
            return error

    statuses = (401, 403, 404, 416, 429, 500, 502, 503, 504)
    assert [each for each in statuses if retry.is_transient(answer(each))] == [429, 500, 502, 503, 504]
    assert retry.is_transient(httpx.ReadTimeout("slow"))
    wrapped = ValueError("could not read")
    wrapped.__cause__ = httpx.ConnectError("refused")
    assert retry.is_transient(wrapped)
