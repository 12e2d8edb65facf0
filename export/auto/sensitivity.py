"""How much the predictions feel an error in each number of each matrix: a second-order estimate from one backward pass.

A small error E of a matrix changes its output y = Wx by Ex, and the predictions by a divergence of half the mean square
of (gradient of y) * Ex. The gradient belongs to the log-likelihood of tokens that the model itself predicts (the Fisher
information). With rows and columns taken as independent, as in K-FAC (Martens and Grosse 2015), the divergence is

    KL per position = 1/2 * sum over rows o and columns d of  rows[o] * columns[d] * E[o, d]^2

with rows[o] the mean square of the output's gradient and columns[d] that of the input. The output head's gradient is
known (p - p^2, times the square of a soft-cap's slope). A row of the embedding counts as often as its token occurs.

Shape suffixes: B windows, T positions, D input columns, O output rows, V vocabulary.

Tested in tests/export/auto/test_planner.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from slm.model.cross_entropy import soft_cap_slope
from slm.model.transformer import LanguageModel


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """One use of a matrix."""

    rows: np.ndarray
    """f64 [O]."""
    columns: np.ndarray
    """f64 [D]."""


def sensitivities(
    model: LanguageModel,
    windows_BT: np.ndarray,
    token_counts_V: np.ndarray,
    progress: Callable[[int], None] | None = None,
) -> dict[str, list[Weighting]]:
    """The weightings of every matrix, by Hugging Face's name. A tied embedding has two: it is read and it predicts.

    ``windows_BT``: int32 ids, one backward pass each. ``token_counts_V``: how often each token is read.
    """
    sums: dict[str, list[Tensor]] = {}
    handles = []
    n_rows = 0

    def watch(name: str, module: nn.Module) -> None:
        weight = module.get_parameter("weight")
        rows_O, columns_D = (torch.zeros(size, dtype=torch.float64) for size in weight.shape)
        sums[f"{name}.weight"] = [rows_O, columns_D]

        def hook(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            columns_D.add_(_squares(inputs[0].detach()))
            output.register_hook(partial(_add_squares, rows_O))

        handles.append(module.register_forward_hook(hook))

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and name != "lm_head":
            watch(name, module)
    embedded_D = torch.zeros(model.config.d_model, dtype=torch.float64)
    hidden_D = torch.zeros(model.config.d_model, dtype=torch.float64)
    predicted_V = torch.zeros(model.config.vocab_size, dtype=torch.float64)

    def embedding_hook(_: nn.Module, __: tuple[Tensor, ...], output: Tensor) -> Tensor:
        output = output.detach().requires_grad_(True)
        output.register_hook(partial(_add_squares, embedded_D))
        return output

    handles.append(model.model.embed_tokens.register_forward_hook(embedding_hook))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    generator = torch.Generator().manual_seed(0)
    try:
        for parameter in trained:
            parameter.requires_grad_(False)  # only the activations' gradients are wanted
        for window_T in windows_BT:
            x_TD = model.hidden_states(torch.from_numpy(window_T.astype(np.int64))[None])[0]
            hidden_D += _squares(x_TD.detach())
            n_rows += len(x_TD)
            gradient_TD = torch.empty_like(x_TD)
            for start in range(0, len(x_TD), 128):
                part_ND = x_TD[start : start + 128].detach()
                logits_NV = model.logits(part_ND).float()
                p_NV, cap = logits_NV.softmax(-1), model.config.logit_cap
                slope_NV = soft_cap_slope(logits_NV, cap) if cap else torch.ones(())
                predicted_V += ((p_NV - p_NV.square()) * slope_NV.square()).sum(0, dtype=torch.float64)
                drawn_N = torch.multinomial(p_NV, 1, generator=generator)
                p_NV.scatter_add_(1, drawn_N, torch.full_like(drawn_N, -1, dtype=p_NV.dtype))
                gradient_TD[start : start + 128] = (p_NV * slope_NV) @ model.head_weight_VD.float()
            x_TD.backward(gradient_TD)
            if progress:
                progress(1)
    finally:
        for handle in handles:
            handle.remove()
        for parameter in trained:
            parameter.requires_grad_(True)
    found = {
        name: [Weighting(rows=(rows / n_rows).numpy(), columns=(columns / n_rows).numpy())]
        for name, (rows, columns) in sums.items()
    }
    read = Weighting(rows=token_counts_V / max(1, token_counts_V.sum()), columns=(embedded_D / n_rows).numpy())
    head = Weighting(rows=(predicted_V / n_rows).numpy(), columns=(hidden_D / n_rows).numpy())
    found["model.embed_tokens.weight"] = [read]
    if model.config.tie_embeddings:
        found["model.embed_tokens.weight"].append(head)
    else:
        found["lm_head.weight"] = [head]
    return found


def estimate(
    weight_OD: np.ndarray,
    weightings: list[Weighting],
    rounded: Callable[[np.ndarray], np.ndarray],
    n_rows: int,
    seed: int = 0,
) -> float:
    """The divergence that rounding a matrix adds, nats per position, by the formula above.

    ``rounded`` gives rows as they are stored. Where the matrix has more than ``n_rows``, that many are drawn in
    proportion to their weights.
    """
    total = 0.0
    for weighting in weightings:
        rows_O = weighting.rows
        if not rows_O.sum() > 0:
            continue
        every = len(rows_O) <= n_rows
        at = (
            np.arange(len(rows_O))
            if every
            else np.random.default_rng(seed).choice(len(rows_O), n_rows, p=rows_O / rows_O.sum())
        )
        error_OD = rounded(weight_OD[at]).astype(np.float64) - weight_OD[at]
        per_row = np.square(error_OD) @ weighting.columns
        total += float(rows_O @ per_row) if every else float(rows_O.sum() * per_row.mean())
    return total / 2


def _add_squares(sums: Tensor, gradient: Tensor) -> None:
    sums.add_(_squares(gradient))


def _squares(values: Tensor) -> Tensor:
    return values.float().square().flatten(0, -2).sum(0, dtype=torch.float64)
