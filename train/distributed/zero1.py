"""Optimizer state divided over the ranks (ZeRO stage 1, Rajbhandari et al. 2020).

Each rank keeps the moments of its share of the parameters, updates these and hands the new weights to the others:
the moments (8 bytes a parameter) take 1/size of the memory, and a step sends the weights once more. A checkpoint
holds the whole state under the same names, so that a run may go on with or without this.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.distributed.ranks import Ranks, contact

PACKET_BYTES = 16 * 2**20
"""Weights travel in packets of about this size."""
UNDER_WAY = 2
"""Packets sent before the first of them must have arrived."""


class Part:
    """Some of a model's parameters, for whoever asks a model for its ``named_parameters``."""

    def __init__(self, model: nn.Module, names: set[str]) -> None:
        self._model, self._names = model, names

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, p) for name, p in self._model.named_parameters() if name in self._names)

    def parameters(self) -> Iterator[nn.Parameter]:
        return (p for _, p in self.named_parameters())


def owners(model: nn.Module, size: int) -> list[set[str]]:
    """The parameter names of each of ``size`` ranks: the largest first, each to whoever has the least so far."""
    shares: list[set[str]] = [set() for _ in range(size)]
    loads = [0] * size
    for name, parameter in sorted(model.named_parameters(), key=lambda item: (-item[1].numel(), item[0])):
        rank = loads.index(min(loads))
        shares[rank].add(name)
        loads[rank] += parameter.numel()
    return shares


class ShardedOptimizer:
    """An optimizer over this rank's share; ``step`` leaves every rank with all the new weights."""

    def __init__(self, ranks: Ranks, model: nn.Module, make: Callable[[Any], torch.optim.Optimizer]) -> None:
        shares = owners(model, ranks.size)
        self.part = Part(model, shares[ranks.rank])
        self.inner = make(self.part)
        by_name = dict(model.named_parameters())
        self._parameters = list(by_name.values())
        self._packets = [
            (rank, packet)
            for rank, names in enumerate(shares)
            for packet in _packets([by_name[name] for name in by_name if name in names])
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
        under_way: deque[_Sent] = deque()
        with contact():
            for rank, packet in self._packets:
                if len(under_way) == UNDER_WAY:  # each needs memory
                    _receive(under_way.popleft())
                under_way.append(_send(rank, packet))
            while under_way:
                _receive(under_way.popleft())


_Sent = tuple[Any, Tensor | None, list[nn.Parameter]]


def _send(rank: int, packet: list[nn.Parameter]) -> _Sent:
    """Start to hand over a packet. A single parameter is sent from, and received, where it is."""
    if len(packet) == 1:
        return dist.broadcast(packet[0].data, src=rank, async_op=True), None, packet
    flat = torch.cat([p.view(-1) for p in packet])
    return dist.broadcast(flat, src=rank, async_op=True), flat, packet


def _receive(sent: _Sent) -> None:
    work, flat, packet = sent
    work.wait()
    if flat is not None:
        for parameter, part in zip(packet, flat.split([p.numel() for p in packet]), strict=True):
            parameter.copy_(part.view_as(parameter))


def _packets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    packets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        nbytes = 4 * parameter.numel()
        if not packets or nbytes > room:
            packets.append([])
            room = PACKET_BYTES
        packets[-1].append(parameter)
        room -= nbytes
    return packets


def collect(ranks: Ranks, own: dict[str, Tensor]) -> dict[str, Tensor]:
    """On rank 0 the tensors of all ranks, by name; elsewhere ``own``. Every rank must call it."""
    described = ranks.gather([(name, tuple(t.shape), t.dtype) for name, t in own.items()])
    if not ranks.main:
        with contact():
            for tensor in own.values():
                dist.send(tensor.detach().contiguous(), dst=0)
        return own
    whole = dict(own)
    with contact():
        for rank, tensors in enumerate(described[1:], start=1):
            for name, shape, dtype in tensors:
                whole[name] = torch.empty(shape, dtype=dtype)
                dist.recv(whole[name], src=rank)
    return whole


def deal(ranks: Ranks, whole: dict[str, Tensor], wanted: Callable[[str], bool]) -> dict[str, Tensor]:
    """On every rank those of rank 0's tensors whose names it wants. Every rank must call it; the others give {}."""
    described = ranks.first(lambda: [(name, tuple(t.shape), t.dtype) for name, t in whole.items()])
    kept = {}
    for name, shape, dtype in described:
        tensor = whole[name] if ranks.main else torch.empty(shape, dtype=dtype)
        ranks.spread([tensor])
        if wanted(name):
            kept[name] = tensor
    return kept
