"""A new model knows the text's bigrams before its first step, and a run that begins so is like any other."""

import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.model.config import InitConfig, ModelConfig
from slm.model.transformer import LanguageModel
from slm.train.bigrams.counts import count_bigrams
from slm.train.bigrams.first_weights import set_first_weights
from slm.train.config import RunConfig
from tests.helpers.small_run import OPTIONS, SmallRun, differences, losses, write_corpus

V, D = 256, 64
SHAPE = ModelConfig(
    arch="qwen3",
    vocab_size=V,
    n_layers=2,
    d_model=D,
    n_heads=2,
    n_kv_heads=1,
    head_dim=32,
    ffn_dim=96,
    seq_len=64,
    tie_embeddings=False,
)


def chain(n: int) -> tuple[np.ndarray, float]:
    """Sequences [n, 65] in which each of 200 tokens is followed by one of 200 with fixed chances, and their entropy,
    nats per token."""
    generator = np.random.default_rng(5)
    likes = generator.normal(size=(200, 5))
    scores = 1.5 * likes @ generator.normal(size=(5, 200)) + np.linspace(2, -2, 200)
    chance = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    ids = np.zeros((n, 65), np.int32)
    ids[:, 0] = generator.integers(0, 200, n)
    for t in range(64):
        below = chance[ids[:, t]].cumsum(1) < generator.random((n, 1))
        ids[:, t + 1] = np.minimum(below.sum(1), 199)
    entropy = -(chance[ids[:, :-1].ravel()] * np.log(chance[ids[:, :-1].ravel()])).sum(1).mean()
    return ids, float(entropy)


@pytest.mark.parametrize("std", [0.1, 0.8])
def test_a_new_model_predicts_by_bigrams(std):
    torch.manual_seed(1)
    model = LanguageModel(SHAPE, InitConfig(embed_std=0.8, head_std=0.001, output_gain=0.0))
    random_VD = model.model.embed_tokens.weight.detach().clone()
    ids, entropy = chain(2000)
    bigrams = count_bigrams([ids[:1900]], V, 10**9)
    start = set_first_weights(model, bigrams, std, seed=1)
    held = torch.from_numpy(ids[1900:].astype(np.int64))
    with torch.no_grad():
        nats = model.loss(held[:, :-1], held[:, 1:]).item()
    frequency = np.bincount(ids[:, 1:].ravel()) / ids[:, 1:].size
    unigram = -(frequency[frequency > 0] * np.log(frequency[frequency > 0])).sum()
    assert unigram > entropy + 0.5
    assert nats < entropy + 0.35 * (unigram - entropy)
    assert nats == pytest.approx(start.nats, abs=0.12)
    assert start.tokens == 1900 * 64
    rows_VD = model.model.embed_tokens.weight.detach()
    assert_close(rows_VD.pow(2).mean(1).sqrt(), torch.full((V,), std))
    never = rows_VD[200:]
    assert_close(never, std * random_VD[200:] / random_VD[200:].pow(2).mean(1, keepdim=True).sqrt())


def test_a_width_above_the_vocabulary_is_filled_up():
    small = LanguageModel(replace(SHAPE, vocab_size=32), InitConfig(output_gain=0.0))
    ids = np.random.default_rng(1).integers(0, 30, (50, 65))
    start = set_first_weights(small, count_bigrams([ids], 32, 10**9), 0.5, seed=1)
    assert start.nats < math.log(32)
    assert all(each.isfinite().all() for each in small.parameters())


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    corpus = write_corpus(tmp_path_factory.mktemp("text") / "a.jsonl")
    return [
        f"data.files=[{corpus}]",
        "model.tie_embeddings=false",
        "optim=muon",
        "optim.init_bigrams=3000",
        "train.max_steps=8",
        "train.checkpoint_every=4",
        "train.eval_every=4",
    ]


def test_a_run_begins_below_a_random_one_says_so_and_is_resumed_exactly(tmp_path, words):
    whole = SmallRun(tmp_path, "name=whole", *words).finish()
    assert "begin as a model of 3,000 pairs of neighbouring tokens" in whole.out
    plain = SmallRun(tmp_path, "name=plain", *words, "optim.init_bigrams=0", "train.max_steps=1").finish()
    assert "begin as a model" not in plain.out
    assert losses(whole.root)[1] < 0.8 * losses(plain.root)[1]
    parts = tmp_path / "parts"
    shutil.copytree(whole.root, parts)
    shutil.rmtree(parts / "checkpoints" / "step-00000008")
    rest = SmallRun(tmp_path, "name=parts", *words).finish()
    assert "begin as a model" not in rest.out
    assert differences(*(each / "checkpoints" / "step-00000008" for each in (whole.root, parts))) == []


def test_a_text_shorter_than_the_wanted_pairs_is_counted_once(tmp_path, words):
    run = SmallRun(tmp_path, *words, "optim.init_bigrams=100000000", "train.max_steps=1").finish()
    counted = int(run.out.split("as a model of ")[1].split(" pairs")[0].replace(",", ""))
    assert 10_000 < counted < 200_000


def test_a_text_of_one_sequence_is_enough(tmp_path, words):
    corpus = write_corpus(tmp_path / "little.jsonl", documents=3)
    held_out = write_corpus(tmp_path / "held_out.jsonl", documents=3, seed=2)
    more = [f"data.files=[{corpus}]", f"data.val_files=[{held_out}]", "train.seq_len=64", "train.max_steps=1"]
    run = SmallRun(tmp_path, *words, *more, "tokenizer.vocab_size=257").finish()
    assert "begin as a model of" in run.out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["model.tie_embeddings=true"], "an untied head"),
        (["init_from=somewhere"], "new model"),
        (["data=chat", "data.files=[a.jsonl]"], "plain text"),
        (["optim.init_bigrams=-1"], "must not be negative"),
    ],
)
def test_what_it_is_not_for_is_refused(more, message):
    with pytest.raises(UserError, match=message):
        build(RunConfig, load_config("train", [*OPTIONS, "model.tie_embeddings=false", "optim.init_bigrams=9", *more]))
