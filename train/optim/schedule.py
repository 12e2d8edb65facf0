"""The learning rate over a run: linear warm-up, then a decay down to a floor."""

import math

from slm.train.config import OptimConfig


def learning_rate(config: OptimConfig, step: int, progress: float) -> float:
    """The rate of optimizer step ``step`` (from 0) when ``progress`` (0 to 1) of the run is done.

    The caller measures progress by steps or, where time bounds the run, by time, so that the decay ends when the run
    ends. A cosine takes all of the run, ``linear`` the last ``decay_fraction`` of it. ``range_test`` is the one that
    grows: from ``min_lr_ratio`` times the rate to the rate divided by it, exponentially.
    """
    if config.schedule == "range_test":
        return config.lr * config.min_lr_ratio ** (1 - 2 * min(1.0, max(0.0, progress)))
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * _shape(config, min(1.0, max(0.0, progress))))


def _shape(config: OptimConfig, progress: float) -> float:
    """The share of the peak above the floor, 1 to 0."""
    if config.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * progress))
    if progress <= 1 - config.decay_fraction:
        return 1.0
    return (1 - progress) / config.decay_fraction
