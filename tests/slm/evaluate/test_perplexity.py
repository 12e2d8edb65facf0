import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slm.data.errors import UserError
from slm.evaluate.perplexity import (
    bits_per_byte,
    chunked_windows,
    contiguous_plan,
    nll_of,
    reduce,
    sliding_windows,
    word_perplexity,
)


def test_llama_cpps_windows():
    windows = chunked_windows(1_300, 512, bos=7)
    assert [(w.start, w.stop, w.first, w.last, w.head) for w in windows] == [
        (0, 512, 256, 511, 7),
        (512, 1_024, 256, 511, 7),
    ]
    stream = np.arange(1_300, dtype=np.int32)
    assert len(windows[0].targets(stream)) == 255
    assert windows[1].targets(stream)[[0, -1]].tolist() == [512 + 257, 1_023]
    assert windows[1].inputs(stream)[:3].tolist() == [7, 513, 514]
    assert stream[512] == 512  # the stream itself is not written to


@pytest.mark.parametrize(
    ("bos", "wanted"), [(None, [1, 5, 6, 1, 7]), (1, [1, 5, 6, 2, 1, 7, 2])], ids=["none added", "added"]
)
def test_documents_stand_as_training_packs_them(bos, wanted):
    class Tokens:
        max_context, document_start, document_end = 8, 1, 2

    Tokens.bos = bos
    stream, windows = contiguous_plan(Tokens, [np.array([5, 6], np.int32), np.array([7], np.int32)], 4)
    assert stream.tolist() == wanted
    assert sum(window.last - window.first for window in windows) == len(wanted) - 1


def test_llama_cpp_refuses_less_than_two_windows():
    assert len(chunked_windows(1_024, 512)) == 2
    with pytest.raises(UserError, match=r"1023 tokens.*at least 1024.*at most 511"):
        chunked_windows(1_023, 512)


@given(st.integers(2, 400), st.integers(2, 70), st.data())
def test_sliding_windows_score_every_token_once_with_enough_before_it(n_tokens, context, data):
    stride = data.draw(st.integers(1, context))
    stream = np.arange(n_tokens)
    windows = sliding_windows(n_tokens, context, stride)
    scored = np.concatenate([window.targets(stream) for window in windows])
    assert scored.tolist() == list(range(1, n_tokens))
    for window in windows:
        assert 0 <= window.first < window.last == window.stop - window.start <= context
        assert window.start == 0 or window.first >= context - stride


def test_sliding_windows_of_nothing():
    assert sliding_windows(0, 8) == sliding_windows(1, 8) == []


def test_reduce_is_llama_cpps_formula():
    nll = np.array([1.0, 2.0, 4.0, 0.5])
    score = reduce(nll)
    assert score.perplexity == pytest.approx(math.exp(7.5 / 4))
    # nll2 = mean of squares - square of mean; sqrt(nll2 / (n - 1)) * ppl
    spread = (1 + 4 + 16 + 0.25) / 4 - (7.5 / 4) ** 2
    assert score.stderr == pytest.approx(math.sqrt(spread / 3) * math.exp(7.5 / 4))
    assert (score.nll, score.tokens) == (7.5, 4)
    assert math.isnan(reduce(np.array([1.0])).stderr)
    assert math.isnan(reduce(np.array([1.0, math.nan])).perplexity)
    assert reduce(np.array([1e9, 1e9])).perplexity == math.inf


def test_words_and_bytes():
    assert word_perplexity(10.0, 5) == pytest.approx(math.exp(2))
    assert bits_per_byte(8 * math.log(2), 2) == pytest.approx(4)
    assert math.isnan(bits_per_byte(1.0, 0))


def test_nll_of_large_and_small_logits():
    rng = np.random.default_rng(0)
    logits_NV = (rng.normal(size=(130, 40)) * 50 + 1_000).astype(np.float32)
    targets = rng.integers(0, 40, 130)
    expected = torch.nn.functional.cross_entropy(
        torch.from_numpy(logits_NV).double(), torch.from_numpy(targets), reduction="none"
    )
    np.testing.assert_allclose(nll_of(logits_NV, targets, rows=7), expected.numpy(), rtol=1e-5, atol=1e-4)


def test_importing_needs_neither_torch_nor_llama_cpp():
    code = "import sys, slm.evaluate.perplexity\n"
    code += "print([m for m in ('torch', 'llama_cpp', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
