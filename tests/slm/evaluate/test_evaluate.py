import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from slm.data.errors import UserError
from slm.evaluate.evaluate import ROW_KEYS, main
from slm.evaluate.text import shorten
from slm.export.config import ExportConfig
from slm.export.pipeline import export
from slm.runs import resolve
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tiny.run(tmp_path_factory.mktemp("run") / "run")
    assert export(ExportConfig(threads=1, run=root, quant=["f32", "q4_k_m"]))["published"]
    (root / "text.txt").write_text(tiny.text(12_000, seed=9), encoding="utf-8")
    return root


def evaluate(run: Path, capsys, *options: str) -> tuple[list[dict], str]:
    assert main([f"run={run}", f"eval.text={run / 'text.txt'}", "eval.threads=1", *options]) == 0
    said = capsys.readouterr().out
    return json.loads(said.splitlines()[-1]), said


def test_two_rows_for_the_checkpoint_and_each_model(run, capsys):
    rows, said = evaluate(run, capsys)
    assert all(tuple(row) == ROW_KEYS for row in rows)
    files = ["step-00000010", "run-1.4M-v1.0-F32.gguf", "run-1.4M-v1.0-Q4_K_M.gguf"]
    assert [(row["file"], row["definition"]) for row in rows] == [
        (name, definition) for name in files for definition in ("llama.cpp/128", "sliding/128")
    ]
    assert [row["engine"] for row in rows] == ["torch"] * 2 + ["llama.cpp"] * 4
    assert "imatrix" not in said
    assert "every token scored once" in said
    for torch_row, gguf_row in zip(rows[:2], rows[2:4], strict=True):
        # The engines agree within 0.1 % on an f32 file, and count the same tokens.
        assert gguf_row["perplexity"] == pytest.approx(torch_row["perplexity"], rel=1e-3)
        assert gguf_row["tokens"] == torch_row["tokens"]
        assert gguf_row["stderr"] == pytest.approx(torch_row["stderr"], rel=1e-2)
    chunked, sliding = rows[:2]
    assert chunked["word_perplexity"] is None
    assert chunked["bits_per_byte"] is None
    text = (run / "text.txt").read_text().removesuffix("\n")
    nll = math.log(sliding["perplexity"]) * sliding["tokens"]
    assert sliding["bits_per_byte"] == pytest.approx(nll / math.log(2) / len(text.encode()))
    assert sliding["word_perplexity"] == pytest.approx(math.exp(nll / len(text.split())))
    assert sliding["tokens"] == len(tiny.tokenizer().encode(text))


def test_documents_of_a_corpus_in_contiguous_windows(run, capsys):
    """All nats over all bytes, every token scored once, from windows of the model's own forward pass."""
    import torch

    from slm.model.checkpoint import load_model

    documents = [tiny.text(3_000, seed=seed) for seed in (1, 2, 3)]
    path = run / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in documents))
    assert main([f"run={run}", f"eval.text={path}", "eval.threads=1", "eval.contiguous=64", "eval.n_ctx=64"]) == 0
    rows = [row for row in json.loads(capsys.readouterr().out.splitlines()[-1]) if row["definition"] == "contiguous/64"]
    assert len(rows) == 3
    tokenizer = tiny.tokenizer()
    ids = [id for each in documents for id in (tokenizer.eot_id, *tokenizer.encode(each))]
    model, nats = load_model(resolve(run).checkpoint()), 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, 64):
            window = torch.tensor(ids[start : start + 65])
            losses = torch.nn.functional.cross_entropy(model(window[None, :-1])[0], window[1:], reduction="sum")
            nats += losses.item()
    assert rows[0]["tokens"] == len(ids) - 1
    assert rows[0]["bits_per_byte"] == pytest.approx(nats / math.log(2) / sum(len(each.encode()) for each in documents))
    assert rows[1]["bits_per_byte"] == pytest.approx(rows[0]["bits_per_byte"], rel=1e-3)
    assert rows[0]["word_perplexity"] is None


