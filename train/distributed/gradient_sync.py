"""Gradients summed over the ranks while the backward pass still runs.

Parameters are put into buckets in the order in which the backward pass finishes them. In the last micro-batch a
bucket whose gradients are all there is sent off at once (gloo, in threads of its own), while autograd goes on with
the layers below. What is left after the backward pass is waited for in :meth:``GradientExchange.finish``, together
with a few numbers on which the ranks must agree.

This is what torch's DistributedDataParallel does; it is not used since it wants to wrap ``forward``, while training
calls ``LanguageModel.loss`` with layers compiled one by one, and keeps its buckets in memory all the time.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from train.distributed.ranks import Ranks, contact
from train.interrupt import Interrupt

BUCKET_BYTES = 8 * 2**20
"""A bucket is closed when it has this many bytes of f32 gradients: small enough to start early, large enough that
the messages' latency does not count. A larger parameter is a bucket of its own."""


class SharedInterrupt(Interrupt):
    """A signal counts from the step on which every rank has been told of it."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: int | None = None
        """The signal that this process got."""

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A rank that left alone would take the others with it: every step is finished."""
        yield

    def _receive(self, number: int, _frame: Any) -> None:
        if self.heard is not None and not self._saving and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.heard = number


class Exchange:
    """What a step does with the other ranks. This class is the single process's: nothing."""

    def __init__(self, interrupt: Interrupt | None = None) -> None:
        self._interrupt = interrupt

    size = 1
    """Ranks among which a step's micro-batches are divided."""
    waited = 0.0
    """Seconds spent waiting for the others after the steps' backward passes, in all."""

    def begin_last_backward(self) -> None:
        """Called before the backward pass of the step's last micro-batch."""

    def finish(self, loss_sum: float) -> float:
        """Called after it: every gradient becomes the sum over the ranks. Returns the sum of ``loss_sum`` over them."""
        return loss_sum

    def agreed_elapsed(self, own: float) -> float:
        """Seconds of training, the same on every rank (rank 0's as of the last step); ``own`` for a single process."""
        return own

    def heard(self) -> bool:
        """Whether this process got a signal to end, be the others told of it or not."""
        return bool(self._interrupt)


ALONE = Exchange()


class GradientExchange(Exchange):
    """Sums ``param.grad`` over the ranks, bucket by bucket, and agrees on loss, signals and time."""

    def __init__(
        self,
        ranks: Ranks,
        parameters: Sequence[nn.Parameter],
        *,
        interrupt: SharedInterrupt,
        elapsed: Callable[[], float],
        start_elapsed: float = 0.0,
        wire: torch.dtype = torch.float32,
    ) -> None:
        self.size = ranks.size
        self._ranks, self._interrupt, self._elapsed, self._wire = ranks, interrupt, elapsed, wire
        self._buckets = [_Bucket(each) for each in buckets(parameters)]
        self._bucket_of = {p: bucket for bucket in self._buckets for p in bucket.parameters}
        self._next = 0
        self._armed = False
        self._agreed = start_elapsed
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._ready)

    def begin_last_backward(self) -> None:
        for bucket in self._buckets:
            bucket.missing = set(bucket.parameters)
        self._next, self._armed = 0, True

    def _ready(self, parameter: nn.Parameter) -> None:
        if not self._armed:
            return
        self._bucket_of[parameter].missing.discard(parameter)
        # Every rank must send its buckets in the same order, whichever is ready first.
        while self._next < len(self._buckets) and not self._buckets[self._next].missing:
            self._send_next()

    def _send_next(self) -> None:
        with contact():
            self._buckets[self._next].send(self._wire)
        self._next += 1

    def finish(self, loss_sum: float) -> float:
        self._armed = False
        began = perf_counter()
        while self._next < len(self._buckets):
            self._send_next()
        heard = self._interrupt.heard
        news = [
            loss_sum,
            float(heard == signal.SIGINT),
            float(heard == signal.SIGTERM),
            self._elapsed() if self._ranks.main else 0.0,
        ]
        loss_sum, interrupted, terminated, self._agreed = self._ranks.total(news)
        with contact():
            for bucket in self._buckets:
                bucket.receive()
        if interrupted or terminated:
            self._interrupt.signal = int(signal.SIGINT if interrupted else signal.SIGTERM)
        self.waited += perf_counter() - began
        return loss_sum

    def agreed_elapsed(self, own: float) -> float:
        return self._agreed

    def heard(self) -> bool:
        return self._interrupt.heard is not None


def take_part(
    ranks: Ranks, model: nn.Module, *, elapsed: Callable[[], float], start_elapsed: float, wire: str
) -> tuple[Interrupt, Exchange]:
    """How this process hears of signals, and how its steps are joined with the other ranks'."""
    if ranks.size == 1:
        interrupt = Interrupt()
        return interrupt, Exchange(interrupt)
    shared = SharedInterrupt()
    return shared, GradientExchange(
        ranks,
        list(model.parameters()),
        interrupt=shared,
        elapsed=elapsed,
        start_elapsed=start_elapsed,
        wire={"f32": torch.float32, "bf16": torch.bfloat16}[wire],
    )


class _Bucket:
    """Parameters whose gradients travel together."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing: set[nn.Parameter] = set()
        self._flat: Tensor | None = None
        self._sent: Tensor | None = None
        self._work: Any = None

    def send(self, wire: torch.dtype) -> None:
        """Start the sum. The gradients become views of one flat tensor, so that nothing is held twice."""
        for p in self.parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if len(self.parameters) == 1 and self.parameters[0].grad.is_contiguous():
            flat = self.parameters[0].grad.view(-1)
        else:
            flat = torch.cat([p.grad.reshape(-1) for p in self.parameters])
            for p, part in zip(self.parameters, flat.split([p.numel() for p in self.parameters]), strict=True):
                p.grad = part.view_as(p)
        self._flat = flat
        self._sent = flat if wire == flat.dtype else flat.to(wire)
        self._work = dist.all_reduce(self._sent, async_op=True)

    def receive(self) -> None:
        """Wait for the sum."""
        self._work.wait()
        if self._sent is not self._flat:
            self._flat.copy_(self._sent)
        # The flat tensor lives as long as the gradients that look into it.
        self._work = self._sent = self._flat = None


def buckets(parameters: Sequence[nn.Parameter], most_bytes: int = BUCKET_BYTES) -> list[list[nn.Parameter]]:
    """Parameters in groups of at least ``most_bytes`` of f32 (the last may be smaller), last parameter first."""
    groups: list[list[nn.Parameter]] = []
    room = 0
    for parameter in reversed(parameters):
        nbytes = 4 * parameter.numel()
        if not groups or room <= 0 or nbytes >= most_bytes:
            groups.append([])
            room = most_bytes
        groups[-1].append(parameter)
        room -= nbytes
    return groups
