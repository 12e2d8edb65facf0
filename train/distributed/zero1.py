"""Optimizer state divided over the ranks (ZeRO stage 1, Rajbhandari et al. 2020).

Each rank holds the moments of its share of the parameters, updates these parameters and broadcasts them. The moments
(8 bytes a parameter) take 1/size of the memory; in exchange a step sends the weights once more. A checkpoint holds
the whole state under the same names, so that a run may be resumed with or without ZeRO-1.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from slm.train.distributed.ranks import Ranks, lost_peer_errors
from slm.train.optim.interface import Parameters

BUCKET_BYTES = 16 * 2**20
"""Weights are broadcast in buckets of about this size."""
MAX_IN_FLIGHT = 2
"""Buckets sent before the first of them must have arrived."""


class Shard:
    """Some of a model's parameters, with the methods of a model that list parameters."""

    def __init__(self, model: Parameters, names: set[str]) -> None:
        self._model, self._names = model, names

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self._model.named_parameters() if name in self._names)

    def parameters(self) -> Iterator[nn.Parameter]:
        return (p for _, p in self.named_parameters())


def partition(model: Parameters, size: int) -> list[set[str]]:
    """The parameter names of each of ``size`` ranks: the largest first, each to the rank that has the least so far."""
    shares: list[set[str]] = [set() for _ in range(size)]
    loads = [0] * size
    for name, parameter in sorted(model.named_parameters(), key=lambda item: (-item[1].numel(), item[0])):
        rank = loads.index(min(loads))
        shares[rank].add(name)
        loads[rank] += parameter.numel()
    return shares


class Zero1Optimizer:
    """An optimizer over this rank's shard; ``step`` leaves every rank with all the new weights."""

    def __init__(self, ranks: Ranks, model: Parameters, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        shares = partition(model, ranks.size)
        self.shard = Shard(model, shares[ranks.rank])
        self.inner = make(self.shard)
        by_name = dict(model.named_parameters())
        self._parameters = list(by_name.values())
        self._buckets = [
            (rank, bucket)
            for rank, names in enumerate(shares)
            for bucket in _buckets([by_name[name] for name in by_name if name in names])
        ]

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.inner.param_groups

    @property
    def state(self) -> Any:
        return self.inner.state

    def register_step_pre_hook(self, hook: Any) -> Any:
        """Call ``hook`` before weights or moments change."""
        return self.inner.register_step_pre_hook(hook)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        in_flight: deque[_Broadcast] = deque()
        with lost_peer_errors():
            for rank, bucket in self._buckets:
                if len(in_flight) == MAX_IN_FLIGHT:  # each needs memory
                    _finish_broadcast(in_flight.popleft())
                in_flight.append(_start_broadcast(rank, bucket))
            while in_flight:
                _finish_broadcast(in_flight.popleft())


_Broadcast = tuple[Any, Tensor | None, list[nn.Parameter]]


def _start_broadcast(rank: int, bucket: list[nn.Parameter]) -> _Broadcast:
    """Start the broadcast of a bucket from ``rank``. A single parameter is sent and received without a copy."""
    if len(bucket) == 1:
        return dist.broadcast(bucket[0].data, src=rank, async_op=True), None, bucket
    flat = torch.cat([p.view(-1) for p in bucket])
    return dist.broadcast(flat, src=rank, async_op=True), flat, bucket


def _finish_broadcast(started: _Broadcast) -> None:
    work, flat, bucket = started
    work.wait()
    if flat is not None:
        for parameter, piece in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            parameter.copy_(piece.view_as(parameter))


def _buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        nbytes = 4 * parameter.numel()
        if not buckets or nbytes > room:
            buckets.append([])
            room = BUCKET_BYTES
        buckets[-1].append(parameter)
        room -= nbytes
    return buckets


def gather_tensors(ranks: Ranks, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """On rank 0 the tensors of all ranks, by name; elsewhere ``own``. Every rank must call it."""
    described = ranks.gather_to_main([(name, tuple(t.shape), t.dtype) for name, t in own.items()])
    if not ranks.main:
        with lost_peer_errors():
            for tensor in own.values():
                dist.send(tensor.detach().contiguous(), dst=0)
        return own
    whole = dict(own)
    with lost_peer_errors():
        for rank, tensors in enumerate(described[1:], start=1):
            for name, shape, dtype in tensors:
                whole[name] = torch.empty(shape, dtype=dtype)
                dist.recv(whole[name], src=rank)
    return whole


def scatter_tensors(ranks: Ranks, whole: dict[str, Tensor], wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """On every rank those of rank 0's tensors that it wants by name. Every rank must call it; others give ``{}``."""
    described = ranks.broadcast_from_main(lambda: [(name, tuple(t.shape), t.dtype) for name, t in whole.items()])
    kept = {}
    for name, shape, dtype in described:
        tensor = whole[name] if ranks.main else torch.empty(shape, dtype=dtype)
        ranks.broadcast([tensor])
        if wanted(name):
            kept[name] = tensor
    return kept
