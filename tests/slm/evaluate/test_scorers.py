import math

import numpy as np
import pytest
import torch

from slm.evaluate.perplexity import (
    Score,
    Window,
    chunked_plan,
    chunked_windows,
    nll_of,
    reduce,
    sliding_plan,
    sliding_windows,
)
from slm.evaluate.scorers import TorchScorer
from slm.model.transformer import LanguageModel
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
