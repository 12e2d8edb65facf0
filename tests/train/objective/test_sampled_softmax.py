"""Sampled softmax: gradients against the definition, the estimate's mean against the whole vocabulary, resumed runs."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from slm.configuration import build, load_config
from slm.data.errors import UserError
from slm.model.transformer import LanguageModel, rope_tables
from slm.train.config import RunConfig
from slm.train.objective.sampled_softmax import SampledSoftmax, Words, draw
from slm.train.objective.superposition import Superposition
from tests.helpers.small_run import SmallRun, differences, records, write_corpus
from tests.train.objective.test_preference import model_of
from tests.train.objective.test_superposition import assert_gradients

VOCAB, COUNT, BAG = 1024, 256, 4
BLOCKS = np.random.default_rng(5).integers(1, 90, (3, 33)).astype(np.int32)


def log_p_of(logits_NV: torch.Tensor, words: Words) -> torch.Tensor:
    """Logarithms of the estimated probabilities of ``words``, by the definition."""
    counts_V = torch.ones(len(words.ids))
    counts_V[words.n_targets :] = words.stands_for
    chosen_NV = logits_NV[:, words.ids]
    return chosen_NV - torch.log((chosen_NV.exp() * counts_V).sum(1, keepdim=True))


def definition(model: LanguageModel, bag: int) -> torch.Tensor:
    """The mean cross-entropy of single tokens, or of the next bag's."""
    if bag == 1:
        targets_N1 = torch.from_numpy(BLOCKS[:, 1:].astype(np.int64)).reshape(-1, 1)
        logits_NV = model(torch.from_numpy(BLOCKS[:, :-1].astype(np.int64))).flatten(0, 1)
    else:
        bags_BPS = torch.from_numpy(BLOCKS[:, :-1].astype(np.int64)).reshape(3, -1, bag)
        x_BPD = model.model.embed_tokens(bags_BPS).mean(2)
        for layer in model.model.layers:
            x_BPD = layer(x_BPD, *rope_tables(model.config, 0, bags_BPS.shape[1]))
        logits_NV = F.linear(model.model.norm(x_BPD), model.head_weight_VD)[:, :-1].flatten(0, 1)
        targets_N1 = bags_BPS[:, 1:].flatten(0, 1)
    padded = targets_N1 if bag == 1 else Superposition(bag).split(BLOCKS).targets
    words = draw(padded, VOCAB, COUNT)
    assert words is not None
    return -log_p_of(logits_NV, words).gather(1, words.places(targets_N1)).mean()


@pytest.mark.parametrize("kind", ["autograd", "avx2", "avx512bf16"])
@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("bag", [1, BAG])
def test_gradients_are_those_of_the_definition(kind, tie, bag):
    model = model_of(1, tie, vocab_size=VOCAB)
    objective = SampledSoftmax(COUNT, VOCAB) if bag == 1 else Superposition(bag, sampled=COUNT, vocab_size=VOCAB)
    assert_gradients(objective, model, kind, BLOCKS, definition(model, bag), count=96 if bag == 1 else 21)


def test_words_are_the_targets_and_others_once_each():
    targets = torch.tensor([[5, 700, -100], [5, 3, 1023]])
    words = draw(targets, VOCAB, COUNT)
    assert words is not None
    assert words.ids[: words.n_targets].tolist() == [3, 5, 700, 1023]
    assert len(set(words.ids.tolist())) == len(words.ids) == COUNT
    assert (words.stands_for >= 1).all()
    assert words.stands_for.sum() == pytest.approx(VOCAB - 4, rel=0.05)  # all others, as far as chance has it
    assert words.places(targets).tolist() == [[1, 2, -100], [1, 0, 3]]
    again = draw(targets.clone(), VOCAB, COUNT)
    assert again is not None
    assert torch.equal(words.ids, again.ids)  # a resumed run draws the same
    other = draw(targets.flip(0), VOCAB, COUNT)
    assert other is not None
    assert not torch.equal(words.ids, other.ids)


