"""``components.frozen``: the lower layers of a base, its embedding and its head stay as they are while it is tuned.

What a few conversations teach fits into the upper layers. AdamW gives every weight a step of about the learning rate,
however small its gradient is; a head gets a small gradient in each of its rows at each step, so a short tuning at a
high rate moves all tokens that it never saw. The step is cheaper, too: no gradients below the lowest trained layer,
and none of the table.

Tested in tests/train/components/test_frozen.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from slm.data.errors import UserError
from slm.train.components.component import Component
from slm.train.config import RunConfig
from slm.train.lora.base import new_ids
from slm.train.parts import Parts

TABLES = ("model.embed_tokens.", "lm_head.")


@dataclass(frozen=True, kw_only=True)
class Options:
    """``components.frozen``."""

    share: float = 0.5
    """Share of the layers, from the lowest, that stay as they are; 0: only embedding and head do."""

    def make(self) -> Component:
        return Frozen(self)


class Frozen(Component):
    """Takes lower layers and tables out of the training."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def check(self, config: RunConfig) -> None:
        if not config.init_from:
            raise UserError(
                "components.frozen leaves a trained model's weights alone: name that model with init_from=DIR"
            )
        if config.lora.rank or config.train.qat:
            raise UserError(
                "components.frozen is for tuning of a model's own weights: leave it out with lora.rank or train.qat"
            )
        if not 0 <= self._options.share < 1:
            raise UserError(f"components.frozen.share is {self._options.share} and must be from 0 to below 1")

    def attach(self, run: Parts) -> None:
        super().attach(run)
        if run.ranks.size > 1:
            raise UserError("components.frozen works in one process: leave it out, or train.processes")
        assert run.config.init_from
        layers = int(self._options.share * run.model.config.n_layers)
        lower = tuple(f"model.layers.{index}." for index in range(layers))
        # New special tokens have rows to learn.
        tables = () if new_ids(run.config.init_from, run.tokenizer) else TABLES
        for name, weight in run.model.named_parameters():
            if name.startswith((*lower, *tables)):
                weight.requires_grad_(False)
        learned = sum(each.numel() for each in run.model.parameters() if each.requires_grad)
        parts = [f"layers 1 to {layers} of {run.model.config.n_layers}"] if layers else []
        parts += ["embedding and head"] if tables else []
        what = ", ".join(parts) or "nothing"
        run.log.print(f"frozen: {what}; {learned:,} parameters are trained (components.frozen)")
