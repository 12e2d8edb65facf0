"""What rounding is weighted by in quantization-aware training: the quantity of export's importance matrix.

Measured once, when quantization begins, on the run's own sample of its training text.

Tested in tests/train/qat/test_fake_quant.py, tests/train/qat/test_quantized_run.py.
"""

import numpy as np
from torch import Tensor

from data.tokenizers.tokenizer import Tokenizer
from slm.kernels.column_squares import column_squares
from slm.model.transformer import LanguageModel

WINDOWS, WINDOW = 16, 512
"""Pieces of text from all over the sample, and the tokens of each at most: 8,192 place a mean square within a few
percent, in the time of a forward pass of a step."""
CHARACTERS_PER_TOKEN = 8
"""That are cut out for each token, so that a piece hardly ever has too few."""
LEAST = 1e-4
"""Of the mean over a matrix's columns: what a column counts at least, so that no block is without weight."""


def column_importance(model: LanguageModel, tokenizer: Tokenizer, text: str) -> dict[str, Tensor]:
    """By parameter, f32 [D]: the mean square of each column's input, of the unquantized ``model`` on ``text``.

    Empty where the text does not fill a window, or where an activation is not finite.
    """
    windows = _windows(tokenizer, text, min(WINDOW, model.config.seq_len))
    if not len(windows):
        return {}
    means = {name: squares_D / windows.size for name, squares_D in column_squares(model, windows).items()}
    found = {name: each.clamp_min(LEAST * float(each.mean())).float().clone() for name, each in means.items()}
    return {name: each for name, each in found.items() if each.isfinite().all() and each.min() > 0}


def _windows(tokenizer: Tokenizer, text: str, width: int) -> np.ndarray:
    """int32 [n, width]: pieces that begin at equal distances in the text."""
    size = CHARACTERS_PER_TOKEN * width
    starts = sorted({round(start) for start in np.linspace(0, max(0, len(text) - size), WINDOWS)})
    pieces = (tokenizer.encode(text[start : start + size])[:width] for start in starts)
    full = [piece for piece in pieces if len(piece) == width]
    return np.array(full, np.int32).reshape(len(full), width)
