"""Gradients are put into buckets, in the order in which the backward pass finishes them."""

import torch

from slm.train.distributed.gradient_sync import buckets


def parameters(*sizes: int) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.zeros(size)) for size in sizes]


def test_buckets_hold_every_parameter_once_last_first():
    given = parameters(1000, 10, 20, 300, 5, 7)
    groups = buckets(given, most_bytes=1300)
    assert [[p.numel() for p in group] for group in groups] == [[7, 5, 300, 20], [10], [1000]]