def test_less_text_and_other_windows(run, capsys):
    rows, _ = evaluate(
        run,
        capsys,
        "eval.max_tokens=400",
        "eval.n_ctx=64",
        "eval.context=32",
        f"eval.files=[{resolve(run).ggufs()[0]}]",
    )
    assert {row["definition"] for row in rows} == {"llama.cpp/64", "sliding/32"}
    assert len(rows) == 4
    for row in rows[1::2]:
        assert 300 < row["tokens"] <= 440
        assert 1 < row["bits_per_byte"] < 10


def test_a_file_older_than_the_newest_checkpoint_is_named(run, capsys):
    newer = run / "checkpoints" / "step-00000020"
    shutil.copytree(run / "checkpoints" / "step-00000010", newer)
    try:
        rows, said = evaluate(run, capsys, "eval.max_tokens=400")
    finally:
        shutil.rmtree(newer)
    assert rows[0]["file"] == "step-00000020"
    lines = [line for line in said.splitlines() if "step 10" in line]
    assert len(lines) == 1
    assert "run-1.4M-v1.0-F32.gguf, run-1.4M-v1.0-Q4_K_M.gguf are from step 10" in lines[0]
    assert "trained to step 20" in lines[0]
    assert lines[0].endswith("QUANT=f32,q4_k_m")


def test_a_runs_own_text_unless_another_is_asked_for(run, capsys, monkeypatch):
    own = run / "validation.txt"
    text = own.read_text(encoding="utf-8") if own.exists() else None
    own.write_text(tiny.text(12_000, seed=9), encoding="utf-8")
    try:
        words = [f"run={run}", "eval.threads=1", "eval.files=[]", "eval.max_tokens=600"]
        assert main(words) == 0
        said = capsys.readouterr().out
        assert "validation.txt, which the run held out (eval.text=wikitext: WikiText-2's test set)" in said
        rows, _ = evaluate(run, capsys, "eval.files=[]", "eval.max_tokens=600")
        assert json.loads(said.splitlines()[-1]) == rows
        asked = []
        monkeypatch.setattr("slm.data.sources.wikitext.load", lambda path: asked.append(path) or tiny.text(12_000))
        assert main([*words, "eval.text=wikitext"]) == 0
        assert asked == [None]
        assert "held out" not in capsys.readouterr().out
    finally:
        own.write_text(text, encoding="utf-8") if text is not None else own.unlink()


def test_files_only(run, capsys):
    rows, _ = evaluate(run, capsys, "eval.checkpoint=false", "eval.max_tokens=400")
    assert {row["engine"] for row in rows} == {"llama.cpp"}


def test_the_canonical_text(run, capsys, shared_data):
    wiki = shared_data / "wikitext" / "wiki.test.raw"
    assert main([f"run={run}", f"eval.text={wiki}", "eval.max_tokens=600", "eval.threads=1", "eval.files=[]"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["engine"] for row in rows] == ["torch", "torch"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["eval.text=/nowhere.txt"], "no text file /nowhere.txt"),
        (["eval.text=EMPTY"], "is empty"),
        (["eval.text=SHORT"], "needs at least 256"),
        (["eval.n_ctx=2"], "at least 8"),
        (["eval.ctx=64"], "eval.n_ctx"),
        (["eval.files=[IMATRIX]"], "not a model"),
        (["eval.files=[/nowhere.gguf]"], "does not exist"),
    ],
)
def test_mistakes_are_one_line(run, tmp_path, options, message):
    (tmp_path / "empty.txt").write_text(" \n")
    (tmp_path / "short.txt").write_text("too short")
    known = {
        "EMPTY": str(tmp_path / "empty.txt"),
        "SHORT": str(tmp_path / "short.txt"),
        "IMATRIX": str(run / "gguf" / "imatrix.gguf"),
    }
    for name, path in known.items():
        options = [option.replace(name, path) for option in options]
    with pytest.raises(UserError) as caught:
        main([f"run={run}", f"eval.text={run / 'text.txt'}", "eval.threads=1", *options])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["\u4e2d" * 5000, "x" * 5000, "one " * 1000])
def test_a_text_is_shortened_also_where_it_has_no_white_space(content):
    class Bytes:
        def tokenize(self, text):
            return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

    part, ids = shorten(Bytes(), content, 100)
    assert content.startswith(part)
    assert 90 <= len(ids) <= 100
