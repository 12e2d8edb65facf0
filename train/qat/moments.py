"""What rounding is weighted by and makes up for in quantization-aware training: second moments of the inputs.

Measured once, when quantization begins, on the run's own sample of its training text. Their diagonal is the quantity
of export's importance matrix, all of them what its ``rounding=gptq`` takes.

Tested in tests/train/qat/test_fake_quant.py, tests/train/qat/test_quantized_run.py.

Shape suffixes: D input columns.
"""

import numpy as np
from torch import Tensor

from slm.data.tokenizers.tokenizer import Tokenizer
from slm.kernels.column_squares import column_products
from slm.kernels.fused import usable
from slm.kernels.native import Kernels
from slm.model.transformer import LanguageModel

WINDOW = 512
"""Tokens of a piece of text at most. The pieces are from all over the sample."""
FEWEST, MOST = 8, 64
"""Pieces. With 4,096 tokens compensated rounding leaves .52 of the error of the nearest values, with 32,768 .46, with
131,072 .45 (docs/results/quantization.md)."""
PART = 16
"""One of this many tokens that training reads from there on is measured, between these bounds: a token costs about a
third of what it costs in training."""
CHARACTERS_PER_TOKEN = 8
"""Characters of text that are read for each token of a piece. A token has four to five on average, so that a piece of
this length is almost never too short."""


def input_moments(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    training_tokens: float | None = None,
    kernels: Kernels | None = None,
) -> dict[str, Tensor]:
    """By parameter, f32 [D, D]: the mean products of the inputs of its columns, of the unquantized ``model`` on
    ``text``. Matrices that read the same input share the tensor.

    ``training_tokens``: that a run reads with quantized weights; fewer take fewer measurements.
    ``kernels``: the run's, used where they can run the model. Empty where the text does not fill a window, or where an
    activation is not finite, or all of a matrix are zero.
    """
    pieces = MOST if training_tokens is None else int(training_tokens / PART / WINDOW)
    windows = _windows(tokenizer, text, min(MOST, max(FEWEST, pieces)), min(WINDOW, model.config.seq_len))
    if not len(windows):
        return {}
    found = column_products(model, windows, usable(model, kernels))
    for moments_DD in {id(each): each for each in found.values()}.values():
        moments_DD /= windows.size
    sound = (each.isfinite().all() and each.diagonal().sum() > 0 for each in found.values())
    return found if all(sound) else {}


def _windows(tokenizer: Tokenizer, text: str, n_pieces: int, width: int) -> np.ndarray:
    """int32 [n, width]: pieces that begin at equal distances in the text, ``n_pieces`` at most."""
    size = CHARACTERS_PER_TOKEN * width
    starts = sorted({round(start) for start in np.linspace(0, max(0, len(text) - size), n_pieces)})
    pieces = (tokenizer.encode(text[start : start + size])[:width] for start in starts)
    full = [piece for piece in pieces if len(piece) == width]
    return np.array(full, np.int32).reshape(len(full), width)
