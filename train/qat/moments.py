"""What rounding is weighted by and makes up for in quantization-aware training: second moments of the inputs.

Measured once, when quantization begins, on the run's own sample of its training text. Their diagonal is the quantity
of export's importance matrix, all of them what its ``rounding=gptq`` takes.

Tested in tests/train/qat/test_fake_quant.py, tests/train/qat/test_quantized_run.py.

Shape suffixes: D input columns.
"""

import numpy as np
from torch import Tensor

from data.tokenizers.tokenizer import Tokenizer
from slm.kernels.column_squares import column_products
from slm.model.transformer import LanguageModel

WINDOWS, WINDOW = 64, 512
"""Pieces of text from all over the sample, and the tokens of each at most: 32,768 are enough to tell the moments of
some thousand columns, in the time of a few steps."""
CHARACTERS_PER_TOKEN = 8
"""That are cut out for each token, so that a piece hardly ever has too few."""


def input_moments(model: LanguageModel, tokenizer: Tokenizer, text: str) -> dict[str, Tensor]:
    """By parameter, f32 [D, D]: the mean products of the inputs of its columns, of the unquantized ``model`` on
    ``text``. Matrices that read the same input share the tensor.

    Empty where the text does not fill a window, or where an activation is not finite, or all of a matrix are zero.
    """
    windows = _windows(tokenizer, text, min(WINDOW, model.config.seq_len))
    if not len(windows):
        return {}
    found = column_products(model, windows)
    for moments_DD in {id(each): each for each in found.values()}.values():
        moments_DD /= windows.size
    usable = (each.isfinite().all() and each.diagonal().sum() > 0 for each in found.values())
    return found if all(usable) else {}


def _windows(tokenizer: Tokenizer, text: str, width: int) -> np.ndarray:
    """int32 [n, width]: pieces that begin at equal distances in the text."""
    size = CHARACTERS_PER_TOKEN * width
    starts = sorted({round(start) for start in np.linspace(0, max(0, len(text) - size), WINDOWS)})
    pieces = (tokenizer.encode(text[start : start + size])[:width] for start in starts)
    full = [piece for piece in pieces if len(piece) == width]
    return np.array(full, np.int32).reshape(len(full), width)
