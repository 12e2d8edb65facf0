"""The comparison with TRL: tokens and labels equal those of tuning, all scored tokens count alike, and it trains."""

import json
import math
from importlib.util import find_spec

import numpy as np
import pytest

from slm.data.chat.formats import to_document
from slm.data.chat.story_chat import conversation
from slm.data.chat.tokens import ChatEncoder, with_chatml
from slm.model.checkpoint import save_model
from slm.model.transformer import LanguageModel
from slm.train.tools import trl_sft
from tests.helpers import chat_model
from tests.helpers import tiny_checkpoint as tiny

SYSTEM = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": " hello \n"},
        {"role": "assistant", "content": "Hello! 🙂"},
        {"role": "user", "content": "bye"},
    ]
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny chat model's directory and two files of conversations."""
    folder = tmp_path_factory.mktemp("trl")
    tokenizer = with_chatml(chat_model.base_tokenizer())
    size = -(-tokenizer.vocab_size // 64) * 64
    model = LanguageModel(tiny.config(vocab_size=size, seq_len=1024, n_layers=1, eos_id=tokenizer.eot_id))
    save_model(folder, model)
    tokenizer.save(folder)
    for name, first in (("train", 0), ("held", 1000)):
        rows = [SYSTEM, *(conversation(1, first + index) for index in range(4))]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_tokens_and_labels_are_those_of_tuning(folder):
    from transformers import AutoTokenizer

    tokenizer, ours = AutoTokenizer.from_pretrained(folder), ChatEncoder(with_chatml(chat_model.base_tokenizer()))
    for each in trl_sft.conversations(str(folder / "train.jsonl")):
        ids, scored, _ = ours.conversation(to_document(each))
        row = trl_sft.labelled(tokenizer, each, 10**6)
        assert row["input_ids"] == ids.tolist()
        assert row["labels"] == np.where(scored, ids, trl_sft.IGNORED).tolist()
        cut = trl_sft.labelled(tokenizer, each, 20)
        assert (cut["input_ids"], cut["labels"]) == (row["input_ids"][:20], row["labels"][:20])


def test_the_score_counts_every_scored_token_alike(folder):
    words = ["score", str(folder), "--held-out", str(folder / "held.jsonl"), "--seq-len", "400", "--threads", "1"]
    record = trl_sft.score(trl_sft.parse(words))
    tokenizer, model = trl_sft.load(trl_sft.parse(words))
    rows = trl_sft.load_rows(tokenizer, str(folder / "held.jsonl"), 400)
    counts = [sum(label != trl_sft.IGNORED for label in row["labels"][1:]) for row in rows]
    alone = [trl_sft.held_out_loss(model, [row]) for row in rows]
    assert len(set(counts)) > 2
    assert (record["conversations"], record["scored_tokens"]) == (len(rows), sum(counts))
    mean = sum(loss * n for loss, n in zip(alone, counts, strict=True)) / sum(counts)
    assert record["held_out_nats_per_token"] == pytest.approx(mean, rel=1e-6)
    assert mean == pytest.approx(math.log(model.config.vocab_size), rel=0.1)  # it is not trained


def test_mistakes_in_one_line(folder, tmp_path, capsys):
    (tmp_path / "bad.jsonl").write_text('{"text": "no conversation"}\n')
    with pytest.raises(SystemExit, match=r"bad.jsonl:1 is no conversation"):
        trl_sft.conversations(str(tmp_path / "bad.jsonl"))
    with pytest.raises(SystemExit):
        trl_sft.parse(["train", "model", "--data", "a", "--held-out", "b", "--out", "c"])
    assert "--minutes or --max-steps" in capsys.readouterr().err


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed; it is no dependency")
@pytest.mark.parametrize("packing", [False, True])
def test_training_lowers_the_loss(folder, tmp_path, packing):
    words = ["train", str(folder), "--data", str(folder / "train.jsonl"), "--held-out", str(folder / "held.jsonl")]
    words += ["--out", str(tmp_path), "--max-steps", "4", "--batch", "2", "--warmup-steps", "1"]
    result = trl_sft.train(trl_sft.parse(words + ["--packing"] * packing))
    assert result["steps"] == 4
    assert result["held_out_nats_per_token"] < 6.4
    again = trl_sft.score(trl_sft.parse(["score", str(tmp_path), "--held-out", str(folder / "held.jsonl")]))
    assert again["held_out_nats_per_token"] == pytest.approx(result["held_out_nats_per_token"], rel=1e-5)
