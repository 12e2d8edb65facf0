"""The learning rate over a run: linear warm-up, then a cosine down to a floor."""

import math

from train.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, progress: float) -> float:
    """The rate of optimizer step ``step`` (from 0) when ``progress`` (0 to 1) of the run is done.

    The caller measures progress by steps or, where time bounds the run, by time. The decay takes all of it, so that it
    ends when the run ends.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)
