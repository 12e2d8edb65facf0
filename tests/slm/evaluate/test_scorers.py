import math

import numpy as np
import pytest
import torch

from slm.evaluate import scorers
from slm.evaluate.perplexity import (
    Score,
    Window,
    chunked_plan,
    chunked_windows,
    nll_of,
    reduce,
    relative_change,
    sliding_plan,
    sliding_windows,
)
from slm.evaluate.scorers import TorchScorer, quick_kernels
from slm.kernels.choice import open_kernels
from slm.model.transformer import LanguageModel
from slm.report import change_text
from tests.helpers import tiny_checkpoint as tiny


@pytest.fixture(scope="module")
def scorer() -> TorchScorer:
    torch.set_num_threads(1)
    model = LanguageModel(tiny.config(d_model=32, n_heads=4, head_dim=8, ffn_dim=48, vocab_size=64, seq_len=32)).eval()
    tiny.randomize(model)
    return TorchScorer(model, lambda text: [], name="model", bos=None, document_start=0, logits_budget=64 * 5)


IDS = np.random.default_rng(1).integers(1, 64, 150, dtype=np.int32)


@torch.inference_mode()
def logprobs(scorer: TorchScorer, ids: np.ndarray) -> torch.Tensor:
    return scorer.model(torch.from_numpy(ids.astype(np.int64))[None])[0].log_softmax(-1)


def test_torch_scorer_by_hand(scorer):
    window = Window(start=20, stop=50, first=9, last=29)
    log_p = logprobs(scorer, IDS[20:50])
    expected = [-log_p[position, IDS[20 + position + 1]].item() for position in range(9, 29)]
    np.testing.assert_allclose(scorer.nll([window], IDS), expected, rtol=1e-4)
    ((_, logits),) = scorer.logits([window], IDS)
    np.testing.assert_allclose(nll_of(logits, window.targets(IDS)), expected, rtol=1e-4)


def test_the_caller_is_not_in_inference_mode_between_windows(scorer):
    """Two iterators that end in another order than they began would leave the process in it."""
    windows = chunked_windows(len(IDS), 30)
    for iterator in (scorer.logits(windows, IDS), scorer.ragged_logits(windows, IDS)):
        next(iterator)
        assert not torch.is_inference_mode_enabled()


def test_groups_of_windows_change_nothing(scorer):
    windows = chunked_windows(len(IDS), 30) + sliding_windows(len(IDS), 32)
    one_by_one = np.concatenate([scorer.nll([window], IDS) for window in windows])
    seen: list[int] = []
    np.testing.assert_allclose(scorer.nll(windows, IDS, seen.append), one_by_one, rtol=1e-4, atol=1e-5)
    assert sum(seen) == sum(window.stop - window.start for window in windows)


def scored(scorer, plan) -> Score:
    stream, windows = plan
    return reduce(scorer.nll(windows, stream))


def test_definitions_by_hand(scorer):
    """Both, from one token at a time, straight from their definitions."""
    total, n = 0.0, 0
    for start in range(0, len(IDS) - 31, 32):
        log_p = logprobs(scorer, IDS[start : start + 32])
        for position in range(17, 32):
            total, n = total - log_p[position - 1, IDS[start + position]].item(), n + 1
    found = scored(scorer, chunked_plan(scorer, IDS, 512))  # the model holds only 32
    assert found.tokens == n
    assert found.perplexity == pytest.approx(math.exp(total / n), rel=1e-4)
    assert scored(scorer, chunked_plan(scorer, IDS, 32, max_chunks=2)).tokens == 30

    stream = np.concatenate([[0], IDS])
    total = 0.0
    for target in range(1, len(stream)):
        # Windows start every 16 tokens; the one that scores a token is the first that reaches it.
        start = max(0, -(-(target - 32) // 16) * 16)
        log_p = logprobs(scorer, stream[start : min(start + 32, len(stream) - 1)])
        total -= log_p[target - 1 - start, stream[target]].item()
    found = scored(scorer, sliding_plan(scorer, IDS, 512))
    assert found.tokens == len(IDS)
    assert found.nll == pytest.approx(total, rel=1e-4)


def test_a_change_is_told_from_the_errors_of_its_tokens():
    """Tokens are paired: that some are harder than others is no error of the change."""
    rng = np.random.default_rng(5)
    reference_N = rng.exponential(3.0, 4_000)
    same_N = reference_N + rng.normal(-0.001, 0.1, 4_000)
    worse_N = reference_N + rng.normal(0.02, 0.1, 4_000)
    change, stderr = relative_change(same_N, reference_N)
    assert stderr == pytest.approx(0.1 / math.sqrt(4_000), rel=0.1)
    assert abs(change) < 2 * stderr
    assert change_text(change, stderr) == f"within ±{2 * stderr:.2%}"
    change, stderr = relative_change(worse_N, reference_N)
    assert change == pytest.approx(reduce(worse_N).perplexity / reduce(reference_N).perplexity - 1)
    assert change_text(change, stderr) == f"{change:+.2%} ± {stderr:.2%}"
    assert change_text(change) == f"{change:+.2%}"  # of a record without the error
    assert math.isnan(relative_change(np.array([1.0, np.nan]), np.zeros(2))[0])


def test_short_passes_do_not_load_the_kernels(scorer):
    assert quick_kernels(scorer.model, 1_000) is None


def test_the_kernels_score_as_pytorch_does(monkeypatch):
    """A pass that is long enough takes them by itself."""
    kernels, why = open_kernels("auto", "f32", bits=32)
    if kernels is None:
        pytest.skip(why)
    model = LanguageModel(tiny.config(vocab_size=416, seq_len=64)).eval()
    tiny.randomize(model)
    ids = np.random.default_rng(2).integers(1, 416, 300, dtype=np.int32)
    by_torch, by_kernels = (
        TorchScorer(model, lambda text: [], name="model", bos=None, document_start=0) for _ in range(2)
    )
    windows = chunked_windows(len(ids), 60) + sliding_windows(len(ids), 60)
    expected = by_torch.nll(windows, ids)
    assert by_torch.fused is None
    monkeypatch.setattr(scorers, "WORTH_KERNELS", 2 * model.config.n_params * sum(w.stop - w.start for w in windows))
    np.testing.assert_allclose(by_kernels.nll(windows, ids), expected, rtol=1e-3, atol=1e-4)
    assert by_kernels.fused is not None
    for (_, ours), (_, theirs) in zip(by_kernels.logits(windows, ids), by_torch.logits(windows, ids), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
