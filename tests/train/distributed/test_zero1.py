"""The optimizer's state is divided evenly. Whole runs: tests/train/test_distributed.py."""

import torch

from slm.train.distributed.zero1 import partition


def test_the_shards_hold_everything_once_and_evenly():
    model = torch.nn.Sequential(*(torch.nn.Linear(n, 16) for n in (100, 40, 30, 20, 10)))
    shares = partition(model, 2)
    names = {name for name, _ in model.named_parameters()}
    assert shares[0] | shares[1] == names
    assert not shares[0] & shares[1]
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    loads = [sum(sizes[name] for name in share) for share in shares]
    assert max(loads) < 1.1 * min(loads)