def test_frequent_words_are_drawn_more_often_and_each_stands_for_what_its_chance_says():
    targets = torch.tensor([0, 1, 1000])
    n, found = 600, np.zeros(VOCAB)
    stands_for = np.zeros(VOCAB)
    for index in range(n):
        words = draw(torch.cat([targets, torch.tensor([-101 - index])]), VOCAB, COUNT)
        assert words is not None
        drawn = words.ids[words.n_targets :].numpy()
        assert len(set(drawn)) == len(drawn) == COUNT - 3
        assert not set(drawn) & {0, 1, 1000}
        found[drawn] += 1
        stands_for[drawn] = words.stands_for.numpy()
    seen = found > 0
    assert seen.sum() == VOCAB - 3
    assert found[2:100].mean() > 1.5 * found[800:1000].mean()
    assert (found * stands_for / n)[seen] == pytest.approx(1, abs=0.4)  # 5 deviations of the rarest
    assert (found * stands_for / n)[seen].mean() == pytest.approx(1, abs=0.01)


def test_words_that_are_certain_stand_for_themselves():
    """Where this many are drawn that a frequent word's chance would be above 1."""
    words = draw(torch.tensor([4]), VOCAB, 1000)  # 1,024 is no less than the vocabulary
    assert words is None
    words = draw(torch.tensor([4]), VOCAB, 768)
    assert words is not None
    drawn, stands_for = words.ids[1:], words.stands_for
    assert (stands_for[drawn < 100] == 1).all()
    assert sorted(set(range(100)) - set(drawn.tolist())) == [4]
    assert stands_for[-1] > 1
    assert len(set(drawn.tolist())) == 767


def test_many_targets_get_more_words_and_all_of_them_none():
    few = torch.arange(240)
    words = draw(few, VOCAB, COUNT)
    assert words is not None
    assert len(words.ids) == 512  # 240 and a quarter of 256 are more than 256
    assert draw(torch.arange(900), VOCAB, COUNT) is None
    assert draw(few, VOCAB, VOCAB) is None
    assert draw(torch.full((4,), -100), VOCAB, COUNT) is None


def test_the_mean_of_many_draws_is_the_whole_vocabularys():
    """Sums over the vocabulary have their expected value, so losses are right but for what the logarithm bends."""
    torch.manual_seed(3)
    logits_NV = torch.randn(64, VOCAB)
    targets = torch.randint(0, 90, (64,))
    whole = logits_NV.exp().sum(1)
    sums = torch.zeros(64)
    n = 200
    for index in range(n):
        # One more position, not scored, makes another draw of the same targets.
        words = draw(torch.cat([targets, torch.tensor([-101 - index])]), VOCAB, COUNT)
        assert words is not None
        sums += (logits_NV[:, words.ids] + words.offsets).exp().sum(1)
    assert sums / n == pytest.approx(whole, rel=0.03)


def test_a_run_is_resumed_exactly_and_validated_with_all_words(tmp_path):
    corpus = write_corpus(tmp_path / "documents.jsonl")
    words = [f"data.files=[{corpus}]", "train.max_steps=4", "train.checkpoint_every=2", "train.eval_every=4"]
    words += ["train.calibrate_head=false"]
    sampled = [*words, "train.sampled_softmax=256"]
    whole = SmallRun(tmp_path / "runs", "name=whole", *sampled).finish()
    SmallRun(tmp_path / "runs", "name=parts", *sampled, "train.max_steps=2").finish()
    parts = SmallRun(tmp_path / "runs", "name=parts", *sampled).finish()
    assert differences(*(each.root / "checkpoints" / "step-00000004" for each in (whole, parts))) == []
    plain = SmallRun(tmp_path / "runs", "name=plain", *words).finish()
    losses = [[each["loss"] for each in records(run.root) if "lr" in each] for run in (whole, plain)]
    assert losses[0][0] == pytest.approx(losses[1][0], rel=0.01)  # of the same weights
    assert losses[0][1:] != losses[1][1:]
    assert losses[0][-1] < losses[0][0] - 1
    validated = next(each["val_loss"] for each in records(whole.root) if "val_loss" in each)
    assert validated == pytest.approx(losses[0][-1], rel=0.15)  # all words, after one step more


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.sampled_softmax=-1"], "train.sampled_softmax must not be negative"),
        (["train.sampled_softmax=64", "distill.teacher=runs/mine", "distill.cache=kept"], "words that are drawn anew"),
        (["train.sampled_softmax=64", "data=chat", "data.files=[a.jsonl]", "preference.loss=orpo"], "leave it 0"),
    ],
)
def test_what_does_not_fit_is_said(words, message):
    with pytest.raises(UserError, match=message):
        build(RunConfig, load_config("train", ["preset=tiny", *words]))
